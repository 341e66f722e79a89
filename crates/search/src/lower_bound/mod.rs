//! What a plan takes at least, known before it is lowered: a plan whose least is above what another one takes need not
//! be looked at.
//!
//! A rank does one thing after the other. For each micro-batch it computes its parts, forward and backward ([`parts`]: of
//! parts that differ, the smallest one), and waits for collectives that lie on one path of dependencies ([`chains`]); at
//! the end it updates its parameters. All its collectives go over its lines, on each one after the other: those on the path, the
//! sums of gradients, and the parameters that it gathers. In a pipeline a stage waits for the stages before it, and
//! those wait for its gradients ([`piped`]). What it holds is at least its parameters, their gradients, and what the
//! optimizer keeps of them; and what forward keeps ([`kept`]), if less of it is not computed again.

mod chains;
mod held;
mod kept;
mod parts;
mod piped;
mod stages;
mod under_way;

use diag::Result;
use graph::OpId;
use plan::{Plan, Schedule};
use rules::{Analysis, Rewriting, Rewritten};

use crate::Question;
use chains::{Chains, LinkLine};
use kept::Kept;
use parts::{GraphFacts, Parts};
use piped::StageWork;
use stages::Stages;

/// Of any rank of a plan: no step is shorter, and no peak of memory is lower for the rank that has most.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct LowerBound {
    pub seconds: f64,
    pub memory: u64,
    /// With what forward keeps, which is less where more is computed again.
    pub kept: u64,
    /// If stages never waited for each other.
    pub flat: f64,
    /// However parameters are held, as well.
    pub computes: f64,
}

/// What is the same for all plans of a question.
pub struct LowerBounds<'q> {
    question: &'q Question<'q>,
    own: Ground,
    /// Where plans rewrite operators, what is the same for all that rewrite those.
    rewritten: Vec<(Vec<Rewriting>, Anew<'q>)>,
}

/// What is the same for all plans of a graph.
struct Ground {
    needs_grad: Vec<bool>,
    parts: Parts,
    kept: Kept,
    /// For each tensor the operators that read it, and as which input.
    uses: Vec<Vec<(OpId, usize)>>,
}

/// A graph that was rewritten.
struct Anew<'q> {
    graph: Rewritten<'q>,
    analysis: Analysis,
    ground: Ground,
}

/// What the ranks of one stage do in a step, each of them at least.
#[derive(Clone, Copy, Debug, Default)]
struct Load {
    /// Of a micro-batch: computing and waiting, forward and backward.
    forward: f64,
    backward: f64,
    /// What of these are collectives.
    waits: (f64, f64),
    /// On the line: sums of gradients at the end of the step, and with each micro-batch; gathers, as well.
    sums: (f64, f64),
    gathers: (f64, f64),
    update: f64,
    /// To add the gradients of a micro-batch to those before.
    added: f64,
    memory: u64,
    /// What of that are gradients.
    gradients: u64,
}

impl Load {
    /// With so many lines, on which all may be divided evenly.
    fn seconds(&self, batches: f64, lines: f64) -> f64 {
        let of_batch = self.forward + self.backward;
        let last = self.backward.max((self.waits.1 + self.sums.0) / lines);
        let all = batches * (self.waits.0 + self.waits.1 + self.sums.1 + self.gathers.1)
            + self.sums.0
            + self.gathers.0;
        let works = (batches - 1.0) * (of_batch + self.added) + self.forward + last;
        works.max(all / lines) + self.update
    }
}

impl<'q> LowerBounds<'q> {
    pub fn new(question: &'q Question<'q>) -> Self {
        Self { question, own: Ground::new(question), rewritten: vec![] }
    }

    pub fn bound(&mut self, plan: &Plan) -> Result<LowerBound> {
        let Question { graph, analysis, .. } = *self.question;
        let rewritings = plan::rewritings(graph, analysis, plan);
        let bound = self.own.bound(self.question, plan)?;
        // Slices of a sequence are rewritten one by one.
        if rewritings.is_empty() || plan.tokens > 1 {
            return Ok(bound);
        }
        let at = match self.rewritten.iter().position(|(known, _)| *known == rewritings) {
            Some(at) => at,
            None => {
                let anew = Anew::new(self.question, &rewritings)?;
                self.rewritten.push((rewritings, anew));
                self.rewritten.len() - 1
            }
        };
        let (_, anew) = &mut self.rewritten[at];
        let carried = plan::carried(plan, analysis, &anew.graph, &anew.analysis);
        let question = Question { graph: &anew.graph.graph, analysis: &anew.analysis, ..*self.question };
        // What is made within what is rewritten may be gone before backward.
        Ok(LowerBound { memory: bound.memory, kept: bound.kept, ..anew.ground.bound(&question, &carried)? })
    }
}

impl<'q> Anew<'q> {
    fn new(question: &Question<'q>, rewritings: &[Rewriting]) -> Result<Self> {
        let graph = rules::rewrite(question.graph, rewritings)?;
        let analysis = Analysis::new(&graph.graph);
        let ground = Ground::new(&Question { graph: &graph.graph, analysis: &analysis, ..*question });
        Ok(Self { graph, analysis, ground })
    }
}

impl Ground {
    fn new(question: &Question<'_>) -> Self {
        let needs_grad = question.boundary.needs_grad(question.graph);
        let parts = Parts::new(question, &needs_grad);
        Self { parts, kept: Kept::new(question), needs_grad, uses: question.graph.uses() }
    }

    fn bound(&mut self, question: &Question<'_>, plan: &Plan) -> Result<LowerBound> {
        let Question { graph, analysis, cluster, .. } = *question;
        let needs_grad = &self.needs_grad[..];
        let facts = GraphFacts { graph, analysis, needs_grad };
        let costs = self.parts.costs(facts, plan);
        let stages = Stages::new(graph, plan);
        let line = LinkLine::new(cluster, plan, &stages);
        let recomputed = stages.recomputed(plan, &costs, needs_grad);
        let seconds: Vec<(f64, f64)> = costs.iter().map(|cost| self.parts.seconds(cost)).collect();
        let mut loads = busiest(&mut self.parts, facts, plan, &stages, &recomputed);
        let (costs, stages, line) = (&costs[..], &stages, &line);
        let chains = Chains { graph, analysis, plan, costs, stages, needs_grad, line, among: None };
        for (load, waits) in loads.iter_mut().zip(chains.waits()) {
            (load.forward, load.backward) = (load.forward + waits.0, load.backward + waits.1);
            load.waits = waits;
        }
        held::hold((question, self), &chains, &mut loads)?;
        let batches = f64::from(question.batches);
        let piped = matches!(plan.schedule, Schedule::OneFOneB | Schedule::Gpipe | Schedule::ZbH1);
        // Where backward has halves, gradients leave before all work is done.
        let whole = plan.schedule != Schedule::ZbH1;
        let piped = piped && plan.timetables.is_empty() && plan.before.is_empty();
        let work = StageWork { loads: &loads, seconds: &seconds, recomputed: &recomputed };
        let piped = if piped { stages.piped(&chains, &work, batches, whole) } else { 0.0 };
        let lines = f64::from(cluster.lines(question.devices));
        let flat = loads.iter().map(|load| load.seconds(batches, lines)).fold(0.0, f64::max);
        let kept = self.kept.by_stage(question, plan, costs, stages);
        let with = |(load, (bytes, at_once)): (&Load, &(u64, u32))| {
            // There are gradients once the first backward is over, and then as much is kept again.
            let later = if *at_once < question.batches { 0 } else { load.gradients };
            load.memory.max(load.memory - later + bytes)
        };
        Ok(LowerBound {
            seconds: flat.max(piped),
            memory: loads.iter().map(|load| load.memory).max().unwrap_or(0),
            kept: loads.iter().zip(&kept).map(with).max().unwrap_or(0),
            flat,
            computes: loads.iter().map(|load| batches * (load.forward + load.backward)).fold(0.0, f64::max),
        })
    }
}

/// What a rank of each stage computes of a micro-batch: of its first and its last one the one that computes longer.
fn busiest(
    parts: &mut Parts,
    facts: GraphFacts<'_>,
    plan: &Plan,
    stages: &Stages<'_>,
    recomputed: &[bool],
) -> Vec<Load> {
    let mut ends = vec![[Load::default(); 2]; stages.count];
    for op in facts.graph.op_ids() {
        let stage = stages.of[op.index()];
        for (load, device) in ends[stage].iter_mut().zip(stages.ends[stage]) {
            let (forward, backward) = parts.on(facts, plan, op, device);
            load.forward += forward;
            load.backward += backward + if recomputed[op.index()] { forward } else { 0.0 };
        }
    }
    let longer = |[a, b]: [Load; 2]| if a.forward + a.backward < b.forward + b.backward { b } else { a };
    ends.into_iter().map(longer).collect()
}
