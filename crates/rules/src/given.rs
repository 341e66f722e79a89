//! Calls of what runs as the Python it is are given a rule.

use graph::{Arg, Graph, OpId};

use crate::algebra::{FOUND, Invalid, Kind, Operand, Rule, refuse_found};
use crate::families::registered::{Places, is_module, num_held, with_sizes};

/// A rule of the tensors that a call is given, and of what it gives.
pub struct Given<'a> {
    pub rule: &'a str,
    /// The dims whose sizes are arguments, with these.
    pub told: Vec<(String, i64)>,
    /// The call's text, if these are taken out of it.
    pub call: Option<&'a str>,
    /// Whether it was found by trying.
    pub found: bool,
}

/// Puts a rule among an operator's arguments. The shapes that its results must have, if it says them, are told by
/// the sizes of dims, of which a part has its own.
pub fn give(graph: &mut Graph, id: OpId, given: &Given<'_>) -> Result<(), Invalid> {
    refuse_found(given.rule)?;
    let places = Places::new(graph.op(id));
    let call = given.call.unwrap_or(text(graph, id, places.call)).to_owned();
    let rule = read(graph, id, given, &call)?;
    let mut sizes = given.told.clone();
    let call = match call.split_once(ARROW) {
        Some((arguments, results)) => {
            format!("{arguments}{ARROW}{}", symbolic_results(results, &rule, &mut sizes))
        }
        None => call,
    };
    let mut more = vec![Arg::Str(match given.found {
        true => format!("{} ; {FOUND}", given.rule),
        false => given.rule.to_owned(),
    })];
    if !sizes.is_empty() {
        more.push(Arg::List(sizes.iter().map(|(dim, _)| Arg::Str(dim.clone())).collect()));
        more.push(Arg::List(sizes.iter().map(|(_, size)| Arg::Int(*size)).collect()));
    }
    let op = &mut graph.ops[id.index()];
    op.args[places.call] = Arg::Str(call);
    op.args.truncate(places.rule);
    op.args.extend(more);
    Ok(())
}

const ARROW: &str = " -> ";

fn text(graph: &Graph, id: OpId, at: usize) -> &str {
    match graph.op(id).args.get(at) {
        Some(Arg::Str(text)) => text,
        _ => "",
    }
}

/// The rule of these tensors. Results that nothing reads have shapes, too, if the call says them.
fn read(graph: &Graph, id: OpId, given: &Given<'_>, call: &str) -> Result<Rule, Invalid> {
    let op = graph.op(id);
    let inputs: Vec<&[i64]> =
        op.inputs().into_iter().skip(num_held(op)).map(|t| &graph.tensor(t).shape[..]).collect();
    let said: Option<Vec<Vec<i64>>> =
        call.split_once(ARROW).map(|(_, results)| results_of(results).map(|(_, shape)| shape).collect());
    let known = op.outputs.iter().map(|t| t.map(|t| &graph.tensor(t).shape[..]));
    let outputs: Vec<Option<&[i64]>> = match &said {
        Some(shapes) => shapes.iter().map(|shape| Some(&shape[..])).collect(),
        None => known.collect(),
    };
    debug_assert!(is_module(op) || num_held(op) == 0);
    Rule::read(&with_sizes(given.rule, &given.told), &inputs, &outputs)
}

/// `float32[4,8]`, and more behind commas: types and shapes.
fn results_of(text: &str) -> impl Iterator<Item = (&str, Vec<i64>)> {
    text.split(']')
        .filter_map(|result| result.trim_start_matches([',', ' ']).split_once('['))
        .map(|(dtype, shape)| (dtype, shape.split(',').filter_map(|size| size.parse().ok()).collect()))
}

/// Results with `S0` for the size of a dim: its place among `sizes`, which get those that are not there yet.
fn symbolic_results(results: &str, rule: &Rule, sizes: &mut Vec<(String, i64)>) -> String {
    let mut dim = |(product, size): (&Vec<crate::DimId>, &i64)| {
        let mut fixed = *size;
        let mut words = vec![];
        for dim in product.iter().map(|id| rule.dim(*id)).filter(|dim| dim.kind == Kind::Map) {
            let known = sizes.iter().position(|(name, _)| *name == dim.name);
            let at = known.unwrap_or_else(|| {
                sizes.push((dim.name.clone(), dim.size));
                sizes.len() - 1
            });
            words.push(format!("S{at}"));
            fixed /= dim.size.max(1);
        }
        if fixed != 1 || words.is_empty() {
            words.push(fixed.to_string());
        }
        words.join("*")
    };
    let mut one = |((dtype, shape), operand): ((&str, Vec<i64>), &Operand)| {
        let dims: Vec<String> = match operand.absent {
            true => shape.iter().map(ToString::to_string).collect(),
            false => operand.dims.iter().zip(&shape).map(&mut dim).collect(),
        };
        format!("{dtype}[{}]", dims.join(","))
    };
    results_of(results).zip(&rule.outputs).map(&mut one).collect::<Vec<_>>().join(", ")
}
