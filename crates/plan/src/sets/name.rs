//! The name of a set: axes with sizes, `data:2 x megatron:4`.

use diag::{Error, Result};

use super::{ALL, Along, Besides, Model, NUMBER, Rounds, Set, megatron};
use crate::MOST;
use crate::nearby::nearby;
use crate::select::clip;

/// One factor of a set's name: `megatron:4`.
pub(super) struct Axis {
    pub(super) set: &'static Set,
    pub(super) along: &'static Along,
    /// Zero where parts run in turn and the name does not say how many.
    pub(super) size: u32,
}

/// Reads the axes and gives each a size, so that together they fill the devices.
pub(super) fn axes(name: &str, devices: u32) -> Result<Vec<Axis>> {
    let read = along(name)?;
    let stated = product(read.iter().filter(|read| !read.along.in_turn()).filter_map(|read| read.size));
    let mut left = if devices % stated == 0 { devices / stated } else { 0 };
    let open = read.iter().filter(|read| read.size.is_none() && !read.along.in_turn()).count();
    let mut seen = 0;
    let mut axes = vec![];
    for Read { set, along, size } in read {
        let size = match size {
            Some(size) => size,
            None if along.in_turn() => 0,
            None => {
                seen += 1;
                let share = if seen == open { left } else { near_root(left) };
                left /= share.max(1);
                share
            }
        };
        axes.push(Axis { set, along, size });
    }
    if !axes.is_empty() && axes.iter().all(|a| a.along.in_turn()) && devices > 1 {
        return spread_in_turn(name, axes, devices);
    }
    let total = product(axes.iter().filter(|a| !a.along.in_turn()).map(|a| a.size));
    if total != devices {
        return Err(Error::new("SW0310", format!("the axes of `{name}` do not fit {devices} devices"))
            .why(format!("the product of their sizes is {total}"))
            .fix(
                "give each axis a size whose product is the number of devices, such as `data:2 x megatron:4`",
            ));
    }
    Ok(axes)
}

/// For how many devices a plan of this name is, where the name itself says it.
pub fn devices_of(name: &str) -> Result<Option<u32>> {
    let read = along(name)?;
    let mut spread = read.iter().filter(|read| !read.along.in_turn()).peekable();
    let says = spread.peek().is_some();
    let total = spread.try_fold(1, |total: u32, read| Some(total.saturating_mul(read.size?)));
    Ok(total.filter(|_| says))
}

/// What a set says, its axis if it has one, and the number behind its name if it has none.
type Says = (Besides, Option<usize>, Option<u32>);

/// What the sets of a name say besides how operators are divided.
pub(super) fn besides(name: &str, axes: &[Axis]) -> Result<Vec<Says>> {
    let (mut found, mut next) = (vec![], 0);
    for Named { set, says, size } in read(name)? {
        let own = axes[next..].iter().position(|axis| axis.set.name == set.name).map(|at| next + at);
        next = own.map_or(next, |own| own + 1);
        let number = size.filter(|_| own.is_none());
        found.extend(says.map(|says| (says, own, number)));
    }
    Ok(found)
}

/// The set that puts several blocks on each stage, if there is one, and how many the name says.
pub(super) fn rounds(name: &str) -> Result<Option<(Rounds, Option<u32>)>> {
    let said = read(name)?.into_iter();
    let mut said = said.filter_map(|Named { set, size, .. }| Some((set.rounds?, size)));
    let first = said.next();
    match said.next() {
        None => Ok(first),
        Some(_) => Err(Error::new("SW0310", format!("`{name}` says twice how many blocks each stage has"))
            .why("a pipeline has one schedule")
            .fix("leave one of them out")),
    }
}

/// The operators that the sets of a name take out of a pipeline.
pub(super) fn aside(model: &Model<'_>, name: &str, stages: u32) -> Result<Vec<bool>> {
    let mut found = vec![false; model.graph.ops.len()];
    for aside in read(name)?.into_iter().filter_map(|named| named.set.aside) {
        aside(model, stages).into_iter().zip(&mut found).for_each(|(own, all)| *all |= own);
    }
    Ok(found)
}

/// A set that has an axis, with the size that the name gives it.
struct Read {
    set: &'static Set,
    along: &'static Along,
    size: Option<u32>,
}

fn along(name: &str) -> Result<Vec<Read>> {
    let sets = read(name)?.into_iter();
    let axis = |Named { set, size, .. }: Named| Some(Read { set, along: set.along.as_ref()?, size });
    Ok(sets.filter_map(axis).collect())
}

/// Each set with what stands behind its name: a number where it has an axis or rounds, else a word.
struct Named {
    set: &'static Set,
    size: Option<u32>,
    says: Option<Besides>,
}

fn read(name: &str) -> Result<Vec<Named>> {
    words(name).into_iter().map(|word| axis(name, word)).collect()
}

fn axis(name: &str, word: &str) -> Result<Named> {
    let (set, behind) = match word.split_once(':') {
        Some((set, behind)) => (set.trim(), Some(behind.trim())),
        None => (word, None),
    };
    let set = *ALL.iter().find(|s| s.name == set).ok_or_else(|| unknown(set))?;
    let says = |wanted: &str| set.besides.iter().find(|(word, _)| *word == wanted).map(|(_, says)| *says);
    match behind {
        None => Ok(Named { set, size: None, says: says("") }),
        Some(size) if set.along.is_some() || set.rounds.is_some() || says(NUMBER).is_some() => {
            let number = size.parse::<u32>().ok().filter(|s| (1..=MOST).contains(s));
            let size = number.ok_or_else(|| bad_size(name, word, size))?;
            Ok(Named { set, size: Some(size), says: says(NUMBER).or_else(|| says("")) })
        }
        Some(word) => {
            let says = says(word).filter(|_| !word.is_empty()).ok_or_else(|| bad_word(set, word))?;
            Ok(Named { set, size: None, says: Some(says) })
        }
    }
}

/// Of a set that has no axis.
fn bad_word(set: &Set, word: &str) -> Error {
    let written = |(word, _): &(&str, Besides)| match *word {
        "" => format!("`{}`", set.name),
        word => format!("`{}:{word}`", set.name),
    };
    let known: Vec<String> = set.besides.iter().map(written).collect();
    let number = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    let what = if number {
        format!("`{}` has no size", set.name)
    } else {
        format!("there is no `{}:{}`", set.name, clip(word))
    };
    let why = if number { "it splits nothing" } else { "the word after the colon is not known" };
    Error::new("SW0310", what).why(why).fix(format!("write {}", known.join(" or ")))
}

/// The axes between the `x`: one that stands alone, or right behind a number.
fn words(name: &str) -> Vec<&str> {
    let (mut found, mut start) = (vec![], 0);
    let bytes = name.as_bytes();
    for at in 1..bytes.len() {
        let after_space = bytes[at - 1].is_ascii_whitespace();
        let before_space = bytes.get(at + 1).is_none_or(u8::is_ascii_whitespace);
        let alone = after_space && before_space || bytes[at - 1].is_ascii_digit();
        if bytes[at] == b'x' && alone {
            found.push(name[start..at].trim());
            start = at + 1;
        }
    }
    found.push(name[start..].trim());
    found
}

fn product(sizes: impl Iterator<Item = u32>) -> u32 {
    sizes.fold(1, u32::saturating_mul)
}

/// `coshard:4` on two devices is `megatron:2 x coshard:2`.
fn spread_in_turn(name: &str, axes: Vec<Axis>, devices: u32) -> Result<Vec<Axis>> {
    let turn = axes.into_iter().find(|a| a.along.in_turn()).expect("called with an axis that runs in turn");
    let (set, along, parts) = (turn.set, turn.along, turn.size);
    if parts % devices != 0 {
        return Err(Error::new(
            "SW0310",
            format!("the {parts} parts of `{name}` do not fit {devices} devices"),
        )
        .why("each device runs the same number of parts, one after another")
        .fix(format!(
            "write `{0}:{1}` for two parts on each device, or say what the devices share: \
             `data:{devices} x {0}:{parts}`",
            set.name,
            devices.saturating_mul(2)
        )));
    }
    let spread = megatron::SET.along.as_ref().expect("`megatron` divides");
    let parts = Axis { set, along, size: parts / devices };
    Ok(vec![Axis { set: &megatron::SET, along: spread, size: devices }, parts])
}

/// The largest divisor not above the square root.
fn near_root(count: u32) -> u32 {
    (1..=count).take_while(|d| d * d <= count).filter(|d| count % d == 0).last().unwrap_or(1)
}

fn bad_size(name: &str, word: &str, size: &str) -> Error {
    let (number, rest) = size.split_at(size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len()));
    let (set, _) = word.split_once(':').unwrap_or((word, ""));
    let next = rest.trim().trim_start_matches(['*', ',', '+', 'x', 'X', '×', '/']).trim();
    let known = ALL.iter().any(|s| next.split(':').next() == Some(s.name));
    let error = Error::new("SW0310", format!("`{size}` is not a size of `{set}` in the plan `{name}`"));
    if known && !number.is_empty() {
        error.why("between two axes stands an `x`").fix(format!("write `{set}:{number} x {next}`"))
    } else {
        error
            .why(format!("a size is a whole number from 1 to {MOST}"))
            .fix(format!("write for example `{set}:2`"))
    }
}

fn unknown(set: &str) -> Error {
    let known: Vec<String> = ALL.iter().map(|s| format!("`{}`", s.name)).collect();
    let near = nearby(set, ALL.iter().map(|s| s.name));
    let meant = near.first().map_or_else(String::new, |name| format!("did you mean `{name}`? Else "));
    Error::new("SW0311", format!("there is no plan named `{set}`"))
        .why("it is neither a named plan nor the path of a plan file")
        .fix(format!(
            "{meant}use one of {}, a product such as `data:2 x megatron:2`, or a plan file",
            known.join(", ")
        ))
}
