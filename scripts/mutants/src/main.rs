//! Mutants of the check: each a small fault in the code that proves. Which of them do no tests notice?
//!
//! All are compiled at once, into a copy of the workspace, and a variable of the environment chooses one. Tests are run
//! once to see which mutants each of them reaches; then, for each mutant, those that do, the quickest first, until one
//! fails. Words choose mutants by their names; with `--live` only those are tried again that lived the last time, with
//! `--opening` only those that plainly make the check accept more.
//!
//! Who survives is listed in `equivalent.txt`, with the reason why it is no fault, or in `open.txt`, which is written
//! with `UPDATE=1`.

mod plant;
mod report;
mod scratch;
mod tests;

use std::collections::BTreeSet;
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::{env, fs};

use plant::Mutant;
use report::Fate;
use scratch::{Binary, Package, Scratch, blamed};
use tests::{Ended, Test};

/// What is mutated: the check, and of the rules what says which shares an operator passes.
const MUTATED: [&str; 3] =
    ["crates/check/src/", "crates/rules/src/algebra.rs", "crates/rules/src/families/order.rs"];
/// Whose tests are run: all of a package, or those of some files.
const TESTS: [Package<'_>; 3] =
    [("check", &[]), ("rules", &["algebra", "order"]), ("compiler", &["reported"])];
/// Besides, with `--all`: they take seconds for each mutant that lives, and hours for all.
const SLOW: [Package<'_>; 2] =
    [("compiler", &["alike", "random", "rewritings", "step"]), ("reference", &["agree", "mutants"])];

fn main() -> ExitCode {
    let (flags, words): (Vec<String>, Vec<String>) =
        env::args().skip(1).partition(|word| word.starts_with("--"));
    let has = |name: &str| flags.iter().any(|flag| flag == name);
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("a folder");
    let scratch = Scratch::new(&root);
    let packages = if has("--all") { [&TESTS[..], &SLOW].concat() } else { TESTS.to_vec() };
    let (mutants, broken, binaries) = built(&scratch, &packages);
    let mut tests: Vec<Test<'_>> = binaries.iter().flat_map(Test::all).collect();
    for test in &mut tests {
        let ended = test.record(&scratch.copy);
        assert_eq!(ended, Ended::Passed, "{}", test.title());
    }
    tests.sort_by(|a, b| a.seconds.total_cmp(&b.seconds));
    eprintln!("{} mutants, {} tests", mutants.len(), tests.len());
    if !has("--live") {
        let _ = fs::remove_file(scratch.found());
    }
    let before = report::before(&scratch);
    let named = |mutant: &Mutant| words.is_empty() || words.iter().any(|word| mutant.name().contains(word));
    let is_wanted = |mutant: &Mutant| named(mutant) && (mutant.opens || !has("--opening"));
    let mutants = mutants.into_iter().filter(|it| is_wanted(it) || before.contains_key(&it.name()));
    let mutants: Vec<Mutant> = mutants.collect();
    let known = |mutant: &Mutant| {
        let known = || before.get(&mutant.name()).filter(|fate| !fate.lives() || !is_wanted(mutant)).cloned();
        if broken.contains(&mutant.number) { Some(Fate::Broken) } else { known() }
    };
    // Whoever ends a run goes on with `--live`.
    let file = OpenOptions::new().create(true).append(true).open(scratch.found()).expect("a file");
    let tell = |one: &(Mutant, Fate)| (&file).write_all(report::line(one).as_bytes()).expect("it is written");
    let fates = fates(&mutants, &tests, known, tell);
    let found: Vec<(Mutant, Fate)> = mutants.into_iter().zip(fates).collect();
    told(&scratch, &found)
}

fn built(scratch: &Scratch, packages: &[Package<'_>]) -> (Vec<Mutant>, BTreeSet<u32>, Vec<Binary>) {
    let mut broken = BTreeSet::new();
    loop {
        let is_mutated =
            |file: &str| MUTATED.iter().any(|start| file.starts_with(start)) && !file.ends_with("tests.rs");
        let mutants = scratch.write(is_mutated, &broken);
        match scratch.build(packages) {
            Ok(binaries) => return (mutants, broken, binaries),
            Err(places) => {
                let before = broken.len();
                broken.extend(blamed(&places));
                assert!(broken.len() > before, "the tests do not compile");
            }
        }
    }
}

/// What becomes of each mutant; two at a time.
fn fates(
    mutants: &[Mutant],
    tests: &[Test<'_>],
    known: impl Fn(&Mutant) -> Option<Fate> + Sync,
    tell: impl Fn(&(Mutant, Fate)) + Sync,
) -> Vec<Fate> {
    let next = AtomicUsize::new(0);
    let found = Mutex::new(vec![Fate::Unreached; mutants.len()]);
    let work = || {
        // What noticed one mutant often notices its neighbour.
        let mut last = None;
        loop {
            let index = next.fetch_add(1, Relaxed);
            let Some(mutant) = mutants.get(index) else { return };
            let fate = known(mutant).unwrap_or_else(|| {
                let fate = fate(mutant, tests, &mut last);
                tell(&(mutant.clone(), fate.clone()));
                fate
            });
            found.lock().expect("nobody panics")[index] = fate;
            if index.is_multiple_of(250) {
                eprintln!("{index} of {}", mutants.len());
            }
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(work);
        scope.spawn(work);
    });
    found.into_inner().expect("nobody panics")
}

fn fate<'t>(mutant: &Mutant, tests: &'t [Test<'_>], last: &mut Option<&'t Test<'t>>) -> Fate {
    let mut reaching = tests.iter().filter(|test| test.reached.contains(&mutant.number)).peekable();
    if reaching.peek().is_none() {
        return Fate::Unreached;
    }
    let first = last.filter(|test| test.reached.contains(&mutant.number));
    let killer = first.into_iter().chain(reaching).find(|test| test.run(mutant.number) != Ended::Passed);
    *last = killer.or(*last);
    killer.map_or(Fate::Survived, |test| Fate::Killed(test.title()))
}

fn told(scratch: &Scratch, found: &[(Mutant, Fate)]) -> ExitCode {
    let here = scratch.root.join("scripts/mutants");
    let (equivalent, open) =
        (report::listed(&here.join("equivalent.txt")), report::listed(&here.join("open.txt")));
    fs::write(scratch.found(), found.iter().map(report::line).collect::<String>()).expect("it is written");
    println!("{}", report::table(found, &equivalent));
    let live = || found.iter().filter(|(_, fate)| fate.lives()).map(|(mutant, _)| mutant);
    let (new, known): (Vec<&Mutant>, Vec<&Mutant>) = live()
        .partition(|mutant| !report::is_listed(mutant, &equivalent) && !report::is_listed(mutant, &open));
    new.iter().for_each(|mutant| println!("live: {}", mutant.name()));
    let killed = found.iter().filter(|(_, fate)| !fate.lives()).map(|(mutant, _)| mutant.name());
    killed.filter(|name| open.contains(name)).for_each(|name| println!("listed as open, and killed: {name}"));
    println!("{} live that are not listed, {} that are", new.len(), known.len());
    if env::var_os("UPDATE").is_some() {
        let open = live().filter(|mutant| !report::is_listed(mutant, &equivalent));
        fs::write(here.join("open.txt"), report::open(open)).expect("it is written");
    }
    if new.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE }
}
