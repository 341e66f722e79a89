//! A second opinion on programs: it runs all ranks on numbers, and compares what they make with one device.
//!
//! The check follows which part of which tensor a buffer holds, by the rules of operators. This shares nothing with it:
//! elements are integers modulo a large prime ([`number`]), operators are computed ([`ops`]), backward goes back through
//! the computation itself ([`tape`]), and instructions do what the runtime does ([`instr`], [`moves`]). Two programs that
//! are equal for these numbers are equal for all but very few others, whatever the check says of them; but only for
//! this model's shapes, and as far as operators are interpreted. It knows no plans and no rules of operators. Of the rules
//! crate it takes the definition of regions, and the graph in which a program's rewritings are applied, since the
//! program's numbers are of that; what is expected is the model's own.
//!
//! An operator that is not interpreted is a table of its whole operands. Where a rank computes a part of one, the result
//! is unknown, and the operator is named; it is never called equal or different.

mod compare;
mod instr;
mod leaves;
mod machine;
mod moves;
mod number;
mod ops;
mod regions;
mod single;
mod sound;
mod sources;
mod state;
mod step;
mod tape;

use std::collections::{BTreeMap, HashMap};
use std::fmt;

use diag::Result;
use graph::Graph;
use program::Program;
use rules::Rewritten;

use compare::Comparison;
use machine::{Machine, Trouble};
use ops::{Draws, Env, Stop};
use single::{Expected, Single};
use sources::{Sources, When};

/// So many numbers are computed at most.
const LIMIT: usize = 400_000_000;

/// What came of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Verdict {
    Equal(Report),
    Different(Difference),
    Unknown(Reason),
}

/// How far a comparison went.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Report {
    pub batches: u32,
    pub elements: u64,
    /// Elements that are no number on either side, such as a softmax over nothing.
    pub undefined: u64,
    /// Operators, and how often they were computed by what they mean.
    pub exact: BTreeMap<String, u64>,
    /// Those of which a table was taken, element by element or as a whole.
    pub opaque: BTreeMap<String, u64>,
    /// Whether the graph with the program's rewritings was seen to compute what the model's own does. If not, the program
    /// was compared with the former.
    pub rewritings_agree: bool,
}

/// Where a program and its model come apart first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Difference {
    /// What is compared: the gradient of a tensor, an output.
    pub what: String,
    pub tensor: String,
    pub rank: usize,
    pub element: Option<Vec<usize>>,
    pub text: String,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// Ranks compute a part of this operator, which is not interpreted.
    Operator(String),
    TooLarge,
    /// The model itself could not be run.
    Model(String),
}

impl fmt::Display for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.tensor.is_empty() {
            return write!(f, "{}: {}", self.what, self.text);
        }
        write!(f, "{} `{}` on rank {}", self.what, self.tensor, self.rank)?;
        if let Some(element) = &self.element {
            write!(f, " at {element:?}")?;
        }
        write!(f, " {}", self.text)
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Operator(target) => {
                write!(f, "a part of `{target}` is computed, which is not interpreted")
            }
            Reason::TooLarge => {
                f.write_str("the model is too large to be computed number by number; use a smaller one")
            }
            Reason::Model(what) => write!(f, "the model could not be computed: {what}"),
        }
    }
}

/// Runs a step of so many micro-batches, or more if the program's steps must be longer.
pub fn compare(model: &Graph, program: &Program, seed: u64, batches: u32) -> Result<Verdict> {
    let rewritten = program.rewritten(model)?;
    if let Some(what) = sound::fault(&rewritten.graph, program) {
        return Ok(Verdict::Different(fault(&what, "the program")));
    }
    let batches = batches.max(step::least_batches(program));
    let sources = Sources::new(model, seed);
    let run = Execution { model, rewritten: &rewritten, program, sources: &sources, seed, batches };
    Ok(run.verdict())
}

fn fault(what: &str, place: &str) -> Difference {
    let what = format!("{place} {what}");
    Difference { what, tensor: String::new(), rank: 0, element: None, text: "so it does not run".into() }
}

struct Execution<'r> {
    model: &'r Graph,
    rewritten: &'r Rewritten<'r>,
    program: &'r Program,
    sources: &'r Sources,
    seed: u64,
    batches: u32,
}

impl<'r> Execution<'r> {
    fn env(&self) -> Env<'r> {
        Env {
            seed: self.seed,
            batch: 0,
            single: true,
            op: None,
            draws: Draws::All(&self.rewritten.graph),
            seen: HashMap::new(),
            makes: vec![],
            exact: BTreeMap::new(),
            opaque: BTreeMap::new(),
            left: LIMIT,
        }
    }

    fn verdict(&self) -> Verdict {
        let mut env = self.env();
        let (expected, agree) = match self.expected(&mut env) {
            Ok(expected) => expected,
            Err(Stop::TooLarge) => return Verdict::Unknown(Reason::TooLarge),
            Err(Stop::Unknown(target)) => return Verdict::Unknown(Reason::Operator(target)),
            Err(Stop::Wrong(what)) => return Verdict::Unknown(Reason::Model(what)),
        };
        env.exact.clear();
        env.opaque.clear();
        match self.ranks(env, &expected) {
            Ok(mut report) => {
                report.rewritings_agree = agree;
                Verdict::Equal(report)
            }
            Err(verdict) => verdict,
        }
    }

    /// What each step must give, and whether the rewritten graph gives the same as the model's own.
    fn expected(&self, env: &mut Env<'r>) -> std::result::Result<(Vec<Expected>, bool), Stop> {
        let original = self.on_one_device(env, self.model, self.numbers());
        if self.program.rewritings.is_empty() && self.program.slices.is_none() {
            return original.map(|expected| (expected, true));
        }
        let graph = &self.rewritten.graph;
        let other = self.on_one_device(env, graph, (0..graph.ops.len() as u32).collect())?;
        match original {
            Ok(expected) if equal(&expected, &other) => Ok((expected, true)),
            Err(Stop::TooLarge) => Err(Stop::TooLarge),
            _ => Ok((other, false)),
        }
    }

    fn on_one_device(
        &self,
        env: &mut Env<'r>,
        graph: &Graph,
        numbers: Vec<u32>,
    ) -> std::result::Result<Vec<Expected>, Stop> {
        let trains = self.program.roles.iter().any(|role| role.body.trains());
        let single = Single { graph, numbers, boundary: &self.program.boundary, trains };
        let mut held = BTreeMap::new();
        (0..step::steps(self.program))
            .map(|step| single.step(env, self.sources, step, self.batches, &mut held))
            .collect()
    }

    /// By which numbers the model's operators draw: those of the rewritten graph, where they are the same operators.
    fn numbers(&self) -> Vec<u32> {
        let mut numbers = vec![u32::MAX; self.model.ops.len()];
        for (number, origin) in self.rewritten.origins.iter().enumerate() {
            if origin.labels.is_none() {
                numbers[origin.op.index()] = number as u32;
            }
        }
        numbers
    }

    fn ranks(&self, env: Env<'r>, expected: &[Expected]) -> std::result::Result<Report, Verdict> {
        let (graph, program): (&'r Graph, &'r Program) = (&self.rewritten.graph, self.program);
        let needs = program.boundary.needs_grad(graph);
        let mut machine = Machine {
            graph,
            program,
            sources: self.sources,
            needs,
            env,
            open: HashMap::new(),
            messages: HashMap::new(),
        };
        let mut ranks = step::ranks(&machine, self.batches).map_err(verdict_of)?;
        let mut finished = vec![];
        machine
            .run(&mut ranks, &mut |rank, step, gradients| {
                finished.push((rank.number, step, gradients));
                Ok(())
            })
            .map_err(verdict_of)?;
        let mut all = Comparison { machine: &machine, tally: Default::default() };
        let compared = self.compared(&mut all, &ranks, &finished, expected);
        let tally = all.tally;
        compared.map_err(Verdict::Different)?;
        Ok(Report {
            batches: self.batches,
            elements: tally.elements,
            undefined: tally.undefined,
            exact: machine.env.exact,
            opaque: machine.env.opaque,
            rewritings_agree: true,
        })
    }

    fn compared(
        &self,
        all: &mut Comparison<'_, '_>,
        ranks: &[state::Rank<'_>],
        finished: &[(usize, u32, Vec<tape::Value>)],
        expected: &[Expected],
    ) -> std::result::Result<(), Difference> {
        let trains = self.program.roles.iter().any(|role| role.body.trains());
        for (step, expected) in expected.iter().enumerate() {
            for batch in 0..self.batches {
                let when = When { step: step as u32, batch };
                all.outputs(ranks, when, expected)?;
                ranks.iter().try_for_each(|rank| all.of_inputs(rank, when, expected))?;
                all.inputs_have_theirs(ranks, when, expected)?;
            }
        }
        for (rank, step, gradients) in finished {
            if trains {
                all.gradients(&ranks[*rank], gradients, &expected[*step as usize])?;
            }
        }
        if let Some(last) = expected.last() {
            ranks.iter().try_for_each(|rank| all.buffers(rank, last))?;
        }
        all.held(ranks)
    }
}

fn verdict_of(trouble: Trouble) -> Verdict {
    match trouble {
        Trouble::Fault { what, place } if place.is_empty() => Verdict::Different(fault(&what, "the program")),
        Trouble::Fault { what, place } => Verdict::Different(fault(&what, &place)),
        Trouble::TooLarge => Verdict::Unknown(Reason::TooLarge),
        Trouble::Unknown(target) => Verdict::Unknown(Reason::Operator(target)),
    }
}

fn equal(a: &[Expected], b: &[Expected]) -> bool {
    let same = |x: &tape::Value, y: &tape::Value| x.shape == y.shape && x.data == y.data;
    let maps = |x: &BTreeMap<String, tape::Value>, y: &BTreeMap<String, tape::Value>| {
        x.len() == y.len() && x.iter().zip(y).all(|((a, x), (b, y))| a == b && same(x, y))
    };
    let outputs = |x: &[Option<tape::Value>], y: &[Option<tape::Value>]| {
        x.iter().zip(y).all(|(x, y)| match (x, y) {
            (Some(x), Some(y)) => same(x, y),
            (x, y) => x.is_none() == y.is_none(),
        })
    };
    a.iter().zip(b).all(|(a, b)| {
        maps(&a.gradients, &b.gradients)
            && maps(&a.updated, &b.updated)
            && a.of_inputs.iter().zip(&b.of_inputs).all(|(x, y)| maps(x, y))
            && a.outputs.iter().zip(&b.outputs).all(|(x, y)| outputs(x, y))
    })
}
