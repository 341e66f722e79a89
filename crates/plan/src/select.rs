//! How a plan file names operators: `"path"`, `"path" target`, `"path" target[1]` or `%name`.

use std::fmt;

use diag::{Error, Result};
use graph::{Graph, OpId};

use crate::nearby::nearby;
use crate::op_index::OpIndex;

/// Operators by path and target, globs both; `nth` counts those that fit at each path, from zero.
pub(crate) struct Selector<'t> {
    pub(crate) path: &'t str,
    pub(crate) target: &'t str,
    pub(crate) nth: Option<usize>,
}

impl Selector<'_> {
    pub(crate) fn select(&self, index: &OpIndex<'_>) -> Vec<OpId> {
        let mut selected: Vec<OpId> = vec![];
        for ops in index.in_modules(self.path) {
            let mut fitting = ops.iter().copied().filter(|op| self.has_target(index.graph, *op));
            match self.nth {
                Some(nth) => selected.extend(fitting.nth(nth)),
                None => selected.extend(fitting),
            }
        }
        selected.sort_unstable();
        selected
    }

    fn has_target(&self, graph: &Graph, op: OpId) -> bool {
        self.target.is_empty() || glob(self.target, &graph.op(op).target)
    }
}

impl fmt::Display for Selector<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\" {}", self.path, self.target)?;
        self.nth.map_or(Ok(()), |nth| write!(f, "[{nth}]"))
    }
}

/// The operators that a line of a plan file names, at least one.
pub(crate) fn select(who: &str, index: &OpIndex<'_>) -> Result<Vec<OpId>> {
    let ops = match who.strip_prefix('%') {
        Some(name) => index.makers(name).to_vec(),
        None => parse(who)?.select(index),
    };
    if ops.is_empty() {
        return Err(Error::new("SW0302", format!("no operator is named {}", clip(who)))
            .why(near(who, index.graph))
            .fix("paths are those of the model's modules; `*` stands for any text"));
    }
    Ok(ops)
}

/// The same, or all operators from one to another in the graph's order: `%linear_8..%add_12`.
pub(crate) fn one_or_run(who: &str, index: &OpIndex<'_>) -> Result<Vec<OpId>> {
    let Some((first, last)) = who.split_once("..").filter(|(first, _)| first.starts_with('%')) else {
        return select(who, index);
    };
    let (from, to) = (select(first, index)?[0].index(), select(last, index)?[0].index());
    if from > to {
        return Err(Error::new("SW0301", format!("{} names no operators", clip(who)))
            .why(format!("{} comes after {}", clip(first), clip(last)))
            .fix(format!("write `{last}..{first}`")));
    }
    Ok((from..=to).map(OpId::new).collect())
}

pub(crate) fn parse(who: &str) -> Result<Selector<'_>> {
    let bad = || {
        Error::new("SW0301", format!("`{}` does not name operators", clip(who)))
            .fix("write a path in quotes, or `%name`")
    };
    let (path, target) = who.strip_prefix('"').and_then(|rest| rest.split_once('"')).ok_or_else(bad)?;
    let (target, nth) = match target.trim().strip_suffix(']').and_then(|rest| rest.rsplit_once('[')) {
        Some((target, nth)) => (target, Some(nth.parse().map_err(|_| bad())?)),
        None => (target.trim(), None),
    };
    Ok(Selector { path, target, nth })
}

/// What there is that is written nearly so, else some of what the model has.
pub(crate) fn near(who: &str, graph: &Graph) -> String {
    if let Some(name) = who.strip_prefix('%') {
        let results = graph.ops.iter().flat_map(|op| op.outputs.iter().flatten());
        let near = nearby(name, results.map(|t| &graph.tensor(*t).name[..]));
        return match near[..] {
            [] => "no operator gives a result of this name".into(),
            _ => format!("there is {}", list(&near, |name| format!("%{name}"))),
        };
    }
    let Selector { path, target, .. } =
        parse(who).unwrap_or(Selector { path: who.trim_matches('"'), target: "", nth: None });
    let mut targets: Vec<&str> =
        graph.ops.iter().filter(|op| glob(path, &op.module)).map(|op| &op.target[..]).collect();
    if !targets.is_empty() {
        targets.sort_unstable();
        targets.dedup();
        let near = nearby(target, targets.iter().copied());
        return format!(
            "at {path:?} there is {}",
            list(if near.is_empty() { &targets } else { &near }, str::to_owned)
        );
    }
    near_paths(path, graph)
}

fn near_paths(wanted: &str, graph: &Graph) -> String {
    let folded: Vec<String> = graph.ops.iter().map(|op| folded_path(&op.module)).collect();
    let mut paths: Vec<&str> =
        graph.ops.iter().map(|op| &op.module[..]).chain(folded.iter().map(|path| &path[..])).collect();
    paths.sort_unstable();
    paths.dedup();
    paths.retain(|path| !path.is_empty());
    let near = nearby(wanted, paths.iter().copied());
    if !near.is_empty() {
        return format!("there is {}", list(&near, |path| format!("{path:?}")));
    }
    let shared = |p: &str| p.chars().zip(wanted.chars()).take_while(|(a, b)| a == b).count();
    paths.retain(|path| !path.contains('*'));
    paths.sort_by_key(|p| (usize::MAX - shared(p), p.len()));
    format!("the model has, among others, {}", list(&paths, |path| format!("{path:?}")))
}

/// The first few, as a person reads them.
fn list(words: &[&str], show: impl Fn(&str) -> String) -> String {
    words.iter().take(3).map(|word| show(word)).collect::<Vec<_>>().join(", ")
}

/// A path with `*` in the places of numbers: `h.3.mlp` is `h.*.mlp`.
pub(crate) fn folded_path(path: &str) -> String {
    with_numbers_as("*", path)
}

/// A path with a sign in the places of numbers.
pub(crate) fn with_numbers_as(sign: &str, path: &str) -> String {
    let number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    path.split('.').map(|word| if number(word) { sign } else { word }).collect::<Vec<_>>().join(".")
}

/// The numbers in a path, by which those that differ in nothing else are ordered.
pub(crate) fn numbers_of(path: &str) -> Vec<u64> {
    path.split('.').filter_map(|word| word.parse().ok()).collect()
}

/// As much of a word as belongs in a message.
pub(crate) fn clip(word: &str) -> String {
    const LONGEST: usize = 80;
    let shown: String = word.chars().take(LONGEST).collect();
    if shown.len() < word.len() { shown + "..." } else { shown }
}

/// Whether a text is as a pattern says, where `*` is any text, `?` is one without a dot, such as a number in a path, and
/// `{2-5}` one of these numbers.
pub fn glob(pattern: &str, text: &str) -> bool {
    if !pattern.contains(['?', '{']) {
        return fits(pattern, text);
    }
    if pattern.contains('*') {
        return fits_signs(pattern, text);
    }
    // Most differ in an early word: none of the rest is looked at.
    let same = |(word, text): (&str, &str)| word == text || fits_signs(word, text);
    pattern.split('.').count() == text.split('.').count() && pattern.split('.').zip(text.split('.')).all(same)
}

enum Sign {
    Byte(u8),
    Any,
    Word,
    Number(u32, u32),
}

fn signs(pattern: &str) -> Vec<Sign> {
    let mut signs = vec![];
    let mut rest = pattern.as_bytes();
    while let [first, behind @ ..] = rest {
        let (sign, left) = numbers(rest).unwrap_or(match first {
            b'*' => (Sign::Any, behind),
            b'?' => (Sign::Word, behind),
            byte => (Sign::Byte(*byte), behind),
        });
        signs.push(sign);
        rest = left;
    }
    signs
}

/// The sign `{2-5}`, if a pattern begins with one, and what is behind it.
fn numbers(pattern: &[u8]) -> Option<(Sign, &[u8])> {
    let end = pattern.iter().position(|byte| *byte == b'}')?;
    let (from, to) = std::str::from_utf8(pattern[..end].strip_prefix(b"{")?).ok()?.split_once('-')?;
    Some((Sign::Number(from.parse().ok()?, to.parse().ok()?), &pattern[end + 1..]))
}

/// Follows all ends of the text that the pattern so far can have.
fn fits_signs(pattern: &str, text: &str) -> bool {
    let text = text.as_bytes();
    let mut ends = vec![false; text.len() + 1];
    ends[0] = true;
    for sign in signs(pattern) {
        let mut next = vec![false; text.len() + 1];
        next[0] = matches!(sign, Sign::Any) && ends[0];
        for (at, read) in text.iter().enumerate() {
            match sign {
                Sign::Any => next[at + 1] = ends[at + 1] || next[at],
                Sign::Word => next[at + 1] = *read != b'.' && (ends[at] || next[at]),
                Sign::Byte(byte) => next[at + 1] = ends[at] && *read == byte,
                Sign::Number(from, to) if ends[at] => {
                    if let Some((number, end)) = number(text, at) {
                        next[end] |= (from..=to).contains(&number);
                    }
                }
                Sign::Number(..) => {}
            }
        }
        ends = next;
    }
    ends[text.len()]
}

/// The number that begins at a place, if one does, and where it ends.
fn number(text: &[u8], at: usize) -> Option<(u32, usize)> {
    if at > 0 && text[at - 1].is_ascii_digit() {
        return None;
    }
    let end = at + text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some((std::str::from_utf8(&text[at..end]).ok()?.parse().ok()?, end))
}

fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn a_star_is_any_text_and_a_question_mark_none_with_a_dot() {
        let fits = ["h.0.mlp", "h.12.mlp", "h.0.mlp.up", "h.mlp"];
        let matched = |pattern: &str| fits.map(|text| glob(pattern, text));
        assert_eq!(matched("h.*mlp"), [true, true, false, true]);
        assert_eq!(matched("h.*"), [true; 4]);
        assert_eq!(matched("h.?"), [false, false, false, true]);
        assert_eq!(matched("h.?.mlp"), [true, true, false, false]);
        assert_eq!(matched("?.*.?"), [true, true, true, false]);
        assert_eq!(matched("*.?.up"), [false, false, true, false]);
        assert!(glob("?", "x") && !glob("?", "") && glob("*?*", "x") && !glob("x?", "x"));
    }

    #[test]
    fn numbers_in_braces_are_one_of_these() {
        let matched = |pattern: &str| [0, 3, 9, 10, 31].map(|layer| glob(pattern, &format!("h.{layer}.mlp")));
        assert_eq!(matched("h.{3-10}.mlp"), [false, true, true, true, false]);
        assert_eq!(matched("*.{3-10}.*"), matched("h.{3-10}.mlp"));
        assert_eq!(matched("h.{3-10}*"), matched("h.{3-10}.mlp"));
        assert_eq!(matched("h.{10-3}.mlp"), [false; 5]);
        assert_eq!(matched("?.{0-99}.?"), [true; 5]);
        assert_eq!(matched("h.{1-3}?mlp"), [false; 5]);
        assert!(!glob("h.1{0-9}", "h.12") && glob("{0-9}x{0-9}", "1x2") && glob("{a-b}", "{a-b}"));
        assert!(!glob("{0-9}", "") && !glob("{0-9}", "99999999999999999999"));
    }

    #[test]
    fn many_signs_take_no_longer() {
        assert!(!glob(&"?*".repeat(200), &"a".repeat(150)));
        assert!(glob(&"?*".repeat(100), &"a".repeat(150)));
    }
}
