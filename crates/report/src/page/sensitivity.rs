//! What the same program would take on a cluster with quicker parts, and so what holds the step back.

use cluster::Faster;
use compiler::{Masters, Setting};
use diag::Result;
use serde_json::{Value, json};

use super::Subject;
use super::words::time;

const TIMES: f64 = 2.0;
/// What saves less of a step does not hold it back.
const LITTLE: f64 = 0.02;
/// Where devices of a pipeline are idle for more of a step, that is said.
const MUCH: f64 = 0.15;

const PARTS: [(Faster, &str, &str); 3] = [
    (Faster::Links, "links twice as fast", "Communication"),
    (Faster::Devices, "devices twice as fast", "What devices compute"),
    (Faster::Hosts, "operators started in half the time", "Starting operators"),
];

pub(super) fn sensitivity(subject: &Subject<'_>) -> Result<Value> {
    let now = subject.step.estimate.simulation.seconds;
    let masters = Masters::new();
    let setting = Setting {
        cluster: subject.cluster,
        batches: subject.batches,
        optimizer: subject.optimizer,
        masters: &masters,
        compiled: subject.is_compiled,
    };
    let clusters = PARTS.map(|(part, ..)| subject.cluster.faster(part, TIMES));
    let Subject { graph, analysis, plan, compiled, .. } = subject;
    let estimates = compiler::brief_on(&clusters, graph, analysis, plan, compiled, &setting)?;
    let changed: Vec<f64> = estimates.iter().map(|estimate| estimate.simulation.seconds).collect();
    let fits_half = fits_half(subject);
    let rows = PARTS.iter().zip(&changed);
    let mut rows: Vec<Value> =
        rows.map(|((_, what, _), seconds)| json!({ "what": what, "seconds": seconds })).collect();
    rows.push(json!({ "what": "half of the memory", "fits": fits_half }));
    Ok(json!({ "rows": rows, "words": words(subject, now, &changed, fits_half) }))
}

/// Whether half of the memory of each device would do.
fn fits_half(subject: &Subject<'_>) -> bool {
    let mut needed = subject.step.estimate.memory.iter().enumerate();
    needed.all(|(rank, memory)| memory.total() <= subject.cluster.device(rank as u32).memory / 2)
}

fn words(subject: &Subject<'_>, now: f64, times: &[f64], fits_half: bool) -> Vec<String> {
    let most = PARTS.iter().zip(times).map(|((_, what, who), seconds)| (now - seconds, *what, *who));
    let most = most.reduce(|a, b| if b.0 > a.0 { b } else { a });
    let of_time = match most {
        Some((saved, what, who)) if saved > LITTLE * now => format!(
            "{who} holds the step back most: with {what} it would take {}, {:.0}% less.",
            time(now - saved),
            100.0 * saved / now
        ),
        _ => "None of these alone would make the step much shorter.".to_owned(),
    };
    let idle = idle(subject);
    let of_idle = (subject.plan.block_count() > 1 && idle > MUCH).then(|| {
        format!(
            "Devices are idle for {:.0}% of it: more micro-batches or another schedule may help more.",
            100.0 * idle
        )
    });
    let of_memory =
        if fits_half { "Half of the memory would do." } else { "Half of the memory would not do." };
    [Some(of_time), of_idle, Some(of_memory.to_owned())].into_iter().flatten().collect()
}

/// What of a step devices are idle, on average over those that were followed.
fn idle(subject: &Subject<'_>) -> f64 {
    let simulation = &subject.step.estimate.simulation;
    let all = simulation.seconds * simulation.ranks.len() as f64;
    if all > 0.0 { simulation.ranks.iter().map(|lane| lane.idle).sum::<f64>() / all } else { 0.0 }
}
