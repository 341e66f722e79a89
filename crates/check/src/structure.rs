//! What must hold of the program before it can be followed: sizes of tables, numbers in range, and
//! every buffer written once, before it is read.

use std::collections::{BTreeMap, BTreeSet};

use graph::{Graph, Source, TensorId};
use program::{
    Arg, Body, BufId, Call, CallId, Code, Collective, Grad, Inputs, Instr, Leaf, Of, Output, Own, Pass,
    PerRank, Program, RankId, Role, Saves, Update, Which,
};
use rules::{Analysis, Region};

use crate::fault::{Fault, Faults, Place};
use crate::region::fits;
use crate::state::located;
use crate::timetable::timetable;
use crate::versions::versions;
use crate::{copies, exchange, offloaded};

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
    tables(program, &flat, &mut faults);
    for (index, role) in program.roles.iter().enumerate() {
        Roles { graph, flat: &flat, program, index, role, faults: &mut faults }.check();
    }
    boundary(graph, program, &mut faults);
    updates(graph, program, &mut faults);
    on_host(graph, program, &mut faults);
    if let Some(fault) = faults.is_empty().then(|| versions(graph, program)).flatten() {
        faults.push(fault);
    }
    faults
}

fn tables(program: &Program, flat: &[Vec<i64>], faults: &mut Faults) {
    for (number, table) in program.exchanges.iter().enumerate() {
        if let Some(what) = exchange::wrong(table, program.world, flat) {
            faults.push(Fault::new("SW0502", format!("the table {number} of an exchange {what}")));
        }
    }
}

/// Each is of a parameter, once, and by a rank that holds some of it. That all parts are there is [`crate::finish`]'s.
fn updates(graph: &Graph, program: &Program, faults: &mut Faults) {
    let mut last = None;
    for Update { tensor, rank } in &program.updates {
        let source = graph.tensors.get(tensor.index()).map(|tensor| &tensor.source);
        let twice = last.replace(*tensor).is_some_and(|last| last >= *tensor);
        if twice || !matches!(source, Some(Source::Param { .. })) {
            let what =
                format!("tensor {}, which is updated whole, is not a parameter, or out of order", tensor.0);
            faults.push(Fault::new("SW0502", what));
            continue;
        }
        let holds = |role: &Role| role.table.shards.iter().any(|shard| shard.tensor == *tensor);
        if program.role_of(*rank).is_none_or(|(role, _)| !holds(role)) {
            let name = &graph.tensor(*tensor).name;
            let what = format!("the update of %{name} is computed by a rank that holds nothing of it");
            faults.push(Fault::new("SW0502", what).at(*rank, None));
        }
    }
}

/// Parameters live on the host, and there is an optimizer's state of those only that are trained; where the parameter
/// lives there, it does not come from there.
fn on_host(graph: &Graph, program: &Program, faults: &mut Faults) {
    let source = |id: &TensorId| graph.tensors.get(id.index()).map(|tensor| &tensor.source);
    let is_parameter = |id: &TensorId| matches!(source(id), Some(Source::Param { .. }));
    let trained = |id: &TensorId| matches!(source(id), Some(Source::Param { frozen: false, .. }));
    let ascending = |all: &[TensorId]| all.is_sorted_by(|a, b| a < b);
    let held = &program.held_on_host;
    if !held.iter().all(is_parameter) || !ascending(held) {
        let what = "something that lives on the host is not a parameter, or is listed twice";
        faults.push(Fault::new("SW0502", what));
    }
    let all = &program.state_on_host;
    let comes = |id: &TensorId| trained(id) && !held.contains(id);
    if !all.iter().all(comes) || !ascending(all) {
        let what = "optimizer state on the host is not that of a trained parameter on the device, or is \
                    listed twice";
        faults.push(Fault::new("SW0502", what));
    }
}

/// What leaves the program is what was asked for.
fn boundary(graph: &Graph, program: &Program, faults: &mut Faults) {
    let asked = &program.boundary.outputs;
    if asked.len() != graph.outputs.len() {
        faults.push(Fault::new("SW0502", "the model does not have all outputs that the program names"));
        return;
    }
    // With several blocks it is there where the block runs that makes it.
    let several = program.roles.iter().flat_map(|role| &role.body.codes).any(|code| code.block > 0);
    let outputs: Vec<Vec<bool>> = program.roles.iter().map(|role| leaving(&role.body, asked.len())).collect();
    let somewhere = |number: usize| outputs.iter().any(|given| given[number]);
    for (role, outputs) in program.roles.iter().zip(&outputs) {
        for (number, (asked, given)) in asked.iter().zip(outputs).enumerate() {
            let wanted = *asked == Output::Whole && graph.outputs[number].is_some();
            let elsewhere = several && wanted && somewhere(number);
            if *given != wanted && !elsewhere && *asked != Output::Local {
                let what = format!(
                    "output {number} does not leave the program on the ranks that it should leave on"
                );
                faults.push(Fault::new("SW0502", what).at(role.ranks[0], None));
            }
        }
    }
}

/// Which outputs leave a role.
fn leaving(body: &Body, count: usize) -> Vec<bool> {
    let given = body.outputs();
    (0..count).map(|number| given.get(number).copied().flatten().is_some()).collect()
}

fn has_ends(code: &Code) -> bool {
    !code.takes.is_empty() || !code.gives.is_empty()
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
    if program.roles.iter().any(|role| role.ranks.is_empty() || !role.table.fits(role.ranks.len())) {
        faults.push(Fault::new(
            "SW0502",
            "a role has no ranks, or its table is for a different number of ranks",
        ));
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
struct ReadableBuffers {
    written: Vec<bool>,
    /// Inside of a call that is over.
    hidden: Vec<bool>,
}

impl ReadableBuffers {
    /// Of what a code had before, the next one sees leaves only.
    fn end(&mut self, body: &Body) {
        self.hidden.clone_from(&self.written);
        body.leaves.iter().for_each(|leaf| self.hidden[leaf.buf.index()] = false);
    }
}

/// More blocks are a mistake: steps of as many micro-batches are followed.
const BLOCKS: u32 = 1 << 16;

const NO_OUTPUT: &str = "what leaves the program is not part of an output of the model";

fn no_leaf(leaf: &Leaf) -> String {
    format!("leaf {} of tensor {} is not a part of a shard of it", leaf.number, leaf.tensor.0)
}

fn no_input(input: TensorId) -> String {
    format!("input of tensor {} is not a part of an input of the model", input.0)
}

impl Roles<'_> {
    fn check(mut self) {
        if let Err(what) = self.sizes() {
            self.faults.push(Fault::new("SW0502", what).at(self.role.ranks[0], None));
            return;
        }
        let symmetric = self.role.table.regions().all(|per_rank| matches!(per_rank, PerRank::Same(_)));
        for at in 0..if symmetric { 1 } else { self.role.ranks.len() } {
            if let Err(what) = self.table(self.role.own(at)) {
                self.faults.push(Fault::new("SW0502", what).at(self.role.ranks[at], None));
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
        self.kept(body);
        self.copies(body);
        self.offloaded(body);
        for fault in timetable(self.index, self.role) {
            self.faults.push(fault);
        }
    }

    /// The table has as much of everything as the code needs, of tensors of the right kind.
    fn sizes(&self) -> Result<(), String> {
        let (body, table) = (&self.role.body, &self.role.table);
        if table.constants.len() != body.holes.len()
            || table.leaves.len() != body.leaves.len()
            || table.inputs.len() != body.inputs.len()
            || table.outputs.len() != self.graph.outputs.len()
        {
            return Err("the table of a role has another size than its code needs".into());
        }
        for shard in &table.shards {
            let Some(tensor) = self.graph.tensors.get(shard.tensor.index()) else {
                return Err("a shard belongs to a tensor that does not exist".into());
            };
            if matches!(tensor.source, Source::Op { .. } | Source::Input { .. }) {
                return Err(self.no_part(shard.tensor));
            }
        }
        for copy in &table.copies {
            let gathered = table.shards.get(copy.shard).map(|shard| self.graph.tensor(shard.tensor));
            if gathered.is_none_or(|tensor| !matches!(tensor.source, Source::Param { .. })) {
                return Err("something that is gathered is not a parameter".into());
            }
        }
        for (leaf, (storage, _)) in body.leaves.iter().zip(&table.leaves) {
            let shard = match storage {
                Of::Shard(shard) => Some(*shard),
                Of::Copy(copy) => table.copies.get(*copy).map(|copy| copy.shard),
            };
            let shard = shard.and_then(|shard| table.shards.get(shard));
            if shard.is_none_or(|shard| shard.tensor != leaf.tensor) {
                return Err(no_leaf(leaf));
            }
            if matches!(storage, Of::Shard(_)) && self.program.lives_on_host(leaf.tensor) {
                let name = &self.graph.tensor(leaf.tensor).name;
                return Err(format!("%{name} lives on the host, and is read without having been gathered"));
            }
        }
        for input in &body.inputs {
            let tensor = self.graph.tensors.get(input.index());
            if tensor.is_none_or(|tensor| !matches!(tensor.source, Source::Input { .. })) {
                return Err(no_input(*input));
            }
        }
        let leaves = |region: bool, buf: bool, output: bool| region == buf && (output || !region);
        let given = body.outputs();
        let given = given.iter().copied().chain(std::iter::repeat(None));
        let outputs = given.zip(&self.graph.outputs);
        let fits = { outputs }
            .zip(&table.outputs)
            .all(|((buf, output), region)| leaves(region.is_some(), buf.is_some(), output.is_some()));
        if fits { Ok(()) } else { Err(NO_OUTPUT.into()) }
    }

    /// The regions of one rank are parts of what they are of.
    fn table(&self, rank_table: Own<'_>) -> Result<(), String> {
        let (body, table) = (&self.role.body, &self.role.table);
        let part = |region: &Region, tensor: TensorId| fits(region, &self.flat[tensor.index()]);
        for (number, shard) in table.shards.iter().enumerate() {
            if !part(rank_table.shard(number), shard.tensor) {
                return Err(self.no_part(shard.tensor));
            }
        }
        for (number, copy) in table.copies.iter().enumerate() {
            let tensor = table.shards[copy.shard].tensor;
            if !part(rank_table.copy(number), tensor)
                || !rank_table.copy(number).contains(rank_table.shard(copy.shard))
            {
                return Err(format!(
                    "what is gathered of tensor {} does not include the rank's shard",
                    tensor.0
                ));
            }
        }
        for (number, leaf) in body.leaves.iter().enumerate() {
            let (storage, region) = rank_table.leaf(number);
            let around = match storage {
                Of::Shard(shard) => rank_table.shard(shard),
                Of::Copy(copy) => rank_table.copy(copy),
            };
            // Of what is gathered all is read, or nothing.
            let is_read = matches!(storage, Of::Shard(_)) || around == region || region.numel() == 0;
            if !part(region, leaf.tensor) || !around.contains(region) || !is_read {
                return Err(no_leaf(leaf));
            }
        }
        let parts = || body.inputs.iter().zip(rank_table.inputs());
        if let Some((input, _)) = parts().find(|(input, region)| !part(region, **input)) {
            return Err(no_input(*input));
        }
        let local = self.program.boundary.inputs == Inputs::Local;
        if local && parts().any(|(tensor, region)| parts().any(|(t, r)| t == tensor && r != region)) {
            return Err("a rank is given two parts of one input".into());
        }
        let mut outputs = self.graph.outputs.iter().enumerate();
        let leaves = |number: usize, tensor: TensorId| {
            rank_table.output(number).is_none_or(|region| part(region, tensor))
        };
        let fit = outputs.all(|(number, tensor)| tensor.is_none_or(|tensor| leaves(number, tensor)));
        if fit { Ok(()) } else { Err(NO_OUTPUT.into()) }
    }

    fn no_part(&self, tensor: TensorId) -> String {
        let name = &self.graph.tensor(tensor).name;
        format!("a shard of %{name} is not a part of a parameter, buffer or constant")
    }

    /// Every number that an instruction names exists.
    fn numbers(&self, body: &Body) -> Result<(), String> {
        let mut bufs: Vec<BufId> = body.leaves.iter().map(|leaf| leaf.buf).collect();
        for code in &body.codes {
            bufs.extend(code.takes.iter().chain(code.gives.iter().flatten()));
        }
        let mut holes = vec![];
        for instr in body.instrs() {
            bufs.extend(instr.reads().chain(instr.writes()));
            if let Instr::Call(call) = instr {
                bufs.extend(
                    call.ops.iter().flat_map(|op| op.inputs().chain(op.outputs.iter().flatten().copied())),
                );
            }
            let hole = |arg: &Arg| if let Arg::Hole(hole) = arg { Some(*hole) } else { None };
            holes.extend(instr.args().filter_map(|(arg, _)| hole(arg)));
            self.indices(instr)?;
        }
        if bufs.iter().any(|buf| buf.index() >= body.bufs.len()) {
            return Err("an instruction names a buffer that does not exist".into());
        }
        if holes.iter().any(|hole| *hole as usize >= body.holes.len()) {
            return Err("an argument names a constant that does not exist".into());
        }
        let outputs = self.graph.outputs.len();
        if body.codes_of(Pass::Forward).any(|code| code.gives.len() != outputs) {
            return Err("the program has another number of outputs than the model".into());
        }
        let twice =
            |at: &usize| body.codes_of(Pass::Forward).filter(|code| code.gives[*at].is_some()).count() > 1;
        if (0..outputs).any(|at| twice(&at)) {
            return Err("two functions return one output".into());
        }
        if body.takes(Pass::Forward).count() != body.inputs.len()
            || body.given_gradients().flatten().count() != body.gradients.len()
            || body.given_gradients().any(|given| given.is_none())
        {
            return Err("a function takes or returns a different number of tensors than its role says".into());
        }
        if !body.codes.is_sorted_by(|a, b| a.place() < b.place()) {
            return Err("a block has two functions for one pass, or functions are out of order".into());
        }
        if body.codes.iter().any(|code| code.block >= BLOCKS) {
            return Err(format!("a function belongs to a block beyond {BLOCKS}"));
        }
        split_backward(body)?;
        let whole = |code: &Code| code.pass.is_once();
        if body.codes.iter().any(|code| whole(code) && (code.block > 0 || has_ends(code))) {
            return Err(
                "a function that runs once a step belongs to a block, or takes or returns something".into()
            );
        }
        Ok(())
    }

    fn indices(&self, instr: &Instr) -> Result<(), String> {
        let leaves = self.role.body.leaves.len();
        let shards = self.role.table.shards.len();
        if let Instr::Collective(Collective { how, from, to, .. }) = instr {
            if from.len() != to.len() || from.is_empty() || (from.len() > 1 && how.cuts().next().is_some()) {
                return Err("a communication has a different number of results than of values".into());
            }
        }
        if matches!(instr, Instr::Add { from, .. } if from.is_empty()) {
            return Err("a sum has no operands".into());
        }
        let fine = instr.leaves().iter().all(|leaf| leaf.index() < leaves)
            && instr.shards().iter().all(|shard| *shard < shards)
            && instr.copies().iter().all(|copy| *copy < self.role.table.copies.len())
            && instr.group().is_none_or(|group| group.index() < self.program.groupings.len())
            && instr.exchange().is_none_or(|exchange| exchange.index() < self.program.exchanges.len());
        if fine {
            return Ok(());
        }
        Err("an instruction names a leaf, shard, grouping or table that does not exist".into())
    }

    fn reads(&mut self, body: &Body) {
        let count = body.bufs.len();
        let mut known = ReadableBuffers { written: vec![false; count], hidden: vec![false; count] };
        for leaf in &body.leaves {
            self.write(&mut known, leaf.buf, None);
        }
        for code in &body.codes {
            known.end(body);
            for buf in &code.takes {
                self.write(&mut known, *buf, None);
            }
            for (index, instr) in code.instrs.iter().enumerate() {
                let place = Place { role: self.index, block: code.block, pass: code.pass, index, op: None };
                self.instr(&mut known, instr, place);
            }
            for buf in code.gives.iter().flatten() {
                self.read(&known, *buf, None);
            }
        }
    }

    fn instr(&mut self, known: &mut ReadableBuffers, instr: &Instr, place: Place) {
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

    fn call(&mut self, known: &mut ReadableBuffers, call: &Call, place: Place) {
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

    fn read(&mut self, known: &ReadableBuffers, buf: BufId, place: Option<Place>) {
        if !known.written[buf.index()] || known.hidden[buf.index()] {
            self.unreadable(buf, place);
        }
    }

    fn unreadable(&mut self, buf: BufId, place: Option<Place>) {
        let name = &self.role.body.buf(buf).name;
        let fault = Fault::new("SW0503", format!("the buffer `{name}` is read before it is written"));
        self.faults.push(fault.at(self.role.ranks[0], place));
    }

    fn write(&mut self, known: &mut ReadableBuffers, buf: BufId, place: Option<Place>) {
        if std::mem::replace(&mut known.written[buf.index()], true) {
            let name = &self.role.body.buf(buf).name;
            let fault = Fault::new("SW0503", format!("the buffer `{name}` is written twice"));
            self.faults.push(fault.at(self.role.ranks[0], place));
        }
    }

    /// Of an instruction, counted over all codes.
    fn place(&self, at: usize) -> Place {
        located(&self.role.body, self.index, at, None)
    }

    /// Calls are numbered in their order.
    fn calls(&mut self, body: &Body) {
        let mut next = 0;
        for (at, instr) in body.instrs().enumerate() {
            let Instr::Call(call) = instr else { continue };
            if call.id.0 != next {
                let place = self.place(at);
                let what = format!("call {} stands in the place of call {next}", call.id.0);
                self.faults.push(Fault::new("SW0502", what).at(self.role.ranks[0], Some(place)));
                return;
            }
            next += 1;
        }
    }

    /// Each call has one backward at most, after it and if it keeps what that needs, or is given it again; or one for
    /// the gradients of its inputs, and one after that for those of leaves.
    fn mirrored(&mut self, body: &Body) {
        let mut open: BTreeMap<CallId, &Call> = BTreeMap::new();
        let mut halved: BTreeMap<CallId, usize> = BTreeMap::new();
        for (at, instr) in body.instrs().enumerate() {
            let problem = match instr {
                Instr::Call(call) => {
                    open.insert(call.id, call);
                    continue;
                }
                Instr::Grad(grad) if grad.which == Which::Weights => {
                    let before = halved.remove(&grad.call);
                    second_half(grad, body.pass_at(at), before.map(|before| is_one_code(body, before, at)))
                }
                Instr::Grad(grad) => {
                    if grad.which == Which::Inputs {
                        halved.insert(grad.call, at);
                    }
                    first_half(grad, body.pass_at(at), open.remove(&grad.call))
                }
                Instr::Collective(message) if message.overlaps => overlapping(body, at),
                _ => continue,
            };
            if let Some(what) = problem {
                self.unmirrored(at, what);
            }
        }
        for (call, at) in halved {
            self.unmirrored(
                at,
                format!("the gradients of the leaves that call {} reads are never computed", call.0),
            );
        }
    }

    fn unmirrored(&mut self, at: usize, what: String) {
        let place = self.place(at);
        self.faults.push(Fault::new("SW0509", what).at(self.role.ranks[0], Some(place)));
    }

    /// What is gathered is there when it is read.
    fn copies(&mut self, body: &Body) {
        if let Some((at, what)) = copies::in_time(body, self.role.own(0)) {
            let place = self.place(at);
            self.faults.push(Fault::new("SW0523", what).at(self.role.ranks[0], Some(place)));
        }
    }

    /// What is sent to the host is back when it is needed.
    fn offloaded(&mut self, body: &Body) {
        if let Some((at, what)) = offloaded::in_time(body) {
            let place = self.place(at);
            self.faults.push(Fault::new("SW0526", what).at(self.role.ranks[0], Some(place)));
        }
    }

    /// What a code keeps a later one takes, all of it and once.
    fn kept(&mut self, body: &Body) {
        let mut open: Vec<Option<(usize, usize)>> = vec![];
        for (at, instr) in body.instrs().enumerate() {
            let (place, code) = (self.place(at), body.locate(at).0);
            let what = match instr {
                Instr::Keep { id, from, .. } => {
                    if id.index() == open.len() {
                        open.push(Some((code, from.len())));
                        continue;
                    }
                    format!("what is kept as {} stands in the place of {}", id.0, open.len())
                }
                Instr::Take { id, to } => match open.get_mut(id.index()).and_then(Option::take) {
                    Some((kept, count)) if kept < code && count == to.len() => continue,
                    Some(_) => {
                        format!(
                            "what is kept as {} is taken in the same function, or with another number of \
                             values",
                            id.0
                        )
                    }
                    None => format!("{} is taken, but was not kept", id.0),
                },
                _ => continue,
            };
            self.faults.push(Fault::new("SW0503", what).at(self.role.ranks[0], Some(place)));
        }
        if let Some(id) = open.iter().position(Option::is_some).filter(|_| self.faults.is_empty()) {
            let what = format!("what is kept as {id} is never taken");
            self.faults.push(Fault::new("SW0503", what).at(self.role.ranks[0], None));
        }
    }
}

/// A block has a backward, or both halves of one.
fn split_backward(body: &Body) -> Result<(), String> {
    let there = |block: u32, pass: Pass| body.code(block, pass).is_some();
    let wrong = |code: &&Code| match code.pass {
        Pass::Inputs => there(code.block, Pass::Backward) || !there(code.block, Pass::Weights),
        Pass::Weights => !there(code.block, Pass::Inputs) || has_ends(code),
        _ => false,
    };
    match body.codes.iter().find(wrong) {
        Some(code) => {
            Err(format!("the backward of block {} is neither one function nor a split backward", code.block))
        }
        None => Ok(()),
    }
}

/// What is wrong with a backward, or the first half of one, of a call that is still to have it.
fn first_half(grad: &Grad, pass: Pass, open: Option<&Call>) -> Option<String> {
    let call = grad.call.0;
    let Some(open) = open.filter(|_| pass.gives_back()) else {
        return Some(format!("the backward of call {call} comes before the call, or a second time"));
    };
    let is_given = !grad.recomputed.is_empty();
    let (does, is, fits) = match open.saves {
        Saves::Nothing => return Some(format!("call {call} saves nothing for its backward")),
        Saves::Made { .. } => ("does not keep", "is not", is_given),
        Saves::All { .. } => ("keeps", "is", !is_given),
    };
    (!fits).then(|| format!("call {call} {does} what it reads, and {is} given it again"))
}

/// What is wrong with the second half of a backward, given whether there was the first, and in the same code.
fn second_half(grad: &Grad, pass: Pass, first: Option<bool>) -> Option<String> {
    let reads = !grad.from.is_empty() || !grad.to.is_empty() || !grad.recomputed.is_empty();
    let what = match (pass, first) {
        _ if reads => "takes or returns something",
        (_, None) => "comes before its first half, or a second time",
        (Pass::Weights, Some(false)) | (Pass::Backward, Some(true)) => return None,
        _ => "stands in the wrong function",
    };
    Some(format!("the second half of the backward of call {} {what}", grad.call.0))
}

/// What is wrong with a message that runs while the next instruction computes: only the second half of a backward
/// reads and writes no buffers.
fn overlapping(body: &Body, at: usize) -> Option<String> {
    let next = body.instrs().nth(at + 1).filter(|_| is_one_code(body, at, at + 1));
    let is_second = matches!(next, Some(Instr::Grad(grad)) if grad.which == Which::Weights);
    (!is_second).then(|| "a message with `async_op` is not followed by the second half of a backward".into())
}

fn is_one_code(body: &Body, at: usize, other: usize) -> bool {
    body.locate(at).0 == body.locate(other).0
}
