//! Proves that a program computes what the model's graph computes, from scratch.
//!
//! The program says where the model's sequence is cut into slices ([`rules::slicing`]), and which operators are
//! rewritten. The check repeats that ([`rules::rewriting`]),
//! analyses the graph that results, and proves the program equal to it; each rewriting is among what the proof
//! rests on. So a rewriting that the program does not name, or another one than it is made with, is no way to
//! compute what the model computes.
//!
//! An abstract interpreter: for each buffer of each rank it follows which region of which tensor, or
//! of which gradient, it holds, and which share of its value ([`share`]). It knows the graph, the
//! rules and the program; nothing of plans, and nothing of how the program was made.
//!
//! Invariants, each with the code of the fault that reports its breach:
//!
//! | code | holds |
//! | --- | --- |
//! | `SW0501` | the program belongs to the model: the digest of its graph, the factors of all tensors |
//! | `SW0527`, `SW0331` | its slices are those of a sequence of the model, in which no token needs later ones |
//! | `SW0520` | what is rewritten are operators of the model |
//! | `SW0521` | they have a rewriting for the dims that are named |
//! | `SW0522` | they are listed once, in order, and so are the dims |
//! | `SW0502` | every rank has one role; tables have the sizes that the code needs; every number names something; shards are parts of parameters, buffers and constants, leaves parts of shards, inputs parts of inputs; pieces of exchanges lie in their source and target; who computes the update of a whole parameter holds some of it |
//! | `SW0503` | a buffer is written once, before it is read; what is inside of a call stays inside, and what a code makes in the code, but for what it keeps, which a later code takes once |
//! | `SW0504` | every local operator is a part of an operator of the graph: same tensors, the regions that the rule asks for, exactly the arguments that the rule gives, gradients off exactly where they are off in the model; no loop is split that may not be |
//! | `SW0505` | operators read complete values, or shares of a kind through which they pass by their rule |
//! | `SW0506` | the members of a group meet its communications in one order and do the same in each; whoever is waited for comes, however ranks are timed |
//! | `SW0507` | slices, cuts and exchanges fit what they are applied to: extents, sizes, the order of a group |
//! | `SW0508` | shares are put together with shares of the same thing, by the reduction that their kind asks for, and of sums none twice |
//! | `SW0509` | each call has one backward at most, after it, or two halves of one, and keeps what that needs; it is given the gradients of its results |
//! | `SW0510` | the gradient of a leaf is communicated after its last contribution |
//! | `SW0511` | the gradient of every shard of every trained parameter is the sum of all contributions, each once, on every rank that has the shard; so is the gradient of every input that the caller wants it of, on every rank, for what the rank is given of the input |
//! | `SW0512` | every output that is asked for whole is whole on every rank; of one that is asked for in parts, each rank's part is complete, and together they are all of it |
//! | `SW0513` | every shard of a buffer that the model updates gets its new value, once, and is not read afterwards |
//! | `SW0514` | every element of every parameter, and of every updated buffer, is held by some rank |
//! | `SW0515` | random operators draw for the region that they compute, and overlapping parts for the same one |
//! | `SW0517` | in a step each micro-batch runs each code once, backward after forward |
//! | `SW0518` | each backward starts from the scale of the step, once |
//! | `SW0523` | what is gathered is gathered before it is read and released after it, in the same code, or once for the step |
//! | `SW0526` | what forward sends to the host is brought back in backward, once, and before it is read |
//! | `SW0519` | gradients are communicated in the last micro-batch of a step, when all contributions have arrived |
//! | `SW0531` | where steps follow each other without a pause, each micro-batch is computed with the parameters of its step, and its gradients are there when its step's update takes them |
//!
//! Equal computations are one ([`facts`]): it does not matter by which of several equal operators a
//! value is computed.
//!
//! The way, from the ground up. [`facts`] are what the graph and its rules say; [`symmetry`] knows where it does not
//! matter which part of a tensor something is. [`share`] and [`held`] say what a buffer holds. [`infer`] and [`solve`]
//! find the intervals of an operator's loops, and [`local`] which part of which operator is executed. Of ranks along
//! an [`axis`] a few stand for all, if it is one of the [`symmetric_axes`]. Memory is told by its [`purpose`], all
//! else in the [`proof`].
//!
//! [`state`] is all that is known while ranks are followed. On it stand [`sum`] and [`fold`], then [`calls`],
//! [`moves`], [`copies`] and [`exchange`] for what happens inside of ranks and between them, [`count`] for how much,
//! and [`outgoing`] and [`finish`] for the end. [`order`] runs all ranks together; [`lockstep`] and [`net`] are for
//! steps of several micro-batches, [`versions`] for steps that go on. [`memory`] goes through ranks that were
//! followed, and counts what they have at once; [`rank_trace`] lists what they do, and how much that is.
//! [`structure`] looks at a program before anything is followed.
//!
//! [`mod@measured`] proves nothing: of ranks of one kind ([`rank_kinds`]) it follows one by itself ([`alone`]), for memory and what
//! ranks do.
//!
//! A module uses those that come before it here, and small ones that are not named.

mod alone;
mod args;
mod axis;
mod calls;
mod copies;
mod count;
mod cuts;
mod exchange;
mod facts;
mod fault;
mod finish;
mod fold;
mod held;
mod infer;
mod intern;
mod local;
mod lockstep;
mod measured;
mod memory;
mod moves;
mod net;
mod offloaded;
mod order;
mod outgoing;
mod periodic;
mod proof;
mod purpose;
mod rank_kinds;
mod rank_trace;
mod region;
mod runs;
mod sent;
mod share;
mod shifted;
mod solve;
mod state;
mod structure;
mod sum;
mod sweep;
mod symmetric_axes;
mod symmetry;
mod tiling;
mod timetable;
mod uniform;
mod versions;

pub use axis::{Folding, LONG, RankAxis};
pub use fault::{Fault, Place};
pub use memory::held_as;
pub use proof::{Computed, Issued, Proof, Traffic};
pub use purpose::{Masters, Memory, Moment, Phase, Purpose};
pub use rank_trace::{InstrCost, RankTrace, Work};

use std::borrow::Cow;

use graph::Graph;
use hashing::Map;
use program::{Own, Pass, Program};
use rules::slicing::rests_on;
use rules::{Analysis, Reduction};

use facts::Facts;
use fault::Faults;
use held::Held;
use share::{EMPTY, FULL, Mode, Owner, Quantity, Store, Term, WHOLE};
use state::{Context, Rank, RoleCode};

/// Proves that every rank's program, together, computes the outputs, the updates of buffers and the
/// gradients of parameters that the model's graph says; or says what is wrong, first things first.
pub fn check(model: &Graph, program: &Program) -> Result<Proof, Vec<Fault>> {
    check_folding(model, program, LONG)
}

/// The same, told in which types parameters are held: their memory follows from that.
pub fn check_held(model: &Graph, program: &Program, masters: &Masters) -> Result<Proof, Vec<Fault>> {
    Ok(checked(
        model,
        program,
        Folding::LONG,
        &Wanted { masters, rank_traces: false, over: None, batches: 1, analysis: None },
    )?
    .proof)
}

/// The same, and what each rank does: of ranks that are alike, those that were followed.
pub fn rank_traces(
    model: &Graph,
    program: &Program,
    masters: &Masters,
) -> Result<(Proof, Vec<RankTrace>), Vec<Fault>> {
    courses_folding(model, program, masters, Folding::LONG, 1)
}

/// The same, given along which axes ranks are folded, and what each has in memory in each turn of a step of so many
/// micro-batches.
pub fn courses_over(
    model: &Graph,
    program: &Program,
    masters: &Masters,
    folding: Folding<'_>,
    batches: u32,
) -> Result<(Proof, Vec<RankTrace>), Vec<Fault>> {
    let wanted = Wanted { masters, rank_traces: true, over: Some(batches), batches, analysis: None };
    let report = checked(model, program, folding, &wanted)?;
    Ok((report.proof, report.rank_traces))
}

/// The same without that; the memory that is told is that of a step of so many micro-batches.
pub fn courses_folding(
    model: &Graph,
    program: &Program,
    masters: &Masters,
    folding: Folding<'_>,
    batches: u32,
) -> Result<(Proof, Vec<RankTrace>), Vec<Fault>> {
    let wanted = Wanted { masters, rank_traces: true, over: None, batches, analysis: None };
    let report = checked(model, program, folding, &wanted)?;
    Ok((report.proof, report.rank_traces))
}

/// The same of many programs of a model, whose analysis is made once by whoever asks. It counts where nothing is rewritten.
pub fn courses_of_analysed(
    (model, analysis): (&Graph, &Analysis),
    program: &Program,
    masters: &Masters,
    folding: Folding<'_>,
    batches: u32,
) -> Result<(Proof, Vec<RankTrace>), Vec<Fault>> {
    let wanted = Wanted { masters, rank_traces: true, over: None, batches, analysis: Some(analysis) };
    let report = checked(model, program, folding, &wanted)?;
    Ok((report.proof, report.rank_traces))
}

/// What many programs need and do, if they are right: nothing is proved. It is given the graph that the program's numbers
/// refer to. `None` if that cannot be told so.
pub fn measured(
    (graph, analysis): (&Graph, &Analysis),
    program: &Program,
    masters: &Masters,
    folding: Folding<'_>,
    batches: u32,
) -> Option<(Vec<Memory>, Vec<RankTrace>)> {
    of_facts(graph, analysis, program, |facts, _| {
        measured::measured(facts, program, masters, folding, batches)
    })
}

/// The same, given how long an axis must be to be folded.
pub fn check_folding(model: &Graph, program: &Program, least: u32) -> Result<Proof, Vec<Fault>> {
    Ok(checked(
        model,
        program,
        Folding::from(least),
        &Wanted { masters: &Masters::new(), rank_traces: false, over: None, batches: 1, analysis: None },
    )?
    .proof)
}

/// What is asked besides the proof.
struct Wanted<'m> {
    masters: &'m Masters,
    rank_traces: bool,
    /// Micro-batches of a step of which memory is asked for, turn by turn.
    over: Option<u32>,
    /// Of the step whose memory is told.
    batches: u32,
    /// Of the model, if it is known: it is that of the program where nothing is rewritten.
    analysis: Option<&'m Analysis>,
}

struct Report {
    proof: Proof,
    rank_traces: Vec<RankTrace>,
}

fn checked(
    model: &Graph,
    program: &Program,
    folding: Folding<'_>,
    wanted: &Wanted<'_>,
) -> Result<Report, Vec<Fault>> {
    let faults = structure::of_model(model, program);
    if !faults.is_empty() {
        return Err(faults.list);
    }
    let fault = |error: diag::Error| vec![Fault::from(error)];
    let rewritten = program.rewritten(model).map_err(fault)?;
    let is_own = program.slices.is_none() && program.rewritings.is_empty();
    let analysis = wanted.analysis.filter(|_| is_own);
    let analysis = analysis.map_or_else(|| Cow::Owned(Analysis::new(&rewritten.graph)), Cow::Borrowed);
    let report = equal(&rewritten.graph, &analysis, program, folding, wanted)?;
    let rewritings = rests_on(model, program.slices.as_ref(), &program.rewritings).map_err(fault)?;
    Ok(Report { proof: Proof { rewritings, ..report.proof }, ..report })
}

/// What follows from what is known of the graph, and whether the program trains.
fn of_facts<T>(
    graph: &Graph,
    analysis: &Analysis,
    program: &Program,
    then: impl FnOnce(&Facts<'_>, bool) -> T,
) -> T {
    let trains = program.roles.iter().any(|role| role.body.trains());
    let needs = program.boundary.needs_grad(graph);
    let seeded = seeded(graph, program, &needs, trains);
    then(&Facts::new(graph, analysis, needs, &seeded), trains)
}

/// Along so many axes it is tried whether a few ranks stand for all.
const ATTEMPTS: usize = 3;

/// The same against the graph that the program's numbers refer to.
fn equal(
    graph: &Graph,
    analysis: &Analysis,
    program: &Program,
    folding: Folding<'_>,
    wanted: &Wanted<'_>,
) -> Result<Report, Vec<Fault>> {
    let faults = structure::structure(graph, analysis, program);
    if !faults.is_empty() {
        return Err(faults.list);
    }
    of_facts(graph, analysis, program, |facts, trains| {
        let mut axes = symmetric_axes::all(program, folding).take(ATTEMPTS);
        let report = match axes.find_map(|axis| folded(facts, program, axis, trains, wanted)) {
            Some(report) => report,
            None => one_by_one(facts, program, trains, wanted)?,
        };
        let (plan, ranks) = (program.plan.clone(), program.world);
        Ok(Report { proof: Proof { plan, ranks, backward: trains, ..report.proof }, ..report })
    })
}

/// Follows every rank.
fn one_by_one(
    facts: &Facts<'_>,
    program: &Program,
    trains: bool,
    wanted: &Wanted<'_>,
) -> Result<Report, Vec<Fault>> {
    let mut cx = context(facts, program, None);
    let mut ranks = ranks(&mut cx);
    if order::run(&mut cx, &mut ranks) && cx.faults.is_empty() {
        net::steps(&mut cx, &ranks);
        finish::finish(&mut cx, &ranks, trains);
        finish::all_of_it(&mut cx, program);
    }
    if !cx.faults.is_empty() {
        return Err(cx.faults.list);
    }
    let (memory, offloaded) = memory::of_all(&mut cx, &ranks, wanted.masters, wanted.batches);
    let rank_traces = wanted.courses_of(&mut cx, &ranks, &offloaded);
    Ok(Report { proof: Proof { memory, ..cx.tally.proof(facts, program.world) }, rank_traces })
}

impl Wanted<'_> {
    fn courses_of<'a>(
        &self,
        cx: &mut Context<'a>,
        ranks: &[Rank<'a>],
        offloaded: &[memory::OffloadedBytes],
    ) -> Vec<RankTrace> {
        let mut rank_traces =
            if self.rank_traces { rank_trace::of_all(cx, ranks, self.masters, offloaded) } else { vec![] };
        if let Some(batches) = self.over {
            let held = memory::over(cx, ranks, self.masters, batches);
            rank_traces.iter_mut().zip(held).for_each(|(rank_trace, held)| rank_trace.held = held);
        }
        rank_traces
    }
}

/// Follows some of the ranks along an axis; `None` if that does not show that all of them are right.
fn folded(
    facts: &Facts<'_>,
    program: &Program,
    axis: axis::RankAxis,
    trains: bool,
    wanted: &Wanted<'_>,
) -> Option<Report> {
    let (followed, fold) = axis::followed(program, axis);
    let mut cx = context(facts, &followed, Some(fold));
    let mut ranks = ranks(&mut cx);
    if !order::run(&mut cx, &mut ranks) || !cx.faults.is_empty() || !fold::uniform(&mut cx, &ranks) {
        return None;
    }
    net::steps(&mut cx, &ranks);
    finish::finish(&mut cx, &ranks, trains);
    finish::all_of_it(&mut cx, program);
    // Parts that overlap at the first positions may leave a gap further on, and what is there for ranks that are followed
    // may be missing for others, who read another part of it.
    if !cx.faults.is_empty() || cx.store.overlaps || cx.store.partly_read {
        return None;
    }
    let (memory, offloaded) = memory::of_all(&mut cx, &ranks, wanted.masters, wanted.batches);
    let rank_traces = wanted.courses_of(&mut cx, &ranks, &offloaded);
    let mut proof = cx.tally.proof(facts, program.world);
    let memory_of: Map<program::RankId, &Memory> = ranks.iter().map(|rank| rank.id).zip(&memory).collect();
    proof.local_operators = axis.times(proof.local_operators);
    for rank in 0..program.world as usize {
        let stands = axis.standing_for(program::RankId::new(rank));
        proof.traffic[rank] = proof.traffic[stands.index()].clone();
        proof.computed[rank] = proof.computed[stands.index()];
        proof.memory.push(memory_of[&stands].clone());
    }
    proof.folded = Some(axis.size);
    Some(Report { proof, rank_traces })
}

/// Which outputs leave, and get a gradient from the caller.
fn seeded(graph: &Graph, program: &Program, needs: &[bool], trains: bool) -> Vec<bool> {
    let leaving = |index: usize| program.roles.iter().any(|role| role.table.outputs[index].is_some());
    let seeded = |(index, output): (usize, &Option<graph::TensorId>)| {
        trains && leaving(index) && output.is_some_and(|output| needs[output.index()])
    };
    graph.outputs.iter().enumerate().map(seeded).collect()
}

fn context<'a>(facts: &'a Facts<'a>, program: &'a Program, fold: Option<axis::Fold>) -> Context<'a> {
    let (mut codes, mut base) = (vec![], 0);
    for role in &program.roles {
        let code = RoleCode::new(role, base);
        base += u32::try_from(code.reads.len()).expect("fewer than 2^32 operators");
        codes.push(code);
    }
    Context {
        facts,
        program,
        codes,
        store: Store::new(),
        finder: local::Finder::new(base as usize),
        faults: Faults::default(),
        tally: proof::Tally::default(),
        sent: Map::default(),
        sums: held::Sums::default(),
        fold,
    }
}

/// All ranks in order, with what is there before the first step.
fn ranks<'a>(cx: &mut Context<'a>) -> Vec<Rank<'a>> {
    let roles = cx.program.roles.iter().enumerate();
    let mut all: Vec<(usize, usize)> =
        roles.flat_map(|(role, r)| (0..r.ranks.len()).map(move |i| (role, i))).collect();
    all.sort_by_key(|(role, index)| cx.program.roles[*role].ranks[*index]);
    let mut ranks = vec![];
    for (role, index) in all {
        let mut rank = Rank::new(cx, role, index);
        given(cx, &mut rank);
        ranks.push(rank);
    }
    ranks
}

/// Inputs, leaves, and the gradients that the caller gives.
fn given(cx: &mut Context<'_>, rank: &mut Rank<'_>) {
    let inputs = rank.body.inputs.iter().zip(rank.own.inputs());
    for ((&tensor, region), buf) in inputs.zip(rank.body.takes(Pass::Forward)) {
        let quantity = Quantity { tensor, grad: false };
        let region = cx.store.intervals.number(&region.0);
        rank.bufs[buf.index()] = Some(Held { of: quantity, region, share: WHOLE });
    }
    for (number, (leaf, state)) in rank.body.leaves.iter().zip(&rank.leaves).enumerate() {
        if matches!(rank.own.leaf(number).0, program::Of::Copy(_)) {
            continue;
        }
        let quantity = Quantity { tensor: leaf.tensor, grad: false };
        rank.bufs[leaf.buf.index()] = Some(Held { of: quantity, region: state.region, share: WHOLE });
    }
    for forward in rank.body.codes_of(Pass::Forward) {
        seeds(cx, rank, forward);
    }
    for code in rank.body.back() {
        if rank.body.code(code.block, Pass::Forward).is_none() && !code.takes.is_empty() {
            let what = "a backward gets gradients, but its forward does not exist";
            cx.faults.push(Fault::new("SW0509", what).at(rank.id, None));
        }
    }
}

/// What backward is given for the outputs of a block's forward.
fn seeds(cx: &mut Context<'_>, rank: &mut Rank<'_>, forward: &program::Code) {
    let wanted: Vec<usize> = (0..forward.gives.len())
        .filter(|&output| forward.gives[output].is_some() && cx.facts.expects_seed(rank.body, output))
        .collect();
    let seeds = rank.body.back_of(forward.block).map_or(&[][..], |code| &code.takes);
    if wanted.len() != seeds.len() {
        let why = format!("expected {}, found {}", wanted.len(), seeds.len());
        let what = "backward gets a different number of gradients than there are outputs that need one";
        cx.faults.push(Fault::new("SW0509", what).why(why).at(rank.id, None));
    }
    for (&output, buf) in wanted.iter().zip(seeds) {
        rank.bufs[buf.index()] = seed(cx, rank.own, output);
    }
}

/// The gradient of what leaves. Ranks to which the same part leaves give the same: it counts once.
fn seed(cx: &mut Context<'_>, rank_table: Own<'_>, output: usize) -> Option<Held> {
    let tensor = cx.facts.class(cx.facts.graph.outputs[output]?);
    let quantity = Quantity { tensor, grad: true };
    let region = cx.store.intervals.number(&rank_table.output(output)?.0);
    let share = match cx.facts.seed(output) {
        Some(number) => {
            let term = Term {
                owner: Owner::Use(number),
                cut: FULL,
                mode: Mode::Plain,
                subs: 0,
                once: true,
                kind: Reduction::Sum,
            };
            cx.store.contribution(cx.facts, tensor, term)
        }
        None => EMPTY,
    };
    Some(Held { of: quantity, region, share })
}
