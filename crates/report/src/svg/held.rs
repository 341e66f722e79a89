//! What a device has in memory over a step: a band below what it does.

use super::palette::*;
use super::picture::{EDGE, Font, Picture, QUIET};
use crate::page::words::bytes;
use crate::page::{Subject, Track};

/// From the top of a line, and how high.
const BAND: (f64, f64) = (40.0, 18.0);
/// Pixels that are one cell.
const CELL: f64 = 2.0;
/// Of a device with so many times the memory that is needed, the band would be a hair.
const FAR: u64 = 8;

/// Memory of one device.
pub(super) struct MemoryBand {
    /// From, to, the most bytes meanwhile; as shares of the step.
    over: Vec<(f64, f64, u64)>,
    most: u64,
    there: u64,
}

/// Of the device of each line that needs most; none where it is not known over the step.
pub(super) fn held(subject: &Subject<'_>, tracks: &[Track]) -> Vec<Option<MemoryBand>> {
    tracks.iter().map(|track| of_track(subject, track)).collect()
}

fn of_track(subject: &Subject<'_>, track: &Track) -> Option<MemoryBand> {
    let step = subject.step;
    let known = step.held.iter().find(|it| it.rank == track.fullest)?;
    let part = |seconds: f64| seconds / step.estimate.simulation.seconds.max(1e-12);
    let over: Vec<(f64, f64, u64)> = match known.closely.is_empty() {
        true => known.over.iter().map(|it| (part(it.start), part(it.end), it.bytes)).collect(),
        false => {
            known.closely.iter().map(|it| (part(it.start), part(it.end), it.bytes.iter().sum())).collect()
        }
    };
    let most = step.estimate.memory[track.fullest.index()].total();
    let there = subject.cluster.device(track.fullest.0).memory;
    (!over.is_empty()).then_some(MemoryBand { over, most, there })
}

/// Up to how many bytes the bands go: what a device has, or what is needed if that is more or far less.
pub(super) fn top_of(all: &[Option<MemoryBand>]) -> u64 {
    let most = all.iter().flatten().map(|it| it.most).max().unwrap_or(0);
    let there = all.iter().flatten().map(|it| it.there).max().unwrap_or(0);
    if most > there || there / FAR > most { most } else { there }
}

pub(super) fn legend_of(top: u64) -> (Colour, String) {
    (MEMORY, format!("memory, drawn up to {}", bytes(top as f64)))
}

impl MemoryBand {
    /// Below a line at `y`, between two places.
    pub(super) fn draw(&self, picture: &mut Picture, y: f64, [left, right]: [f64; 2], top: u64) {
        let ground = y + BAND.0 + BAND.1;
        let height = |bytes: u64| ground - BAND.1 * (bytes as f64 / top.max(1) as f64).min(1.0);
        let said = format!("at most {}", bytes(self.most as f64));
        picture.text([EDGE, ground - 5.0], &said, Font { size: 11.0, ..QUIET });
        picture.area([left, y + BAND.0, right - left, BAND.1], TRACK);
        let cells = ((right - left) / CELL) as usize;
        let mut points = vec![[left, ground]];
        for (cell, bytes) in self.cells(cells).into_iter().enumerate() {
            let x = left + (right - left) * cell as f64 / cells as f64;
            let before = points[points.len() - 1][1];
            if cell == 0 || before != height(bytes) {
                points.extend([[x, before], [x, height(bytes)]]);
            }
        }
        points.extend([[right, points[points.len() - 1][1]], [right, ground]]);
        picture.polygon(&points, MEMORY);
        if self.most > self.there {
            let limit = height(self.there);
            picture.line(&[[left, limit], [right, limit]], EXPOSED, 1.0, Some(4.0));
        }
    }

    /// The most bytes of each. What is held stays while a device waits.
    fn cells(&self, count: usize) -> Vec<u64> {
        let mut cells = vec![0; count];
        for (start, end, bytes) in &self.over {
            let first = ((start * count as f64) as usize).min(count - 1);
            let last = ((end * count as f64).ceil() as usize).clamp(first + 1, count);
            cells[first..last].iter_mut().for_each(|it| *it = (*bytes).max(*it));
        }
        let mut before = self.over.first().map_or(0, |(_, _, bytes)| *bytes);
        for cell in &mut cells {
            before = if *cell == 0 { before } else { *cell };
            *cell = before;
        }
        cells
    }
}

#[cfg(test)]
mod tests {
    use super::{MemoryBand, top_of};

    fn held(over: &[(f64, f64, u64)], most: u64, there: u64) -> MemoryBand {
        MemoryBand { over: over.to_vec(), most, there }
    }

    #[test]
    fn what_is_held_stays_while_a_device_waits() {
        let held = held(&[(0.0, 0.3, 4), (0.3, 0.35, 9), (0.8, 1.0, 2)], 9, 16);
        assert_eq!(held.cells(10), [4, 4, 4, 9, 9, 9, 9, 9, 2, 2]);
    }

    #[test]
    fn bands_go_up_to_what_a_device_has() {
        let top = |most, there| top_of(&[None, Some(held(&[], most, there)), Some(held(&[], 1, there))]);
        assert_eq!([top(10, 64), top(10, 8), top(1, 64), top(8, 64)], [64, 10, 1, 64]);
    }
}
