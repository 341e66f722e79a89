//! Reads a file of constraints, or a plan file as one.

use std::collections::BTreeMap;

use diag::{Error, Result};
use graph::{Graph, OpId};
use rules::Analysis;

use super::dims::Dims;
use super::{Along, Constraint, Demand, Level, Says};
use crate::device_list::device_list;
use crate::glob::glob;
use crate::op_index::OpIndex;
use crate::select::{clip, folded_path, select};

const HEADER: &str = "shardwright-constraints 1";
const PLAN: &str = "shardwright-plan 1";

/// The constraints of a file that is called so, for a model on so many devices.
pub fn read(
    text: &str,
    called: &str,
    graph: &Graph,
    analysis: &Analysis,
    devices: u32,
) -> Result<Vec<Constraint>> {
    let lines = (1..).zip(text.lines()).filter(|(_, line)| !said(line).is_empty());
    let mut lines = lines.map(|(number, line)| (number, line, said(line)));
    let first = lines.next();
    let Some((_, _, header @ (HEADER | PLAN))) = first else {
        let begins = first.map_or("it is empty".into(), |it| format!("it begins with `{}`", clip(it.2)));
        return Err(Error::new("SW0332", "this is not a constraints file of a known version")
            .at(format!("{called}, line {}", first.map_or(1, |it| it.0)))
            .why(begins)
            .fix(format!("the first line must be `{HEADER}`, or `{PLAN}` for a partial plan")));
    };
    let reader =
        ConstraintReader { index: OpIndex::new(graph), graph, dims: Dims::new(graph, analysis), devices };
    let mut constraints = vec![];
    for (number, line, said) in lines {
        let place = format!("{called}, line {number}");
        let says = match header {
            HEADER => reader.line(said).map(Some),
            _ => reader.line_of_plan(said),
        };
        let says = says.map_err(|error| located(error, &place, line))?;
        constraints.extend(says.map(|says| Constraint { place, text: said.to_owned(), says }));
    }
    Ok(constraints)
}

/// A line without what is said beside it.
fn said(line: &str) -> &str {
    let line = line.trim();
    if line.starts_with('#') { "" } else { line.split_once("  #").map_or(line, |(said, _)| said).trim() }
}

/// An error with its line, and the column of the word that it names.
fn located(error: Error, place: &str, line: &str) -> Error {
    let word = error.what.split('`').nth(1).filter(|word| !word.is_empty());
    let column = word.and_then(|word| line.find(word)).unwrap_or(line.len() - line.trim_start().len());
    let column = line[..column].chars().count() + 1;
    let place = format!("{place}, column {column}");
    Error { place: Some(place), ..error }
}

fn bad(what: impl Into<String>) -> Error {
    Error::new("SW0332", what)
}

struct ConstraintReader<'g> {
    index: OpIndex<'g>,
    graph: &'g Graph,
    dims: Dims<'g>,
    devices: u32,
}

impl ConstraintReader<'_> {
    fn line(&self, line: &str) -> Result<Says> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match (word, rest.trim()) {
            ("pin" | "op", rest) => self.pin(rest),
            ("forbid", "recompute") => Ok(Says::NoRecompute),
            ("forbid", "offload") => Ok(Says::NoOffload),
            ("forbid", rest) => self.limit(rest, Some(1)),
            ("limit", rest) => self.limited(rest),
            ("tie", rest) => Ok(Says::Alike(self.same(&self.select(rest)?))),
            ("use", rest) => Ok(used(rest)),
            _ => Err(bad(format!("no constraint begins with `{}`", clip(word)))
                .fix("a line begins with `pin`, `forbid`, `limit`, `tie`, `use` or `op`")),
        }
    }

    /// Of a partial plan what it says of operators.
    fn line_of_plan(&self, line: &str) -> Result<Option<Says>> {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "name" => Ok(None),
            "devices" if rest.trim() == self.devices.to_string() => Ok(None),
            "devices" => Err(bad(format!("the partial plan is for `{}` devices", clip(rest.trim())))
                .why(format!("the search is for a plan on {} devices", self.devices))
                .fix("leave the line out, or search for a plan on that many devices")),
            "op" | "use" => self.line(line).map(Some),
            _ => Err(bad(format!("the line `{}` of a plan is not a constraint", clip(word)))
                .why("only the lines `op` and `use` of a partial plan are constraints")
                .fix("remove the line, or write a constraints file")),
        }
    }

    fn select(&self, who: &str) -> Result<Vec<OpId>> {
        let who = who.trim();
        match who.chars().next() {
            Some('"' | '%') => select(who, &self.index),
            Some(_) if who.contains('.') => select(&format!("\"*\" {who}"), &self.index),
            Some(_) => self.of_class(who),
            None => Err(bad("the line does not say which operators it is for").fix(
                "name a path in quotes, a kind such as `aten.linear.*`, a class of modules, or `%name`",
            )),
        }
    }

    /// All operators in modules of a class.
    fn of_class(&self, class: &str) -> Result<Vec<OpId>> {
        let modules: Vec<&str> = (self.graph.modules.iter())
            .filter(|(_, module_class)| glob(class, module_class))
            .map(|(path, _)| path.as_str())
            .collect();
        let inside = |path: &str| {
            let is_in = |module: &&str| {
                let rest = path.strip_prefix(*module);
                module.is_empty() || rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('.'))
            };
            modules.iter().any(is_in)
        };
        let ops: Vec<OpId> = self.graph.op_ids().filter(|op| inside(&self.graph.op(*op).module)).collect();
        if !ops.is_empty() {
            return Ok(ops);
        }
        let mut classes: Vec<&str> = self.graph.modules.iter().map(|(_, class)| class.as_str()).collect();
        classes.sort_unstable();
        classes.dedup();
        Err(Error::new("SW0302", format!("no module has the class `{}`", clip(class)))
            .why(format!("there are {}", classes.join(", ")))
            .fix("name one of them, or a path in quotes"))
    }

    fn who<'l>(&self, line: &'l str) -> Result<(Vec<OpId>, Level, &'l str)> {
        let split = line.rsplit_once(": ").or_else(|| line.rsplit_once(':'));
        let Some((who, what)) = split else {
            return Err(bad("`:` is missing").fix("write `pin \"path\": split batch 2`"));
        };
        let (who, level) = level(who);
        Ok((self.select(who)?, level, what.trim()))
    }

    fn pin(&self, line: &str) -> Result<Says> {
        let (ops, level, what) = self.who(line)?;
        let on = what.strip_prefix("on ").map(|devices| ("", devices)).or_else(|| what.split_once(" on "));
        let (what, devices) = match on {
            Some((what, devices)) => (what.trim(), Some(device_list(devices)?)),
            None => (what, None),
        };
        match devices {
            Some(devices) if what.is_empty() => {
                Ok(Says::Devices { ops, devices: devices.into_iter().collect() })
            }
            Some(devices) if (0..self.devices).any(|device| !devices.contains(&device)) => {
                Err(bad("`on` is in one line with a split")
                    .fix("write two lines: `pin \"path\": split batch 2` and `pin \"path\": on 0..4`"))
            }
            _ => self.splits(&ops, level, what).map(Says::Ways),
        }
    }

    fn splits(&self, ops: &[OpId], level: Level, what: &str) -> Result<Vec<Demand>> {
        let only = |op: &OpId| Demand { op: *op, level, along: vec![], only: true, copies: None };
        let mut demands: Vec<Demand> = ops.iter().map(only).collect();
        for word in what.split(',').map(str::trim) {
            match word.split_whitespace().collect::<Vec<_>>()[..] {
                ["single" | "replicate"] => {}
                ["replicate", parts] if level == Level::All => {
                    let parts = number(parts)?;
                    demands.iter_mut().for_each(|it| it.copies = Some(parts));
                }
                ["split", dim] => self.along(&mut demands, dim, 2, u32::MAX)?,
                ["split", dim, parts] => {
                    let parts = number(parts)?;
                    self.along(&mut demands, dim, parts, parts)?;
                }
                _ => {
                    return Err(bad(format!("`{}` does not say how to split operators", clip(word)))
                        .fix("write `split DIM`, `split DIM WAYS`, `replicate` or `single`"));
                }
            }
        }
        Ok(demands)
    }

    /// Those that have the dim are divided along it so often; at least one does.
    fn along(&self, demands: &mut [Demand], dim: &str, least: u32, most: u32) -> Result<()> {
        let mut is_there = false;
        for demand in demands.iter_mut() {
            let loops = self.dims.loops(demand.op, dim);
            if !loops.is_empty() {
                is_there = true;
                demand.along.push(Along { loops, least, most });
            }
        }
        if is_there {
            return Ok(());
        }
        let ops: Vec<OpId> = demands.iter().map(|it| it.op).collect();
        let known = self.dims.known(&ops);
        Err(bad(format!("none of these operators can be split along `{}`", clip(dim))).fix(
            if known.is_empty() {
                "they can only be replicated".into()
            } else {
                format!("name one of {known}")
            },
        ))
    }

    fn limited(&self, line: &str) -> Result<Says> {
        match line.split_once(' ') {
            Some(("memory", size)) => Ok(Says::Memory(size.trim().to_owned())),
            Some(("stages", many)) => number(many.trim()).map(Says::Stages),
            _ => self.limit(line, None),
        }
    }

    /// At most so many ways; without a number each dim has its own.
    fn limit(&self, line: &str, most: Option<u32>) -> Result<Says> {
        let (ops, level, what) = self.who(line)?;
        let open = |op: &OpId| Demand { op: *op, level, along: vec![], only: false, copies: None };
        let mut demands: Vec<Demand> = ops.iter().map(open).collect();
        for word in what.split(',').map(str::trim) {
            let (dim, most) = match (&word.split_whitespace().collect::<Vec<_>>()[..], most) {
                (["split", dim], Some(most)) => (*dim, most),
                (["split", dim, most], None) => (*dim, number(most)?),
                _ => {
                    return Err(bad(format!("`{}` does not say what to limit", clip(word)))
                        .fix("write `forbid \"path\": split DIM`, or `limit \"path\": split DIM WAYS`"));
                }
            };
            self.along(&mut demands, dim, 0, most)?;
        }
        demands.retain(|demand| !demand.along.is_empty());
        Ok(Says::Ways(demands))
    }

    /// Those that stand in one place of modules that differ in numbers only, and are of one kind.
    fn same(&self, ops: &[OpId]) -> Vec<Vec<OpId>> {
        let mut seen: BTreeMap<&str, usize> = BTreeMap::new();
        let mut sets: BTreeMap<(String, usize, &str), Vec<OpId>> = BTreeMap::new();
        let mut is_meant = vec![false; self.graph.ops.len()];
        ops.iter().for_each(|op| is_meant[op.index()] = true);
        for op in self.graph.op_ids() {
            let it = self.graph.op(op);
            let place = seen.entry(&it.module).or_default();
            *place += 1;
            if is_meant[op.index()] {
                sets.entry((folded_path(&it.module), *place, &it.target)).or_default().push(op);
            }
        }
        sets.into_values().filter(|set| set.len() > 1).collect()
    }
}

/// What is named, and at which level.
fn level(who: &str) -> (&str, Level) {
    let who = who.trim();
    for (words, level) in [("between nodes", Level::Between), ("inside nodes", Level::Inside)] {
        if let Some(rest) = who.strip_suffix(words) {
            return (rest.trim(), level);
        }
    }
    (who, Level::All)
}

fn used(line: &str) -> Says {
    let (name, level) = level(line);
    Says::Set { name: name.trim_matches('"').to_owned(), level }
}

fn number(word: &str) -> Result<u32> {
    word.parse().ok().filter(|number| *number > 0).ok_or_else(|| {
        bad(format!("`{}` is not a number above zero", clip(word))).fix("write one, such as `split batch 2`")
    })
}
