//! Which devices are one row: those that do the same at the same time.

use program::RankId;
use serde_json::{Value, json};
use simulate::Lane;

use super::Subject;
use super::patterns::{Patterns, Turns, turns};

/// Devices that do the same.
pub(super) struct Row {
    pub(super) role: usize,
    /// The one that is looked at, and its place among those that were followed.
    pub(super) rank: RankId,
    pub(super) at: usize,
    pub(super) ranks: Vec<RankId>,
    /// The one of them that needs most memory: shards may be uneven.
    pub(super) fullest: RankId,
    pub(super) turns: Turns,
    lane: Vec<(&'static str, f64)>,
}

/// The rows in the order of their first devices, with the patterns that they share.
pub(super) struct Rows {
    pub(super) rows: Vec<Row>,
    pub(super) patterns: Patterns,
}

impl std::ops::Deref for Rows {
    type Target = [Row];

    fn deref(&self) -> &[Row] {
        &self.rows
    }
}

pub(super) fn rows(subject: &Subject<'_>) -> Rows {
    let program = &subject.compiled.program;
    let simulation = &subject.step.estimate.simulation;
    let mut found = Rows { rows: vec![], patterns: Patterns::default() };
    for (role, of_role) in program.roles.iter().enumerate() {
        let is_here = |lane: &Lane| of_role.ranks.contains(&lane.rank);
        let lanes: Vec<(usize, &Lane)> =
            simulation.ranks.iter().enumerate().filter(|(_, lane)| is_here(lane)).collect();
        let all_are_told = lanes.len() == of_role.ranks.len() && is_told(subject, &lanes);
        let mut of_this: Vec<Row> = vec![];
        for (at, lane) in lanes {
            let turns = turns(subject, role, at, &mut found.patterns);
            let ranks = if all_are_told { vec![lane.rank] } else { of_role.ranks.clone() };
            let row = Row {
                role,
                rank: lane.rank,
                at,
                fullest: fullest(subject, &ranks),
                ranks,
                turns,
                lane: seconds(lane),
            };
            match of_this.iter_mut().find(|known| known.turns == row.turns) {
                Some(known) => {
                    known.ranks.extend(row.ranks);
                    known.fullest = fullest(subject, &known.ranks);
                }
                None => of_this.push(row),
            }
            if !all_are_told {
                break;
            }
        }
        found.rows.extend(of_this);
    }
    found.rows.sort_by_key(|row| row.rank);
    found.patterns.shorten(&mut found.rows);
    found
}

/// Whether it is known of all of these what they do when.
fn is_told(subject: &Subject<'_>, lanes: &[(usize, &Lane)]) -> bool {
    let spans = &subject.step.estimate.simulation.spans;
    lanes.len() == 1 || lanes.iter().all(|(_, lane)| spans.iter().any(|span| span.rank == lane.rank))
}

/// Of these that are known to the page the one that needs most memory, the first of several.
fn fullest(subject: &Subject<'_>, ranks: &[RankId]) -> RankId {
    let is_told =
        |rank: &RankId| subject.step.held.iter().any(|held| held.rank == *rank && !held.closely.is_empty());
    let most = |rank: &RankId| subject.step.estimate.memory[rank.index()].total();
    let told: Vec<RankId> = ranks.iter().copied().filter(is_told).collect();
    let all = if told.is_empty() { ranks } else { &told[..] };
    all.iter().copied().reduce(|a, b| if most(&b) > most(&a) { b } else { a }).unwrap_or(ranks[0])
}

fn seconds(lane: &Lane) -> Vec<(&'static str, f64)> {
    lane.parts().into_iter().chain([("communication", lane.communication)]).collect()
}

impl Row {
    pub(super) fn told(&self) -> Value {
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
    let mut found: Vec<[u32; 2]> = vec![];
    for rank in sorted {
        match found.last_mut() {
            Some([_, last]) if *last + 1 == rank => *last = rank,
            _ => found.push([rank, rank]),
        }
    }
    found
}
