//! Plan files.
//!
//! ```text
//! shardwright-plan 1
//! name "mine"
//! devices 4
//! use "data:2 x megatron:2"                          # start from a named set
//! op "transformer.h.*.mlp.c_fc": split n 4           # operators by path, with globs
//! op "transformer.h.*" aten.gelu.*: split c 4 on 0..4
//! op "h.*" aten.add.Tensor[1]: split b 4             # the second of them at each path
//! op "h.*": split idx.0 4                            # a dim of the model, by a tensor that has it; copies elsewhere
//! op %linear_3: split b 2, replicate 2 on 3 1 0 2    # one operator by the name of its output
//! op %experts: exchange t 4                          # tokens and experts are divided, and rows exchanged
//! op "*": replicate 4
//! order %linear_3 < %linear_4
//! recompute "transformer.h.*"                        # each layer is computed again for backward
//! offload "transformer.h.*"                          # what is kept of each layer for backward waits on the host
//! offload state "transformer.h.*"                    # the optimizer's state of these parameters, between steps
//! offload parameters "transformer.h.*"               # these parameters themselves, between uses
//! param "transformer.h.*": over 4                    # each of four devices keeps a quarter
//! block "transformer.h.0.*"                          # a block of a pipeline; the next line is the next one
//! tokens 4                                           # in slices of the sequence, one after another
//! overlap 16MiB                                      # in backward, such messages run beside gradients of parameters
//! schedule 1f1b                                      # in which order blocks run
//! order B0 < F0+2                                    # a backward before a forward, of every micro-batch
//! timetable 0: F0+1 B0                               # what a device runs, written out
//! ```
//! Later lines win. `*` in a glob stands for any text, `?` for one without a dot, such as the number of a layer. Without `on`, sub-operators are spread over
//! the devices in order, evenly. A concrete plan prints one line for each operator.

use diag::{Error, Result};
use graph::{Graph, OpId};
use rules::Analysis;

use crate::device_list::{device_list, devices_text, spread};
use crate::op_index::OpIndex;
use crate::select::{clip, select};
use crate::{
    Draft, MOST, On, Plan, blocks, no_device, offload, overlap, param_sharding, recompute, sets, timetables,
    tokens,
};

/// Reads a plan file for a graph. `devices` overrides the file's own number, if given.
pub fn parse(text: &str, graph: &Graph, analysis: &Analysis, devices: Option<u32>) -> Result<Plan> {
    let lines: Vec<(usize, &str)> = (1..)
        .zip(text.lines().map(str::trim))
        .filter(|(_, l)| !l.is_empty() && !l.starts_with('#'))
        .collect();
    let Some(((_, "shardwright-plan 1"), rest)) = lines.split_first() else {
        return Err(Error::new("SW0301", "this is not a plan file of a known version")
            .at(format!("line {} of the plan", lines.first().map_or(1, |l| l.0)))
            .why(
                lines
                    .first()
                    .map_or("it is empty".into(), |(_, line)| format!("it begins with `{}`", clip(line))),
            )
            .fix("the first line must be `shardwright-plan 1`"));
    };
    let count = devices.map_or_else(|| stated_devices(rest), Ok)?;
    let mut reader = PlanReader {
        index: OpIndex::new(graph),
        analysis,
        draft: Draft::new(graph, analysis, stated_name(rest), count),
        devices: count,
    };
    for (number, line) in rest {
        reader.line(line).map_err(|mut e| {
            e.place = Some(match e.place {
                Some(place) => format!("line {number} of the plan, for the operator at {place}"),
                None => format!("line {number} of the plan"),
            });
            e
        })?;
    }
    reader.draft.finish()
}

/// A line for each operator.
pub fn print(plan: &Plan, graph: &Graph, analysis: &Analysis) -> String {
    let line = |op: OpId| {
        let it = graph.op(op);
        format!(
            "op %{}: {}  # {} {}\n",
            handle(graph, op),
            decision(plan, analysis, op),
            it.target,
            it.module.escape_default()
        )
    };
    header(plan) + &graph.op_ids().map(line).collect::<String>() + &rest(plan, &OpIndex::new(graph))
}

pub(crate) fn header(plan: &Plan) -> String {
    format!("shardwright-plan 1\nname {:?}\ndevices {}\n", plan.name, plan.devices)
}

/// How one operator is divided, and where its parts run.
pub(crate) fn decision(plan: &Plan, analysis: &Analysis, op: OpId) -> String {
    let op_plan = plan.op(op);
    let word = |on: On| match on {
        On::Loop(_) | On::Value => format!("split {}", on.word(analysis, op)),
        On::Copies | On::Exchange { .. } => on.word(analysis, op),
    };
    let splits: Vec<String> = op_plan.splits.iter().map(|s| format!("{} {}", word(s.on), s.parts)).collect();
    let splits = if splits.is_empty() { "single".into() } else { splits.join(", ") };
    format!("{splits} on {}", devices_text(&op_plan.devices))
}

/// What a plan says of more than one operator.
pub(crate) fn rest(plan: &Plan, index: &OpIndex<'_>) -> String {
    let graph = index.graph;
    let line = |(a, b): &(OpId, OpId)| format!("order %{} < %{}\n", handle(graph, *a), handle(graph, *b));
    let orders: String = plan.order.iter().map(line).collect();
    let handle = |op| format!("%{}", handle(graph, op));
    let recompute = recompute::print(plan, index, handle);
    let offload = recompute::lines("offload", &plan.offload, index, handle);
    let offloaded = offload::print_parameters(plan, graph);
    let timetables = timetables::print(&plan.before, &plan.timetables);
    let param_shardings = param_sharding::print(plan, graph);
    let overlap = overlap::print(plan);
    orders
        + &param_shardings
        + &recompute
        + &offload
        + &offloaded
        + &blocks::print(plan, handle)
        + &overlap
        + &timetables
}

/// The name by which a file speaks of one operator: its first output.
fn handle(graph: &Graph, op: OpId) -> &str {
    graph.op(op).outputs.iter().flatten().next().map_or("_", |t| &graph.tensor(*t).name)
}

fn stated_devices(lines: &[(usize, &str)]) -> Result<u32> {
    let stated = lines.iter().find_map(|(n, l)| Some((n, l.strip_prefix("devices ")?)));
    let Some((number, word)) = stated else {
        return Err(Error::new("SW0301", "the plan does not say for how many devices it is")
            .why("no line begins with `devices`")
            .fix("add a line `devices 4`"));
    };
    match word.trim().parse() {
        Ok(count) if (1..=MOST).contains(&count) => Ok(count),
        _ => Err(Error::new("SW0301", format!("`{}` is not a number of devices", clip(word.trim())))
            .at(format!("line {number} of the plan"))
            .fix(format!("write a number from 1 to {MOST}"))),
    }
}

fn stated_name<'t>(lines: &[(usize, &'t str)]) -> &'t str {
    lines.iter().find_map(|(_, l)| l.strip_prefix("name ")).map_or("plan", |n| n.trim().trim_matches('"'))
}

struct PlanReader<'g> {
    index: OpIndex<'g>,
    analysis: &'g Analysis,
    draft: Draft<'g>,
    devices: u32,
}

impl PlanReader<'_> {
    fn line(&mut self, line: &str) -> Result<()> {
        let line = line.split_once("  #").map_or(line, |(code, _)| code).trim();
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        match word {
            "name" | "devices" => Ok(()),
            "use" => self.use_set(rest.trim().trim_matches('"')),
            "op" => self.op(rest),
            "order" => self.order(rest),
            "param" => self.draft.param(rest),
            "timetable" => self.timetable(rest),
            "block" => {
                self.draft.block(&blocks::read(rest, &self.index)?);
                Ok(())
            }
            "schedule" => {
                self.draft.schedule(blocks::schedule_named(rest.trim())?);
                Ok(())
            }
            "tokens" => {
                self.draft.tokens(tokens::read(rest.trim())?);
                Ok(())
            }
            "overlap" => {
                self.draft.overlap(overlap::read(rest.trim())?);
                Ok(())
            }
            "recompute" => {
                let spans = recompute::read(rest.trim(), &self.index)?;
                // None is said, too.
                self.draft.recompute(vec![]);
                spans.into_iter().for_each(|span| self.draft.recompute(span));
                Ok(())
            }
            "offload" => self.offload(rest.trim()),
            _ => Err(Error::new("SW0301", format!("no line of a plan begins with `{}`", clip(word))).fix(
                "a line begins with `name`, `devices`, `use`, `op`, `order`, `param`, `recompute`, `offload`, `block`, \
                 `schedule`, `tokens`, `overlap` or `timetable`",
            )),
        }
    }

    fn use_set(&mut self, set: &str) -> Result<()> {
        let set = sets::drafted(set, self.index.graph, self.analysis, self.devices)?;
        self.draft.follow(set.pause());
        Ok(())
    }

    fn offload(&mut self, what: &str) -> Result<()> {
        if let Some((kind, names)) = offload::of_parameters(what) {
            return self.draft.offload_of(kind, names);
        }
        offload::read(what, &self.index)?.into_iter().for_each(|span| self.draft.offload(span));
        Ok(())
    }

    fn op(&mut self, rest: &str) -> Result<()> {
        let Some((who, what)) = rest.rsplit_once(": ").or_else(|| rest.rsplit_once(':')) else {
            return Err(Error::new("SW0301", "`:` is missing").fix("write `op \"path\": split b 2`"));
        };
        let ops = select(who.trim(), &self.index)?;
        let (trans, devices) = match what.split_once(" on ") {
            Some((trans, devices)) => (trans, Some(device_list(devices)?)),
            None => (what, None),
        };
        for &op in &ops {
            self.draft.set(op, vec![]);
            for word in trans.split(',').map(str::trim) {
                self.trans(op, word, &ops)?;
            }
            let count = self.draft.parts(op).len();
            match &devices {
                Some(devices) => self.draft.place(op, &devices[..])?,
                None => self.draft.place(op, spread(count, self.devices))?,
            }
        }
        Ok(())
    }

    /// For one of the operators that a line is about. A dim of the model need not go through all of them.
    fn trans(&mut self, op: OpId, word: &str, all: &[OpId]) -> Result<()> {
        let words: Vec<&str> = word.split_whitespace().collect();
        let number = |text: &str| {
            let bad = |_| Error::new("SW0301", format!("`{}` is not a number of parts", clip(text)));
            text.parse::<u32>().map_err(|e| bad(e).fix("write a whole number, such as `split b 2`"))
        };
        match words[..] {
            ["single"] => Ok(()),
            ["replicate", parts] => self.draft.trans(op, "replicate", number(parts)?).map(drop),
            ["split", dim, parts] => {
                let elsewhere = |op: &OpId| self.draft.goes_elsewhere(*op, dim);
                let copied = elsewhere(&op) && !all.iter().all(elsewhere);
                self.draft.trans(op, if copied { "replicate" } else { dim }, number(parts)?).map(drop)
            }
            ["exchange", dim, parts] => {
                self.draft.trans(op, &format!("exchange {dim}"), number(parts)?).map(drop)
            }
            _ => {
                Err(Error::new("SW0301", format!("`{}` does not say how to split an operator", clip(word)))
                    .fix("write `split DIM PARTS`, `split value PARTS`, `exchange DIM PARTS`, `replicate PARTS` or `single`"))
            }
        }
    }

    fn timetable(&mut self, rest: &str) -> Result<()> {
        let Some((whose, tasks)) = rest.split_once(':') else {
            return Err(Error::new("SW0329", "`:` is missing").fix("write `timetable 0: F0+1 B0`"));
        };
        let (devices, by) = match whose.split_once(" by ") {
            Some((devices, by)) => (devices, Some(by)),
            None => (whose, None),
        };
        let loops = timetables::loops(by, tasks)?;
        for device in device_list(devices)? {
            if device >= self.devices {
                return Err(no_device(device.into(), self.devices));
            }
            self.draft.timetable(device, loops.clone());
        }
        Ok(())
    }

    fn order(&mut self, rest: &str) -> Result<()> {
        let Some((a, b)) = rest.split_once('<') else {
            return Err(Error::new("SW0301", "`<` is missing").fix("write `order %a < %b`"));
        };
        if let (Some(first), Some(then)) = (timetables::task(a.trim()), timetables::task(b.trim())) {
            self.draft.order_tasks(first, then);
            return Ok(());
        }
        let (before, after) = (select(a.trim(), &self.index)?, select(b.trim(), &self.index)?);
        for &a in &before {
            after.iter().for_each(|&b| self.draft.order(a, b));
        }
        Ok(())
    }
}
