//! Graphs and programs for the tests.

use std::collections::HashMap;

use emit::{File, canonical, emit, read};
use graph::{Graph, OpId, Source, TensorId};
use program::{
    Arg, Body, Boundary, Buf, BufId, Call, CallId, Grad, Inputs, Instr, Leaf, LocalOp, Of, Output, Pass,
    PerRank, Program, RankId, Role, Saves, Shard, Table, Timetable, Which,
};
use rules::Region;

pub(crate) fn graph(text: &str) -> Graph {
    let head = if text.starts_with("shardwright-graph") { "" } else { "shardwright-graph 1\n" };
    format!("{head}{}\n", text.trim()).parse().unwrap()
}

pub(crate) fn program(graph: &Graph, world: u32) -> Program {
    Program {
        model: graph.model.clone(),
        digest: graph.digest(),
        slices: None,
        rewritings: vec![],
        plan: "by hand".to_owned(),
        world,
        boundary: Boundary {
            inputs: Inputs::Global,
            outputs: (graph.outputs.iter())
                .map(|output| if output.is_some() { Output::Whole } else { Output::None })
                .collect(),
        },
        factors: graph.tensors.iter().map(|t| factors(&t.shape)).collect(),
        state_on_host: vec![],
        held_on_host: vec![],
        groupings: vec![],
        exchanges: vec![],
        updates: vec![],
        roles: vec![],
    }
}

pub(crate) fn factors(shape: &[i64]) -> Vec<Vec<i64>> {
    shape.iter().map(|&size| if size == 1 { vec![] } else { vec![size] }).collect()
}

pub(crate) fn whole(graph: &Graph, tensor: TensorId) -> Region {
    let flat: Vec<i64> = factors(&graph.tensor(tensor).shape).concat();
    Region::whole(&flat)
}

/// Builds the body of a role, tensor by tensor.
pub(crate) struct Builder<'g> {
    pub(crate) graph: &'g Graph,
    pub(crate) body: Body,
    pub(crate) bufs: HashMap<TensorId, BufId>,
    calls: usize,
}

impl<'g> Builder<'g> {
    /// All inputs and all leaves of the graph.
    pub(crate) fn new(graph: &'g Graph) -> Self {
        let mut found = Self { graph, body: Body::default(), bufs: HashMap::new(), calls: 0 };
        for id in graph.tensor_ids() {
            match &graph.tensor(id).source {
                Source::Op { .. } => {}
                Source::Input { .. } => {
                    let buf = found.buf(id);
                    found.body.inputs.push(id);
                    found.body.code_mut(0, Pass::Forward).takes.push(buf);
                }
                _ => {
                    let buf = found.buf(id);
                    found.body.leaves.push(Leaf { tensor: id, number: 0, buf });
                }
            }
        }
        found
    }

    pub(crate) fn id(&self, name: &str) -> TensorId {
        self.graph.find(name).unwrap_or_else(|| panic!("no tensor {name}"))
    }

    pub(crate) fn named(&self, name: &str) -> BufId {
        self.bufs[&self.id(name)]
    }

    /// A new buf of a tensor, which is its current one from now on.
    pub(crate) fn buf(&mut self, tensor: TensorId) -> BufId {
        let id = self.extra(&self.graph.tensor(tensor).name.clone(), tensor, false);
        self.bufs.insert(tensor, id);
        id
    }

    pub(crate) fn extra(&mut self, name: &str, tensor: TensorId, grad: bool) -> BufId {
        self.body.bufs.push(Buf { name: name.to_owned(), tensor, grad });
        BufId::new(self.body.bufs.len() - 1)
    }

    pub(crate) fn gradient(&mut self, name: &str) -> BufId {
        let tensor = self.id(name);
        self.extra(name, tensor, true)
    }

    /// A call of these operators, unchanged but for what `change` does.
    pub(crate) fn call(
        &mut self,
        ops: impl Iterator<Item = u32>,
        outputs: &[&str],
        change: impl Fn(&mut LocalOp),
    ) -> CallId {
        let id = CallId::new(self.calls);
        self.calls += 1;
        let mut call =
            Call { id, inputs: vec![], outputs: vec![], ops: vec![], saves: Saves::All { offloaded: false } };
        let first = self.body.bufs.len();
        for op in ops {
            let mut local = self.op(OpId(op));
            for buf in local.inputs() {
                if buf.index() < first && !call.inputs.contains(&buf) {
                    call.inputs.push(buf);
                }
            }
            change(&mut local);
            call.ops.push(local);
        }
        call.outputs = outputs.iter().map(|name| self.named(name)).collect();
        self.forward(Instr::Call(call));
        id
    }

    fn op(&mut self, id: OpId) -> LocalOp {
        let op = self.graph.op(id);
        let args = op.args.iter().map(|arg| self.arg(arg)).collect();
        let kwargs = op.kwargs.iter().map(|(name, arg)| (name.clone(), self.arg(arg))).collect();
        let outputs = op.outputs.iter().map(|t| t.map(|t| self.buf(t))).collect();
        LocalOp { op: id, target: op.target.clone(), args, kwargs, outputs, no_grad: op.no_grad }
    }

    fn arg(&self, arg: &graph::Arg) -> Arg {
        match arg {
            graph::Arg::None => Arg::None,
            graph::Arg::Bool(v) => Arg::Bool(*v),
            graph::Arg::Int(v) => Arg::Int(*v),
            graph::Arg::Float(v) => Arg::Float(*v),
            graph::Arg::Str(v) => Arg::Str(v.clone()),
            graph::Arg::Dtype(v) => Arg::Dtype(*v),
            graph::Arg::Tensor(id) => Arg::Buf(self.bufs[id]),
            graph::Arg::List(items) => Arg::List(items.iter().map(|item| self.arg(item)).collect()),
        }
    }

    pub(crate) fn forward(&mut self, instr: Instr) {
        self.body.code_mut(0, Pass::Forward).instrs.push(instr);
    }

    pub(crate) fn backward(&mut self, instr: Instr) {
        self.body.code_mut(0, Pass::Backward).instrs.push(instr);
    }

    pub(crate) fn seeds(&mut self, seeds: &[BufId]) {
        self.body.code_mut(0, Pass::Backward).takes.extend(seeds);
    }

    pub(crate) fn outputs(&mut self) {
        let outputs = self.graph.outputs.iter().map(|t| t.map(|t| self.bufs[&t])).collect();
        self.body.code_mut(0, Pass::Forward).gives = outputs;
    }

    pub(crate) fn grad(&mut self, call: CallId, from: &[BufId], to: &[BufId]) {
        let some = |bufs: &[BufId]| bufs.iter().copied().map(Some).collect();
        self.backward(Instr::Grad(Grad {
            call,
            which: Which::Both,
            from: some(from),
            to: some(to),
            recomputed: vec![],
        }));
    }

    /// A role for these ranks, each of which holds everything whole.
    pub(crate) fn role(mut self, ranks: std::ops::Range<u32>) -> Role {
        self.body.timetable = Timetable::in_turn(false, self.body.code(0, Pass::Backward).is_some());
        let same = |tensor| PerRank::Same(whole(self.graph, tensor));
        let table = Table {
            copies: vec![],
            constants: vec![PerRank::Same(0); self.body.holes.len()],
            shards: (self.body.leaves.iter())
                .map(|leaf| Shard { tensor: leaf.tensor, region: same(leaf.tensor) })
                .collect(),
            leaves: (self.body.leaves.iter().enumerate())
                .map(|(index, leaf)| (Of::Shard(index), same(leaf.tensor)))
                .collect(),
            inputs: self.body.inputs.iter().map(|input| same(*input)).collect(),
            outputs: (self.graph.outputs.iter().zip(self.body.outputs()))
                .map(|(tensor, buf)| buf.and(*tensor).map(same))
                .collect(),
            random: vec![],
        };
        let ranks: Vec<RankId> = ranks.map(RankId).collect();
        Role { table, ranks, body: self.body }
    }
}

/// The whole graph as one call on one rank.
pub(crate) fn single(graph: &Graph) -> Program {
    let mut builder = Builder::new(graph);
    let names: Vec<&str> = graph.outputs.iter().flatten().map(|t| graph.tensor(*t).name.as_str()).collect();
    builder.call(0..u32::try_from(graph.ops.len()).unwrap(), &names, |_| {});
    builder.outputs();
    let mut program = program(graph, 1);
    program.roles.push(builder.role(0..1));
    program
}

/// All files after each other.
pub(crate) fn text(files: &[File]) -> String {
    files.iter().map(|file| format!("=== {}\n{}", file.name, file.text)).collect()
}

/// Emits, reads back, compares, emits again; gives the files.
pub(crate) fn roundtrip(graph: &Graph, program: &Program) -> Vec<File> {
    let files = emit(graph, program).unwrap();
    let again = read(graph, &files).unwrap_or_else(|error| panic!("{error}\n{}", text(&files)));
    pretty_eq(&canonical(&again), &canonical(program));
    let files_again = emit(graph, &again).unwrap();
    let twice = read(graph, &files_again).unwrap_or_else(|error| panic!("{error}\n{}", text(&files_again)));
    pretty_eq(&canonical(&twice), &canonical(program));
    files
}

fn pretty_eq(a: &Program, b: &Program) {
    if a != b {
        let (a, b) = (format!("{a:#?}"), format!("{b:#?}"));
        let differs = a.lines().zip(b.lines()).position(|(a, b)| a != b).unwrap_or(0);
        let near = |text: &str| {
            text.lines().skip(differs.saturating_sub(12)).take(24).collect::<Vec<_>>().join("\n")
        };
        panic!("read:\n{}\n\nemitted:\n{}", near(&a), near(&b));
    }
}

/// Emitting what was read gives the same text, as it does wherever the hints are found.
pub(crate) fn stable(graph: &Graph, program: &Program) -> Vec<File> {
    let files = roundtrip(graph, program);
    let again = emit(graph, &read(graph, &files).unwrap()).unwrap();
    for (a, b) in files.iter().zip(&again) {
        assert_eq!(a.text, b.text);
    }
    files
}
