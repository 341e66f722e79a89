//! A plan as a page: everything that is known of it as JSON, and a viewer around that, in one file.
//!
//! The JSON is decided here, and its numbers are those that `simulate` and `manifest` print. The viewer draws. What is
//! alike is told once: devices that do the same at the same time, tasks that go the same way, layers.
//! [`SCHEMA`] is the version of the JSON, which `docs/reference/report-data.md` describes.

mod alternatives;
mod clock;
mod commands;
pub(crate) mod communication;
mod matrix;
mod memory;
mod names;
mod overview;
mod path;
mod patterns;
mod programs;
pub(crate) mod recorded;
mod sensitivity;
mod timeline;
mod tracks;
mod tree;
pub(crate) mod words;

use std::collections::BTreeMap;
use std::io::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use cluster::Cluster;
use compiler::{Compiled, SimulatedStep};
use diag::Result;
use flate2::Compression;
use flate2::write::GzEncoder;
use graph::Graph;
use plan::Plan;
use rules::Analysis;
use serde_json::{Value, json};

use clock::Clock;
use names::PageNames;

pub use commands::OtherPages;
pub(crate) use patterns::{PART, SLICE, Sort};
pub use recorded::RecordedFile;
pub(crate) use tracks::{Track, Tracks, tracks};

/// Its number is raised when a reader of an older version would misread the JSON.
pub const SCHEMA: &str = "shardwright/report/1";

/// Whose page it is.
#[derive(Clone, Copy)]
pub struct Subject<'s> {
    pub graph: &'s Graph,
    pub analysis: &'s Analysis,
    pub plan: &'s Plan,
    pub compiled: &'s Compiled,
    pub step: &'s SimulatedStep,
    pub cluster: &'s Cluster,
    pub batches: u32,
    pub optimizer: &'s str,
    /// Whether PyTorch compiles local code.
    pub is_compiled: bool,
    pub about: &'s About,
}

impl Subject<'_> {
    /// How long a tick of a track's tasks is.
    pub(crate) fn ticks_per_second(&self) -> f64 {
        self.clock().ticks_per_second
    }

    fn clock(&self) -> Clock {
        Clock::new(self.step.estimate.simulation.seconds)
    }
}

/// What only the caller knows.
#[derive(Clone, Debug, Default)]
pub struct About {
    /// What makes the page again.
    pub command: String,
    pub version: String,
    pub compared: Option<Compared>,
    pub recorded: Option<RecordedFile>,
    pub others: OtherPages,
    /// What the model's lines say, as far as that is known: of `gpt.py:12` its text.
    pub sources: BTreeMap<String, String>,
}

/// Plans that were looked at, the quickest first.
#[derive(Clone, Debug, Default)]
pub struct Compared {
    /// Seconds of a step that no plan can beat.
    pub bound: f64,
    pub candidates: Vec<Candidate>,
}

#[derive(Clone, Debug, Default)]
pub struct Candidate {
    pub plan: String,
    pub micro_batches: u32,
    pub seconds: f64,
    pub fits: bool,
    /// On the rank that uses most of its memory: bytes needed, and there.
    pub memory: (u64, u64),
    pub utilisation: f64,
    /// What it decides, of a plan of the same model.
    pub decisions: Option<Plan>,
}

/// What the page knows.
pub fn data(subject: &Subject<'_>) -> Result<Value> {
    let rewritten = subject.compiled.program.rewritten(subject.graph)?.graph;
    let mut names = PageNames::default();
    let tracks = tracks(subject);
    let timeline = timeline::timeline(subject, &rewritten, &tracks);
    let communication = communication::communication(subject, &rewritten, &tracks, &mut names);
    let recorded = subject.about.recorded.as_ref();
    let recorded = recorded.map(|file| recorded::recorded(subject, &rewritten, &tracks, file)).transpose()?;
    Ok(json!({
        "schema": SCHEMA,
        "overview": overview::overview(subject),
        "tracks": tracks.iter().map(Track::to_json).collect::<Vec<_>>(),
        "timeline": timeline,
        "memory": memory::memory(subject, &tracks),
        "model": tree::model(subject, &mut names),
        "communication": communication,
        "compare": subject.about.compared.as_ref().map(|it| compared(it, subject)),
        "sensitivity": sensitivity::sensitivity(subject)?,
        "recorded": recorded,
        "program": programs::programs(subject)?,
        "operators": names.operators(&rewritten),
        "names": names.to_json(&subject.about.sources),
    }))
}

fn compared(comparison: &Compared, subject: &Subject<'_>) -> Value {
    let others = &subject.about.others;
    // The same plan may have been asked for by another name.
    let is_this = |it: &Candidate| {
        let same = |plan: &Plan| Plan { name: subject.plan.name.clone(), ..plan.clone() } == *subject.plan;
        it.micro_batches == subject.batches && it.decisions.as_ref().is_some_and(same)
    };
    let plan = |(at, it): (usize, &Candidate)| {
        json!({
            "plan": it.plan,
            "micro_batches": it.micro_batches,
            "seconds": it.seconds,
            "fits": it.fits,
            "memory": [it.memory.0, it.memory.1],
            "utilisation": it.utilisation,
            "is_this": is_this(it),
            "command": commands::command(others, it, at),
        })
    };
    let plans: Vec<Value> = comparison.candidates.iter().enumerate().map(plan).collect();
    json!({ "bound": comparison.bound, "plans": plans })
}

const SHELL: &str = include_str!("../../viewer/index.html");
const STYLE: &str = include_str!("../../viewer/style.css");
/// In the order in which they run.
const SCRIPTS: [&str; 11] = [
    include_str!("../../viewer/words.js"),
    include_str!("../../viewer/parts.js"),
    include_str!("../../viewer/overview.js"),
    include_str!("../../viewer/timeline.js"),
    include_str!("../../viewer/measured.js"),
    include_str!("../../viewer/memory.js"),
    include_str!("../../viewer/model.js"),
    include_str!("../../viewer/communication.js"),
    include_str!("../../viewer/compare.js"),
    include_str!("../../viewer/program.js"),
    include_str!("../../viewer/main.js"),
];

/// Data that is longer is packed: a page of tens of megabytes cannot be sent to others.
const LONGEST_PLAIN: usize = 1 << 20;

/// What a script element holds data as, and what is in it.
fn embedded(json: &str) -> (&'static str, String) {
    if json.len() <= LONGEST_PLAIN {
        // Inside of a script element no `<` may begin a tag.
        return ("application/json", json.replace('<', "\\u003c"));
    }
    let mut packed = GzEncoder::new(vec![], Compression::default());
    let packed = packed.write_all(json.as_bytes()).and_then(|()| packed.finish());
    ("application/gzip", STANDARD.encode(packed.expect("memory takes all that is written")))
}

/// One file with all of it, which needs no network.
pub fn html(data: &Value) -> String {
    let title = format!(
        "{} under {}",
        data["overview"]["model"].as_str().unwrap_or_default(),
        data["overview"]["plan"].as_str().unwrap_or_default()
    );
    let scripts: String = SCRIPTS.concat();
    let (kind, text) = embedded(&data.to_string());
    let title = title.replace('&', "&amp;").replace('<', "&lt;");
    let mut page = String::with_capacity(text.len() + scripts.len() + STYLE.len() + SHELL.len());
    for piece in SHELL.split_inclusive("-->") {
        match piece.rsplit_once("<!--") {
            Some((before, "title-->")) => page.extend([before, &title]),
            Some((before, "style-->")) => page.extend([before, "<style>\n", STYLE, "</style>"]),
            Some((before, "data-->")) => {
                page.extend([before, "<script type=\"", kind, "\" id=\"data\">", &text, "</script>"]);
            }
            Some((before, "scripts-->")) => {
                page.extend([before, "<script>\n\"use strict\";\n", &scripts, "</script>"]);
            }
            _ => page.push_str(piece),
        }
    }
    page
}
