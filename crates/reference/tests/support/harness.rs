//! Mutants of programs, put to the check and to the reference, on all cores.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::fmt::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, Once};

use graph::Graph;
use program::Program;
use reference::Verdict;

use super::mutants::{KINDS, Make, Random};
use super::wild;

/// A good program, as it is read back from what is written.
pub struct Subject {
    /// Of which model, under which plan.
    pub what: String,
    pub graph: Graph,
    pub program: Program,
}

/// How many mutants of each kind are made of each program, and by which numbers.
#[derive(Clone, Copy)]
pub struct Many {
    pub seed: u64,
    pub each: u32,
    /// Whether those that the check refuses are compared, too: it says how many of them do no harm, and takes its time.
    pub refused: bool,
}

/// Micro-batches of the steps that are compared.
const BATCHES: u32 = 3;

/// What came of mutants of one kind.
#[derive(Clone, Default)]
pub struct Row {
    pub name: &'static str,
    pub made: u32,
    /// They cannot be written, or not be read.
    pub unreadable: u32,
    /// By the check.
    pub refused: u32,
    /// Of these, if they are compared, those that compute the right thing anyway: the check is stricter than it must be,
    /// or the fault does no harm here.
    pub harmless: u32,
    /// The check accepts, and they are equal.
    pub equal: u32,
    /// The check accepts, and the reference cannot tell: how many for each reason.
    pub unknown: BTreeMap<String, u32>,
    /// The check accepts what is different.
    pub survived: Vec<String>,
    /// Whoever was given it ended with a panic, and with no verdict.
    pub panicked: Vec<String>,
}

enum Came {
    Unreadable,
    Refused { harmless: Option<bool> },
    Equal,
    Unknown(String),
    Survived(String),
    Panicked(String),
}

/// So many mutants of each kind of each program; a row for each kind.
pub fn mutate(subjects: &[Subject], many: Many) -> Vec<Row> {
    note_panics();
    let (next, found) = (AtomicUsize::new(0), Mutex::new(vec![]));
    let work = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            let Some(subject) = subjects.get(at / KINDS.len()) else { break };
            let row = of_kind(subject, at % KINDS.len(), many);
            found.lock().expect("no worker ends early").push((at, row));
        }
    };
    let workers = std::thread::available_parallelism().map_or(1, usize::from);
    std::thread::scope(|scope| (0..workers).for_each(|_| drop(scope.spawn(work))));
    let mut found = found.into_inner().expect("no worker ends early");
    found.sort_by_key(|(at, _)| *at);
    let mut rows: Vec<Row> = KINDS.iter().map(|(name, _)| Row { name, ..Row::default() }).collect();
    found.into_iter().for_each(|(at, row)| rows[at % KINDS.len()].add(row));
    rows
}

impl Row {
    fn add(&mut self, other: Row) {
        self.made += other.made;
        self.unreadable += other.unreadable;
        self.refused += other.refused;
        self.harmless += other.harmless;
        self.equal += other.equal;
        self.survived.extend(other.survived);
        self.panicked.extend(other.panicked);
        for (reason, count) in other.unknown {
            *self.unknown.entry(reason).or_default() += count;
        }
    }

    fn count(&mut self, came: Came, what: impl Fn(&str) -> String) {
        self.made += 1;
        match came {
            Came::Unreadable => self.unreadable += 1,
            Came::Refused { harmless } => {
                self.refused += 1;
                self.harmless += u32::from(harmless == Some(true));
            }
            Came::Equal => self.equal += 1,
            Came::Unknown(reason) => *self.unknown.entry(reason).or_default() += 1,
            Came::Survived(it) => self.survived.push(what(&it)),
            Came::Panicked(it) => self.panicked.push(what(&it)),
        }
    }
}

fn of_kind(subject: &Subject, kind: usize, many: Many) -> Row {
    let (name, make) = KINDS[kind];
    let mut row = Row { name, ..Row::default() };
    for number in 0..u64::from(many.each * times(make)) {
        let number = many.seed * 1000 + number;
        let mut mutant = subject.program.clone();
        if make(&mut mutant, &mut Random(number)).is_none() || mutant == subject.program {
            continue;
        }
        let came = catch_unwind(AssertUnwindSafe(|| judged(subject, &mutant, is_wild(make), many)));
        // What is read back as it was is no mutant.
        let Some(came) = came.unwrap_or_else(|_| Some(Came::Panicked(last_panic()))) else { continue };
        let shown = || if is_wild(make) { "    (not written)".into() } else { changes(subject, &mutant) };
        row.count(came, |it| format!("{}, {number}: {it}\n{}", subject.what, shown()));
    }
    row
}

/// There are many more places for faults of any kind than for one of the others.
fn times(make: Make) -> u32 {
    if is_wild(make) { 20 } else { 1 }
}

fn is_wild(make: Make) -> bool {
    std::ptr::fn_addr_eq(make, wild::plant as Make)
}

/// Read anew, so that what are hints are those of what is written. What no writer is made for is written only if the
/// check accepts it.
fn judged(subject: &Subject, mutant: &Program, is_wild: bool, many: Many) -> Option<Came> {
    let Subject { graph, program, .. } = subject;
    if is_wild && check::check(graph, mutant).is_err() {
        return Some(Came::Refused { harmless: None });
    }
    let written = emit::emit(graph, mutant).and_then(|files| emit::read(graph, &files));
    if written.as_ref().is_ok_and(|written| written == program) {
        return None;
    }
    // What cannot be read is put to the check all the same: it has an answer to any program.
    let accepted = check::check(graph, written.as_ref().unwrap_or(mutant)).is_ok();
    let Ok(mutant) = written else { return Some(Came::Unreadable) };
    let verdict = || reference::compare(graph, &mutant, many.seed, BATCHES);
    if !accepted {
        let harmless = |_| matches!(verdict(), Ok(Verdict::Equal(_)));
        return Some(Came::Refused { harmless: many.refused.then_some(()).map(harmless) });
    }
    Some(match verdict() {
        Ok(Verdict::Equal(_)) => Came::Equal,
        Ok(Verdict::Unknown(reason)) => Came::Unknown(reason.to_string()),
        Ok(Verdict::Different(it)) => Came::Survived(it.to_string()),
        Err(error) => Came::Survived(error.to_string()),
    })
}

thread_local! {
    static LAST: RefCell<String> = const { RefCell::new(String::new()) };
}

/// A panic is a result here: kept for the table, and not printed where it happens.
fn note_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            // Of a thread with a name, such as that of a test, the panic is its failure.
            if std::thread::current().name().is_some() {
                return before(info);
            }
            LAST.with_borrow_mut(|last| *last = info.to_string().replace('\n', " "));
        }));
    });
}

fn last_panic() -> String {
    LAST.with_borrow(String::clone)
}

/// So many lines are shown of what differs in the text of a mutant.
const SHOWN: usize = 6;

/// The lines that the mutant's text has and the good one's has not, and the other way round.
fn changes(subject: &Subject, mutant: &Program) -> String {
    let lines = |program: &Program| -> Option<Vec<String>> {
        let files = catch_unwind(AssertUnwindSafe(|| emit::emit(&subject.graph, program))).ok()?.ok()?;
        Some(files.iter().flat_map(|file| file.text.lines().map(str::to_owned)).collect())
    };
    let (Some(good), Some(bad)) = (lines(&subject.program), lines(mutant)) else {
        return "    it cannot be written".into();
    };
    let only = |mark: char, a: &[String], b: &[String]| -> Vec<String> {
        let lines = a.iter().filter(|line| !b.contains(line)).take(SHOWN);
        lines.map(|line| format!("    {mark} {}", line.trim())).collect()
    };
    let shown = [only('-', &good, &bad), only('+', &bad, &good)].concat();
    if shown.is_empty() { "    (lines in another order)".into() } else { shown.join("\n") }
}

/// All kinds together.
pub fn all(rows: &[Row]) -> Row {
    let mut all = Row { name: "all", ..Row::default() };
    rows.iter().for_each(|row| all.add(row.clone()));
    all
}

pub fn table(rows: &[Row]) -> String {
    let heads = ["made", "unreadable", "refused", "harmless", "equal", "unknown", "SURVIVED", "PANICKED"]
        .map(str::to_owned);
    let mut text = line("kind", &heads);
    let all = all(rows);
    rows.iter().chain([&all]).for_each(|row| text += &line(row.name, &row.numbers()));
    for (reason, count) in &all.unknown {
        let _ = writeln!(text, "unknown: {count} times {reason}");
    }
    for row in rows {
        row.survived.iter().for_each(|it| text += &format!("SURVIVED: {}: {it}\n", row.name));
        row.panicked.iter().for_each(|it| text += &format!("PANICKED: {}: {it}\n", row.name));
    }
    text
}

impl Row {
    fn numbers(&self) -> [String; 8] {
        let Row { made, unreadable, refused, harmless, equal, .. } = *self;
        let unknown = self.unknown.values().sum();
        let [survived, panicked] = [&self.survived, &self.panicked].map(|all| all.len() as u32);
        [made, unreadable, refused, harmless, equal, unknown, survived, panicked]
            .map(|number| number.to_string())
    }
}

fn line(name: &str, numbers: &[String]) -> String {
    let numbers: Vec<String> = numbers.iter().map(|number| format!("{number:>10}")).collect();
    format!("{name:50} {}\n", numbers.join(" "))
}
