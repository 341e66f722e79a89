//! Layers that are alike as a loop.
//!
//! Where the same lines follow each other again and again, but for names and for numbers that grow by the same
//! amount from turn to turn, they are written once. A name in a loop stands for what each turn makes; what a turn
//! takes from the one before has the same name before the loop. Reading runs the loop, so the program is the
//! same. That names mean what they should is seen by running through all lines; where they would not, there is
//! no loop.

use std::collections::{HashMap, HashSet};

use super::iterations::{Lines, LinesOf, RepeatedLines, Slot, counted, visit};
use crate::names::{Scope, UNNAMED};
use crate::python::parser::template;
use crate::python::{Expr, Stmt, StmtKind};

/// What is known of a function's lines before its loops are written.
#[derive(Default)]
pub(super) struct FoundLoops {
    loops: Vec<RepeatedLines>,
    /// The names that values have instead of those that they have in straight-line code.
    renamed: HashMap<String, String>,
    /// The number of the turn.
    counter: String,
}

/// The parameters of a function.
#[derive(Clone, Copy)]
pub(super) struct Params<'p> {
    /// Those whose names stay.
    pub(super) fixed: &'p [&'p str],
    /// Those that may have other names, and be carried through a loop.
    pub(super) free: &'p [&'p str],
}

impl FoundLoops {
    /// What a parameter or value is called now.
    pub(super) fn name<'r>(&'r self, old: &'r str) -> &'r str {
        self.renamed.get(old).map_or(old, String::as_str)
    }
}

/// Finds the loops of straight-line code; `wanted` is what values would like to be called.
pub(super) fn find(
    stmts: &[Stmt<'_>],
    of: LinesOf,
    params: Params<'_>,
    scope: &Scope,
    wanted: &HashMap<&str, &str>,
) -> FoundLoops {
    let lines = Lines::new(stmts, of, params.free);
    let mut loops = lines.loops();
    while !loops.is_empty() {
        if let Some((renamed, counter)) = renamed(&lines, &loops, params, scope, wanted) {
            return FoundLoops { loops, renamed, counter };
        }
        let least = (0..loops.len()).min_by_key(|&at| loops[at].saves());
        loops.remove(least.unwrap_or(0));
    }
    FoundLoops::default()
}

/// The same lines with their loops.
pub(super) fn apply<'n>(mut stmts: Vec<Stmt<'n>>, loops: &'n FoundLoops) -> Vec<Stmt<'n>> {
    for stmt in stmts.iter_mut().filter(|_| !loops.loops.is_empty()) {
        visit(stmt, &mut |slot| {
            if let Slot::Use(name) | Slot::Def(name) = slot {
                *name = loops.name(name);
            }
        });
    }
    let mut rest = stmts.into_iter();
    let (mut out, mut at) = (vec![], 0);
    for repeated in &loops.loops {
        out.extend(rest.by_ref().take(repeated.start - at));
        let all: Vec<Stmt<'n>> = rest.by_ref().take(repeated.total()).collect();
        at = repeated.start + all.len();
        out.push(written(repeated, all, &loops.counter));
    }
    out.extend(rest);
    out
}

/// Leaves as expressions, so that their indices are numbers like all others.
pub(super) fn with_paths<'n>(mut stmts: Vec<Stmt<'n>>) -> Vec<Stmt<'n>> {
    for stmt in &mut stmts {
        visit(stmt, &mut |slot| {
            if let Slot::Path(expr) = slot {
                if let Expr::Name(text) = *expr {
                    *expr = template(text).unwrap_or(Expr::Name(text));
                }
            }
        });
    }
    stmts
}

/// New names for all values, and one for the counter, if each then means the same in every line as before.
fn renamed(
    lines: &Lines,
    loops: &[RepeatedLines],
    params: Params<'_>,
    scope: &Scope,
    wanted: &HashMap<&str, &str>,
) -> Option<(HashMap<String, String>, String)> {
    let mut classes = classes(loops);
    if classes.iter().flatten().any(|name| params.fixed.contains(name)) {
        return None;
    }
    let params = &[params.fixed, params.free].concat()[..];
    let in_loops: HashSet<&str> = classes.iter().flatten().copied().collect();
    classes.extend(lines.made().filter(|name| !in_loops.contains(name)).map(|name| vec![name]));
    classes.sort_by_key(|class| class.iter().filter_map(|name| lines.made_at(name)).min());
    let mut free = scope.without(lines.made());
    let made_in_loops: HashSet<&str> = loops.iter().flat_map(|repeated| lines.made_in(repeated)).collect();
    let titles = titles(&classes, &made_in_loops, wanted);
    let mut new = HashMap::new();
    for (class, title) in classes.iter().zip(&titles) {
        let name = free.fresh(title);
        new.extend(class.iter().map(|old| ((*old).to_owned(), name.clone())));
    }
    if !lines.mean_the_same(params, &new) {
        return None;
    }
    for (class, title) in classes.iter().zip(&titles).filter(|(class, _)| class.len() > 1) {
        reuse(lines, &made_in_loops, params, class, title, &mut new);
    }
    Some((new, free.fresh("n")))
}

/// What values would like to be called; what is not one thing in all turns has a letter.
fn titles(classes: &[Vec<&str>], made_in_loops: &HashSet<&str>, wanted: &HashMap<&str, &str>) -> Vec<String> {
    let mut letters = UNNAMED.iter().filter(|letter| !wanted.values().any(|name| name == *letter));
    let mut title = |class: &Vec<&str>| {
        let called = |name: &str| wanted.get(name).map_or_else(|| name.to_owned(), |name| (*name).to_owned());
        let names: Vec<String> = class.iter().map(|name| called(name)).collect();
        // What it is before the loop says less.
        let mut inside = class.iter().filter(|name| made_in_loops.contains(**name)).map(|name| called(name));
        if let Some(name) = inside.next().filter(|first| inside.all(|name| name == *first)) {
            return name;
        }
        if names.iter().all(|name| *name == names[0]) {
            return names[0].clone();
        }
        if let Some(short) = names.iter().find(|name| UNNAMED.contains(&name.as_str())) {
            return short.clone();
        }
        let all = |has: &dyn Fn(&str) -> bool| names.iter().all(|name| has(name));
        let before = if all(&|name| name.starts_with("g_")) { "g_" } else { "" };
        let after = if all(&|name| name.ends_with("_part")) { "_part" } else { "" };
        format!("{before}{}{after}", letters.next().unwrap_or(&"x"))
    };
    classes.iter().map(&mut title).collect()
}

/// The names of one value in all turns, and before them, of all loops.
fn classes(loops: &[RepeatedLines]) -> Vec<Vec<&str>> {
    let mut classes: Vec<Vec<&str>> = vec![];
    for one in loops.iter().flat_map(|repeated| &repeated.values) {
        let (joined, mut others): (Vec<_>, Vec<_>) = classes
            .into_iter()
            .partition(|class| class.iter().any(|name| one.iter().any(|other| other == name)));
        let mut class: Vec<&str> = one.iter().map(String::as_str).collect();
        class.extend(joined.into_iter().flatten());
        others.push(class);
        classes = others;
    }
    classes
}

/// In a loop a value may have the name of one that is no longer needed.
fn reuse(
    lines: &Lines,
    made_in_loops: &HashSet<&str>,
    params: &[&str],
    class: &[&str],
    name: &str,
    new: &mut HashMap<String, String>,
) {
    let old = new[class[0]].clone();
    if old == name || !new.values().any(|other| other == name) {
        return;
    }
    let called = |name: &str, new: &mut HashMap<String, String>| {
        class.iter().for_each(|one| drop(new.insert((*one).to_owned(), name.to_owned())));
    };
    called(name, new);
    // Only loops assign a name again.
    let mut same: Vec<&str> =
        lines.made().filter(|old| new.get(*old).is_some_and(|new| new == name)).collect();
    same.sort_by_key(|old| lines.made_at(old));
    let again = same.iter().skip(1).any(|old| !made_in_loops.contains(old));
    if again || !lines.mean_the_same(params, new) {
        called(&old, new);
    }
}

/// The lines of the first turn in a loop.
fn written<'n>(repeated: &RepeatedLines, mut all: Vec<Stmt<'n>>, counter: &'n str) -> Stmt<'n> {
    let others: Vec<Stmt<'n>> = all.split_off(repeated.length);
    let mut steps = repeated.steps.iter();
    let (mut body, mut between) = (vec![], vec![]);
    for (at, mut stmt) in all.into_iter().enumerate() {
        visit(&mut stmt, &mut |slot| {
            let Slot::Int(expr, _) = slot else { return };
            let step = *steps.next().expect("a step for each number");
            if let (Expr::Int(value), true) = (&*expr, step != 0) {
                *expr = number(repeated, *value, step, counter);
            }
        });
        // What is there once says what it says.
        if let Some(other) = others.get(at) {
            stmt.comment = comment(repeated, stmt.comment.as_deref(), other.comment.as_deref(), counter);
        }
        if stmt.comment.is_some() || stmt.kind != StmtKind::Comment {
            let lines = if at < repeated.length - repeated.between { &mut body } else { &mut between };
            lines.push(stmt);
        }
    }
    let last = repeated.last();
    if !between.is_empty() {
        let sides = (Expr::Name(counter), Expr::Int(last));
        let goes_on = Expr::Binary(if repeated.falls { ">" } else { "<" }, Box::new(sides));
        body.push(Stmt::new(StmtKind::If(goes_on, between)));
    }
    let (low, high) = (repeated.first.min(last), repeated.first.max(last) + 1);
    let ends = if low == 0 { vec![Expr::Int(high)] } else { vec![Expr::Int(low), Expr::Int(high)] };
    let rising = Expr::Name("range").call(ends);
    let values = if repeated.falls { Expr::Name("reversed").call(vec![rising]) } else { rising };
    Stmt::new(StmtKind::For { target: counter, values, body })
}

/// A number that is `value` in the first turn, by the counter: `2 * n + 1`.
fn number<'n>(repeated: &RepeatedLines, value: i64, step: i64, counter: &'n str) -> Expr<'n> {
    let (times, plus) = repeated.by_counter(value, step);
    let binary = |operator, a, b| Expr::Binary(operator, Box::new((a, b)));
    let product = |times: i64| {
        let n = Expr::Name(counter);
        if times == 1 { n } else { binary("*", Expr::Int(times), n) }
    };
    match (times, plus) {
        (_, 0) => product(times),
        (..=-1, 1..) => binary("-", Expr::Int(plus), product(-times)),
        (_, 1..) => binary("+", product(times), Expr::Int(plus)),
        _ => binary("-", product(times), Expr::Int(-plus)),
    }
}

/// A comment that is true in all turns, from those of the first two: a loop is only found where its comments are
/// the same words with numbers that grow evenly.
fn comment(
    repeated: &RepeatedLines,
    first: Option<&str>,
    second: Option<&str>,
    counter: &str,
) -> Option<String> {
    let (first, second) = (first?, second?);
    if first == second {
        return Some(first.to_owned());
    }
    if repeated.of == LinesOf::Called {
        // Lines of the model, which do not count.
        return None;
    }
    let ((words, values), (_, next)) = (counted(first), counted(second));
    let mut text = words[0].to_owned();
    for ((value, next), word) in values.into_iter().zip(next).zip(&words[1..]) {
        match repeated.by_counter(value, next - value) {
            (0, value) => text += &value.to_string(),
            (1, 0) => text += counter,
            (1, plus @ 1..) => text += &format!("{counter}+{plus}"),
            (1, minus) => text += &format!("{counter}{minus}"),
            _ => return None,
        }
        text += word;
    }
    Some(text)
}
