//! What became of the mutants, and what is known of those that live.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;
use std::fs;
use std::path::Path;

use crate::plant::Mutant;
use crate::scratch::Scratch;

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fate {
    /// It is no program.
    Broken,
    /// By this test.
    Killed(String),
    Survived,
    /// No test comes by it.
    Unreached,
}

impl Fate {
    fn text(&self) -> &str {
        match self {
            Fate::Broken => "broken",
            Fate::Killed(by) => by,
            Fate::Survived => "survived",
            Fate::Unreached => "unreached",
        }
    }

    pub fn lives(&self) -> bool {
        matches!(self, Fate::Survived | Fate::Unreached)
    }
}

/// What became of the mutants in the last run.
pub fn before(scratch: &Scratch) -> BTreeMap<String, Fate> {
    let text = fs::read_to_string(scratch.found()).unwrap_or_default();
    let fate = |line: &str| match line.split('\t').collect::<Vec<_>>()[..] {
        [_, _, _, _, "broken"] => None,
        [_, _, _, name, "survived"] => Some((name.to_string(), Fate::Survived)),
        [_, _, _, name, "unreached"] => Some((name.to_string(), Fate::Unreached)),
        [_, _, _, name, by] => Some((name.to_string(), Fate::Killed(by.into()))),
        _ => None,
    };
    text.lines().filter_map(fate).collect()
}

/// Names of mutants, one a line, and a reason behind `| because`; `#` begins a remark. `*` stands for all changes of a function.
pub fn listed(path: &Path) -> BTreeSet<String> {
    let text = fs::read_to_string(path).unwrap_or_default();
    let lines = text.lines().map(str::trim).filter(|line| !line.is_empty() && !line.starts_with('#'));
    lines.map(|line| line.split(" | because ").next().unwrap_or(line).to_string()).collect()
}

pub fn is_listed(mutant: &Mutant, names: &BTreeSet<String>) -> bool {
    let all = format!("{} | {} | *", mutant.file, mutant.function);
    names.contains(&mutant.name()) || names.contains(&all)
}

/// Mutants and what became of them, by file.
pub fn table(found: &[(Mutant, Fate)], equivalent: &BTreeSet<String>) -> String {
    let mut rows: BTreeMap<&str, [usize; 5]> = BTreeMap::new();
    for (mutant, fate) in found.iter().filter(|(_, fate)| *fate != Fate::Broken) {
        let is_equivalent = fate.lives() && is_listed(mutant, equivalent);
        let lives = fate.lives() && !is_equivalent;
        for row in [&mutant.file[..], "all"] {
            let row = rows.entry(row).or_default();
            let counted = [true, !fate.lives(), is_equivalent, lives, lives && mutant.opens];
            row.iter_mut().zip(counted).for_each(|(count, is)| *count += usize::from(is));
        }
    }
    let mut text = format!("{:<36} mutants  killed  equivalent  live  of these opening\n", "file");
    for (file, [all, killed, equivalent, live, opening]) in rows {
        writeln!(text, "{file:<36} {all:>7} {killed:>7} {equivalent:>11} {live:>5} {opening:>17}")
            .expect("a string");
    }
    text
}

/// The file of those that nobody has judged: the plainly opening ones first.
pub fn open<'m>(live: impl Iterator<Item = &'m Mutant>) -> String {
    let (opening, others): (Vec<&Mutant>, Vec<&Mutant>) = live.partition(|mutant| mutant.opens);
    let names = |all: &[&Mutant]| all.iter().map(|mutant| mutant.name() + "\n").collect::<String>();
    let head = "# Mutants that live, and that nobody has judged. `UPDATE=1 make mutants WHERE=--live` writes this file.\n";
    format!("{head}# The check accepts more:\n{}# Others:\n{}", names(&opening), names(&others))
}

/// Where a mutant is, its name, what became of it.
pub fn line((mutant, fate): &(Mutant, Fate)) -> String {
    let opens = if mutant.opens { "opens" } else { "" };
    format!("{}\t{}\t{opens}\t{}\t{}\n", mutant.number, mutant.line, mutant.name(), fate.text())
}
