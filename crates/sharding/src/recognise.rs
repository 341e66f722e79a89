//! From a list of shards to the sharding that it is.

use rules::{Interval, Reduction};

use crate::mesh::{Axis, Mesh};
use crate::pieces::Pieces;
use crate::sharding::{Cut, Shard, Sharding};

impl Sharding {
    /// The spread of which these are all shards; `None` if they form no regular pattern. `shares` says how
    /// many partial results make the value.
    pub fn from_shards(
        sizes: &[i64],
        shards: &[Shard],
        shares: u32,
        reduction: Reduction,
    ) -> Option<Sharding> {
        let mut shards = shards.to_vec();
        shards.sort_unstable();
        shards.dedup();
        let devices: Vec<u32> = shards.chunk_by(|a, b| a.device == b.device).map(|c| c[0].device).collect();
        let chunks = shards.len().checked_div(devices.len())?;
        let mut by_device = shards.chunk_by(|a, b| a.device == b.device);
        if !by_device.all(|c| c.len() == chunks) {
            return None;
        }
        let on = Mesh::from_devices(&devices)?;
        let rows = ShardRows::new(sizes, &shards, shares)?;
        let mut axes = on.axes().to_vec();
        axes.push(Axis::new(u32::try_from(chunks).ok()?, 0));
        rows.sharding(on.base(), &axes, reduction)
    }
}

/// Each shard as numbers: of the piece of each factor, and of the share.
struct ShardRows {
    pieces: Vec<Pieces>,
    shares: u32,
    numbers: Vec<Vec<u32>>,
}

/// A part of an axis along which one of the numbers rises in equal steps, or none does.
struct AxisPart {
    axis: Axis,
    rises: Option<(usize, u32)>,
}

impl ShardRows {
    fn new(sizes: &[i64], shards: &[Shard], shares: u32) -> Option<ShardRows> {
        let mut numbers = vec![Vec::with_capacity(sizes.len() + 1); shards.len()];
        let mut pieces = vec![];
        for (factor, &size) in sizes.iter().enumerate() {
            let mut all: Vec<Interval> = shards.iter().map(|s| s.region.0[factor]).collect();
            all.sort_unstable();
            all.dedup();
            let lengths: Vec<i64> = all.iter().map(|i| i.len()).collect();
            let known = Pieces::from_sizes(&lengths);
            let same = |(i, number): (&Interval, u32)| *i == known.get(number);
            if known.size() != size || !all.iter().zip(0..).all(same) {
                return None;
            }
            for (row, shard) in numbers.iter_mut().zip(shards) {
                row.push(u32::try_from(all.binary_search(&shard.region.0[factor]).ok()?).ok()?);
            }
            pieces.push(known);
        }
        numbers.iter_mut().zip(shards).for_each(|(row, shard)| row.push(shard.share));
        Some(ShardRows { pieces, shares, numbers })
    }

    fn sharding(&self, base: u32, axes: &[Axis], reduction: Reduction) -> Option<Sharding> {
        let mut parts = vec![];
        let mut weight = 1;
        for &axis in axes.iter().rev() {
            parts.extend(self.parts(axis, weight)?);
            weight *= axis.size as usize;
        }
        self.agree(&parts).then_some(())?;
        let chain = |slot: usize, count: u32| {
            let mut steps: Vec<(u32, Axis)> =
                parts.iter().filter_map(|p| p.rises.filter(|r| r.0 == slot).map(|r| (r.1, p.axis))).collect();
            steps.sort_unstable_by_key(|(step, _)| *step);
            let mut next = 1;
            let digits = steps.iter().all(|(step, axis)| {
                let follows = *step == next;
                next = next.saturating_mul(axis.size);
                follows
            });
            (digits && next == count)
                .then(|| steps.iter().rev().map(|(_, axis)| *axis).collect::<Vec<Axis>>())
        };
        let cuts = (self.pieces.iter().enumerate())
            .map(|(f, pieces)| Some(Cut { axes: chain(f, pieces.count())?, pieces: pieces.clone() }))
            .collect::<Option<Vec<Cut>>>()?;
        let partial = chain(self.pieces.len(), self.shares)?;
        let copies: Vec<Axis> = parts.iter().filter(|p| p.rises.is_none()).map(|p| p.axis).collect();
        Sharding::new(base, cuts, &partial, &copies, reduction)
    }

    /// The parts of an axis whose next device is `weight` rows further, innermost first.
    fn parts(&self, axis: Axis, weight: usize) -> Option<Vec<AxisPart>> {
        let mut parts = vec![];
        let mut unit = 1;
        while unit < axis.size {
            let row = |i: u32| &self.numbers[(i * unit) as usize * weight];
            let rises = rise(row(0), row(1))?;
            let count = axis.size / unit;
            let expected = |i: u32| -> bool {
                let slot_of = |s: usize| {
                    rises.map_or(0, |(slot, step)| if s == slot { step.wrapping_mul(i) } else { 0 })
                };
                row(0).iter().enumerate().all(|(s, n)| n.wrapping_add(slot_of(s)) == row(i)[s])
            };
            let run = (1..count).take_while(|&i| expected(i)).count() as u32 + 1;
            if count % run != 0 {
                return None;
            }
            let stride = axis.stride * unit;
            parts.push(AxisPart { axis: Axis::new(run, stride), rises });
            unit *= run;
        }
        Some(parts)
    }

    /// Whether every row is what the parts, innermost first, say.
    fn agree(&self, parts: &[AxisPart]) -> bool {
        let expected = |mut index: usize| {
            let mut row = self.numbers[0].clone();
            for part in parts {
                let size = part.axis.size as usize;
                if let Some((slot, step)) = part.rises {
                    row[slot] = row[slot].wrapping_add(step.wrapping_mul((index % size) as u32));
                }
                index /= size;
            }
            row
        };
        self.numbers.iter().enumerate().all(|(index, row)| *row == expected(index))
    }
}

/// The one number that is larger in the second row, and by how much; `Some(None)` if the rows are equal.
fn rise(a: &[u32], b: &[u32]) -> Option<Option<(usize, u32)>> {
    let mut different = (0..a.len()).filter(|&slot| a[slot] != b[slot]);
    let Some(slot) = different.next() else { return Some(None) };
    let step = b[slot].checked_sub(a[slot])?;
    different.next().is_none().then_some(Some((slot, step)))
}
