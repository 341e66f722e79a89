//! A copy of the workspace with all mutants in it, and its tests, built.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::plant::{Mutant, plant};

pub struct Scratch {
    /// Of the workspace itself.
    pub root: PathBuf,
    /// Of its copy.
    pub copy: PathBuf,
}

/// A crate of the workspace, and those files of its `tests` that are asked for; none for all, and for unit tests.
pub type Package<'p> = (&'p str, &'p [&'p str]);

/// An executable with tests, and where it runs.
pub struct Binary {
    pub name: String,
    pub package: String,
    pub path: PathBuf,
    pub folder: PathBuf,
    /// The modules whose tests are asked for; none for all.
    pub modules: Vec<String>,
}

impl Scratch {
    pub fn new(root: &Path) -> Self {
        Self { root: root.into(), copy: root.join("target/mutants/copy") }
    }

    /// What the last run has found.
    pub fn found(&self) -> PathBuf {
        self.root.join("target/mutants/found.txt")
    }

    /// Writes the copy: each mutated file with its mutants, but for those that do not compile.
    pub fn write(&self, is_mutated: impl Fn(&str) -> bool, broken: &BTreeSet<u32>) -> Vec<Mutant> {
        let listed = Command::new("git")
            .args([
                "ls-files",
                "--cached",
                "--others",
                "--exclude-standard",
                "crates",
                "tests",
                "Cargo.toml",
                "Cargo.lock",
            ])
            .current_dir(&self.root)
            .output()
            .expect("git runs");
        let mut files: Vec<&str> = std::str::from_utf8(&listed.stdout).expect("names").lines().collect();
        files.sort_unstable();
        files.dedup();
        let mut mutants = vec![];
        for file in files.into_iter().filter(|file| self.root.join(file).is_file()) {
            let bytes = fs::read(self.root.join(file)).expect("it is read");
            let text = || String::from_utf8(bytes.clone()).expect("a text");
            match file {
                _ if is_mutated(file) => {
                    self.put(file, plant(file, &text(), &mut mutants, broken).as_bytes())
                }
                "crates/check/Cargo.toml" | "crates/rules/Cargo.toml" => {
                    let switch = "[dependencies]\nswitch = { path = \"../switch\" }";
                    self.put(file, text().replacen("[dependencies]", switch, 1).as_bytes());
                }
                _ => self.put(file, &bytes),
            }
        }
        self.put("crates/switch/src/lib.rs", include_bytes!("switch.rs"));
        self.put("crates/switch/Cargo.toml", b"[package]\nname = \"switch\"\nedition = \"2024\"\n");
        mutants
    }

    /// Leaves what is the same as it is, so that it is not built again.
    fn put(&self, file: &str, bytes: &[u8]) {
        let path = self.copy.join(file);
        if fs::read(&path).is_ok_and(|known| known == bytes) {
            return;
        }
        fs::create_dir_all(path.parent().expect("a folder")).expect("it is made");
        fs::write(path, bytes).expect("it is written");
    }

    /// The tests of these packages, or the places where something does not compile.
    pub fn build(&self, packages: &[Package<'_>]) -> Result<Vec<Binary>, Vec<(PathBuf, usize, usize)>> {
        let built = packages.iter().map(|(package, modules)| self.package(package, modules));
        Ok(built.collect::<Result<Vec<_>, _>>()?.into_iter().flatten().collect())
    }

    /// All of a package's tests, or some.
    fn package(&self, name: &str, modules: &[&str]) -> Result<Vec<Binary>, Vec<(PathBuf, usize, usize)>> {
        let mut cargo = Command::new("cargo");
        cargo.args(["test", "--no-run", "--quiet", "--message-format", "json", "--package"]);
        cargo.arg(format!("shardwright-{name}"));
        cargo.args(if modules.is_empty() { ["--lib", "--tests"] } else { ["--test", "all"] });
        cargo.env("CARGO_TARGET_DIR", self.copy.join("../build")).env("CARGO_PROFILE_DEV_DEBUG", "0");
        cargo.env("RUSTFLAGS", "--cap-lints=allow").env("CARGO_INCREMENTAL", "0");
        let output = cargo.current_dir(&self.copy).stderr(Stdio::inherit()).output().expect("cargo runs");
        let text = String::from_utf8(output.stdout).expect("messages");
        let messages = text.lines().map(|line| serde_json::from_str(line).expect("a message"));
        let messages: Vec<Value> = messages.collect();
        if output.status.success() {
            return Ok(messages.iter().filter_map(|message| binary(message, modules)).collect());
        }
        let errors = messages.iter().filter(|message| message["message"]["level"] == "error");
        let errors: Vec<&Value> = errors.collect();
        errors
            .iter()
            .for_each(|error| eprintln!("{}", error["message"]["rendered"].as_str().unwrap_or_default()));
        Err(errors.iter().flat_map(|error| self.places(error)).collect())
    }

    fn places(&self, error: &Value) -> Vec<(PathBuf, usize, usize)> {
        let spans = error["message"]["spans"].as_array().into_iter().flatten();
        let line = |span: &Value, which: &str| span[which].as_u64().expect("a line") as usize;
        let place = |span: &Value| {
            let file = self.copy.join(span["file_name"].as_str().expect("a file"));
            (file, line(span, "line_start"), line(span, "line_end"))
        };
        spans.filter(|span| span["is_primary"] == true).map(place).collect()
    }
}

fn binary(message: &Value, modules: &[&str]) -> Option<Binary> {
    let path = message["executable"].as_str().filter(|_| message["profile"]["test"] == true)?;
    let folder = Path::new(message["manifest_path"].as_str()?).parent()?.to_path_buf();
    let package = folder.file_name()?.to_string_lossy().into_owned();
    let name = message["target"]["name"].as_str()?.into();
    let modules = modules.iter().map(ToString::to_string).collect();
    Some(Binary { name, package, path: path.into(), folder, modules })
}

/// The mutants nearest to what does not compile: those that start on its lines, or the last one before them.
pub fn blamed(places: &[(PathBuf, usize, usize)]) -> BTreeSet<u32> {
    let mut all = BTreeSet::new();
    for (file, start, end) in places {
        let text = fs::read_to_string(file).expect("it is read");
        let number = |(index, line): (usize, &str)| {
            let numbers =
                line.split("::switch::on(").skip(1).filter_map(|rest| rest.split("u32").next()?.parse().ok());
            numbers.map(|number: u32| (index + 1, number)).collect::<Vec<_>>()
        };
        let numbers: Vec<(usize, u32)> = text.lines().enumerate().flat_map(number).collect();
        let inside = numbers.iter().filter(|(line, _)| (start..=end).contains(&line));
        let before = numbers.iter().rfind(|(line, _)| line < start);
        let nearest: Vec<u32> = inside.map(|(_, number)| *number).collect();
        all.extend(if nearest.is_empty() {
            before.map(|(_, number)| *number).into_iter().collect()
        } else {
            nearest
        });
    }
    all
}
