//! From the global schedule to what one rank executes.

mod calls;
mod leaves;
mod transfers;

use std::collections::HashMap;

use graph::{Source, TensorId};
use program::{Body, Buf, BufId, CallId, Inputs, Instr, Pass, RankId, Table, Timetable};
use rules::Region;

use crate::layout::{Entry, Interner, LayoutId};
use crate::schedule::{Event, Schedule};
use crate::segments::Segments;
use crate::uses::{Context, Reader, UseId, Uses};

/// Everything that projection reads.
pub struct Global<'a> {
    pub cx: &'a Context<'a>,
    pub uses: &'a Uses,
    pub segments: &'a Segments,
    pub schedule: &'a Schedule,
    pub interner: &'a Interner,
}

/// Whose gradient an input of a call gives.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Owner {
    /// A written shard: an index into the tensor's layout.
    Written(TensorId, usize),
    Port(UseId, usize),
    /// What uses of an input give back in one layout.
    Input(TensorId, LayoutId, usize),
    /// Leaves accumulate their own; integers have none.
    Nobody,
}

/// A call that was made, for its backward.
struct Made {
    id: CallId,
    /// Whose gradients go in, and whose come out.
    outputs: Vec<(TensorId, usize)>,
    inputs: Vec<(BufId, Owner)>,
}

pub struct Projector<'a> {
    global: &'a Global<'a>,
    rank: RankId,
    body: Body,
    table: Table,
    written: HashMap<(TensorId, usize), BufId>,
    ports: HashMap<(UseId, usize), BufId>,
    /// Gradients that have arisen, not yet added up.
    gradients: HashMap<Owner, Vec<BufId>>,
    leaves: HashMap<(TensorId, Region, Option<UseId>, u32), BufId>,
    /// What is given of inputs, and slices of it.
    inputs: HashMap<(TensorId, Region), BufId>,
    made: HashMap<usize, Vec<Made>>,
    calls: usize,
    pass: Pass,
}

pub fn project(global: &Global<'_>, rank: RankId) -> (Body, Table) {
    let mut it = Projector {
        global,
        rank,
        body: Body::default(),
        table: Table::default(),
        written: HashMap::new(),
        ports: HashMap::new(),
        gradients: HashMap::new(),
        leaves: HashMap::new(),
        inputs: HashMap::new(),
        made: HashMap::new(),
        calls: 0,
        pass: Pass::Forward,
    };
    it.hold();
    for event in &global.schedule.forward {
        it.event(event);
    }
    it.leave();
    it.pass = Pass::Backward;
    for event in &global.schedule.backward {
        it.event(event);
    }
    it.leave_gradients();
    it.body.timetable = Timetable::in_turn(it.body.code(Pass::Backward).is_some());
    it.table.random.sort_by_key(|(op, _)| *op);
    (it.body, it.table)
}

impl Projector<'_> {
    fn event(&mut self, event: &Event) {
        match event {
            Event::Call { segment } => self.call(*segment),
            Event::Move { id, way } => self.transfer(*id, way),
            Event::Update { id, number } => self.update(*id, *number),
            Event::Grad { segment } => self.grad(*segment),
            Event::MoveGrad { id, way } => self.transfer_gradient(*id, way),
            Event::GiveBack { id, way } => self.give_back(*id, way),
            Event::Reduce { group, uses } => self.reduce(*group, uses),
            Event::ReduceExactly { id, exchange, plan } => self.reduce_exactly(*id, *exchange, plan),
        }
    }

    fn push(&mut self, instr: Instr) {
        self.body.code_mut(self.pass).instrs.push(instr);
    }

    fn buf(&mut self, tensor: TensorId, grad: bool) -> BufId {
        let name = self.global.cx.graph.tensor(tensor).name.clone();
        self.body.bufs.push(Buf { name, tensor, grad });
        BufId::new(self.body.bufs.len() - 1)
    }

    /// The buffer that a reader finds at its port.
    fn fetch(&mut self, id: UseId, port: usize) -> BufId {
        let it = self.global.uses.get(id);
        let wanted = &self.global.interner.get_ports(it.ports).entries[port];
        match self.global.cx.graph.tensor(it.tensor).source {
            Source::Op { .. } if it.direct => self.written[&(it.tensor, self.direct_entry(id, port))],
            Source::Op { .. } => self.ports[&(id, port)],
            Source::Input { .. } => self.input(id, it.tensor, &wanted.region),
            _ => self.leaf(id, port),
        }
    }

    fn direct_entry(&self, id: UseId, port: usize) -> usize {
        let it = self.global.uses.get(id);
        let wanted = &self.global.interner.get_ports(it.ports).entries[port];
        let there = self.global.interner.get(self.global.uses.written[it.tensor.index()]);
        let entry = Entry { rank: wanted.rank, region: wanted.region.clone(), part: wanted.value };
        there.find(&entry).expect("a direct use finds its shard")
    }

    /// Whose gradient a reader's input gives.
    fn owner(&self, id: UseId, port: usize) -> Owner {
        let it = self.global.uses.get(id);
        match self.global.cx.graph.tensor(it.tensor).source {
            _ if !it.carries_grad => Owner::Nobody,
            Source::Op { .. } if it.direct => Owner::Written(it.tensor, self.direct_entry(id, port)),
            Source::Op { .. } => Owner::Port(id, port),
            Source::Input { .. } if self.global.cx.given_back[it.tensor.index()] => Owner::Port(id, port),
            _ => Owner::Nobody,
        }
    }

    /// The part of an input that a reader needs. Of a global input the runtime takes every part that
    /// is asked for; of a local one it has one part, of which others are slices.
    fn input(&mut self, id: UseId, tensor: TensorId, region: &Region) -> BufId {
        if let Some(buf) = self.inputs.get(&(tensor, region.clone())) {
            return *buf;
        }
        let given = self.given(tensor);
        let sliced = self.global.cx.boundary.inputs == Inputs::Local && given != *region;
        let whole = sliced.then(|| self.input(id, tensor, &given));
        let buf = self.buf(tensor, false);
        self.inputs.insert((tensor, region.clone()), buf);
        if let Some(whole) = whole {
            let slice = self.slice_of(id, whole, buf, &given, region);
            self.push(Instr::Slice(slice));
        } else {
            self.body.inputs.push(tensor);
            self.body.code_mut(Pass::Forward).takes.push(buf);
            self.table.inputs.push(region.clone());
        }
        buf
    }

    /// What the caller gives this rank of an input.
    fn given(&self, tensor: TensorId) -> Region {
        let given = self.global.interner.get(self.global.uses.written[tensor.index()]);
        given.entries[given.on(self.rank).start].region.clone()
    }

    /// The sum of the gradients that have arisen for an owner.
    fn gradient(&mut self, owner: Owner, tensor: TensorId) -> Option<BufId> {
        let found = self.gradients.get(&owner)?.clone();
        let sum = match found[..] {
            [one] => one,
            _ => {
                let to = self.buf(tensor, true);
                self.push(Instr::Add { from: found, to });
                to
            }
        };
        self.gradients.insert(owner, vec![sum]);
        Some(sum)
    }

    /// Results that leave, and the seeds that the caller gives for them.
    fn leave(&mut self) {
        let outputs = &self.global.cx.graph.outputs;
        self.body.code_mut(Pass::Forward).gives = vec![None; outputs.len()];
        self.table.outputs = vec![None; outputs.len()];
        for number in 0..outputs.len() {
            let Some((id, tensor)) = self.reader_use(&Reader::Output(number)) else { continue };
            let ports = self.global.interner.get_ports(self.global.uses.get(id).ports);
            // Of an output that leaves in parts, a rank may have none.
            let Some(port) = ports.on(self.rank).next() else { continue };
            self.table.outputs[number] = Some(ports.entries[port].region.clone());
            let output = self.fetch(id, port);
            self.body.code_mut(Pass::Forward).gives[number] = Some(output);
            if self.global.uses.get(id).carries_grad {
                let seed = self.buf(tensor, true);
                self.body.code_mut(Pass::Backward).takes.push(seed);
                let owner = self.owner(id, port);
                self.gradients.entry(owner).or_default().push(seed);
            }
        }
    }

    /// The gradients of inputs, once all that read them have contributed.
    fn leave_gradients(&mut self) {
        for tensor in self.global.cx.graph.tensor_ids().filter(|t| self.global.cx.given_back[t.index()]) {
            let given = self.global.interner.get(self.global.uses.written[tensor.index()]);
            let Some(entry) = given.on(self.rank).next() else { continue };
            if let Some(buf) = self.gradient(Owner::Written(tensor, entry), tensor) {
                self.body.gradients.push(tensor);
                self.body.code_mut(Pass::Backward).gives.push(Some(buf));
            }
        }
    }

    fn reader_use(&self, reader: &Reader) -> Option<(UseId, TensorId)> {
        let all = &self.global.uses.all;
        let index = all.iter().position(|u| u.readers.contains(reader))?;
        Some((UseId::new(index), all[index].tensor))
    }

    fn update(&mut self, id: UseId, number: usize) {
        let graph = self.global.cx.graph;
        let (name, value) = (&graph.updates[number].0, graph.updates[number].1);
        let ports = self.global.interner.get_ports(self.global.uses.get(id).ports);
        for port in ports.on(self.rank) {
            let region = &ports.entries[port].region;
            // With other factors, both are whole.
            let fits =
                |s: &program::Shard| s.region == *region || !self.global.cx.same_factors(s.tensor, value);
            let is_it = |s: &program::Shard| {
                matches!(&graph.tensor(s.tensor).source, Source::Buffer { name: n, .. } if n == name)
                    && fits(s)
            };
            if let Some(shard) = self.table.shards.iter().position(is_it) {
                let from = self.fetch(id, port);
                self.push(Instr::Update { shard, from });
            }
        }
    }
}
