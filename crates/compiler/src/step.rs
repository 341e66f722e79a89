//! A step of a program on a cluster: how long it takes, and what of that is work on the model.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet};

use check::{Folding, LONG, Masters, Purpose, RankTrace};
use cluster::Cluster;
use diag::{Error, Result};
use graph::{Graph, OpId};
use lower::Lowered;
use plan::Plan;
use program::{Boundary, Instr, Program, Role};
use rules::Analysis;
use simulate::{
    Functions, HeldMemory, Kinds, Lasts, ModelWork, Placing, Scene, Scope, Share, Shares, Simulation,
    Updates, manifest, shares, simulate, simulate_briefly, symmetric, trace,
};

use crate::memory::{optimizer, with_optimizer};
use crate::work::operations;
use crate::{Compiled, File, Memory, first_of};

/// What is simulated besides the program.
#[derive(Clone, Copy, Debug)]
pub struct Setting<'s> {
    pub cluster: &'s Cluster,
    /// Micro-batches of the step, each as large as the graph's inputs.
    pub batches: u32,
    pub optimizer: &'s str,
    pub masters: &'s Masters,
    /// PyTorch compiles local code.
    pub compiled: bool,
}

impl Setting<'_> {
    fn kinds(&self, graph: &Graph) -> Kinds {
        if self.compiled { Kinds::compiled(graph) } else { Kinds::new(graph) }
    }
}

pub struct SimulatedStep {
    pub estimate: Estimate,
    /// In JSON: what each role communicates.
    pub manifest: String,
    /// In the format of Chrome's traces, if it was asked for.
    pub trace: Option<String>,
    /// What ranks have in memory over time, of those whose spans are known.
    pub held: Vec<HeldMemory>,
    /// What of a rank's time each operator of the model takes.
    pub shares: Vec<Shares>,
}

fn iterations_of<'c>(
    rank_traces: &'c [RankTrace],
    memory: &[Memory],
    optimizer: &str,
) -> Result<Vec<Placing<'c>>> {
    let placing_of = |rank_trace: &'c RankTrace| {
        let memory = &memory[rank_trace.rank.index()];
        let only = Memory { trained: memory.trained, ..Memory::default() };
        let state = with_optimizer(&[only], optimizer)?[0].peak[Purpose::Optimizer as usize];
        Ok(Placing { rank: rank_trace.rank, phases: &rank_trace.held, state, end: memory.end })
    };
    rank_traces.iter().map(placing_of).collect()
}

/// What a plan takes.
#[derive(Clone, Debug)]
pub struct Estimate {
    pub simulation: Simulation,
    /// Of each rank.
    pub memory: Vec<Memory>,
    /// Operations of the model in a step.
    pub operations: f64,
    /// What these are of all that the devices could compute in that time, in the types that the model computes in.
    pub utilisation: f64,
    /// Of the passes of blocks, what each takes whenever it runs.
    pub passes: Vec<Lasts>,
    /// Those of which one keeps something for another on some rank.
    pub handed: Vec<(schedule::ShapeStep, schedule::ShapeStep)>,
}

/// More micro-batches than this are a mistake.
const MOST_BATCHES: u32 = 1 << 16;

/// Runs a step of a compiled plan; `traced` says whether a timeline is wanted, which takes longer than all else.
pub fn step(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    compiled: &Compiled,
    setting: &Setting<'_>,
    traced: bool,
) -> Result<SimulatedStep> {
    require_batches(setting.batches)?;
    let program = &compiled.program;
    let folding = Folding { least: LONG, may: &|axis| symmetric(program, setting.cluster, axis) };
    let (proof, rank_traces) = check::courses_over(graph, program, setting.masters, folding, setting.batches)
        .map_err(|faults| first_of(&faults, &|fault| Error::from(fault)))?;
    let updates = updates(&proof.memory, setting.optimizer)?;
    let rewritten = program.rewritten(graph)?.graph;
    let kinds = setting.kinds(&rewritten);
    let scene = scene(program, &rank_traces, &kinds, setting, &updates)?;
    let simulation = simulate(&scene)?;
    let estimate = estimate_of(graph, analysis, plan, program, simulation, &proof.memory, setting)?;
    let (simulation, memory) = (&estimate.simulation, &estimate.memory);
    let shares = of_model(graph, program, shares(&scene, rewritten.ops.len(), simulation))?;
    let held = simulation.held(&iterations_of(&rank_traces, memory, setting.optimizer)?);
    let work =
        ModelWork { operations: estimate.operations, peak: peak(graph, setting.cluster, plan.devices) };
    let traced = if traced { Some(functions(graph, compiled)?) } else { None };
    Ok(SimulatedStep {
        manifest: format!("{:#}", manifest(&scene, &rewritten, simulation, &work, Scope::Roles)),
        trace: traced.map(|functions| trace(&scene, &rewritten, &functions, simulation, &held)),
        held,
        shares,
        estimate,
    })
}

/// What the calls of each role run, as the emitted files call it.
fn functions(graph: &Graph, compiled: &Compiled) -> Result<Functions> {
    let (program, lines) = emit::read_with_lines(graph, &compiled.files)?;
    let of_role = |(at, role): (usize, &Role)| {
        let mut functions = BTreeMap::new();
        for code in &role.body.codes {
            for (number, instr) in code.instrs.iter().enumerate() {
                let line = lines.line(at, code.key(), number);
                if let (Instr::Call(call), Some(function)) = (instr, line.and_then(|it| it.function.clone()))
                {
                    functions.entry(call.id).or_insert(function);
                }
            }
        }
        functions
    };
    Ok(program.roles.iter().enumerate().map(of_role).collect())
}

/// Shares of the program's operators as those of the model's. Of a model in slices they are each module's as a whole.
fn of_model(graph: &Graph, program: &Program, shares: Vec<Shares>) -> Result<Vec<Shares>> {
    let rewritten = program.rewritten(graph)?;
    let mut first_in: BTreeMap<&str, OpId> = BTreeMap::new();
    for op in graph.op_ids() {
        first_in.entry(&graph.op(op).module).or_insert(op);
    }
    let in_model = |op: OpId| match program.slices {
        None => Some(rewritten.origins[op.index()].op),
        Some(_) => first_in.get(&rewritten.graph.op(op).module[..]).copied(),
    };
    let summed = |rank: Shares| {
        let mut by_op = vec![Share::default(); graph.ops.len()];
        let mut rest = rank.rest;
        for (op, share) in rewritten.graph.op_ids().zip(&rank.of) {
            *in_model(op).map_or(&mut rest, |op| &mut by_op[op.index()]) += *share;
        }
        Shares { of: by_op, rest, ..rank }
    };
    Ok(shares.into_iter().map(summed).collect())
}

/// A step of a program that is read from files, of which every rank is followed.
pub struct FollowedStep<'f> {
    pub scene: Scene<'f>,
    /// Where the instructions stand.
    pub lines: &'f emit::Lines,
    /// The one that the program's numbers are of.
    pub graph: &'f Graph,
    pub simulation: &'f Simulation,
}

/// Proves such a program, runs a step of it, and gives what is told of that.
pub fn followed<T>(
    graph: &Graph,
    files: &[File],
    setting: &Setting<'_>,
    tell: impl FnOnce(&FollowedStep<'_>) -> Result<T>,
) -> Result<T> {
    require_batches(setting.batches)?;
    let (program, lines) = emit::read_with_lines(graph, files)?;
    let (proof, rank_traces) =
        check::courses_folding(graph, &program, setting.masters, ONE_BY_ONE, setting.batches)
            .map_err(|faults| first_of(&faults, &|fault| Error::from(fault)))?;
    let updates = updates(&proof.memory, setting.optimizer)?;
    let rewritten = program.rewritten(graph)?.graph;
    let kinds = setting.kinds(&rewritten);
    let scene = scene(&program, &rank_traces, &kinds, setting, &updates)?;
    let simulation = simulate(&scene)?;
    tell(&FollowedStep { scene, lines: &lines, graph: &rewritten, simulation: &simulation })
}

/// What every rank communicates in a step of a program that is read from files, as JSON.
pub fn communications(graph: &Graph, files: &[File], setting: &Setting<'_>) -> Result<String> {
    followed(graph, files, setting, |step| {
        let operations = operations(graph, &Analysis::new(graph)) * f64::from(setting.batches);
        let work = ModelWork { operations, peak: peak(graph, setting.cluster, step.scene.program.world) };
        Ok(format!("{:#}", manifest(&step.scene, step.graph, step.simulation, &work, Scope::Ranks)))
    })
}

/// All ranks are followed, however alike.
const ONE_BY_ONE: Folding<'static> = Folding { least: u32::MAX, may: &|_| false };
/// An axis of so many is folded: many plans are estimated, and none is kept.
const SHORT: u32 = 5;

/// Runs a step of a plan whose program is neither proved nor written: of many plans the one that is taken is proved.
pub fn estimate_unproved(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    boundary: &Boundary,
    setting: &Setting<'_>,
) -> Result<Estimate> {
    require_batches(setting.batches)?;
    let Lowered { program, graph: rewritten, analysis: of_rewritten } =
        lower::lowered(graph, analysis, plan, boundary)?;
    let folding = Folding { least: SHORT, may: &|axis| symmetric(&program, setting.cluster, axis) };
    match check::measured((&rewritten, &of_rewritten), &program, setting.masters, folding, setting.batches) {
        Some((memory, rank_traces)) => {
            briefly((graph, analysis, plan), (&program, &rewritten), (&memory, &rank_traces), setting)
        }
        None => estimated(graph, analysis, plan, &program, SHORT, setting),
    }
}

/// Runs a step of a plan whose program is proved and not written: who does what when is forgotten.
pub fn estimate(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    boundary: &Boundary,
    setting: &Setting<'_>,
) -> Result<Estimate> {
    let program = lower::lower(graph, analysis, plan, boundary)?;
    estimated(graph, analysis, plan, &program, SHORT, setting)
}

/// The same of a compiled plan: its numbers without who does what when, so a step of many micro-batches takes no longer than
/// one of few.
pub fn brief(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    compiled: &Compiled,
    setting: &Setting<'_>,
) -> Result<Estimate> {
    estimated(graph, analysis, plan, &compiled.program, SHORT, setting)
}

/// The same on clusters that differ in how fast their parts are: what ranks do is followed once.
pub fn brief_on(
    clusters: &[Cluster],
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    compiled: &Compiled,
    setting: &Setting<'_>,
) -> Result<Vec<Estimate>> {
    let program = &compiled.program;
    let (rewritten, memory, rank_traces) = proved(graph, analysis, program, SHORT, setting)?;
    let on = |cluster| {
        let setting = Setting { cluster, ..*setting };
        briefly((graph, analysis, plan), (program, &rewritten), (&memory, &rank_traces), &setting)
    };
    clusters.iter().map(on).collect()
}

/// The same, following all ranks: what few of them tell is exactly that.
pub fn estimate_one_by_one(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    boundary: &Boundary,
    setting: &Setting<'_>,
) -> Result<Estimate> {
    let program = lower::lower(graph, analysis, plan, boundary)?;
    estimated(graph, analysis, plan, &program, u32::MAX, setting)
}

fn estimated(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    program: &Program,
    short: u32,
    setting: &Setting<'_>,
) -> Result<Estimate> {
    let (rewritten, memory, rank_traces) = proved(graph, analysis, program, short, setting)?;
    briefly((graph, analysis, plan), (program, &rewritten), (&memory, &rank_traces), setting)
}

/// The graph that a program's numbers refer to, and what its ranks need and do.
fn proved<'g>(
    graph: &'g Graph,
    analysis: &Analysis,
    program: &Program,
    short: u32,
    setting: &Setting<'_>,
) -> Result<(Cow<'g, Graph>, Vec<Memory>, Vec<RankTrace>)> {
    require_batches(setting.batches)?;
    let folding = Folding { least: short, may: &|axis| symmetric(program, setting.cluster, axis) };
    let (proof, rank_traces) =
        check::courses_of_analysed((graph, analysis), program, setting.masters, folding, setting.batches)
            .map_err(|faults| first_of(&faults, &|fault| Error::from(fault)))?;
    Ok((program.rewritten(graph)?.graph, proof.memory, rank_traces))
}

/// What a step takes, given the graph that the program's numbers refer to, and what ranks need and do.
fn briefly(
    (graph, analysis, plan): (&Graph, &Analysis, &Plan),
    (program, rewritten): (&Program, &Graph),
    (memory, rank_traces): (&[Memory], &[RankTrace]),
    setting: &Setting<'_>,
) -> Result<Estimate> {
    let updates = updates(memory, setting.optimizer)?;
    let kinds = setting.kinds(rewritten);
    let simulation = simulate_briefly(&scene(program, rank_traces, &kinds, setting, &updates)?)?;
    estimate_of(graph, analysis, plan, program, simulation, memory, setting)
}

/// Bytes that an optimizer moves which steps so many bytes of parameters.
pub fn updated(trained: u64, name: &str) -> Result<u64> {
    Ok(trained * optimizer(name)?.passes)
}

/// How many tensors like a parameter an optimizer has.
pub fn states(name: &str) -> Result<u64> {
    Ok(optimizer(name)?.state.0)
}

fn updates(memory: &[Memory], optimizer: &str) -> Result<Vec<Updates>> {
    let updates_of = |rank: &Memory| {
        Ok(Updates {
            here: updated(rank.trained.1 + rank.trained_from_host.1, optimizer)?,
            comes: rank.trained_from_host.1 * states(optimizer)?,
            on_host: updated(rank.trained_on_host.1, optimizer)?,
        })
    };
    memory.iter().map(updates_of).collect()
}

/// Refuses a step of no micro-batches, and of too many: each is gone through in memory.
pub fn require_batches(batches: u32) -> Result<()> {
    if batches == 0 {
        return Err(Error::new("SW0912", "a step has at least one micro-batch")
            .why("it was to be simulated with none")
            .fix("give --batches 1, or more"));
    }
    if batches > MOST_BATCHES {
        return Err(Error::new("SW0912", format!("a step has at most {MOST_BATCHES} micro-batches"))
            .why("each one is simulated by itself")
            .fix("give a smaller --batches, and larger micro-batches"));
    }
    Ok(())
}

fn scene<'s>(
    program: &'s Program,
    rank_traces: &'s [RankTrace],
    kinds: &'s Kinds,
    setting: &Setting<'s>,
    updates: &'s [Updates],
) -> Result<Scene<'s>> {
    Ok(Scene { program, rank_traces, cluster: setting.cluster, kinds, batches: setting.batches, updates })
}

fn estimate_of(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    program: &Program,
    mut simulation: Simulation,
    memory: &[Memory],
    setting: &Setting<'_>,
) -> Result<Estimate> {
    let operations = operations(graph, analysis) * f64::from(setting.batches);
    let could = peak(graph, setting.cluster, plan.devices) * simulation.seconds;
    let utilisation = if could > 0.0 { operations / could } else { 0.0 };
    let passes = std::mem::take(&mut simulation.passes);
    let in_blocks = plan.block_count() > 1;
    let passes = if in_blocks { passes } else { vec![] };
    let roles = program.roles.iter().filter(|_| in_blocks);
    let handed: BTreeSet<_> = roles.flat_map(|role| lower::handed_on(&role.body)).collect();
    let memory = with_optimizer(memory, setting.optimizer)?;
    Ok(Estimate { simulation, memory, operations, utilisation, passes, handed: handed.into_iter().collect() })
}

/// Operations a second of so many devices, in the type of which the model's tensors have most elements.
fn peak(graph: &Graph, cluster: &Cluster, devices: u32) -> f64 {
    let mut elements: Vec<(graph::Dtype, u64)> = vec![];
    for tensor in graph.tensors.iter().filter(|tensor| tensor.dtype.is_float()) {
        let size = tensor.numel().unsigned_abs();
        match elements.iter_mut().find(|(dtype, _)| *dtype == tensor.dtype) {
            Some((_, all)) => *all += size,
            None => elements.push((tensor.dtype, size)),
        }
    }
    let most = elements.iter().max_by_key(|(_, all)| *all).map_or(graph::Dtype::F32, |(dtype, _)| *dtype);
    (0..devices).map(|rank| cluster.device(rank).peak_of(most)).sum()
}
