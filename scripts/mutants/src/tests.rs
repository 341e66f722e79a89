//! Which tests there are, how long they take, which mutants they reach, and whether one notices a mutant.

use std::collections::BTreeSet;
use std::fs;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::scratch::Binary;

/// Kilobytes of address space: a mutant may ask for ever more.
const MEMORY: u64 = 4_000_000;

pub struct Test<'b> {
    binary: &'b Binary,
    pub name: String,
    pub seconds: f64,
    pub reached: BTreeSet<u32>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Passed,
    Failed,
    /// It ran too long.
    Hung,
}

impl<'b> Test<'b> {
    /// The tests of an executable that are asked for; none that are `ignored`.
    pub fn all(binary: &'b Binary) -> Vec<Test<'b>> {
        let list = |flags: &[&str]| {
            let output =
                Command::new(&binary.path).args(["--list", "--format", "terse"]).args(flags).output();
            String::from_utf8(output.expect("it runs").stdout).expect("names")
        };
        let (all, ignored) = (list(&[]), list(&["--ignored"]));
        let names = all.lines().filter(|line| !ignored.lines().any(|other| other == *line));
        let names: Vec<&str> = names.filter_map(|line| line.strip_suffix(": test")).collect();
        let is_in =
            |name: &str, module: &str| name.strip_prefix(module).is_some_and(|it| it.starts_with("::"));
        for module in &binary.modules {
            assert!(names.iter().any(|name| is_in(name, module)), "{} has no tests {module}", binary.package);
        }
        let is_wanted = |name: &str| binary.modules.iter().any(|module| is_in(name, module));
        let wanted = names.into_iter().filter(|name| binary.modules.is_empty() || is_wanted(name));
        let test = |name: &str| Test { binary, name: name.into(), seconds: 0.0, reached: BTreeSet::new() };
        wanted.map(test).collect()
    }

    pub fn title(&self) -> String {
        format!("{}::{}::{}", self.binary.package, self.binary.name, self.name)
    }

    /// Runs it without any mutant, and records.
    pub fn record(&mut self, scratch: &Path) -> Ended {
        let path = scratch.join(format!("reached-{}", self.title().replace("::", "-")));
        let _ = fs::remove_file(&path);
        let start = Instant::now();
        let child = self.command().env("MUTANTS_REACHED", &path).spawn().expect("it starts");
        let ended = wait(child, Duration::from_secs(600));
        self.seconds = start.elapsed().as_secs_f64();
        let text = fs::read_to_string(&path).unwrap_or_default();
        self.reached = text.lines().map(|line| line.parse().expect("a number")).collect();
        ended
    }

    pub fn run(&self, mutant: u32) -> Ended {
        let child = self.command().env("MUTANT", mutant.to_string()).spawn().expect("it starts");
        wait(child, Duration::from_secs_f64(5.0 + 10.0 * self.seconds))
    }

    fn command(&self) -> Command {
        let mut command = Command::new("sh");
        command.args(["-c", &format!("ulimit -v {MEMORY}; exec \"$@\""), "sh"]);
        command.arg(&self.binary.path).args(["--exact", &self.name, "--test-threads", "1"]);
        command.current_dir(&self.binary.folder).env("CARGO_MANIFEST_DIR", &self.binary.folder);
        command.env("INSTA_UPDATE", "no").env("RUST_BACKTRACE", "0").env_remove("UPDATE");
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

fn wait(mut child: Child, limit: Duration) -> Ended {
    let end = Instant::now() + limit;
    let mut pause = Duration::from_micros(500);
    loop {
        match child.try_wait().expect("it is ours") {
            Some(status) if status.success() => return Ended::Passed,
            Some(_) => return Ended::Failed,
            None if Instant::now() > end => {
                child.kill().and_then(|()| child.wait()).expect("it ends");
                return Ended::Hung;
            }
            None => std::thread::sleep(pause),
        }
        pause = (pause * 2).min(Duration::from_millis(20));
    }
}
