//! What must hold of the program before it can be followed: sizes of tables, numbers in range, and
//! every buffer written once, before it is read.

use std::collections::{BTreeMap, BTreeSet};

use graph::{Graph, Source};
use program::{
    Arg, Body, BufId, Call, CallId, Collective, Inputs, Instr, Output, Pass, Program, RankId, Role, Table,
};
use rules::Analysis;

use crate::fault::{Fault, Faults, Place};
use crate::region::fits;
use crate::timetable::timetable;

/// Whether the program is of this model at all.
pub(crate) fn of_model(model: &Graph, program: &Program) -> Faults {
    let (mut faults, digest) = (Faults::default(), model.digest());
    if program.digest != digest {
        let why = format!("expected digest {digest}, found {}", program.digest);
        faults.push(Fault::new("SW0501", "the program was made for another model").why(why));
    }
    faults
}

/// `graph` is the rewritten one.
pub(crate) fn structure(graph: &Graph, analysis: &Analysis, program: &Program) -> Faults {
    let mut faults = Faults::default();
    if program.factors != analysis.factors {
        faults.push(Fault::new("SW0501", "the program's factors are not those of the model"));
    }
    ranks(program, &mut faults);
    if !faults.is_empty() {
        return faults;
    }
    let flat: Vec<Vec<i64>> = graph.tensor_ids().map(|id| analysis.flat(id)).collect();
    for (index, role) in program.roles.iter().enumerate() {
        Roles { graph, flat: &flat, program, index, role, faults: &mut faults }.check();
    }
    boundary(graph, program, &mut faults);
    faults
}

/// What leaves the program is what was asked for.
fn boundary(graph: &Graph, program: &Program, faults: &mut Faults) {
    let asked = &program.boundary.outputs;
    if asked.len() != graph.outputs.len() {
        faults.push(Fault::new("SW0502", "outputs are asked for that the model does not have"));
        return;
    }
    for role in &program.roles {
        for (number, (asked, found)) in asked.iter().zip(role.body.gives(Pass::Forward)).enumerate() {
            let (given, wanted) =
                (found.is_some(), *asked == Output::Whole && graph.outputs[number].is_some());
            if given != wanted && (*asked != Output::Local || graph.outputs[number].is_none()) {
                let what = format!(
                    "output {number} leaves the program on some ranks, or on none, against what is asked"
                );
                faults.push(Fault::new("SW0502", what).at(role.ranks[0], None));
            }
        }
    }
}

fn ranks(program: &Program, faults: &mut Faults) {
    let mut roles = BTreeMap::new();
    for rank in program.roles.iter().flat_map(|role| &role.ranks) {
        *roles.entry(*rank).or_insert(0) += 1;
    }
    let expected = (0..program.world).map(RankId);
    let wrong = expected.clone().find(|rank| roles.get(rank) != Some(&1));
    if let Some(rank) = wrong.or_else(|| roles.keys().find(|rank| rank.0 >= program.world).copied()) {
        let times = roles.get(&rank).copied().unwrap_or(0);
        faults.push(Fault::new("SW0502", format!("rank {} of {} has {times} roles", rank.0, program.world)));
    }
    for (index, grouping) in program.groupings.iter().enumerate() {
        let mut all: Vec<RankId> = grouping.iter().flatten().copied().collect();
        all.sort_unstable();
        let twice = all.windows(2).any(|pair| pair[0] == pair[1]);
        if twice || all.last().is_some_and(|rank| rank.0 >= program.world) {
            faults.push(Fault::new("SW0502", format!("grouping {index} is not a partition of ranks")));
        }
    }
    if program.roles.iter().any(|role| role.ranks.is_empty() || role.ranks.len() != role.tables.len()) {
        faults.push(Fault::new("SW0502", "a role has no ranks, or another number of tables than of ranks"));
    }
}

struct Roles<'a> {
    graph: &'a Graph,
    program: &'a Program,
    /// All factors of each tensor.
    flat: &'a [Vec<i64>],
    index: usize,
    role: &'a Role,
    faults: &'a mut Faults,
}

/// Which buffers can be read, while a body is read from its start.
struct Known {
    written: Vec<bool>,
    /// Inside of a call that is over.
    hidden: Vec<bool>,
}

impl Roles<'_> {
    fn check(mut self) {
        for (rank, table) in self.role.ranks.iter().zip(&self.role.tables) {
            if let Err(what) = self.table(table) {
                self.faults.push(Fault::new("SW0502", what).at(*rank, None));
            }
        }
        let body = &self.role.body;
        if let Err(what) = self.numbers(body) {
            self.faults.push(Fault::new("SW0502", what).at(self.role.ranks[0], None));
            return;
        }
        self.reads(body);
        self.calls(body);
        self.mirrored(body);
        for fault in timetable(self.index, self.role) {
            self.faults.push(fault);
        }
    }

    fn table(&self, table: &Table) -> Result<(), String> {
        let body = &self.role.body;
        if table.constants.len() != body.holes.len()
            || table.leaves.len() != body.leaves.len()
            || table.inputs.len() != body.inputs.len()
            || table.outputs.len() != body.gives(Pass::Forward).len()
        {
            return Err("a rank's table has other sizes than the code of its role".into());
        }
        for shard in &table.shards {
            let Some(tensor) = self.graph.tensors.get(shard.tensor.index()) else {
                return Err("a shard is of a tensor that does not exist".into());
            };
            let held =
                matches!(tensor.source, Source::Param { .. } | Source::Buffer { .. } | Source::Const { .. });
            if !held || !fits(&shard.region, &self.flat[shard.tensor.index()]) {
                return Err(format!(
                    "a shard of %{} is not a part of a parameter, buffer or constant",
                    tensor.name
                ));
            }
        }
        for (leaf, (shard, region)) in body.leaves.iter().zip(&table.leaves) {
            let shard = table.shards.get(*shard).filter(|shard| shard.tensor == leaf.tensor);
            let inside = shard.is_some_and(|shard| {
                fits(region, &self.flat[shard.tensor.index()]) && shard.region.contains(region)
            });
            if !inside {
                return Err(format!(
                    "leaf {} of tensor {} is not a part of a shard of it",
                    leaf.number, leaf.tensor.0
                ));
            }
        }
        for (input, region) in body.inputs.iter().zip(&table.inputs) {
            let tensor = self.graph.tensors.get(input.index());
            let given = tensor.is_some_and(|tensor| matches!(tensor.source, Source::Input { .. }));
            if !given || !fits(region, &self.flat[input.index()]) {
                return Err(format!("input of tensor {} is not a part of an input of the model", input.0));
            }
        }
        let local = self.program.boundary.inputs == Inputs::Local;
        let parts = || body.inputs.iter().zip(&table.inputs);
        if local && parts().any(|(tensor, region)| parts().any(|(t, r)| t == tensor && r != region)) {
            return Err("a rank is given two parts of one input".into());
        }
        self.leaving(table)
    }

    fn leaving(&self, table: &Table) -> Result<(), String> {
        let outputs = self.role.body.gives(Pass::Forward).iter();
        for ((buf, region), output) in outputs.zip(&table.outputs).zip(&self.graph.outputs) {
            let part = match (region, output) {
                (Some(region), Some(tensor)) => fits(region, &self.flat[tensor.index()]),
                (None, _) => true,
                (Some(_), None) => false,
            };
            if !part || buf.is_some() != region.is_some() {
                return Err("what leaves the program is not a part of an output of the model".into());
            }
        }
        Ok(())
    }

    /// Every number that an instruction names exists.
    fn numbers(&self, body: &Body) -> Result<(), String> {
        let mut bufs: Vec<BufId> = body.leaves.iter().map(|leaf| leaf.buf).collect();
        for code in &body.codes {
            bufs.extend(code.takes.iter().chain(code.gives.iter().flatten()));
        }
        let mut holes = vec![];
        for instr in body.instrs() {
            bufs.extend(instr.reads().into_iter().chain(instr.writes()));
            if let Instr::Call(call) = instr {
                bufs.extend(
                    call.ops
                        .iter()
                        .flat_map(|op| op.inputs().into_iter().chain(op.outputs.iter().flatten().copied())),
                );
            }
            let hole = |arg: &Arg| if let Arg::Hole(hole) = arg { Some(*hole) } else { None };
            holes.extend(instr.args().into_iter().filter_map(|(arg, _)| hole(arg)));
            self.indices(instr)?;
        }
        if bufs.iter().any(|buf| buf.index() >= body.bufs.len()) {
            return Err("an instruction names a buffer that does not exist".into());
        }
        if holes.iter().any(|hole| *hole as usize >= body.holes.len()) {
            return Err("an argument names a constant that does not exist".into());
        }
        if body.gives(Pass::Forward).len() != self.graph.outputs.len() {
            return Err("the program has another number of outputs than the model".into());
        }
        if body.takes(Pass::Forward).len() != body.inputs.len()
            || body.gives(Pass::Backward).iter().flatten().count() != body.gradients.len()
            || body.gives(Pass::Backward).contains(&None)
        {
            return Err("a code takes or gives another number of tensors than its role says".into());
        }
        if !body.codes.is_sorted_by(|a, b| a.pass < b.pass) {
            return Err("a pass has two codes, or they are out of order".into());
        }
        Ok(())
    }

    fn indices(&self, instr: &Instr) -> Result<(), String> {
        let leaves = self.role.body.leaves.len();
        let shards = self.role.tables.iter().map(|table| table.shards.len()).min().unwrap_or(0);
        if let Instr::Collective(Collective { how, from, to, .. }) = instr {
            if from.len() != to.len() || from.is_empty() || (from.len() > 1 && !how.cuts().is_empty()) {
                return Err("a communication has another number of results than of values".into());
            }
        }
        let fine = instr.leaves().iter().all(|leaf| leaf.index() < leaves)
            && instr.shards().iter().all(|shard| *shard < shards)
            && instr.group().is_none_or(|group| group.index() < self.program.groupings.len())
            && instr.exchange().is_none_or(|exchange| exchange.index() < self.program.exchanges.len());
        if fine {
            return Ok(());
        }
        Err("an instruction names a leaf, shard, grouping or table that does not exist".into())
    }

    fn reads(&mut self, body: &Body) {
        let count = body.bufs.len();
        let mut known = Known { written: vec![false; count], hidden: vec![false; count] };
        for leaf in &body.leaves {
            self.write(&mut known, leaf.buf, None);
        }
        for code in &body.codes {
            for buf in &code.takes {
                self.write(&mut known, *buf, None);
            }
            for (index, instr) in code.instrs.iter().enumerate() {
                let place = Place { role: self.index, pass: code.pass, index, op: None };
                self.instr(&mut known, instr, place);
            }
            for buf in code.gives.iter().flatten() {
                self.read(&known, *buf, None);
            }
        }
    }

    fn instr(&mut self, known: &mut Known, instr: &Instr, place: Place) {
        for buf in instr.reads() {
            self.read(known, buf, Some(place));
        }
        if let Instr::Call(call) = instr {
            return self.call(known, call, place);
        }
        for buf in instr.writes() {
            self.write(known, buf, Some(place));
        }
    }

    fn call(&mut self, known: &mut Known, call: &Call, place: Place) {
        let inputs: BTreeSet<BufId> = call.inputs.iter().copied().collect();
        let mut inside: BTreeSet<BufId> = BTreeSet::new();
        for (offset, op) in call.ops.iter().enumerate() {
            let place = Some(Place { op: Some(offset), ..place });
            for buf in op.inputs() {
                if !inside.contains(&buf) && !inputs.contains(&buf) {
                    self.unreadable(buf, place);
                }
            }
            for buf in op.outputs.iter().flatten() {
                self.write(known, *buf, place);
                inside.insert(*buf);
            }
        }
        for buf in &call.outputs {
            if !inside.remove(buf) {
                self.unreadable(*buf, Some(place));
            }
        }
        inside.iter().for_each(|buf| known.hidden[buf.index()] = true);
    }

    fn read(&mut self, known: &Known, buf: BufId, place: Option<Place>) {
        if !known.written[buf.index()] || known.hidden[buf.index()] {
            self.unreadable(buf, place);
        }
    }

    fn unreadable(&mut self, buf: BufId, place: Option<Place>) {
        let name = &self.role.body.buf(buf).name;
        let fault = Fault::new("SW0503", format!("the buffer `{name}` is read before it is written"));
        self.faults.push(fault.at(self.role.ranks[0], place));
    }

    fn write(&mut self, known: &mut Known, buf: BufId, place: Option<Place>) {
        if std::mem::replace(&mut known.written[buf.index()], true) {
            let name = &self.role.body.buf(buf).name;
            let fault = Fault::new("SW0503", format!("the buffer `{name}` is written twice"));
            self.faults.push(fault.at(self.role.ranks[0], place));
        }
    }

    /// Of an instruction, counted over all codes.
    fn place(&self, at: usize) -> Place {
        let (pass, index) = self.role.body.locate(at);
        Place { role: self.index, pass, index, op: None }
    }

    /// Calls are numbered in their order.
    fn calls(&mut self, body: &Body) {
        let mut next = 0;
        for (at, instr) in body.instrs().enumerate() {
            let Instr::Call(call) = instr else { continue };
            if call.id.0 != next {
                let place = self.place(at);
                let what = format!("call {} stands where call {next} is expected", call.id.0);
                self.faults.push(Fault::new("SW0502", what).at(self.role.ranks[0], Some(place)));
                return;
            }
            next += 1;
        }
    }

    /// Backward mirrors forward: each call at most once, the last one first.
    fn mirrored(&mut self, body: &Body) {
        let calls: BTreeSet<CallId> = body.calls().map(|call| call.id).collect();
        let mut last = None;
        for (at, instr) in body.instrs().enumerate() {
            let Instr::Grad(grad) = instr else { continue };
            let place = self.place(at);
            let what = if !calls.contains(&grad.call) || place.pass == Pass::Forward {
                format!("the backward of call {} has no call before it", grad.call.0)
            } else if last.is_some_and(|last| last <= grad.call) {
                format!("the backward of call {} does not follow in reverse order", grad.call.0)
            } else {
                last = Some(grad.call);
                continue;
            };
            self.faults.push(Fault::new("SW0509", what).at(self.role.ranks[0], Some(place)));
        }
    }
}
