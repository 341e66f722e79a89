//! What each axis of the devices does with a tensor: it divides a factor, holds partial results, or copies.

use rules::{Reduction, Region};

use crate::mesh::{Axis, Mesh, digits, merged};
use crate::pieces::Pieces;

/// How one factor of a tensor is cut: into a piece for each device along these axes, outermost first.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Cut {
    pub axes: Vec<Axis>,
    pub pieces: Pieces,
}

/// Which shards of a tensor are where, if that is regular.
///
/// Two shardings are equal if and only if they are the same shards with the same numbers on the same devices: axes that could
/// be one are one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Sharding {
    base: u32,
    cuts: Vec<Cut>,
    partial: Vec<Axis>,
    copies: Vec<Axis>,
    reduction: Reduction,
}

/// One shard: on which device, which region, and which of several partial results.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Shard {
    pub device: u32,
    pub region: Region,
    pub share: u32,
}

impl Cut {
    pub fn none(size: i64) -> Cut {
        Cut { axes: vec![], pieces: Pieces::balanced(size, 1) }
    }

    /// Balanced along each of the axes, one after another.
    pub fn nested(size: i64, axes: Vec<Axis>) -> Cut {
        let counts: Vec<u32> = axes.iter().map(|a| a.size).collect();
        Cut { axes, pieces: Pieces::nested(size, &counts) }
    }
}

impl Sharding {
    /// Whole on each device.
    pub fn whole(sizes: &[i64], on: &Mesh) -> Sharding {
        let cuts = sizes.iter().map(|&size| Cut::none(size)).collect();
        let copies = on.axes().to_vec();
        Sharding { base: on.base(), cuts, partial: vec![], copies, reduction: Reduction::Sum }
    }

    /// `None` if the axes are no mesh, or the pieces are not as many as the devices, or empty.
    pub fn new(
        base: u32,
        cuts: Vec<Cut>,
        partial: &[Axis],
        copies: &[Axis],
        reduction: Reduction,
    ) -> Option<Sharding> {
        let fits = |cut: &Cut| {
            let count = cut.axes.iter().try_fold(1_u32, |n, a| n.checked_mul(a.size));
            count == Some(cut.pieces.count()) && (count == Some(1) || cut.pieces.shortest() > 0)
        };
        if !cuts.iter().all(fits) {
            return None;
        }
        let cuts = cuts.into_iter().map(|c| Cut { axes: merged(&c.axes), pieces: c.pieces }).collect();
        let copies = Mesh::new(0, copies)?.axes().to_vec();
        let partial = merged(partial);
        let reduction = if partial.is_empty() { Reduction::Sum } else { reduction };
        let sharding = Sharding { base, cuts, partial, copies, reduction };
        Mesh::new(base, &sharding.axes()).map(|_| sharding)
    }

    pub fn base(&self) -> u32 {
        self.base
    }

    /// One for each factor of the tensor.
    pub fn cuts(&self) -> &[Cut] {
        &self.cuts
    }

    /// The axes that hold partial results; they are numbered with the last one running fastest.
    pub fn partial(&self) -> &[Axis] {
        &self.partial
    }

    pub fn copies(&self) -> &[Axis] {
        &self.copies
    }

    /// How partial results are completed; a sum if there are none.
    pub fn reduction(&self) -> Reduction {
        self.reduction
    }

    pub fn sizes(&self) -> Vec<i64> {
        self.cuts.iter().map(|c| c.pieces.size()).collect()
    }

    /// How many partial results make the value.
    pub fn shares(&self) -> u32 {
        self.partial.iter().map(|a| a.size).product()
    }

    /// The elements of the largest shard.
    pub fn largest(&self) -> i64 {
        self.cuts.iter().map(|c| c.pieces.longest()).product()
    }

    /// All axes: those that divide, factor by factor, those that hold partial results, those that copy.
    pub fn axes(&self) -> Vec<Axis> {
        self.slots().into_iter().flatten().copied().collect()
    }

    pub fn mesh(&self) -> Mesh {
        Mesh::new(self.base, &self.axes()).expect("the axes of a spread are an arrangement")
    }

    /// All shards, in the order of devices.
    pub fn shards(&self) -> Vec<Shard> {
        self.numbered(|axis| 0..axis.size)
    }

    /// The shards of one device.
    pub fn on(&self, device: u32) -> Vec<Shard> {
        let mut axes: Vec<Axis> = self.axes().into_iter().filter(|a| !a.in_turn()).collect();
        axes.sort_unstable_by_key(|a| std::cmp::Reverse(a.stride));
        let Some(digits) = digits(self.base, &axes, device) else { return vec![] };
        self.numbered(|axis| match axes.iter().position(|a| *a == axis) {
            Some(at) => digits[at]..digits[at] + 1,
            None => 0..axis.size,
        })
    }

    /// Axes by what they do: one list for each factor, one for partial results, one for copies.
    fn slots(&self) -> Vec<&[Axis]> {
        let cuts = self.cuts.iter().map(|c| &c.axes[..]);
        cuts.chain([&self.partial[..], &self.copies[..]]).collect()
    }

    /// The shards at some digits of each axis.
    fn numbered(&self, digits_of: impl Fn(Axis) -> std::ops::Range<u32>) -> Vec<Shard> {
        let slots = self.slots();
        let mut numbered = vec![(self.base, vec![0; slots.len()])];
        for (slot, axis) in slots.iter().enumerate().flat_map(|(s, axes)| axes.iter().map(move |a| (s, *a))) {
            let step = |(device, numbers): &(u32, Vec<u32>), digit: u32| {
                let mut numbers = numbers.clone();
                numbers[slot] = numbers[slot] * axis.size + digit;
                (device + digit * axis.stride, numbers)
            };
            numbered =
                numbered.iter().flat_map(|row| digits_of(axis).map(move |digit| step(row, digit))).collect();
        }
        let shard = |(device, numbers): (u32, Vec<u32>)| {
            let region = self.cuts.iter().zip(&numbers).map(|(c, n)| c.pieces.get(*n)).collect();
            Shard { device, region: Region(region), share: numbers[self.cuts.len()] }
        };
        let mut shards: Vec<Shard> = numbered.into_iter().map(shard).collect();
        shards.sort_unstable();
        shards
    }
}
