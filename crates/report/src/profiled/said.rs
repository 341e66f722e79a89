//! In words, where the largest difference is, and what it tells.

use cluster::Cluster;

use crate::page::recorded::against::Difference;
use crate::page::words::time;
use crate::took::Took;

use super::computed::ComputedEntry;
use super::parts::{IDLES, REST};
use super::{MeasuredStep, times_of};

/// So many times as long as predicted is slower, and its inverse is faster.
const SLOWER: f64 = 1.25;
/// Others say something where they were predicted to take as much of what all take.
const COUNTS: f64 = 0.05;

/// The sentences; none if nothing was predicted and nothing measured.
pub(super) fn largest(step: &MeasuredStep, cluster: &Cluster) -> Vec<String> {
    let module =
        step.computed.entries.iter().max_by(|a, b| a.of_device().apart().total_cmp(&b.of_device().apart()));
    let message = step.against.entries.first();
    let of_module = module.map_or(0.0, |it| it.of_device().apart());
    let of_message = message.map_or(0.0, |it| it.of_device().apart());
    let (idles, rest) = (step.parts.share(IDLES), step.parts.share(REST));
    let most = of_module.max(of_message).max(idles.apart()).max(rest.apart());
    if most <= 0.0 {
        return vec![];
    }
    match (message, module) {
        (Some(message), _) if of_message >= most => {
            vec![message.said(), of_link(step, cluster, message)]
        }
        (_, Some(module)) if of_module >= most => {
            vec![of_module_said(module), of_devices(step, cluster, module)]
        }
        _ if idles.apart() >= most => {
            vec![of_part("Waiting for other ranks", idles), whose_wait(step)]
        }
        _ => vec![
            of_part("What is neither a module's nor a message", rest),
            "It is what the runtime does around calls, slices and sums. `shardwright profile` measures it."
                .to_owned(),
        ],
    }
}

fn of_part(name: &str, took: Took) -> String {
    format!(
        "{name} takes {} of a device's step instead of {}: the largest difference.",
        time(took.measured),
        time(took.predicted)
    )
}

fn of_module_said(entry: &ComputedEntry) -> String {
    let Took { predicted, measured } = entry.of_device();
    let name = if entry.module().is_empty() { "The model itself" } else { entry.module() };
    let times_said = format!("{} of a device's step instead of {}", time(measured), time(predicted));
    match entry.times() {
        Some(times) => format!(
            "{name} in {} takes {times:.1} times what was predicted, {times_said}: the largest difference.",
            entry.pass
        ),
        None => format!("{name} in {} takes {times_said}: the largest difference.", entry.pass),
    }
}

/// Whether others on the same link are as far from their prediction.
fn of_link(step: &MeasuredStep, cluster: &Cluster, message: &Difference) -> String {
    let same = || step.against.entries.iter().filter(|it| it.is_between() == message.is_between());
    let link = if message.is_between() { "network between nodes" } else { "link inside of a node" };
    let all = same().map(Difference::sums);
    let others = same().filter(|it| !std::ptr::eq(*it, message)).map(Difference::sums);
    match distance(message.sums(), all, others) {
        Distance::All(times, than) => format!(
            "The {link} is {than} than {} says: all messages on it take {times:.1} times what was predicted.",
            cluster.name
        ),
        Distance::Only(times) => {
            format!(
                "All other messages on the {link} take {times:.1} times what was predicted: it is these alone."
            )
        }
        Distance::Near => format!("The {link} is about as fast as {} says.", cluster.name),
    }
}

fn of_devices(step: &MeasuredStep, cluster: &Cluster, entry: &ComputedEntry) -> String {
    let all = step.computed.entries.iter().map(ComputedEntry::sums);
    let others = step.computed.entries.iter().filter(|it| !std::ptr::eq(*it, entry)).map(ComputedEntry::sums);
    match distance(entry.sums(), all, others) {
        Distance::All(times, than) => format!(
            "The devices are {than} than {} says: all modules take {times:.1} times what was predicted.",
            cluster.name
        ),
        Distance::Only(times) => {
            format!("All other modules take {times:.1} times what was predicted: it is this one alone.")
        }
        Distance::Near => format!("The devices are about as fast as {} says.", cluster.name),
    }
}

/// The rank that computes longest, beside the others.
fn whose_wait(step: &MeasuredStep) -> String {
    let computes = || step.computed.of_ranks.iter().map(|(rank, took)| (*rank, took.measured));
    let most = computes().max_by(|a, b| a.1.total_cmp(&b.1));
    let mean =
        computes().map(|(_, seconds)| seconds).sum::<f64>() / step.computed.of_ranks.len().max(1) as f64;
    match most {
        Some((rank, seconds)) if seconds > SLOWER * mean => format!(
            "Rank {rank} computes longest: {}, where ranks compute {} in the mean.",
            time(seconds),
            time(mean)
        ),
        _ => "Ranks compute about equally long: they come to their messages at different times.".to_owned(),
    }
}

enum Distance {
    /// All are as far from it: so many times, slower or faster.
    All(f64, &'static str),
    /// The others are not: so many times.
    Only(f64),
    Near,
}

fn distance(
    this: Took,
    all: impl Iterator<Item = Took> + Clone,
    others: impl Iterator<Item = Took> + Clone,
) -> Distance {
    let predicted = |all: &mut dyn Iterator<Item = Took>| all.map(|it| it.predicted).sum::<f64>();
    let counts = predicted(&mut others.clone()) > COUNTS * predicted(&mut all.clone());
    let (of_all, of_others) = (times_of(all), times_of(others));
    let is_far = |times: f64, slower: bool| if slower { times >= SLOWER } else { times <= 1.0 / SLOWER };
    let slower = this.measured > this.predicted;
    if counts && !is_far(of_others, slower) {
        return Distance::Only(of_others);
    }
    if is_far(of_all, slower) {
        return Distance::All(of_all, if slower { "slower" } else { "faster" });
    }
    Distance::Near
}
