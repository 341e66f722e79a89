//! On which track of its rank each communication is drawn.

use program::{Kind, RankId};
use serde_json::{Value, json};

use super::nano;
use crate::link::LinkKind;
use crate::{Scene, Simulation, TakesPart};

/// What a rank has tracks for. Communications of one sort that go on at the same time have further ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum TrackSort {
    Computes,
    Inside,
    Between,
    Sends,
    Receives,
}

/// A track of a rank: of what sort, and how many of that sort are above it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Track {
    sort: TrackSort,
    further: u32,
}

/// More tracks of a sort than this have no numbers of their own.
const MOST: u32 = 1000;

impl Track {
    pub(super) const COMPUTES: Track = Track { sort: TrackSort::Computes, further: 0 };

    /// By which events name it, and in whose order tracks stand.
    pub(super) fn number(self) -> u32 {
        self.sort as u32 * MOST + self.further
    }

    fn title(self) -> String {
        let title = match self.sort {
            TrackSort::Computes => "computes",
            TrackSort::Inside => "collectives inside nodes",
            TrackSort::Between => "collectives between nodes",
            TrackSort::Sends => "sends",
            TrackSort::Receives => "receives",
        };
        if self.further == 0 { title.to_owned() } else { format!("{title} ({})", self.further + 1) }
    }
}

/// What a rank takes part in, in the order of time, and where that is drawn.
pub(super) struct Tracks<'s> {
    pub(super) parts: Vec<(&'s TakesPart, Track)>,
}

impl<'s> Tracks<'s> {
    /// Of the rank at this place among those that were followed.
    pub(super) fn laid_out(scene: &Scene<'_>, simulation: &'s Simulation, at: usize) -> Self {
        let message = |part: &TakesPart| &simulation.messages[part.message];
        let mut parts: Vec<&TakesPart> = simulation.parts[at].iter().collect();
        parts.sort_by(|a, b| message(a).start.total_cmp(&message(b).start));
        let mut free: [Vec<i64>; 5] = Default::default();
        let mut placed = |part: &'s TakesPart| {
            let sort = sort(scene, part.kind, &message(part).group);
            let (start, end) = (nano(message(part).start), nano(message(part).end));
            let ends = &mut free[sort as usize];
            let further = ends.iter().position(|end| *end <= start).unwrap_or(ends.len());
            ends.resize(ends.len().max(further + 1), 0);
            ends[further] = end;
            (part, Track { sort, further: further as u32 })
        };
        Self { parts: parts.into_iter().map(&mut placed).collect() }
    }

    /// What the rank and its tracks are called.
    pub(super) fn titles(&self, rank: u32) -> Vec<Value> {
        let mut tracks = vec![Track::COMPUTES];
        tracks.extend(self.parts.iter().map(|(_, track)| *track));
        tracks.sort_unstable();
        tracks.dedup();
        let title = |what: &str, track: u32, args: Value| json!({ "name": what, "ph": "M", "pid": rank, "tid": track, "args": args });
        let mut titles = vec![
            title("process_name", 0, json!({ "name": format!("rank {rank}") })),
            title("process_sort_index", 0, json!({ "sort_index": rank })),
        ];
        for track in tracks {
            let number = track.number();
            titles.push(title("thread_name", number, json!({ "name": track.title() })));
            titles.push(title("thread_sort_index", number, json!({ "sort_index": number })));
        }
        titles
    }
}

fn sort(scene: &Scene<'_>, kind: Kind, group: &[RankId]) -> TrackSort {
    match kind {
        Kind::Send => TrackSort::Sends,
        Kind::Receive => TrackSort::Receives,
        _ if LinkKind::crossed_by(scene.cluster, group) == LinkKind::Between => TrackSort::Between,
        _ => TrackSort::Inside,
    }
}
