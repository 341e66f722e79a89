//! Where lines repeat: finding the turns of loops in straight-line code.

use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;

use program::Kind;

use crate::names::AT;
use crate::python::{Expr, Stmt, StmtKind};

/// As many lines are worth a loop whatever they are about. Fewer must be of layers.
const WORTH: usize = 6;
/// A line that moves data, by itself, is worth a loop where there are so many: two or three of them read better.
const MESSAGES: usize = 4;
/// One line may stand between iterations of so many lines, and not after the last one.
const AROUND: usize = 3;
/// So many places are tried for one loop.
const TRIES: usize = 400;

/// What may differ between lines that are alike.
pub(super) enum Slot<'s, 'a> {
    Use(&'s mut &'a str),
    Def(&'s mut &'a str),
    Int(&'s mut Expr<'a>, Number),
    /// The path of a leaf, as a name.
    Path(&'s mut Expr<'a>),
}

/// What a number is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Number {
    /// An index of `p`, `p.h[3]`.
    Index,
    /// Which of a function's calls it is.
    At,
    /// An argument of a call, of a method of `run` or of a function.
    Given,
    Other,
}

/// Shows everything in a line that may differ, always in the same order.
pub(super) fn visit<'a>(stmt: &mut Stmt<'a>, see: &mut dyn FnMut(Slot<'_, 'a>)) {
    match &mut stmt.kind {
        StmtKind::Assign { targets, value, .. } => {
            in_expr(value, Number::Other, see);
            targets.iter_mut().filter(|name| **name != "_").for_each(|name| see(Slot::Def(name)));
        }
        StmtKind::Expr(value) => in_expr(value, Number::Other, see),
        StmtKind::Return(values) | StmtKind::Yield(values) => {
            values.iter_mut().for_each(|value| in_expr(value, Number::Other, see));
        }
        StmtKind::If(condition, body) => {
            in_expr(condition, Number::Other, see);
            body.iter_mut().for_each(|stmt| visit(stmt, see));
        }
        StmtKind::NoGrad(body) | StmtKind::For { body, .. } => {
            body.iter_mut().for_each(|stmt| visit(stmt, see));
        }
        StmtKind::Comment => {}
    }
}

fn in_expr<'a>(expr: &mut Expr<'a>, number: Number, see: &mut dyn FnMut(Slot<'_, 'a>)) {
    match expr {
        Expr::Name(name) if name.contains(['.', '[']) => see(Slot::Path(expr)),
        Expr::Name(name) => see(Slot::Use(name)),
        Expr::Int(_) => see(Slot::Int(expr, number)),
        Expr::List(items) | Expr::Rows(items) => items.iter_mut().for_each(|item| in_expr(item, number, see)),
        Expr::Attr(object, _) => in_expr(object, number, see),
        Expr::Unary(_, operand) => in_expr(operand, number, see),
        Expr::Index(object, subscripts) => {
            let inside = if object.root() == Some("p") { Number::Index } else { Number::Other };
            in_expr(object, number, see);
            subscripts.iter_mut().for_each(|item| in_expr(item, inside, see));
        }
        Expr::Slice(parts) => parts.iter_mut().flatten().for_each(|part| in_expr(part, number, see)),
        Expr::Call(call) => {
            let given = if is_named(&call.function) { Number::Given } else { Number::Other };
            let kind_of = |arg: &Expr<'_>| if matches!(arg, Expr::Int(_)) { given } else { Number::Other };
            in_expr(&mut call.function, number, see);
            call.args.iter_mut().for_each(|arg| in_expr(arg, kind_of(arg), see));
            for (name, arg) in &mut call.kwargs {
                let kind = if *name == AT && given == Number::Given { Number::At } else { kind_of(arg) };
                in_expr(arg, kind, see);
            }
        }
        Expr::Binary(_, sides) => {
            in_expr(&mut sides.0, number, see);
            in_expr(&mut sides.1, number, see);
        }
        Expr::None | Expr::Bool(_) | Expr::Float(_) | Expr::Str(_) | Expr::Place(_) | Expr::Rest(_) => {}
    }
}

/// Whether a line is one method of `run`, and none that runs a function or its backward.
fn moves(stmt: &Stmt<'_>) -> bool {
    let (StmtKind::Assign { value, .. } | StmtKind::Expr(value)) = &stmt.kind else { return false };
    let Expr::Call(call) = value else { return false };
    match &call.function {
        Expr::Attr(object, name) if **object == Expr::Name("run") => {
            !matches!(Kind::of_method(name), Some(Kind::Call | Kind::Grad))
        }
        _ => false,
    }
}

/// The function that `run.call` or `run.grad` is given.
fn called(stmt: &Stmt<'_>) -> Option<String> {
    let (StmtKind::Assign { value, .. } | StmtKind::Expr(value)) = &stmt.kind else { return None };
    match value {
        Expr::Call(call) => call.args.first().and_then(Expr::root).map(str::to_owned),
        _ => None,
    }
}

/// Whether it is a function of the file, or a method of `run`.
fn is_named(function: &Expr<'_>) -> bool {
    matches!(function, Expr::Name(_)) || function.root() == Some("run")
}

/// Lines of which the same are written in several turns.
pub(super) struct RepeatedLines {
    pub(super) start: usize,
    pub(super) length: usize,
    pub(super) count: usize,
    /// So many lines at the end of an iteration are not in the last one: they stand between two.
    pub(super) between: usize,
    /// For each number of a turn's lines how much it grows from turn to turn.
    pub(super) steps: Vec<i64>,
    /// The names of one value in all turns, with that which it has before them.
    pub(super) values: Vec<Vec<String>>,
    /// The counter in the first turn, and whether it falls.
    pub(super) first: i64,
    pub(super) falls: bool,
    pub(super) of: LinesOf,
    /// In how many ways lines would count: the fewer, the more a turn is one layer.
    mixed: usize,
}

impl RepeatedLines {
    pub(super) fn saves(&self) -> usize {
        self.total() - self.length
    }

    /// How many lines there are, written out.
    pub(super) fn total(&self) -> usize {
        self.count * self.length - self.between
    }

    /// The counter in the last iteration.
    pub(super) fn last(&self) -> i64 {
        self.first + self.sign() * (i64::try_from(self.count).unwrap_or(0) - 1)
    }

    pub(super) fn sign(&self) -> i64 {
        if self.falls { -1 } else { 1 }
    }

    /// A number of the first turn that grows so, as a multiple of the counter and what is added.
    pub(super) fn by_counter(&self, value: i64, step: i64) -> (i64, i64) {
        let times = step * self.sign();
        (times, value - times * self.first)
    }

    /// Chooses the counter so that most of these numbers are the counter itself.
    fn count_by(&mut self, numbers: &[(i64, i64)]) {
        let mut seen: Vec<((i64, i64), usize)> = vec![];
        for number in numbers {
            match seen.iter_mut().find(|(known, _)| known == number) {
                Some((_, count)) => *count += 1,
                None => seen.push((*number, 1)),
            }
        }
        self.mixed = seen.len();
        let iterations = i64::try_from(self.count).unwrap_or(0);
        let most = seen.iter().rev().max_by_key(|(_, count)| *count).map(|(number, _)| *number);
        let falling = self.steps.iter().find(|step| **step != 0).is_some_and(|step| *step < 0);
        (self.first, self.falls) = match most {
            Some((first, step)) if step > 0 || first + 1 >= iterations => (first, step < 0),
            _ if falling => (iterations - 1, true),
            _ => (0, false),
        };
    }
}

/// What [`Slot`]s hold.
enum Item {
    Use(String),
    Def(String),
    Int(i64, Number),
}

/// Straight-line code, as far as it matters for what repeats in it.
pub(super) struct Lines {
    /// Equal for lines that are alike.
    shapes: Vec<usize>,
    items: Vec<Vec<Item>>,
    /// The numbers in each line's comment, and in what it is about.
    comments: Vec<Vec<i64>>,
    /// The values that lines make, numbered in their order.
    made: HashMap<String, usize>,
    /// Which lines move data, and compute nothing.
    moves: Vec<bool>,
    /// Which lines say something, and do nothing.
    comment_only: Vec<bool>,
    /// The functions that lines call.
    called: Vec<Option<String>>,
    of: LinesOf,
}

/// Which function lines are of.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum LinesOf {
    /// One of those that the runtime calls: instructions.
    Code,
    /// One that is called: operators.
    Called,
}

impl Lines {
    /// Lines that are given these values, which count as made before.
    pub(super) fn new(stmts: &[Stmt<'_>], of: LinesOf, given: &[&str]) -> Self {
        let mut made: HashMap<String, usize> = HashMap::new();
        made.extend(given.iter().enumerate().map(|(at, name)| ((*name).to_owned(), at)));
        for stmt in stmts {
            visit(&mut stmt.clone(), &mut |slot| {
                if let Slot::Def(name) = slot {
                    made.insert((*name).to_owned(), made.len());
                }
            });
        }
        let mut known: HashMap<String, usize> = HashMap::new();
        let moves = stmts.iter().map(moves).collect();
        let called = stmts.iter().map(called).collect();
        let comment_only = stmts.iter().map(|stmt| stmt.kind == StmtKind::Comment).collect();
        let (shapes, items, comments) = (vec![], vec![], vec![]);
        let mut lines = Lines { shapes, items, comments, made, moves, comment_only, called, of };
        for stmt in stmts {
            let mut blank = stmt.clone();
            let mut items = vec![];
            visit(&mut blank, &mut |slot| match slot {
                Slot::Use(name) if lines.made.contains_key(*name) => {
                    items.push(Item::Use((*name).to_owned()));
                    *name = "_";
                }
                Slot::Def(name) => {
                    items.push(Item::Def((*name).to_owned()));
                    *name = "_";
                }
                Slot::Int(expr, number) => {
                    if let Expr::Int(value) = *expr {
                        items.push(Item::Int(value, number));
                    }
                    *expr = Expr::Int(0);
                }
                Slot::Use(_) | Slot::Path(_) => {}
            });
            let next = known.len();
            let (words, mut numbers) = counted(stmt.comment.as_deref().unwrap_or_default());
            let said = |about: &&str| stmt.comment.as_deref().is_some_and(|text| text.contains(about));
            let about = stmt.about.as_deref().filter(|about| !said(about));
            let (about, more) = counted(about.unwrap_or_default());
            numbers.extend(more);
            let shape = format!("{:?} {words:?} {about:?}", blank.kind);
            lines.shapes.push(*known.entry(shape).or_insert(next));
            lines.items.push(items);
            lines.comments.push(numbers);
        }
        lines
    }

    /// All loops, in their order.
    pub(super) fn loops(&self) -> Vec<RepeatedLines> {
        let mut loops = vec![];
        if self.of == LinesOf::Code || self.items.iter().flatten().any(is_index) {
            self.search(0, self.shapes.len(), &mut loops);
        }
        loops.sort_by_key(|repeated: &RepeatedLines| repeated.start);
        loops
    }

    fn search(&self, low: usize, high: usize, loops: &mut Vec<RepeatedLines>) {
        let Some(best) = self.best(low, high) else { return };
        let (start, end) = (best.start, best.start + best.total());
        loops.push(best);
        self.search(low, start, loops);
        self.search(end, high, loops);
    }

    /// The loop that saves most; of several that save the same, the one whose turns are one layer each.
    fn best(&self, low: usize, high: usize) -> Option<RepeatedLines> {
        let mut places = self.places(low, high);
        places.sort_by_key(|place| (Reverse(place.saves()), place.start));
        let mut best: Option<RepeatedLines> = None;
        for place in places.into_iter().take(TRIES) {
            if best.as_ref().is_some_and(|best| place.saves() < best.saves()) {
                break;
            }
            let candidate = self.as_loop(place);
            if candidate.as_ref().is_some_and(|new| best.as_ref().is_none_or(|best| new.mixed < best.mixed)) {
                best = candidate;
            }
        }
        best
    }

    /// Where lines of the same shapes follow each other.
    fn places(&self, low: usize, high: usize) -> Vec<Place> {
        let mut places = vec![];
        for length in 1..=(high - low) / 2 {
            // What repeats is as long as an iteration, but for what stands between: no line in between is looked at.
            let stride = (length / 4).max(1);
            let (mut behind, mut probe) = (low, low);
            while probe + length < high {
                let same = |i: &usize| self.shapes[*i] == self.shapes[i + length];
                if !same(&probe) {
                    probe += stride;
                    continue;
                }
                let at = probe - (behind..probe).rev().take_while(same).count();
                let run = (at..high - length).take_while(same).count();
                let most = (run + length) / length;
                for count in [most, most.saturating_sub(1)] {
                    if count >= 2 {
                        let last = at + run + length - count * length;
                        places.extend((at..=last).map(|start| Place { start, length, count, between: 0 }));
                    }
                }
                if self.of == LinesOf::Code {
                    self.places_with_between(at..at + run + length, length, &mut places);
                }
                behind = at + run;
                probe = behind + stride;
            }
        }
        places
    }

    /// Iterations of which the last one ends before what stands between them: one line, and what it is about.
    fn places_with_between(&self, run: Range<usize>, length: usize, places: &mut Vec<Place>) {
        for start in run.clone() {
            let count = (run.end - start).div_ceil(length);
            let mut between = count * length - (run.end - start);
            if count < 2 || between >= length {
                break;
            }
            while between > 0 && between < length && self.comment_only[start + length - between - 1] {
                between += 1;
            }
            let lines = self.comment_only[start + length - between..start + length].iter();
            if lines.filter(|is_comment| !**is_comment).count() == 1 && between + AROUND <= length {
                places.push(Place { start, length, count, between });
            }
        }
    }

    /// Whether lines of the same shapes are turns of a loop: numbers grow evenly, and each name is of the same
    /// turn, of the one before, or of before them all, in all turns.
    ///
    /// Operators, and lines that are few, are only looped over where they count layers and nothing else differs.
    fn as_loop(&self, place: Place) -> Option<RepeatedLines> {
        let Place { start, length, count, between } = place;
        if length == 1 && count < MESSAGES && self.moves[start] {
            return None;
        }
        let strict = self.of == LinesOf::Called || place.saves() < WORTH;
        let rounds: Vec<Vec<&Item>> = (0..count)
            .map(|iteration| self.items[place.lines_of(iteration)].iter().flatten().collect())
            .collect();
        let same_kinds = |iteration: usize| {
            let lines = place.lines_of(0).zip(place.lines_of(iteration));
            lines.into_iter().all(|(a, b)| are_of_one_kind(&self.items[a], &self.items[b]))
        };
        if !(1..count).all(same_kinds) {
            return None;
        }
        let mut made: HashMap<&str, (usize, usize)> = HashMap::new();
        let mut values: Vec<Vec<String>> = vec![];
        for (iteration, items) in rounds.iter().enumerate() {
            let names =
                items.iter().filter_map(|item| if let Item::Def(name) = item { Some(name) } else { None });
            for (number, name) in names.enumerate() {
                made.insert(name, (iteration, number));
                match iteration {
                    0 => values.push(vec![name.clone()]),
                    _ => values[number].push(name.clone()),
                }
            }
        }
        let (mut steps, mut indices) = (vec![], vec![]);
        for (at, first) in rounds[0].iter().enumerate() {
            let of_rounds: Vec<&Item> = rounds.iter().filter_map(|items| items.get(at).copied()).collect();
            match first {
                Item::Def(_) => {}
                Item::Int(value, number) => {
                    let step = step(&of_rounds)?;
                    if strict && *number == Number::Other && step != 0 {
                        return None;
                    }
                    steps.push(step);
                    let counts = matches!(number, Number::Index | Number::At) && step.abs() == 1;
                    indices.extend(counts.then_some((*value, step)));
                }
                Item::Use(name) => {
                    if let Some(carried) = source(&of_rounds, &made)? {
                        if self.is_used_from(start + length, name) {
                            return None;
                        }
                        values[carried].push(name.clone());
                    }
                }
            }
        }
        self.lives_as_long(place, &made, &mut values)?;
        let mut repeated = RepeatedLines {
            start,
            length,
            count,
            between,
            steps,
            values,
            first: 0,
            falls: false,
            of: self.of,
            mixed: 0,
        };
        let numbered = self.numbered(place)?;
        let layers = !indices.is_empty() || (self.of == LinesOf::Code && !numbered.is_empty());
        if strict && !layers {
            return None;
        }
        indices.extend(numbered);
        repeated.count_by(&indices);
        if count == 2 && between > 0 {
            self.count_between(&mut repeated);
        }
        Some(repeated)
    }

    /// `None` if what is read between two iterations would be kept through the last one, and is free there without a
    /// loop. What an iteration makes is read behind the loop, too. What was before is read by each iteration, or has
    /// the name of what is made in its place.
    fn lives_as_long(
        &self,
        place: Place,
        made: &HashMap<&str, (usize, usize)>,
        values: &mut [Vec<String>],
    ) -> Option<()> {
        let between = place.between_lines();
        let end = place.start + place.total();
        let names = |lines: Range<usize>, is_made: bool| {
            self.items[lines].iter().flatten().filter_map(move |item| match item {
                Item::Use(name) if !is_made => Some(name),
                Item::Def(name) if is_made => Some(name),
                _ => None,
            })
        };
        for name in names(between.clone(), false) {
            let last = match made.get(name.as_str()) {
                Some((0, number)) => values[*number].get(place.count - 1),
                _ => values
                    .iter()
                    .find(|all| all[place.count - 1..].contains(name))
                    .map(|all| &all[place.count - 2]),
            };
            if let Some(last) = last {
                if !self.is_used_from(end, last) {
                    return None;
                }
            } else if names(place.start..between.start, false).all(|other| other != name)
                && !self.is_used_from(end, name)
            {
                if place.count > 2 {
                    return None;
                }
                let mut free = names(between.clone(), true).filter_map(|new| made.get(new.as_str()));
                let (_, number) = free.find(|(_, number)| {
                    values[*number].len() == 1 && self.is_used_from(end, &values[*number][0])
                })?;
                values[*number].push(name.clone());
            }
        }
        Some(())
    }

    /// What stands between two iterations is there once, so that its numbers may count at will: they do as those of
    /// the iterations do.
    fn count_between(&self, repeated: &mut RepeatedLines) {
        let (first, sign) = (repeated.first, repeated.sign());
        let end = repeated.start + repeated.length;
        let mut paths: Vec<Vec<(i64, i64)>> = vec![];
        let mut calls: Vec<(&str, i64)> = vec![];
        let mut at = 0;
        for line in repeated.start..end {
            let is_between = line >= end - repeated.between;
            let function = self.called[line].as_deref().unwrap_or_default();
            let items = &self.items[line];
            for path in items.chunk_by(|a, b| is_step(a) && is_step(b)) {
                let numbers: Vec<(i64, Number)> = path.iter().filter_map(number_of).collect();
                let steps = &mut repeated.steps[at..at + numbers.len()];
                at += numbers.len();
                match numbers[..] {
                    [] => {}
                    [(_, Number::At)] if is_between => {
                        let same = calls.iter().find(|(known, _)| *known == function);
                        steps[0] = same.map_or(0, |(_, step)| *step);
                    }
                    [(_, Number::At)] => calls.push((function, steps[0])),
                    [(_, Number::Index), ..] if is_between => {
                        let counts = |(own, known): (&(i64, Number), &(i64, i64))| match known.1 {
                            0 => own.0 == known.0,
                            step => step == sign && [first, first + sign].contains(&own.0),
                        };
                        let known = paths.iter().find(|known| {
                            known.len() == numbers.len() && numbers.iter().zip(*known).all(counts)
                        });
                        steps
                            .iter_mut()
                            .zip(known.into_iter().flatten())
                            .for_each(|(step, known)| *step = known.1);
                    }
                    [(_, Number::Index), ..] => {
                        paths.push(
                            numbers.iter().zip(&*steps).map(|((value, _), step)| (*value, *step)).collect(),
                        );
                    }
                    _ => {}
                }
            }
        }
    }

    /// Whether a value is read in a line, or after it.
    fn is_used_from(&self, line: usize, name: &str) -> bool {
        let mut items = self.items.iter().skip(line).flatten();
        items.any(|item| matches!(item, Item::Use(used) if used == name))
    }

    /// The numbers in comments of the first turn that grow or fall by one. `None` if some grow unevenly: one comment
    /// would not do for all turns.
    fn numbered(&self, place: Place) -> Option<Vec<(i64, i64)>> {
        let mut all = vec![];
        for at in 0..place.length {
            let lines = (0..place.count).filter_map(|iteration| place.lines_of(iteration).nth(at));
            let iterations: Vec<&[i64]> = lines.map(|line| &self.comments[line][..]).collect();
            let Some(second) = iterations.get(1) else { continue };
            for (place, first) in iterations[0].iter().enumerate() {
                let step = second[place] - first;
                let evenly = iterations.windows(2).all(|pair| pair[1][place] - pair[0][place] == step);
                all.push(evenly.then_some((*first, step))?);
            }
        }
        Some(all.into_iter().filter(|(_, step): &(i64, i64)| step.abs() == 1).collect())
    }

    /// What the lines of a loop make, in all turns.
    pub(super) fn made_in(&self, repeated: &RepeatedLines) -> impl Iterator<Item = &str> {
        let lines = &self.items[repeated.start..][..repeated.total()];
        lines
            .iter()
            .flatten()
            .filter_map(|item| if let Item::Def(name) = item { Some(name.as_str()) } else { None })
    }

    /// What the lines make.
    pub(super) fn made(&self) -> impl Iterator<Item = &str> {
        self.made.keys().map(String::as_str)
    }

    /// Where a value is made, among all.
    pub(super) fn made_at(&self, name: &str) -> Option<usize> {
        self.made.get(name).copied()
    }

    /// Whether every name that is read means the value that it meant, if values have these names.
    pub(super) fn mean_the_same(&self, params: &[&str], renamed: &HashMap<String, String>) -> bool {
        let new = |name: &'_ str| renamed.get(name).map_or(name, String::as_str).to_owned();
        let mut means: HashMap<String, &str> = params.iter().map(|name| (new(name), *name)).collect();
        for item in self.items.iter().flatten() {
            match item {
                Item::Use(name) if means.get(&new(name)) != Some(&name.as_str()) => return false,
                Item::Def(name) => drop(means.insert(new(name), name)),
                _ => {}
            }
        }
        true
    }
}

/// Lines that may be a loop.
#[derive(Clone, Copy)]
struct Place {
    start: usize,
    length: usize,
    count: usize,
    between: usize,
}

impl Place {
    fn saves(self) -> usize {
        (self.count - 1) * self.length - self.between
    }

    fn total(self) -> usize {
        self.count * self.length - self.between
    }

    /// What stands between the first two iterations.
    fn between_lines(self) -> Range<usize> {
        self.start + self.length - self.between..self.start + self.length
    }

    /// The lines of an iteration.
    fn lines_of(self, iteration: usize) -> Range<usize> {
        let start = self.start + iteration * self.length;
        let missing = if iteration + 1 == self.count { self.between } else { 0 };
        start..start + self.length - missing
    }
}

fn number_of(item: &Item) -> Option<(i64, Number)> {
    if let Item::Int(value, number) = item { Some((*value, *number)) } else { None }
}

/// Whether it is a number of a leaf's path.
fn is_step(item: &Item) -> bool {
    matches!(item, Item::Int(_, Number::Index))
}

fn is_index(item: &Item) -> bool {
    matches!(item, Item::Int(_, Number::Index | Number::At))
}

/// Whether lines have the same places. A gradient that is not taken has no name, and its line has a place less.
fn are_of_one_kind(a: &[Item], b: &[Item]) -> bool {
    let same = |(a, b): (&Item, &Item)| std::mem::discriminant(a) == std::mem::discriminant(b);
    a.len() == b.len() && a.iter().zip(b).all(same)
}

/// How much a number grows, if evenly.
fn step(of_rounds: &[&Item]) -> Option<i64> {
    let values: Vec<i64> =
        of_rounds.iter().filter_map(|i| if let Item::Int(v, _) = i { Some(*v) } else { None }).collect();
    let step = values.get(1).map_or(0, |second| second - values[0]);
    values.windows(2).all(|pair| pair[1] - pair[0] == step).then_some(step)
}

/// Where the name in a place comes from in all turns, if it is the same: `Some(None)` for the same turn or one
/// value for all, `Some(Some(number))` for what the turn before makes.
fn source(of_rounds: &[&Item], made: &HashMap<&str, (usize, usize)>) -> Option<Option<usize>> {
    let names: Vec<&str> =
        of_rounds.iter().filter_map(|i| if let Item::Use(n) = i { Some(n.as_str()) } else { None }).collect();
    let made_at = |iteration: usize| made.get(*names.get(iteration)?).copied();
    match (made_at(0), made_at(1)) {
        (Some((0, number)), _) => {
            (0..names.len()).all(|iteration| made_at(iteration) == Some((iteration, number))).then_some(None)
        }
        (None, None) => names.iter().all(|name| *name == names[0]).then_some(None),
        (None, Some((0, number))) => (1..names.len())
            .all(|iteration| made_at(iteration) == Some((iteration - 1, number)))
            .then_some(Some(number)),
        _ => None,
    }
}

/// A text as what stands between its numbers, and the numbers.
pub(super) fn counted(text: &str) -> (Vec<&str>, Vec<i64>) {
    let (mut words, mut numbers) = (vec![], vec![]);
    let mut rest = text;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        let end = rest[at..].find(|c: char| !c.is_ascii_digit()).map_or(rest.len(), |end| at + end);
        let Ok(number) = rest[at..end].parse() else { break };
        words.push(&rest[..at]);
        numbers.push(number);
        rest = &rest[end..];
    }
    words.push(rest);
    (words, numbers)
}
