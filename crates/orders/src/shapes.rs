//! The shapes of [Tessel](https://doi.org/10.1109/HPCA57654.2024.00067), on any number of devices.
//!
//! A forward takes one unit of time and keeps one of memory, a backward takes three and frees it, unless said otherwise.

use std::ops::Range;

use diag::{Error, Result};

use crate::problem::{Block, Problem};

/// The names, and what each is.
pub const SHAPES: [(&str, &str); 7] = [
    ("v", "a pipeline: down all devices, and back"),
    ("x", "two pipelines, one from the first device to the last and one from the last to the first"),
    ("m", "a pipeline whose first block, an embedding, is on all devices"),
    ("nn", "an encoder and a decoder, each behind a block on all devices"),
    ("k", "two branches on half of the devices each, which meet in a block on all of them"),
    ("mllm", "a pipeline between two blocks on all devices"),
    ("alphafold", "three times down all devices, and once back"),
];

/// A shape by its name, with the room that each device has.
pub fn named(name: &str, devices: usize, room: Option<i64>) -> Result<Problem> {
    if !(2..=MOST).contains(&devices) {
        return Err(Error::new("SW0372", format!("there is no shape on {devices} devices"))
            .fix(format!("give a number from 2 to {MOST}")));
    }
    drawn(name, devices, room).ok_or_else(|| {
        let names: Vec<String> = SHAPES.iter().map(|row| format!("`{}`", row.0)).collect();
        Error::new("SW0372", format!("there is no shape named `{}`", name.escape_default()))
            .fix(format!("name one of {}, or a file of blocks", names.join(", ")))
    })
}

/// Enough for every shape to have no more blocks than are searched.
const MOST: usize = 32;

fn drawn(name: &str, devices: usize, room: Option<i64>) -> Option<Problem> {
    let mut drawn = Drawing::new(devices);
    let half = devices.div_ceil(2);
    let (all, low, high) = (0..devices, 0..half, half..devices);
    let limit = match name {
        "v" | "x" | "alphafold" => devices,
        _ => devices + half,
    };
    match name {
        "v" => drawn.there_and_back(None, all),
        "x" => {
            drawn.there_and_back(None, all.clone());
            drawn.there_and_back(None, all.rev())
        }
        "m" => drawn.m(all),
        "mllm" => drawn.mllm(all),
        "nn" => drawn.nn(low, high),
        "k" => drawn.k(low, high),
        "alphafold" => drawn.alphafold(all),
        _ => return None,
    };
    let room = Some(room.unwrap_or(i64::try_from(limit).ok()?));
    Some(Problem { blocks: drawn.blocks, room: vec![room; devices] })
}

/// Blocks that are being named and put down.
struct Drawing {
    devices: usize,
    blocks: Vec<Block>,
    forwards: usize,
    /// The blocks that have had no backward yet, by number.
    open: Vec<(usize, Vec<usize>)>,
}

impl Drawing {
    fn new(devices: usize) -> Self {
        Self { devices, blocks: vec![], forwards: 0, open: vec![] }
    }

    fn m(&mut self, all: Range<usize>) -> Option<usize> {
        let first = self.on_all('F', 0, None);
        let last = self.there_and_back(first, all);
        self.on_all('B', 0, last)
    }

    fn mllm(&mut self, all: Range<usize>) -> Option<usize> {
        let first = self.on_all('F', 0, None);
        let down = self.forwards(first, all.clone());
        let word = self.on_all('F', 0, down);
        let back = self.on_all('B', 0, word);
        let up = self.backwards(back, all, 3);
        self.on_all('B', 0, up)
    }

    fn nn(&mut self, low: Range<usize>, high: Range<usize>) -> Option<usize> {
        let first = self.on_all('F', 0, None);
        let encoded = self.forwards(first, low.clone());
        let second = self.on_all('F', 0, encoded);
        let decoded = self.forwards(second, high.clone());
        let back = self.backwards(decoded, high, 3);
        let second = self.on_all('B', 0, back);
        let back = self.backwards(second, low, 3);
        self.on_all('B', 0, back)
    }

    fn k(&mut self, low: Range<usize>, high: Range<usize>) -> Option<usize> {
        let (one, two) = (self.forwards(None, low.clone()), self.forwards(None, high.clone()));
        let met = self.on_all('F', 1, one);
        self.after(met, two);
        let back = self.on_all('B', -1, met);
        self.backwards(back, low, 3);
        self.backwards(back, high, 3)
    }

    fn alphafold(&mut self, all: Range<usize>) -> Option<usize> {
        let mut last = None;
        for memory in [0, 0, 1] {
            for device in all.clone() {
                last = self.block('F', vec![device], 1, memory, last);
            }
        }
        self.backwards(last, all, 1)
    }

    fn block(
        &mut self,
        pass: char,
        devices: Vec<usize>,
        time: i64,
        memory: i64,
        after: Option<usize>,
    ) -> Option<usize> {
        let number = match pass {
            'F' => {
                self.open.push((self.forwards, devices.clone()));
                self.forwards += 1;
                self.forwards - 1
            }
            // A backward is that of the last forward on its devices.
            _ => {
                let at = self.open.iter().rposition(|open| open.1 == devices)?;
                self.open.remove(at).0
            }
        };
        let after = after.into_iter().collect();
        self.blocks.push(Block { name: format!("{pass}{number}"), devices, time, memory, after });
        Some(self.blocks.len() - 1)
    }

    fn on_all(&mut self, pass: char, memory: i64, after: Option<usize>) -> Option<usize> {
        self.block(pass, (0..self.devices).collect(), 1, memory, after)
    }

    fn forwards(&mut self, mut after: Option<usize>, devices: impl Iterator<Item = usize>) -> Option<usize> {
        for device in devices {
            after = self.block('F', vec![device], 1, 1, after);
        }
        after
    }

    /// On the last of the devices first.
    fn backwards(
        &mut self,
        mut after: Option<usize>,
        devices: impl DoubleEndedIterator<Item = usize>,
        time: i64,
    ) -> Option<usize> {
        for device in devices.rev() {
            after = self.block('B', vec![device], time, -1, after);
        }
        after
    }

    fn there_and_back(
        &mut self,
        after: Option<usize>,
        devices: impl DoubleEndedIterator<Item = usize> + Clone,
    ) -> Option<usize> {
        let last = self.forwards(after, devices.clone());
        self.backwards(last, devices, 3)
    }

    fn after(&mut self, block: Option<usize>, other: Option<usize>) {
        if let Some(block) = block {
            self.blocks[block].after.extend(other);
        }
    }
}
