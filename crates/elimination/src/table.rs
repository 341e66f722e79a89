//! Tables, each kept once.

use std::collections::HashMap;
use std::rc::Rc;

/// A table among those that are known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Table(u32);

/// A table that was given, what was taken off it, and what the caller has.
type Given = (Table, f64, Rc<[f64]>);

/// All tables, by what is in them: sizes of axes, and entries as bits.
#[derive(Default)]
pub(crate) struct Tables {
    all: Vec<Vec<f64>>,
    shapes: Vec<Vec<usize>>,
    known: HashMap<(Vec<usize>, u64), Vec<Table>>,
    /// What was given, by where it lies.
    given: HashMap<(usize, Vec<usize>), Given>,
    /// Of all together.
    pub(crate) entries: usize,
}

impl Tables {
    pub(crate) fn get(&self, table: Table) -> &[f64] {
        &self.all[table.0 as usize]
    }

    pub(crate) fn shape(&self, table: Table) -> &[usize] {
        &self.shapes[table.0 as usize]
    }

    /// What the caller has, and how much was taken off each entry.
    pub(crate) fn given(&mut self, shape: Vec<usize>, costs: &Rc<[f64]>) -> (Table, f64) {
        let key = (Rc::as_ptr(costs).cast::<f64>() as usize, shape);
        if let Some((table, off, _)) = self.given.get(&key) {
            return (*table, *off);
        }
        let (table, off) = self.keep(key.1.clone(), costs.to_vec());
        // The caller's table is held, so that nothing else comes to lie there.
        self.entries += costs.len();
        self.given.insert(key, (table, off, Rc::clone(costs)));
        (table, off)
    }

    /// The same with its least entry at zero, and what that was.
    pub(crate) fn keep(&mut self, shape: Vec<usize>, mut costs: Vec<f64>) -> (Table, f64) {
        let least = costs.iter().copied().fold(f64::INFINITY, f64::min);
        if least != 0.0 && least.is_finite() {
            costs.iter_mut().for_each(|cost| *cost -= least);
        }
        let key = (shape, hash(&costs));
        let same = self.known.get(&key).into_iter().flatten().find(|table| *self.get(**table) == costs[..]);
        if let Some(table) = same {
            return (*table, least);
        }
        let table = Table(u32::try_from(self.all.len()).expect("fewer tables than that"));
        self.entries += costs.len();
        self.all.push(costs);
        self.shapes.push(key.0.clone());
        self.known.entry(key).or_default().push(table);
        (table, least)
    }
}

fn hash(costs: &[f64]) -> u64 {
    costs
        .iter()
        .fold(0, |all: u64, cost| (all.rotate_left(5) ^ cost.to_bits()).wrapping_mul(0x517c_c1b7_2722_0a95))
}
