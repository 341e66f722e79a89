//! Who gives how many bytes to whom in a step.
//!
//! A message goes from one rank to another. Of a collective it is known what each member gives; that is taken to go to
//! all other members alike, whatever algorithm moves it. Of many devices neighbours are one cell.

use std::collections::BTreeMap;

use cluster::Collective;
use graph::Graph;
use program::{ExchangeId, GroupingId, Instr, Kind, RankId};
use serde_json::{Value, json};
use simulate::Message;

use super::Subject;
use super::tracks::{Track, Tracks};

/// The matrix has at most so many lines.
const LINES: u32 = 64;

/// `graph` is the one that the program's numbers are of.
pub(super) fn matrix(subject: &Subject<'_>, graph: &Graph, tracks: &Tracks) -> Value {
    let world = subject.compiled.program.world;
    let each = world.div_ceil(LINES).max(1);
    let lines = world.div_ceil(each) as usize;
    let mut cells = Cells { each, lines, bytes: vec![0.0; lines * lines] };
    for track in tracks.iter() {
        of_track(subject, graph, track, &mut cells);
    }
    json!({ "each": each, "lines": lines, "bytes": cells.bytes.iter().map(|it| it.round()).collect::<Vec<_>>() })
}

struct Cells {
    /// Devices of a line.
    each: u32,
    lines: usize,
    bytes: Vec<f64>,
}

impl Cells {
    fn add(&mut self, from: RankId, to: usize, bytes: f64) {
        self.bytes[(from.0 / self.each) as usize * self.lines + to] += bytes;
    }

    /// What a member of a group gives to the others.
    fn give(&mut self, from: RankId, group: &[RankId], bytes: f64) {
        let share = bytes / (group.len() - 1) as f64;
        let mut members = vec![0.0; self.lines];
        group
            .iter()
            .filter(|rank| **rank != from)
            .for_each(|rank| members[(rank.0 / self.each) as usize] += 1.0);
        for (to, count) in members.into_iter().enumerate().filter(|(_, count)| *count > 0.0) {
            self.add(from, to, share * count);
        }
    }
}

/// All ranks of a track do in their groups what its first one does.
fn of_track(subject: &Subject<'_>, graph: &Graph, track: &Track, cells: &mut Cells) {
    let program = &subject.compiled.program;
    let body = &program.roles[track.role].body;
    let mut by_group: BTreeMap<GroupingId, f64> = BTreeMap::new();
    let mut by_exchange: BTreeMap<ExchangeId, f64> = BTreeMap::new();
    for (part, message) in track.parts(subject) {
        let instr = body.code(part.block, part.pass).and_then(|code| code.instrs.get(part.instr));
        match (instr.and_then(Instr::group), instr.and_then(Instr::exchange)) {
            (Some(grouping), _) => {
                *by_group.entry(grouping).or_default() += given(part.kind, message);
            }
            (None, Some(exchange)) if part.kind != Kind::Receive => {
                *by_exchange.entry(exchange).or_default() += 1.0;
            }
            _ => {}
        }
    }
    let mut is_here = vec![false; program.world as usize];
    track.ranks.iter().for_each(|rank| is_here[rank.index()] = true);
    for (grouping, bytes) in by_group {
        let groups = &program.groupings[grouping.index()];
        for group in groups.iter().filter(|group| group.len() > 1) {
            let members = group.iter().filter(|rank| is_here[rank.index()]);
            members.for_each(|rank| cells.give(*rank, group, bytes));
        }
    }
    for (exchange, times) in by_exchange {
        exchanged(subject, graph, &is_here, exchange, times, cells);
    }
}

/// What a rank gives to others in a collective, of which it is said how much each one has.
fn given(kind: Kind, message: &Message) -> f64 {
    let members = message.group.len() as f64;
    let once = message.bytes as f64 * (members - 1.0) / members;
    match kind.collective() {
        // Parts to be summed, and then the sums.
        Some(Collective::AllReduce) => 2.0 * once,
        _ => once,
    }
}

/// By the table of the exchange, so many times.
fn exchanged(
    subject: &Subject<'_>,
    graph: &Graph,
    is_here: &[bool],
    id: ExchangeId,
    times: f64,
    cells: &mut Cells,
) {
    let exchange = &subject.compiled.program.exchanges[id.index()];
    let width = graph.tensor(exchange.tensor).dtype.bytes() as f64;
    for piece in exchange.pieces.iter() {
        let (from, to) = (exchange.sources[piece.from].0, exchange.targets[piece.to].0);
        if from != to && is_here[from.index()] {
            let numbers: f64 = piece.region.0.iter().map(|it| (it.hi - it.lo) as f64).product();
            cells.add(from, (to.0 / cells.each) as usize, times * numbers * width);
        }
    }
}
