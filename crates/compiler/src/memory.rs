//! Whether a program fits into the memory of each rank; if not, what uses it, where, and what would save some.

use std::cmp::Reverse;

use check::{Masters, Memory, Purpose};
use diag::{Error, Result};
use graph::Graph;
use plan::{Plan, PlanName, sets};
use program::Boundary;
use rules::Analysis;

use crate::{Compiled, compile_watched};

/// What each of PyTorch's optimizers needs with its usual options.
pub(crate) struct OptimizerSteps {
    name: &'static str,
    /// How many tensors like a parameter its state has, and how many numbers besides.
    pub(crate) state: (u64, u64),
    /// How often a step reads or writes as many bytes as a parameter has: in PyTorch's usual way, one operator after
    /// the other over all parameters.
    pub(crate) passes: u64,
}

const OPTIMIZERS: [OptimizerSteps; 13] = [
    OptimizerSteps { name: "adadelta", state: (2, 1), passes: 26 },
    OptimizerSteps { name: "adagrad", state: (1, 1), passes: 15 },
    OptimizerSteps { name: "adam", state: (2, 1), passes: 18 },
    OptimizerSteps { name: "adamax", state: (2, 1), passes: 16 },
    OptimizerSteps { name: "adamw", state: (2, 1), passes: 20 },
    OptimizerSteps { name: "asgd", state: (1, 3), passes: 12 },
    OptimizerSteps { name: "nadam", state: (2, 2), passes: 22 },
    OptimizerSteps { name: "none", state: (0, 0), passes: 0 },
    OptimizerSteps { name: "radam", state: (2, 1), passes: 24 },
    OptimizerSteps { name: "rmsprop", state: (1, 1), passes: 13 },
    OptimizerSteps { name: "rprop", state: (2, 1), passes: 25 },
    OptimizerSteps { name: "sgd", state: (0, 0), passes: 3 },
    OptimizerSteps { name: "sgd-momentum", state: (1, 0), passes: 8 },
];

/// The memory of each rank, and the optimizer whose state is in it.
#[derive(Clone, Debug)]
pub struct Limit<'a> {
    pub bytes: u64,
    pub optimizer: String,
    pub masters: &'a Masters,
}

/// What each rank has, with the state of an optimizer.
pub fn with_optimizer(memory: &[Memory], name: &str) -> Result<Vec<Memory>> {
    let (tensors, numbers) = optimizer(name)?.state;
    Ok(memory.iter().map(|rank| rank.clone().stepped(tensors, numbers)).collect())
}

/// An optimizer by its name.
pub(crate) fn optimizer(name: &str) -> Result<&'static OptimizerSteps> {
    OPTIMIZERS.iter().find(|it| it.name == name).ok_or_else(|| {
        let known: Vec<&str> = OPTIMIZERS.iter().map(|it| it.name).collect();
        Error::new("SW0430", format!("the optimizer {name:?} is unknown"))
            .why("what it holds for each parameter is a part of the memory that a step needs")
            .fix(format!("give the one that is most like it, of {}", known.join(", ")))
    })
}

/// Refuses a program of which some rank needs more than it has.
pub fn fits(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    boundary: &Boundary,
    compiled: &Compiled,
    limit: &Limit<'_>,
) -> Result<()> {
    let Some((total, error)) = excess(compiled, limit)? else { return Ok(()) };
    let saved = savings(graph, analysis, plan, boundary, limit, total);
    let suggestions: Vec<String> = saved.iter().map(|(name, bytes)| saving(name, *bytes, limit)).collect();
    let more = MORE;
    Err(error.fix(match (suggestions.is_empty(), plan.recompute.is_empty()) {
        (false, _) => format!("{}; or {more}", suggestions.join(", ")),
        (true, true) => format!("recompute layers in backward (`recompute \"h.*\"`), {more}"),
        (true, false) => more.into(),
    }))
}

/// The same of a program that no plan is known of.
pub fn fits_alone(compiled: &Compiled, limit: &Limit<'_>) -> Result<()> {
    excess(compiled, limit)?.map_or(Ok(()), |(_, error)| Err(error.fix(MORE)))
}

const MORE: &str = "shard the model over more devices, or use smaller batches";

/// What the rank needs that needs most, if that is more than it has, and the error that says so.
fn excess(compiled: &Compiled, limit: &Limit<'_>) -> Result<Option<(u64, Error)>> {
    let memory = with_optimizer(&compiled.proof.memory, &limit.optimizer)?;
    let most = memory.iter().enumerate().max_by_key(|(rank, it)| (it.total(), Reverse(*rank)));
    let Some((rank, most)) = most.filter(|(_, it)| it.total() > limit.bytes) else { return Ok(None) };
    let (needed, there) = (size(most.total()), size(limit.bytes));
    let what = format!(
        "rank {rank} needs {needed} at its peak, {} more than the {there} that it has",
        size(most.total() - limit.bytes)
    );
    let error = Error::new("SW0530", what).why(uses(most, &limit.optimizer));
    let error = if let Some(at) = &most.at { error.at(at.to_string()) } else { error };
    Ok(Some((most.total(), error)))
}

/// What a rank needs memory for.
pub fn uses(memory: &Memory, optimizer: &str) -> String {
    let used = Purpose::ALL.into_iter().filter(|purpose| memory.peak[*purpose as usize] > 0);
    let one = |purpose: Purpose| {
        let suffix = if purpose == Purpose::Optimizer { format!(" ({optimizer})") } else { String::new() };
        format!("{} {}{suffix}", size(memory.peak[purpose as usize]), purpose.name())
    };
    used.map(one).collect::<Vec<_>>().join(", ")
}

fn saving(name: &str, bytes: u64, limit: &Limit<'_>) -> String {
    let fits = if bytes <= limit.bytes { ", which fits" } else { "" };
    format!("the plan `{name}` needs {}{fits}", size(bytes))
}

/// Named plans that differ from this one by a choice that saves memory, and what they need.
fn savings(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    boundary: &Boundary,
    limit: &Limit<'_>,
    most: u64,
) -> Vec<(String, u64)> {
    let by_name = sets::named(&plan.name, graph, analysis, plan.devices);
    let Ok(name) = plan.name.parse::<PlanName>() else { return vec![] };
    if by_name.is_ok_and(|named| named.ops != plan.ops) {
        return vec![];
    }
    let tried = name.with_less_memory().into_iter().map(|name| name.to_string()).filter_map(|name| {
        let other = sets::named(&name, graph, analysis, plan.devices).ok()?;
        let compiled = compile_watched(graph, analysis, &other, boundary, limit.masters, &mut |_| {}).ok()?;
        let memory = with_optimizer(&compiled.proof.memory, &limit.optimizer).ok()?;
        Some((name, memory.iter().map(Memory::total).max()?))
    });
    tried.filter(|(_, bytes)| *bytes < most).collect()
}

/// Bytes as people say them, which Python's summary does alike.
pub fn size(bytes: u64) -> String {
    let mut size = bytes as f64;
    for unit in ["B", "KiB", "MiB"] {
        if size < 1024.0 {
            return if unit == "B" { format!("{size:.0} B") } else { format!("{size:.1} {unit}") };
        }
        size /= 1024.0;
    }
    format!("{size:.1} GiB")
}

/// Reads `16GiB`, `512 MiB` or `80GB`.
pub fn bytes(text: &str) -> Result<u64> {
    const UNITS: [(&str, u64); 9] = [
        ("KiB", 1 << 10),
        ("MiB", 1 << 20),
        ("GiB", 1 << 30),
        ("TiB", 1 << 40),
        ("KB", 1_000),
        ("MB", 1_000_000),
        ("GB", 1_000_000_000),
        ("TB", 1_000_000_000_000),
        ("B", 1),
    ];
    let read = UNITS.iter().find_map(|(unit, factor)| Some((text.trim().strip_suffix(unit)?, *factor)));
    let (number, factor) = read.unwrap_or((text, 1));
    match number.trim().parse::<f64>() {
        Ok(number) if number > 0.0 && number.is_finite() => Ok((number * factor as f64) as u64),
        _ => Err(Error::new("SW0431", format!("{text:?} is not a size of memory"))
            .why("it is a number above zero with a unit")
            .fix("give one such as 16GiB, 512MiB or 80GB")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read() {
        let read = |text: &str| bytes(text).map_err(|error| error.code);
        assert_eq!(read("16GiB"), Ok(16 << 30));
        assert_eq!(read(" 1.5 KiB"), Ok(1536));
        assert_eq!(read("80GB"), Ok(80_000_000_000));
        assert_eq!(read("512"), Ok(512));
        for text in ["", "GiB", "-1GiB", "many", "infGiB", "NaN"] {
            assert_eq!(read(text), Err("SW0431"));
        }
    }

    #[test]
    fn optimizers_hold_what_they_need() {
        let rank = Memory { trained: (3, 1000), ..Memory::default() };
        let total = |name: &str| Ok(with_optimizer(std::slice::from_ref(&rank), name)?[0].total());
        assert_eq!(total("adamw").map_err(|error: Error| error.code), Ok(2012));
        assert_eq!(total("sgd").map_err(|error: Error| error.code), Ok(0));
        assert_eq!(total("lion").map_err(|error: Error| error.code), Err("SW0430"));
    }
}
