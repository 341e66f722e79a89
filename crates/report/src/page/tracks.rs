//! Which devices are one track: those that do the same at the same time.

use program::RankId;
use serde_json::{Value, json};
use simulate::{Lane, Message, TakesPart};

use super::Subject;
use super::patterns::{Patterns, Tasks, tasks};

/// Devices that do the same.
pub(crate) struct Track {
    pub(super) role: usize,
    /// The one that is looked at, and its place among those that were followed.
    pub(super) rank: RankId,
    pub(super) at: usize,
    pub(crate) ranks: Vec<RankId>,
    /// The one of them that needs most memory: shards may be uneven.
    pub(crate) fullest: RankId,
    pub(crate) tasks: Tasks,
    lane: Vec<(&'static str, f64)>,
}

/// The tracks in the order of their first devices, with the patterns that they share.
pub(crate) struct Tracks {
    tracks: Vec<Track>,
    pub(crate) patterns: Patterns,
}

impl std::ops::Deref for Tracks {
    type Target = [Track];

    fn deref(&self) -> &[Track] {
        &self.tracks
    }
}

pub(crate) fn tracks(subject: &Subject<'_>) -> Tracks {
    let program = &subject.compiled.program;
    let simulation = &subject.step.estimate.simulation;
    let mut all = Tracks { tracks: vec![], patterns: Patterns::default() };
    for (role, of_role) in program.roles.iter().enumerate() {
        let is_here = |lane: &Lane| of_role.ranks.contains(&lane.rank);
        let lanes: Vec<(usize, &Lane)> =
            simulation.ranks.iter().enumerate().filter(|(_, lane)| is_here(lane)).collect();
        let all_are_noted = lanes.len() == of_role.ranks.len() && is_noted(subject, &lanes);
        let mut tracks: Vec<Track> = vec![];
        for (at, lane) in lanes {
            let tasks = tasks(subject, role, at, &mut all.patterns);
            let ranks = if all_are_noted { vec![lane.rank] } else { of_role.ranks.clone() };
            let track = Track {
                role,
                rank: lane.rank,
                at,
                fullest: fullest(subject, &ranks),
                ranks,
                tasks,
                lane: seconds(lane),
            };
            match tracks.iter_mut().find(|known| known.tasks == track.tasks) {
                Some(known) => {
                    known.ranks.extend(track.ranks);
                    known.fullest = fullest(subject, &known.ranks);
                }
                None => tracks.push(track),
            }
            if !all_are_noted {
                break;
            }
        }
        all.tracks.extend(tracks);
    }
    all.tracks.sort_by_key(|track| track.rank);
    all.patterns.shorten(all.tracks.iter_mut().map(|track| &mut track.tasks));
    all
}

/// Whether it is known of all of these what they do when.
fn is_noted(subject: &Subject<'_>, lanes: &[(usize, &Lane)]) -> bool {
    let spans = &subject.step.estimate.simulation.spans;
    lanes.len() == 1 || lanes.iter().all(|(_, lane)| spans.iter().any(|span| span.rank == lane.rank))
}

/// Of these that are known to the page the one that needs most memory, the first of several.
fn fullest(subject: &Subject<'_>, ranks: &[RankId]) -> RankId {
    let is_noted =
        |rank: &RankId| subject.step.held.iter().any(|held| held.rank == *rank && !held.closely.is_empty());
    let most = |rank: &RankId| subject.step.estimate.memory[rank.index()].total();
    let noted: Vec<RankId> = ranks.iter().copied().filter(is_noted).collect();
    let all = if noted.is_empty() { ranks } else { &noted[..] };
    all.iter().copied().reduce(|a, b| if most(&b) > most(&a) { b } else { a }).unwrap_or(ranks[0])
}

fn seconds(lane: &Lane) -> Vec<(&'static str, f64)> {
    lane.parts().into_iter().chain([("communication", lane.communication)]).collect()
}

impl Track {
    /// What the rank that is looked at takes part in, with whom.
    pub(super) fn parts<'s>(
        &self,
        subject: &Subject<'s>,
    ) -> impl Iterator<Item = (&'s TakesPart, &'s Message)> + use<'s> {
        let simulation = &subject.step.estimate.simulation;
        simulation.parts[self.at].iter().map(|part| (part, &simulation.messages[part.message]))
    }

    /// Its devices as plans write them: `0..4`, or `3`; of many runs the first two.
    pub(crate) fn said(&self) -> String {
        let runs = ranges(&self.ranks);
        let said = runs.iter().take(2).map(|[first, last]| match first == last {
            true => first.to_string(),
            false => format!("{first}..{}", last + 1),
        });
        let more = (runs.len() > 2).then(|| "…".to_owned());
        said.chain(more).collect::<Vec<_>>().join(", ")
    }

    pub(super) fn to_json(&self) -> Value {
        let seconds: serde_json::Map<String, Value> =
            self.lane.iter().map(|(name, seconds)| ((*name).to_owned(), json!(seconds))).collect();
        json!({
            "role": self.role,
            "rank": self.rank.0,
            "ranks": ranges(&self.ranks),
            "count": self.ranks.len(),
            "seconds": seconds,
        })
    }
}

/// `[[0, 3], [8, 11]]` are the ranks 0 to 3 and 8 to 11.
pub(super) fn ranges(ranks: &[RankId]) -> Vec<[u32; 2]> {
    let mut sorted: Vec<u32> = ranks.iter().map(|rank| rank.0).collect();
    sorted.sort_unstable();
    let mut ranges: Vec<[u32; 2]> = vec![];
    for rank in sorted {
        match ranges.last_mut() {
            Some([_, last]) if *last + 1 == rank => *last = rank,
            _ => ranges.push([rank, rank]),
        }
    }
    ranges
}
