//! What a program communicates and holds. How often and how much, the proof has counted.

use graph::{Graph, Source};
use plan::{On, OpPlan, Plan};
use program::{Body, BufId, GroupingId, Instr, Own, Program, RankId};

/// One kind of communication, as one rank issues it in a step.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Communication {
    /// `forward` or `backward`.
    pub phase: &'static str,
    pub kind: &'static str,
    /// The module in which the tensor is made.
    pub module: String,
    pub tensor: String,
}

#[derive(Clone, Debug, Default)]
pub struct Summary {
    /// What rank 0 communicates, in order.
    pub communications: Vec<Communication>,
    /// Per rank: bytes of parameters and buffers held.
    pub held: Vec<u64>,
    /// Per rank: bytes of the parameters that are trained, and so of their gradients.
    pub trained: Vec<u64>,
    pub operators: usize,
    pub divided: DividedCounts,
    /// Operators without a rule.
    pub unknown: Vec<String>,
}

/// How many operators of the plan are divided in which way.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DividedCounts {
    /// Their parts differ.
    pub split: usize,
    /// Several devices compute the same.
    pub replicated: usize,
    /// One device computes all of it.
    pub single: usize,
}

/// The way in which a plan divides one operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Division {
    Split,
    Replicated,
    Single,
}

pub fn division_of(op: &OpPlan) -> Division {
    let splits = op.splits.iter().any(|s| s.on != On::Copies && s.parts > 1);
    match (splits, op.count()) {
        (true, _) => Division::Split,
        (false, 0 | 1) => Division::Single,
        (false, _) => Division::Replicated,
    }
}

pub fn divided(plan: &Plan) -> DividedCounts {
    let count = |division: Division| plan.ops.iter().filter(|op| division_of(op) == division).count();
    DividedCounts {
        split: count(Division::Split),
        replicated: count(Division::Replicated),
        single: count(Division::Single),
    }
}

pub fn summarise(graph: &Graph, program: &Program) -> Summary {
    let mut summary = Summary { operators: graph.ops.len(), ..Summary::default() };
    for op in graph.op_ids() {
        if rules::families::family_of(&graph.op(op).target).is_none() {
            summary.unknown.push(graph.describe(op));
        }
    }
    let world = program.world as usize;
    summary.held = vec![0; world];
    summary.trained = vec![0; world];
    for role in &program.roles {
        for (at, rank) in role.ranks.iter().enumerate() {
            let trained = |source: &Source| matches!(source, Source::Param { frozen: false, .. });
            summary.held[rank.index()] =
                held(graph, role.own(at), |source| !matches!(source, Source::Input { .. }));
            summary.trained[rank.index()] = held(graph, role.own(at), trained);
        }
    }
    if let Some((role, _)) = program.role_of(RankId(0)) {
        summary.communications = communications(graph, program, &role.body);
    }
    summary
}

/// What rank 0 brings from its own host comes from no other rank.
fn is_alone(program: &Program, instr: &Instr) -> bool {
    let by_itself =
        |group: GroupingId| program.groupings[group.index()].iter().any(|all| *all == [RankId(0)]);
    matches!(instr, Instr::Gather { .. } | Instr::Scatter { .. }) && instr.group().is_some_and(by_itself)
}

fn communications(graph: &Graph, program: &Program, body: &Body) -> Vec<Communication> {
    let mut all = vec![];
    for code in &body.codes {
        let communicates = |instr: &&Instr| instr.kind().communicates() && !is_alone(program, instr);
        for instr in code.instrs.iter().filter(communicates) {
            let (phase, kind) = (code.pass.name(), instr.kind().name());
            let tensor = moved(instr).map(|buf| body.buf(buf).tensor);
            let name = tensor.map_or(String::new(), |t| graph.tensor(t).name.clone());
            let maker = tensor.and_then(|t| graph.producer(t)).map(|(op, _)| graph.op(op).module.clone());
            all.push(Communication { phase, kind, module: maker.unwrap_or_default(), tensor: name });
        }
    }
    all
}

fn moved(instr: &Instr) -> Option<BufId> {
    instr.reads().chain(instr.writes()).next()
}

/// Bytes of the shards whose tensors come from such sources.
fn held(graph: &Graph, rank_table: Own<'_>, counts: impl Fn(&Source) -> bool) -> u64 {
    let size = |(number, shard): (usize, &program::Shard)| {
        let numel = u64::try_from(rank_table.shard(number).numel()).unwrap_or(0);
        numel * graph.tensor(shard.tensor).dtype.bytes() as u64
    };
    let counted = |s: &(usize, &program::Shard)| counts(&graph.tensor(s.1.tensor).source);
    rank_table.table.shards.iter().enumerate().filter(counted).map(size).sum()
}
