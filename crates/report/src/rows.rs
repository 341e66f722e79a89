//! Which modules are one row.

use graph::OpId;

use crate::modules::{Module, layer};
use crate::{Decided, Row};

/// What has no more of a module's work than this may be decided otherwise, and is only counted.
const LITTLE: f64 = 0.01;

/// What is known of each operator.
pub(crate) struct View<'v> {
    pub(crate) decided: &'v [Decided],
    pub(crate) costs: &'v [f64],
    pub(crate) recomputed: Vec<bool>,
    pub(crate) offloaded: Vec<bool>,
}

impl View<'_> {
    /// The rows of a module, with paths from there.
    pub(crate) fn rows(&self, module: &Module) -> Vec<Row> {
        // Which layers are computed again is worth rows of their own, which of a layer's operators are is not.
        let is_told =
            |row: &Row| !module.has_layers() || row.is_even(row.recomputed) && row.is_even(row.offloaded);
        if let Some(row) = self.whole(&module.ops()).filter(is_told) {
            return vec![row];
        }
        let mut rows: Vec<Row> = vec![];
        let add = |rows: &mut Vec<Row>, row: Row| match rows.iter_mut().find(|known| is_same(known, &row)) {
            Some(known) => known.take(row),
            None => rows.push(row),
        };
        for way in self.ways(&module.own) {
            let row = self.row(&way, &way);
            add(&mut rows, row);
        }
        for (name, inner) in self.layers(&module.inner) {
            for mut row in inner {
                row.modules.iter_mut().for_each(|path| *path = joined(&name, path));
                add(&mut rows, row);
            }
        }
        rows.sort_by_key(|row| row.ops.iter().min().copied());
        rows
    }

    /// One row, if those that are decided otherwise have next to no work.
    fn whole(&self, ops: &[OpId]) -> Option<Row> {
        let ways = self.ways(ops);
        let cost = |ops: &[OpId]| ops.iter().map(|op| self.costs[op.index()]).sum::<f64>();
        let most =
            ways.iter().rev().max_by(|a, b| cost(a).total_cmp(&cost(b)).then(a.len().cmp(&b.len())))?;
        let is_one = ways.len() == 1 || cost(most) > 0.0 && cost(ops) - cost(most) <= LITTLE * cost(ops);
        is_one.then(|| self.row(most, ops))
    }

    fn row(&self, same: &[OpId], ops: &[OpId]) -> Row {
        let count = |marks: &[bool]| ops.iter().filter(|op| marks[op.index()]).count();
        Row {
            modules: vec![String::new()],
            ops: ops.to_vec(),
            decided: self.decided[same[0].index()].clone(),
            others: ops.len() - same.len(),
            recomputed: count(&self.recomputed),
            offloaded: count(&self.offloaded),
            work: 0.0,
            share: None,
        }
    }

    /// Operators that are decided alike.
    fn ways(&self, ops: &[OpId]) -> Vec<Vec<OpId>> {
        let mut ways: Vec<Vec<OpId>> = vec![];
        for &op in ops {
            let decided = &self.decided[op.index()];
            match ways.iter_mut().find(|way| self.decided[way[0].index()] == *decided) {
                Some(way) => way.push(op),
                None => ways.push(vec![op]),
            }
        }
        ways
    }

    /// Modules by their names, layers one after another that are alike as one.
    fn layers(&self, modules: &[Module]) -> Vec<(String, Vec<Row>)> {
        let mut layers: Vec<Layers<'_>> = vec![];
        for module in modules {
            let (layer, rows) = (layer(&module.name), self.rows(module));
            match layers
                .last_mut()
                .filter(|it| layer.is_some() && it.next() == layer && are_same(&it.rows, &rows))
            {
                Some(known) => {
                    known.last = layer;
                    known.rows.iter_mut().zip(rows).for_each(|(known, row)| known.join(row));
                }
                None => layers.push(Layers { name: &module.name, last: layer, rows }),
            }
        }
        layers.into_iter().map(|it| (it.named(), it.rows)).collect()
    }
}

/// Modules with numbers in a row, or one module.
struct Layers<'m> {
    /// Of the first.
    name: &'m str,
    last: Option<(u64, &'m str)>,
    rows: Vec<Row>,
}

impl<'m> Layers<'m> {
    fn next(&self) -> Option<(u64, &'m str)> {
        self.last.map(|(number, mark)| (number + 1, mark))
    }

    fn named(&self) -> String {
        match (layer(self.name), self.last) {
            (Some((first, mark)), Some((last, _))) if first != last => format!("{{{first}-{last}}}{mark}"),
            _ => self.name.to_owned(),
        }
    }
}

impl Row {
    /// Another module of the same one.
    fn take(&mut self, other: Row) {
        self.modules.extend(other.modules.iter().cloned());
        self.join(other);
    }

    /// The same of another layer.
    fn join(&mut self, other: Row) {
        self.ops.extend(other.ops);
        self.others += other.others;
        self.recomputed += other.recomputed;
        self.offloaded += other.offloaded;
    }

    /// Whether something holds of none or all of its operators.
    fn is_even(&self, count: usize) -> bool {
        self.extent(count) != 1
    }

    /// Of how many of its operators something holds: none, some, or all.
    fn extent(&self, count: usize) -> u8 {
        u8::from(count > 0) + u8::from(count == self.ops.len())
    }
}

fn is_same(a: &Row, b: &Row) -> bool {
    a.decided == b.decided
        && a.extent(a.recomputed) == b.extent(b.recomputed)
        && a.extent(a.offloaded) == b.extent(b.offloaded)
}

fn are_same(a: &[Row], b: &[Row]) -> bool {
    a.len() == b.len() && a.iter().zip(b).all(|(a, b)| a.modules == b.modules && is_same(a, b))
}

fn joined(name: &str, path: &str) -> String {
    if path.is_empty() { name.to_owned() } else { format!("{name}.{path}") }
}
