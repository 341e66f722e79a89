//! Shardings as short text, `b/dp s (3 h/tp d), partial over ep`, and back.
//!
//! Behind a factor's name stand the axes that divide it, outermost first, and in braces the sizes of its
//! pieces if they are not balanced: `{4x3,2}` is four of 3 and one of 2. An axis that has no name is
//! `size:stride`. Axes that are not mentioned copy; where the devices are not those that the names are
//! for, `copied over` and `from device` say so.

use rules::Reduction;

use crate::mesh::{Axis, Mesh, cut_at, marks, merged};
use crate::pieces::Pieces;
use crate::sharding::{Cut, Sharding};

/// What a tensor's factors and the devices' axes are called.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    /// Dim by dim; a dim of size one has no factors.
    pub dims: Vec<Vec<String>>,
    pub axes: Vec<(String, Axis)>,
    pub base: u32,
}

const PARTIAL: &str = "partial over ";
const COPIED: &str = "copied over ";
const NOBODY: &str = "copied nowhere";
const FROM: &str = "from device ";

impl Names {
    pub fn print(&self, sharding: &Sharding) -> String {
        let mut cuts = sharding.cuts().iter();
        let dim = |names: &Vec<String>| {
            let all: Vec<String> =
                names.iter().zip(cuts.by_ref()).map(|(name, cut)| self.factor(name, cut)).collect();
            match &all[..] {
                [] => "1".to_owned(),
                [one] => one.clone(),
                _ => format!("({})", all.join(" ")),
            }
        };
        let mut text = self.dims.iter().map(dim).collect::<Vec<String>>().join(" ");
        if text.is_empty() {
            text.push_str("scalar");
        }
        let mut say = |word: &str, rest: &str| text.push_str(&format!(", {word}{rest}"));
        if !sharding.partial().is_empty() {
            say(&partial(sharding.reduction()), &self.list(sharding.partial(), " "));
        }
        if self.rest(&used(sharding)) != Some(sharding.copies().to_vec()) {
            match sharding.copies() {
                [] => say(NOBODY, ""),
                copies => say(COPIED, &self.list(copies, " ")),
            }
        }
        if sharding.base() != self.base {
            say(FROM, &sharding.base().to_string());
        }
        text
    }

    /// Reads what [`Names::print`] prints, for a tensor whose factors have these sizes.
    pub fn parse(&self, text: &str, sizes: &[i64]) -> Option<Sharding> {
        let mut clauses = text.split(", ");
        let body = clauses.next()?.replace(['(', ')'], " ");
        let words: Vec<&str> = body.split_whitespace().filter(|w| !matches!(*w, "1" | "scalar")).collect();
        let names: Vec<&String> = self.dims.iter().flatten().collect();
        if words.len() != names.len() || names.len() != sizes.len() {
            return None;
        }
        let read =
            |((word, name), size): ((&&str, &&String), &i64)| self.cut(word.strip_prefix(&***name)?, *size);
        let cuts = words.iter().zip(&names).zip(sizes).map(read).collect::<Option<Vec<Cut>>>()?;
        let (mut held, mut reduction, mut copies, mut base) = (vec![], Reduction::Sum, None, self.base);
        for clause in clauses {
            let how = Reduction::MARKS.iter().find(|row| clause.starts_with(&partial(row.0)));
            if let Some((how, ..)) = how {
                (held, reduction) = (self.axes(&clause[partial(*how).len()..], ' ')?, *how);
            } else if let Some(rest) = clause.strip_prefix(COPIED) {
                copies = Some(self.axes(rest, ' ')?);
            } else if clause == NOBODY {
                copies = Some(vec![]);
            } else {
                base = clause.strip_prefix(FROM)?.parse().ok()?;
            }
        }
        let used: Vec<Axis> = cuts.iter().flat_map(|c| &c.axes).chain(&held).copied().collect();
        let copies = copies.or_else(|| self.rest(&used))?;
        Sharding::new(base, cuts, &held, &copies, reduction)
    }

    fn factor(&self, name: &str, cut: &Cut) -> String {
        if cut.axes.is_empty() {
            return name.to_owned();
        }
        let sizes = if cut.pieces.is_balanced() { String::new() } else { runs(&cut.pieces.sizes()) };
        format!("{name}/{}{sizes}", self.list(&cut.axes, "/"))
    }

    fn cut(&self, text: &str, size: i64) -> Option<Cut> {
        if text.is_empty() {
            return Some(Cut::none(size));
        }
        let (axes, sizes) = match text.split_once('{') {
            Some((axes, sizes)) => (axes, Some(sizes.strip_suffix('}')?)),
            None => (text, None),
        };
        let axes = self.axes(axes.strip_prefix('/')?, '/')?;
        let count = axes.iter().try_fold(1_u32, |n, a| n.checked_mul(a.size))?;
        let pieces = match sizes {
            Some(sizes) => Pieces::from_sizes(&lengths(sizes)?),
            None => Pieces::balanced(size, count),
        };
        (pieces.size() == size).then_some(Cut { axes, pieces })
    }

    /// Axes by their names, split where names end.
    fn list(&self, axes: &[Axis], between: &str) -> String {
        let known: Vec<Axis> = self.axes.iter().map(|(_, axis)| *axis).collect();
        let name = |axis: &Axis| match self.axes.iter().find(|(_, known)| known == axis) {
            Some((name, _)) => name.clone(),
            None => format!("{}:{}", axis.size, axis.stride),
        };
        cut_at(axes, &marks(&known)).iter().map(name).collect::<Vec<String>>().join(between)
    }

    fn axes(&self, text: &str, between: char) -> Option<Vec<Axis>> {
        let axis = |word: &str| match self.axes.iter().find(|(name, _)| name == word) {
            Some((_, axis)) => Some(*axis),
            None => {
                let (size, stride) = word.split_once(':')?;
                Some(Axis::new(size.parse().ok().filter(|s| *s > 0)?, stride.parse().ok()?))
            }
        };
        text.split(between).map(axis).collect()
    }

    /// The named axes without these; `None` if these are no part of them.
    fn rest(&self, used: &[Axis]) -> Option<Vec<Axis>> {
        let known: Vec<Axis> = self.axes.iter().map(|(_, axis)| *axis).collect();
        let used: Vec<Axis> = used.iter().copied().filter(|a| !a.in_turn()).collect();
        let mut rest = cut_at(&known, &marks(&used));
        for axis in cut_at(&used, &marks(&rest)) {
            let at = rest.iter().position(|a| *a == axis)?;
            rest.remove(at);
        }
        Some(Mesh::new(0, &merged(&rest))?.axes().to_vec())
    }
}

fn used(sharding: &Sharding) -> Vec<Axis> {
    sharding.cuts().iter().flat_map(|c| &c.axes).chain(sharding.partial()).copied().collect()
}

/// A sum is what partial results mostly are.
fn partial(reduction: Reduction) -> String {
    match reduction {
        Reduction::Sum => PARTIAL.to_owned(),
        other => format!("{} {PARTIAL}", other.name()),
    }
}

/// `{4x3,2}`: how many of which size.
fn runs(sizes: &[i64]) -> String {
    let run = |run: &[i64]| match run.len() {
        1 => run[0].to_string(),
        count => format!("{count}x{}", run[0]),
    };
    format!("{{{}}}", sizes.chunk_by(|a, b| a == b).map(run).collect::<Vec<String>>().join(","))
}

fn lengths(text: &str) -> Option<Vec<i64>> {
    let mut sizes: Vec<i64> = vec![];
    for run in text.split(',') {
        let (count, size) = run.split_once('x').unwrap_or(("1", run));
        let count: u32 = count.parse().ok().filter(|c| *c <= rules::MOST_PARTS)?;
        let size: i64 = size.parse().ok().filter(|s| *s > 0)?;
        sizes.extend(std::iter::repeat_n(size, count as usize));
    }
    Some(sizes)
}
