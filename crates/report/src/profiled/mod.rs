//! A step that was measured beside what was predicted of it: by module, by communication, and in words.
//!
//! What a rank's step consists of is one of four: modules compute, a message is awaited, another rank is awaited, and the
//! rest. All figures are of a device: the mean of the ranks that have something of it.

mod computed;
mod parts;
mod said;

use cluster::{Cluster, Origin, Slower};
use compiler::{FollowedStep, Setting};
use diag::Result;
use emit::File;
use graph::Graph;
use serde_json::{Value, json};
use simulate::{Message, TakesPart};

use crate::page::RecordedFile;
use crate::page::recorded::against::{Against, Difference};
use crate::page::recorded::read::{self, Recording};
use crate::page::recorded::{PairedRank, another, of_step, pairs, require_same};

use crate::page::words::time;
use crate::took::Took;
use computed::{ComputedEntry, ComputedModules};
use parts::{REST, StepParts};

/// Raised when a reader of an older version would misread the JSON.
const SCHEMA: u32 = 1;

#[derive(Clone, Debug)]
pub struct ProfiledStep {
    pub json: String,
    /// The file of a cluster like the one that was named, with what was measured.
    pub cluster: String,
}

/// What was recorded of the program in some files, beside a step of it on a cluster. `origin` is where that was.
pub fn profiled(
    graph: &Graph,
    files: &[File],
    setting: &Setting<'_>,
    file: &RecordedFile,
    origin: Origin,
) -> Result<ProfiledStep> {
    let recording = read::read(file)?;
    compiler::followed(graph, files, setting, |step| {
        let ranks = paired(step, &recording).map_err(|why| another(file, why))?;
        let computed = ComputedModules::new(step, &ranks).map_err(|why| another(file, why))?;
        let measured = MeasuredStep {
            against: Against::new(step.graph, setting.cluster, &ranks),
            parts: StepParts::new(step, &ranks, &computed),
            slower: slower(setting.cluster, step, &ranks, &computed),
            computed,
        };
        Ok(ProfiledStep {
            json: measured.to_json(step, &recording).to_string(),
            cluster: measured.cluster(setting.cluster, step, &recording, origin),
        })
    })
}

/// Each rank with what it was predicted to communicate.
fn paired<'p>(
    step: &FollowedStep<'p>,
    recording: &'p Recording,
) -> std::result::Result<Vec<PairedRank<'p>>, String> {
    require_same(step.scene.program, step.scene.batches, recording)?;
    let rank_traces = step.scene.rank_traces;
    let pair = |rank: &'p read::MeasuredRank| {
        let at = rank_traces.iter().position(|it| it.rank.0 == rank.rank);
        let at = at.ok_or_else(|| format!("here is no rank {}", rank.rank))?;
        let listed = step.simulation.parts[at].iter();
        let listed: Vec<(&TakesPart, &Message)> =
            listed.map(|part| (part, &step.simulation.messages[part.message])).collect();
        let messages = pairs(rank, &listed, true)?;
        Ok(PairedRank { rank, track: at, role: rank_traces[at].role, messages })
    };
    recording.ranks.iter().map(pair).collect()
}

/// How many times as long as the cluster says each of its parts took.
fn slower(
    cluster: &Cluster,
    step: &FollowedStep<'_>,
    ranks: &[PairedRank<'_>],
    computed: &ComputedModules,
) -> Slower {
    let against = Against::new(step.graph, cluster, ranks);
    let of_links = |is_between: bool| {
        let entries = against.entries.iter().filter(|it| it.is_between() == is_between);
        times_of(entries.map(Difference::sums))
    };
    let of_kind = |kind: &cluster::Device| {
        let is_of_kind = |rank: &u32| cluster.device(*rank).name == kind.name;
        times_of(computed.of_ranks.iter().filter(|(rank, _)| is_of_kind(rank)).map(|(_, took)| *took))
    };
    Slower {
        kinds: cluster.kinds.iter().map(of_kind).collect(),
        inside: of_links(false),
        network: of_links(true),
    }
}

/// Of what was predicted and measured; one where nothing was.
fn times_of(all: impl Iterator<Item = Took>) -> f64 {
    let Took { predicted, measured } = all.sum();
    if predicted > 0.0 && measured > 0.0 { measured / predicted } else { 1.0 }
}

struct MeasuredStep {
    against: Against,
    computed: ComputedModules,
    parts: StepParts,
    slower: Slower,
}

impl MeasuredStep {
    fn to_json(&self, step: &FollowedStep<'_>, recording: &Recording) -> Value {
        let (program, cluster) = (step.scene.program, step.scene.cluster);
        let Took { predicted, measured } = seconds(step, recording);
        let mut entries: Vec<Value> = self.computed.entries.iter().map(ComputedEntry::to_json).collect();
        entries.extend(self.against.entries.iter().map(Difference::to_json));
        let apart = |entry: &Value| {
            let number = |key: &str| entry[key].as_f64().unwrap_or(0.0);
            (number("measured") - number("predicted")).abs()
        };
        entries.sort_by(|a, b| apart(b).total_cmp(&apart(a)));
        let kinds = cluster.kinds.iter().zip(&self.slower.kinds);
        let kinds: serde_json::Map<String, Value> =
            kinds.map(|(kind, times)| (kind.name.clone(), json!(times))).collect();
        json!({
            "schema": SCHEMA,
            "model": program.model,
            "plan": program.plan,
            "cluster": cluster.name,
            "steps": recording.steps,
            "micro_batches": recording.micro_batches,
            "predicted": predicted,
            "measured": measured,
            "words": self.words(cluster, measured, predicted),
            "entries": entries,
            "parts": self.parts.to_json(),
            "slower": { "devices": kinds, "inside": self.slower.inside, "network": self.slower.network },
        })
    }

    fn words(&self, cluster: &Cluster, measured: f64, predicted: f64) -> Vec<String> {
        let mut words = vec![of_step(measured, predicted)];
        words.extend(said::largest(self, cluster));
        words
    }

    /// With what was measured, and where.
    fn cluster(
        &self,
        cluster: &Cluster,
        step: &FollowedStep<'_>,
        recording: &Recording,
        origin: Origin,
    ) -> String {
        let program = step.scene.program;
        let mut says = vec![
            format!("{} as {} under {} was measured on it.", cluster.name, program.model, program.plan),
            format!(
                "Steps: {}, micro-batches in each: {}. How many times as long as predicted something took:",
                recording.steps, recording.micro_batches
            ),
        ];
        let kinds = cluster.kinds.iter().zip(&self.slower.kinds);
        says.extend(kinds.map(|(kind, times)| format!("  devices {}: {times:.2}", kind.name)));
        says.push(format!("  links inside of nodes: {:.2}", self.slower.inside));
        if cluster.nodes.len() > 1 {
            says.push(format!("  the network between nodes: {:.2}", self.slower.network));
        }
        let mut cluster = cluster.slower(&self.slower);
        let Took { predicted, measured } = self.parts.share(REST);
        let more = (measured - predicted).max(0.0);
        says.push(format!("  and what the runtime takes besides: {} more a step", time(more)));
        cluster.kinds.iter_mut().for_each(|kind| kind.runtime.step += more);
        cluster.origin = Some(origin);
        cluster.text(&says)
    }
}

/// Of a step without the optimizer, as predicted and as measured.
fn seconds(step: &FollowedStep<'_>, recording: &Recording) -> Took {
    let update = step.simulation.ranks.iter().map(|lane| lane.update).fold(0.0, f64::max);
    let measured = recording.ranks.iter().map(|rank| rank.seconds).fold(0.0, f64::max);
    Took { predicted: step.simulation.seconds - update, measured }
}
