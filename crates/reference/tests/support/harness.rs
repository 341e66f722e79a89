//! Mutants of a program, put to the check and to the reference.

use std::fmt::Write;

use graph::Graph;
use program::Program;
use reference::Verdict;

use super::mutants::{KINDS, Random};

/// What came of mutants of one kind.
#[derive(Clone, Default)]
pub struct Row {
    pub name: &'static str,
    pub made: u32,
    /// By the check, or since it cannot be written or read.
    pub refused: u32,
    /// Of these, those that compute the right thing anyway: the check is stricter than it must be, or the fault does no harm here.
    pub harmless: u32,
    /// The check accepts, and they are equal.
    pub equal: u32,
    /// The check accepts, and the reference cannot tell.
    pub unknown: u32,
    /// The check accepts what is different.
    pub survived: Vec<String>,
}

/// For each kind so many mutants.
pub fn mutate(what: &str, graph: &Graph, program: &Program, (seed, each): (u64, u32), rows: &mut Vec<Row>) {
    if rows.is_empty() {
        rows.extend(KINDS.iter().map(|(name, _)| Row { name, ..Row::default() }));
    }
    for ((_, make), row) in KINDS.iter().zip(rows) {
        for number in 0..each {
            let mut random = Random(seed * 1000 + u64::from(number));
            let mut mutant = program.clone();
            if make(&mut mutant, &mut random).is_none() || mutant == *program {
                continue;
            }
            row.made += 1;
            // Read anew, so that what are hints are those of what is written.
            let written = emit::emit(graph, &mutant).and_then(|files| emit::read(graph, &files));
            let accepted = written.as_ref().is_ok_and(|mutant| check::check(graph, mutant).is_ok());
            let mutant = written.unwrap_or(mutant);
            let verdict = reference::compare(graph, &mutant, seed, 3);
            match (accepted, verdict) {
                (false, Ok(Verdict::Equal(_))) => {
                    row.refused += 1;
                    row.harmless += 1;
                }
                (false, _) => row.refused += 1,
                (true, Ok(Verdict::Equal(_))) => row.equal += 1,
                (true, Ok(Verdict::Unknown(_))) => row.unknown += 1,
                (true, Ok(Verdict::Different(it))) => {
                    row.survived.push(format!("{what}, mutant {number}: {it}"));
                }
                (true, Err(error)) => row.survived.push(format!("{what}, mutant {number}: {error}")),
            }
        }
    }
}

pub fn table(rows: &[Row]) -> String {
    let mut text = format!(
        "{:50} {:>5} {:>7} {:>8} {:>5} {:>7} {:>8}\n",
        "kind", "made", "refused", "harmless", "equal", "unknown", "SURVIVED"
    );
    let mut all = Row { name: "all", ..Row::default() };
    for row in rows {
        all.made += row.made;
        all.refused += row.refused;
        all.harmless += row.harmless;
        all.equal += row.equal;
        all.unknown += row.unknown;
        all.survived.extend(row.survived.iter().cloned());
    }
    for row in rows.iter().chain([&all]) {
        let Row { name, made, refused, harmless, equal, unknown, survived } = row;
        let survived = survived.len();
        let _ = writeln!(
            text,
            "{name:50} {made:>5} {refused:>7} {harmless:>8} {equal:>5} {unknown:>7} {survived:>8}"
        );
    }
    for row in rows {
        row.survived.iter().for_each(|it| text += &format!("SURVIVED: {}: {it}\n", row.name));
    }
    text
}
