//! The whole way after capture: a plan is lowered, the program is emitted, read back from its text,
//! and what was read back is proved. Only then it exists: what runs is what was proved.

mod cost;
mod figure;
mod lines;
mod memory;
mod step;
mod summary;
mod work;

use std::time::{Duration, Instant};

use check::Fault;
use diag::{Error, Result};
use emit::File;
use graph::Graph;
use plan::Plan;
use program::{Boundary, Program};
use rules::Analysis;

pub use check::{Issued, Masters, Memory, Proof, Purpose, Traffic};
pub use cost::{Costs, PartCost};
pub use figure::drawn;
pub use lower::{arriving, wanted};
pub use memory::{Limit, bytes, fits, fits_alone, size, uses, with_optimizer};
pub use rules::Bytes;
pub use simulate::{Kinds, SUM};
pub use step::{
    Estimate, FollowedStep, Setting, SimulatedStep, brief, brief_on, communications, estimate,
    estimate_one_by_one, estimate_unproved, followed, require_batches, states, step, updated,
};
pub use summary::{Communication, DividedCounts, Division, Summary, division_of};
pub use work::{Repeated, Work, operations_of_each, work};

/// A program that was proved to compute what the model's graph computes.
pub struct Compiled {
    pub program: Program,
    pub files: Vec<File>,
    pub proof: Proof,
    pub summary: Summary,
    /// How long each phase took.
    pub phases: Vec<(&'static str, Duration)>,
}

/// Compiles a plan for the model's graph, of which `analysis` is.
pub fn compile(graph: &Graph, analysis: &Analysis, plan: &Plan, boundary: &Boundary) -> Result<Compiled> {
    compile_watched(graph, analysis, plan, boundary, &Masters::new(), &mut |_| {})
}

/// Says the name of each phase as it begins, and is told in which types ranks hold parameters.
pub fn compile_watched(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    boundary: &Boundary,
    masters: &Masters,
    watch: &mut dyn FnMut(&'static str),
) -> Result<Compiled> {
    let mut clock = Clock { phases: vec![], watch };
    let divided = summary::divided(plan);
    let program = clock.time("lower", || lower::lower(graph, analysis, plan, boundary))?;
    let files = clock.time("emit", || emit::emit(graph, &program))?;
    let (_, proof) = accept(graph, &files, masters, &mut clock).map_err(refused)?;
    let rewritten = program.rewritten(graph)?.graph;
    let summary = Summary { divided, ..summary::summarise(&rewritten, &program) };
    Ok(Compiled { program, files, proof, summary, phases: clock.phases })
}

/// Proves a program that is read from files, against the model's graph.
pub fn verify(graph: &Graph, files: &[File]) -> Result<Proof> {
    Ok(accept(graph, files, &Masters::new(), &mut Clock { phases: vec![], watch: &mut |_| () })?.1)
}

/// A program that is read from files, in the place of one that is made by a plan: proved in the same way. How
/// operators are divided is a plan's to say, and not known.
pub fn read(
    graph: &Graph,
    files: Vec<File>,
    boundary: &Boundary,
    masters: &Masters,
    watch: &mut dyn FnMut(&'static str),
) -> Result<Compiled> {
    let mut clock = Clock { phases: vec![], watch };
    let (program, proof) = accept(graph, &files, masters, &mut clock)?;
    if program.boundary != *boundary {
        return Err(other_boundary(&program.boundary));
    }
    let summary = summary::summarise(&program.rewritten(graph)?.graph, &program);
    Ok(Compiled { program, files, proof, summary, phases: clock.phases })
}

fn accept(
    graph: &Graph,
    files: &[File],
    masters: &Masters,
    clock: &mut Clock<'_>,
) -> Result<(Program, Proof)> {
    let read = clock.time("read back", || emit::read_with_lines(graph, files));
    let (program, lines) = read.map_err(|error| lines::quoted(error, files))?;
    let proof = clock.time("check", || check::check_held(graph, &program, masters));
    let proof =
        proof.map_err(|faults| first_of(&faults, &|fault| lines::located(fault, &program, &lines, files)));
    Ok((program, proof?))
}

fn other_boundary(boundary: &Boundary) -> Error {
    let outputs: Vec<&str> = boundary.outputs.iter().map(|output| output.name()).collect();
    Error::new("SW0534", "the program is for other inputs or outputs than are asked for")
        .at("program.json")
        .why(format!(
            "it has inputs={:?}, and its outputs are {}",
            boundary.inputs.name(),
            outputs.join(", ")
        ))
        .fix("give `inputs` and `outputs` as when it was emitted, or emit it again")
}

/// The code of the error for a program that was just made: nobody edited it, so it is a bug of the compiler.
pub const REFUSED: &str = "SW0516";

fn refused(error: Error) -> Error {
    let why = [Some(format!("{}: {}", error.code, error.what)), error.why].into_iter().flatten();
    let ours = Error::new(REFUSED, "the program that was just made is refused by the compiler's own check")
        .why(why.collect::<Vec<_>>().join("; "));
    Error { place: error.place, ..ours }
}

/// The first of several faults, where it is, and how many there are.
fn first_of(faults: &[Fault], located: &dyn Fn(&Fault) -> Error) -> Error {
    let count = faults.len();
    let first = faults.first().map(located);
    let mut first = first.unwrap_or_else(|| Error::new("SW0500", "the program is not equal to the model"));
    if count > 1 {
        first.what = format!("{} (and {} more)", first.what, count - 1);
    }
    first
}

struct Clock<'w> {
    phases: Vec<(&'static str, Duration)>,
    watch: &'w mut dyn FnMut(&'static str),
}

impl Clock<'_> {
    fn time<T>(&mut self, name: &'static str, work: impl FnOnce() -> T) -> T {
        (self.watch)(name);
        let start = Instant::now();
        let result = work();
        self.phases.push((name, start.elapsed()));
        result
    }
}

#[cfg(test)]
mod tests {
    use program::{Inputs, Output};

    use super::*;

    /// What the compiler would say of its own program if emit had written `to` for `from`.
    fn said_of(from: &str, to: &str) -> Option<Error> {
        let text = include_str!("../../../tests/python/golden/mlp.graph");
        let graph: Graph = text.parse().expect("it parses");
        let analysis = Analysis::new(&graph);
        let plan = plan::random::plan(&graph, &analysis, 2, 7);
        let boundary = Boundary { inputs: Inputs::Global, outputs: vec![Output::Whole; graph.outputs.len()] };
        let compiled = compile(&graph, &analysis, &plan, &boundary).expect("it compiles");
        let mut files = compiled.files;
        for file in &mut files {
            file.text = file.text.replace(from, to);
        }
        verify(&graph, &files).map_err(refused).err()
    }

    #[test]
    fn a_program_that_our_own_check_refuses_is_a_bug_of_ours() {
        assert!(said_of("F.gelu(", "F.gelu(").is_none());
        for (from, to, inner) in [("F.gelu(", "F.silu(", "SW05"), ("F.gelu(", "F.gelu((", "SW06")] {
            let error = said_of(from, to).expect("a refusal");
            assert_eq!(error.code, REFUSED);
            assert!(error.why.unwrap_or_default().starts_with(inner));
        }
    }
}
