//! One variable after another.

use std::collections::HashMap;

use crate::least::{TableRow, add, least, permuted};
use crate::order::Neighbours;
use crate::reach::{Bounded, Known, Promises, Smaller, among, promises};
use crate::table::{Table, Tables};
use crate::{NEVER, Problem};

/// The least sum, and values that have it: of several the first ones.
#[derive(Clone, Debug, PartialEq)]
pub struct Least {
    pub cost: f64,
    pub values: Vec<usize>,
    /// Whether no other values cost less.
    pub is_least: bool,
    /// Sums that were looked at, and those that would have been if nothing were known twice.
    pub sums: (f64, f64),
}

/// So many values of each variable are looked at first.
const FIRST: usize = 16;
/// So many entries may all tables have together.
const ROOM: usize = 1 << 26;
/// Where there are more than this share of them, the next problem starts anew.
const KEPT: usize = 2;

/// Keeps what was eliminated, also for the next problem, unless that is much.
pub struct Solver {
    /// Sums that were looked at, of problems that were given up, too.
    pub sums: f64,
    room: usize,
    tables: Tables,
    known: HashMap<TableKey, (Table, f64)>,
    promised: Known,
    turned: HashMap<(Table, Vec<usize>), Table>,
    added: HashMap<(Vec<usize>, Vec<PlacedTable>), (Table, f64)>,
}

/// A table, and which axes of a result its own are.
type PlacedTable = (Table, Vec<usize>);

/// How many entries a table may have, and who says when to stop.
type Until<'u> = (f64, &'u dyn Fn() -> bool);

/// The shape of the result, the number of values, and the tables.
type TableKey = (Vec<usize>, usize, Vec<PlacedTable>);

/// A table over variables, which are in ascending order.
#[derive(Clone)]
struct Factor {
    scope: Vec<usize>,
    table: Table,
}

/// What a variable's value was chosen by.
struct Chosen {
    variable: usize,
    factors: Vec<Factor>,
}

/// Tables that are left, and for each variable the numbers of those that speak of it.
#[derive(Default)]
struct Factors {
    all: Vec<Option<Factor>>,
    of: Vec<Vec<usize>>,
}

/// A problem on its way.
struct Solving<'p> {
    sizes: &'p [usize],
    factors: Factors,
    chosen: Vec<Chosen>,
    /// What is in no table any more.
    cost: f64,
    sums: (f64, f64),
}

impl Factors {
    fn push(&mut self, factor: Factor) {
        factor.scope.iter().for_each(|one| self.of[*one].push(self.all.len()));
        self.all.push(Some(factor));
    }

    /// All that speak of a variable.
    fn take(&mut self, variable: usize) -> Vec<Factor> {
        let indices = std::mem::take(&mut self.of[variable]);
        indices.into_iter().filter_map(|at| self.all[at].take()).collect()
    }
}

impl Default for Solver {
    fn default() -> Self {
        Self::with_room(ROOM)
    }
}

impl Solver {
    /// With room for so many entries of tables; a problem that needs more is given up.
    pub fn with_room(room: usize) -> Self {
        let (tables, known, promised) = (Tables::default(), HashMap::new(), Known::default());
        Self { sums: 0.0, room, tables, known, promised, turned: HashMap::new(), added: HashMap::new() }
    }

    /// Entries of all tables that are kept.
    pub fn entries(&self) -> usize {
        self.tables.entries
    }

    /// The least sum; `None` if some table would have more entries than `most`, or all together too many.
    pub fn solve(&mut self, problem: &Problem, most: f64) -> Option<Least> {
        self.solve_until(problem, most, &|| false)
    }

    /// The same; `None` also once `stop` says so, which is asked again and again.
    pub fn solve_until(&mut self, problem: &Problem, most: f64, stop: &dyn Fn() -> bool) -> Option<Least> {
        let promises = promises(problem, &mut self.promised);
        let known = self.of_first(problem, &promises, FIRST, (most, stop))?;
        self.of_rest(problem, &promises, &known, (most, stop))
    }

    /// The same; where tables are too large, the least sum of fewer values of each variable: those that promise most.
    pub fn solve_nearly(&mut self, problem: &Problem, most: f64, stop: &dyn Fn() -> bool) -> Option<Least> {
        let (promises, mut first) = (promises(problem, &mut self.promised), FIRST);
        while first > 0 && !stop() {
            match self.of_first(problem, &promises, first, (most, stop)) {
                Some(known) if first < FIRST => return Some(known),
                Some(known) => {
                    return self.of_rest(problem, &promises, &known, (most, stop)).or(Some(known));
                }
                None => first /= 2,
            }
        }
        None
    }

    /// The least sum of so many values of each variable, those that promise most, and of those that are given.
    pub fn solve_among(
        &mut self,
        problem: &Problem,
        count: usize,
        given: &[Vec<usize>],
        most: f64,
        stop: &dyn Fn() -> bool,
    ) -> Option<Least> {
        let promises = promises(problem, &mut self.promised);
        let part = among(problem, &promises, count, given, &mut self.promised);
        let minimum = self.of_part(part, (most, stop))?;
        Some(Least { is_least: problem.sizes.iter().all(|size| *size <= count), ..minimum })
    }

    /// Of so many values of each variable.
    fn of_first(
        &mut self,
        problem: &Problem,
        promises: &Promises,
        count: usize,
        until: Until<'_>,
    ) -> Option<Least> {
        let part = among(problem, promises, count, &[], &mut self.promised);
        let solution = self.of_part(part, until)?;
        Some(Least { is_least: false, ..solution })
    }

    /// Of all values, where a sum is known.
    fn of_rest(
        &mut self,
        problem: &Problem,
        promises: &Promises,
        known: &Least,
        until: Until<'_>,
    ) -> Option<Least> {
        if known.cost == NEVER {
            return self.all(problem, until);
        }
        let mut bounded = Bounded::new(problem, promises, known.cost);
        let near = self.of_part(bounded.lowest(FIRST), until)?;
        let most = known.cost.min(near.cost);
        bounded.sharpen(most);
        let solution = self.of_part(bounded.within(most), until)?;
        let sum = |field: fn(&Least) -> f64| field(known) + field(&near) + field(&solution);
        Some(Least { sums: (sum(|it| it.sums.0), sum(|it| it.sums.1)), ..solution })
    }

    fn of_part(&mut self, Smaller { problem, kept }: Smaller, until: Until<'_>) -> Option<Least> {
        let solution = self.all(&problem, until)?;
        let values = solution.values.iter().zip(&kept).map(|(value, kept)| kept[*value]).collect();
        Some(Least { values, ..solution })
    }

    /// Of all values.
    fn all(&mut self, problem: &Problem, until: Until<'_>) -> Option<Least> {
        if self.tables.entries > self.room / KEPT {
            *self = Self { sums: self.sums, ..Self::with_room(self.room) };
        }
        let order = order(problem, None).in_order(self.room as f64, until.0)?;
        let mut run = self.start(problem);
        for (variable, scope) in order {
            self.eliminate(&mut run, variable, &scope, until)?;
        }
        let mut values = vec![0; problem.sizes.len()];
        for chosen in run.chosen.iter().rev() {
            values[chosen.variable] = self.best(run.sizes, chosen, &values);
        }
        Some(Least { cost: run.cost, values, is_least: true, sums: run.sums })
    }

    /// For each value of a variable the least sum with it.
    pub fn each(&mut self, problem: &Problem, variable: usize, most: f64) -> Option<Vec<f64>> {
        let order = order(problem, Some(variable)).in_order(self.room as f64, most)?;
        let mut run = self.start(problem);
        for (next, scope) in order {
            self.eliminate(&mut run, next, &scope, (most, &|| false))?;
        }
        let cost_of = |value: usize| {
            let costs = run.factors.all.iter().flatten().map(|factor| self.tables.get(factor.table)[value]);
            run.cost + costs.sum::<f64>()
        };
        Some((0..problem.sizes[variable]).map(cost_of).collect())
    }

    fn start<'p>(&mut self, problem: &'p Problem) -> Solving<'p> {
        let mut run = Solving {
            sizes: &problem.sizes,
            factors: Factors { all: vec![], of: vec![vec![]; problem.sizes.len()] },
            chosen: vec![],
            cost: 0.0,
            sums: (0.0, 0.0),
        };
        for term in &problem.terms {
            let shape: Vec<usize> = term.scope.iter().map(|variable| problem.sizes[*variable]).collect();
            let (table, off) = self.tables.given(shape, &term.costs);
            run.cost += off;
            let mut scope = term.scope.clone();
            scope.sort_unstable();
            let axes: Vec<usize> = scope
                .iter()
                .map(|one| term.scope.iter().position(|it| it == one).expect("it is there"))
                .collect();
            let table = self.turned(table, &axes);
            run.factors.push(Factor { scope, table });
        }
        run
    }

    fn turned(&mut self, table: Table, axes: &[usize]) -> Table {
        if axes.windows(2).all(|two| two[0] < two[1]) {
            return table;
        }
        if let Some(known) = self.turned.get(&(table, axes.to_vec())) {
            return *known;
        }
        let shape = self.tables.shape(table).to_vec();
        let costs = permuted(&shape, self.tables.get(table), axes);
        let (turned, _) = self.tables.keep(axes.iter().map(|axis| shape[*axis]).collect(), costs);
        self.turned.insert((table, axes.to_vec()), turned);
        turned
    }

    fn eliminate(
        &mut self,
        run: &mut Solving<'_>,
        variable: usize,
        scope: &[usize],
        (most, stop): Until<'_>,
    ) -> Option<()> {
        let factors = run.factors.take(variable);
        let shape: Vec<usize> = scope.iter().map(|one| run.sizes[*one]).collect();
        let values = run.sizes[variable];
        let work = work(&shape, values);
        let entries = work / values as f64 + self.tables.entries as f64;
        if work > most || entries > self.room as f64 || stop() {
            return None;
        }
        let factors = self.together(run, factors);
        if factors.is_empty() {
            run.chosen.push(Chosen { variable, factors });
            return Some(());
        }
        run.sums.1 += work;
        let (table, off) = self.left_of(run, variable, &factors, scope, shape, stop)?;
        run.cost += off;
        if !scope.is_empty() {
            run.factors.push(Factor { scope: scope.to_vec(), table });
        }
        run.chosen.push(Chosen { variable, factors });
        Some(())
    }

    fn left_of(
        &mut self,
        run: &mut Solving<'_>,
        variable: usize,
        factors: &[Factor],
        scope: &[usize],
        shape: Vec<usize>,
        stop: &dyn Fn() -> bool,
    ) -> Option<(Table, f64)> {
        let values = run.sizes[variable];
        let place = |one: &usize| scope.iter().position(|it| it == one).unwrap_or(scope.len());
        let axes = |factor: &Factor| factor.scope.iter().map(place).collect::<Vec<usize>>();
        let mut named: Vec<PlacedTable> = factors.iter().map(|it| (it.table, axes(it))).collect();
        named.sort();
        let key = (shape, values, named);
        if let Some(known) = self.known.get(&key) {
            return Some(*known);
        }
        let work = work(&key.0, values);
        run.sums.0 += work;
        self.sums += work;
        // The variable runs fastest in each.
        let last: Vec<PlacedTable> =
            key.2.iter().map(|(table, axes)| self.variable_last(*table, axes, scope.len())).collect();
        let rows: Vec<TableRow<'_>> = last
            .iter()
            .map(|(table, axes)| TableRow {
                costs: self.tables.get(*table),
                strides: strides(&key.0, values, axes),
            })
            .collect();
        let costs = least(&key.0, values, &rows, stop)?;
        let kept = self.tables.keep(key.0.clone(), costs);
        self.known.insert(key, kept);
        Some(kept)
    }

    /// The same table with the variable, which is the axis `end`, as its last.
    fn variable_last(&mut self, table: Table, axes: &[usize], end: usize) -> PlacedTable {
        let mut order: Vec<usize> = (0..axes.len()).collect();
        order.sort_by_key(|at| (axes[*at] == end, *at));
        let turned = self.turned(table, &order);
        (turned, order.iter().map(|at| axes[*at]).filter(|axis| *axis != end).collect())
    }

    /// Tables over variables that are all in another's are added to it.
    fn together(&mut self, run: &mut Solving<'_>, mut factors: Vec<Factor>) -> Vec<Factor> {
        factors.sort_by(|a, b| {
            b.scope.len().cmp(&a.scope.len()).then(a.scope.cmp(&b.scope)).then(a.table.cmp(&b.table))
        });
        let mut groups: Vec<Vec<Factor>> = vec![];
        for factor in factors {
            let inside = |group: &Vec<Factor>| factor.scope.iter().all(|one| group[0].scope.contains(one));
            match groups.iter_mut().find(|group| inside(group)) {
                Some(group) => group.push(factor),
                None => groups.push(vec![factor]),
            }
        }
        groups.into_iter().map(|group| self.sum(run, &group)).collect()
    }

    fn sum(&mut self, run: &mut Solving<'_>, group: &[Factor]) -> Factor {
        if group.len() == 1 {
            return group[0].clone();
        }
        let scope = group[0].scope.clone();
        let shape: Vec<usize> = scope.iter().map(|one| run.sizes[*one]).collect();
        let place = |one: &usize| scope.iter().position(|it| it == one).expect("it is inside");
        let named: Vec<PlacedTable> =
            group.iter().map(|it| (it.table, it.scope.iter().map(place).collect())).collect();
        let key = (shape, named);
        if let Some((table, off)) = self.added.get(&key) {
            run.cost += off;
            return Factor { scope, table: *table };
        }
        let entries: usize = key.0.iter().product();
        let mut costs = vec![0.0; entries];
        for (table, axes) in &key.1 {
            let row = TableRow { costs: self.tables.get(*table), strides: strides(&key.0, 1, axes) };
            add(&key.0, &mut costs, row);
        }
        let (table, off) = self.tables.keep(key.0.clone(), costs);
        run.cost += off;
        self.added.insert(key, (table, off));
        Factor { scope, table }
    }

    /// The first value that costs least, where the variables around have theirs.
    fn best(&self, sizes: &[usize], chosen: &Chosen, values: &[usize]) -> usize {
        let mut best = (NEVER, 0);
        for value in 0..sizes[chosen.variable] {
            let of_one = |one: usize| if one == chosen.variable { value } else { values[one] };
            let place =
                |factor: &Factor| factor.scope.iter().fold(0, |at, one| at * sizes[*one] + of_one(*one));
            let cost_of = |factor: &Factor| self.tables.get(factor.table)[place(factor)];
            let cost: f64 = chosen.factors.iter().map(cost_of).sum();
            if cost < best.0 {
                best = (cost, value);
            }
        }
        best.1
    }
}

/// How many sums it takes to eliminate a variable of so many values.
fn work(shape: &[usize], values: usize) -> f64 {
    shape.iter().map(|size| *size as f64).product::<f64>() * values as f64
}

/// The order in which variables are eliminated; one of them may have to stay.
fn order(problem: &Problem, stays: Option<usize>) -> Neighbours<'_> {
    Neighbours::new(&problem.sizes, problem.terms.iter().map(|term| &term.scope[..]), stays)
}

/// How far entries of a table with some axes of a result are apart along each axis of it.
fn strides(shape: &[usize], values: usize, axes: &[usize]) -> Vec<usize> {
    let mut strides = vec![0; shape.len()];
    let mut step = values;
    for axis in axes.iter().rev() {
        strides[*axis] = step;
        step *= shape[*axis];
    }
    strides
}
