//! Devices as a row of axes.
//!
//! An axis of four devices with stride two from device 1 on is the devices 1, 3, 5, 7. Several axes are
//! all sums of their digits: `2:4` and `2:1` are 0, 1, 4, 5. An axis of stride zero is walked on one
//! device: parts that are there in turn.
//!
//! Invariant: the stride of an axis is larger than all that the axes of smaller strides reach, so a
//! device has one number on each axis, and devices rise as the numbers do.

/// `size:stride`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Axis {
    pub size: u32,
    pub stride: u32,
}

/// A set of devices: a first one, and axes with falling strides of which no two could be one.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Mesh {
    base: u32,
    axes: Vec<Axis>,
}

impl Axis {
    pub fn new(size: u32, stride: u32) -> Axis {
        Axis { size, stride }
    }

    /// Whether it is walked on one device.
    pub fn in_turn(self) -> bool {
        self.stride == 0
    }

    /// The axis that this one, outside, and another one, inside, are together.
    pub fn joined(self, inner: Axis) -> Option<Axis> {
        let size = self.size.checked_mul(inner.size)?;
        let next = u64::from(inner.size) * u64::from(inner.stride);
        (u64::from(self.stride) == next).then_some(Axis { size, stride: inner.stride })
    }

    /// Outside and inside axes, of which the inside one has `size` devices.
    pub fn split(self, size: u32) -> Option<(Axis, Axis)> {
        let fits = 1 < size && size < self.size && self.size % size == 0;
        fits.then(|| (Axis::new(self.size / size, self.stride * size), Axis::new(size, self.stride)))
    }

    fn end(self) -> u64 {
        u64::from(self.size) * u64::from(self.stride)
    }
}

impl Mesh {
    /// `None` if these axes, in any order, break the invariant. Axes in turn are no devices.
    pub fn new(base: u32, axes: &[Axis]) -> Option<Mesh> {
        let mut axes: Vec<Axis> = axes.iter().copied().filter(|a| a.size > 1 && !a.in_turn()).collect();
        axes.sort_unstable_by_key(|a| std::cmp::Reverse(a.stride));
        let mut reach = 0;
        for axis in axes.iter().rev() {
            if u64::from(axis.stride) <= reach {
                return None;
            }
            reach += axis.end() - u64::from(axis.stride);
        }
        u32::try_from(u64::from(base) + reach).ok()?;
        Some(Mesh { base, axes: merged(&axes) })
    }

    /// All devices below a number.
    pub fn all(devices: u32) -> Mesh {
        Mesh { base: 0, axes: merged(&[Axis::new(devices, 1)]) }
    }

    /// The mesh of a set of devices that are given in rising order.
    pub fn from_devices(devices: &[u32]) -> Option<Mesh> {
        let (base, axes) = row(devices)?;
        Mesh::new(base, &axes).filter(|_| devices.windows(2).all(|w| w[0] < w[1]))
    }

    pub fn base(&self) -> u32 {
        self.base
    }

    pub fn axes(&self) -> &[Axis] {
        &self.axes
    }

    pub fn count(&self) -> u32 {
        self.axes.iter().map(|a| a.size).product()
    }

    /// All devices, rising.
    pub fn devices(&self) -> Vec<u32> {
        walk(self.base, &self.axes)
    }

    pub fn contains(&self, device: u32) -> bool {
        digits(self.base, &self.axes, device).is_some()
    }

    /// Groups of devices: along some axes, for all values of the others. A group lists its devices with
    /// the last of the axes running fastest. `None` if these are no axes of this mesh.
    pub fn groups(&self, along: &[Axis]) -> Option<Vec<Vec<u32>>> {
        let along: Vec<Axis> = along.iter().copied().filter(|a| !a.in_turn()).collect();
        let mut rest = cut_at(&self.axes, &marks(&along));
        for axis in cut_at(&along, &marks(&rest)) {
            let at = rest.iter().position(|a| *a == axis)?;
            rest.remove(at);
        }
        Some(walk(self.base, &rest).into_iter().map(|first| walk(first, &along)).collect())
    }
}

/// A list of devices as a first one and axes, the last one running fastest: any strides, zero for a device
/// that repeats. `None` if they form no such row.
pub fn row(devices: &[u32]) -> Option<(u32, Vec<Axis>)> {
    let mut heads: Vec<u32> = devices.to_vec();
    let mut axes = vec![];
    while heads.len() > 1 {
        let stride = heads[1].checked_sub(heads[0])?;
        let run = heads.windows(2).take_while(|w| w[0].checked_add(stride) == Some(w[1])).count() + 1;
        let equal = |block: &[u32]| {
            let first = block[0];
            block.len() == run && block.iter().zip(&heads).all(|(d, h)| d.wrapping_sub(first) == h - heads[0])
        };
        if !heads.chunks(run).all(equal) {
            return None;
        }
        axes.push(Axis::new(u32::try_from(run).ok()?, stride));
        heads = heads.iter().copied().step_by(run).collect();
    }
    axes.reverse();
    Some((*heads.first()?, axes))
}

/// All devices of a row, the last axis running fastest.
pub fn walk(base: u32, axes: &[Axis]) -> Vec<u32> {
    axes.iter().fold(vec![base], |devices, axis| {
        devices.iter().flat_map(|&d| (0..axis.size).map(move |i| d + i * axis.stride)).collect()
    })
}

/// A device's number on each of several axes with falling strides.
pub(crate) fn digits(base: u32, axes: &[Axis], device: u32) -> Option<Vec<u32>> {
    let mut rest = device.checked_sub(base)?;
    let mut digit = |axis: &Axis| {
        let number = (rest / axis.stride).min(axis.size - 1);
        rest -= number * axis.stride;
        number
    };
    let digits = axes.iter().map(&mut digit).collect();
    (rest == 0).then_some(digits)
}

/// The same axes in the same order; neighbours that are one become one.
pub fn merged(axes: &[Axis]) -> Vec<Axis> {
    let mut merged: Vec<Axis> = vec![];
    for &axis in axes.iter().filter(|a| a.size > 1) {
        match merged.last().and_then(|outer| outer.joined(axis)) {
            Some(joined) => *merged.last_mut().expect("it has a last one") = joined,
            None => merged.push(axis),
        }
    }
    merged
}

/// The strides at which axes begin and end.
pub(crate) fn marks(axes: &[Axis]) -> Vec<u64> {
    let mut marks: Vec<u64> = axes.iter().flat_map(|a| [u64::from(a.stride), a.end()]).collect();
    marks.sort_unstable();
    marks.dedup();
    marks
}

/// The same axes, split at these strides wherever they can be.
pub fn cut_at(axes: &[Axis], marks: &[u64]) -> Vec<Axis> {
    let mut cut_axes = vec![];
    for &axis in axes {
        let (mut outer, mut inner) = (axis, vec![]);
        for &mark in marks.iter().filter(|_| !axis.in_turn()) {
            let size = mark / u64::from(outer.stride);
            let fits = mark % u64::from(outer.stride) == 0;
            if let Some((out, inn)) = u32::try_from(size).ok().filter(|_| fits).and_then(|s| outer.split(s)) {
                inner.push(inn);
                outer = out;
            }
        }
        cut_axes.push(outer);
        cut_axes.extend(inner.into_iter().rev());
    }
    cut_axes
}
