//! One factor of a plan's name, `megatron:4`: a set, and what stands behind it.

use std::fmt;

use diag::{Error, Result};

use super::{ALL, Besides, NUMBER, Set};
use crate::MOST;
use crate::nearby::nearby;
use crate::select::clip;

/// One factor of a name: `megatron:4`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct SetTerm {
    set: &'static Set,
    argument: Argument,
}

/// What stands behind a set's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Argument {
    None,
    /// The size of its axis, or whatever else the set has a number of.
    Number(u32),
    Word(&'static str),
}

impl SetTerm {
    /// # Panics
    ///
    /// If the set has no such argument.
    pub fn new(set: &'static Set, argument: Argument) -> Self {
        let fits = match argument {
            Argument::None => true,
            Argument::Number(number) => set.has_number() && (1..=MOST).contains(&number),
            Argument::Word(word) => set.besides(word).is_some() && !["", NUMBER].contains(&word),
        };
        assert!(fits, "`{}` has no {argument:?}", set.name);
        Self { set, argument }
    }

    pub fn bare(set: &'static Set) -> Self {
        Self { set, argument: Argument::None }
    }

    pub fn set(&self) -> &'static Set {
        self.set
    }

    pub fn argument(&self) -> Argument {
        self.argument
    }

    pub fn number(&self) -> Option<u32> {
        if let Argument::Number(number) = self.argument { Some(number) } else { None }
    }

    /// What it says besides how operators are divided.
    pub(super) fn besides(&self) -> Option<Besides> {
        match self.argument {
            Argument::None => self.set.besides(""),
            Argument::Number(_) => self.set.besides(NUMBER).or_else(|| self.set.besides("")),
            Argument::Word(word) => self.set.besides(word),
        }
    }
}

impl fmt::Display for SetTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.argument {
            Argument::None => f.write_str(self.set.name),
            Argument::Number(number) => write!(f, "{}:{number}", self.set.name),
            Argument::Word(word) => write!(f, "{}:{word}", self.set.name),
        }
    }
}

impl fmt::Debug for SetTerm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// One factor of a name.
pub(super) fn term(name: &str, factor: &str) -> Result<SetTerm> {
    let (word, behind) = match factor.split_once(':') {
        Some((word, behind)) => (word.trim(), Some(behind.trim())),
        None => (factor, None),
    };
    let set = set_named(word).ok_or_else(|| unknown(word))?;
    let argument = match behind {
        None => Argument::None,
        Some(size) if set.has_number() => {
            let number = size.parse::<u32>().ok().filter(|s| (1..=MOST).contains(s));
            Argument::Number(number.ok_or_else(|| bad_size(name, word, size))?)
        }
        Some(behind) => {
            let known = set.besides.iter().map(|(word, _)| *word).filter(|word| !word.is_empty());
            Argument::Word(
                known.into_iter().find(|word| *word == behind).ok_or_else(|| bad_word(set, behind))?,
            )
        }
    };
    Ok(SetTerm { set, argument })
}

/// By its name, or by what the field calls it.
fn set_named(word: &str) -> Option<&'static Set> {
    ALL.iter().copied().find(|set| set.name == word || set.aliases.contains(&word))
}

/// Of a set that has no number.
fn bad_word(set: &Set, word: &str) -> Error {
    let words = set.besides.iter().map(|(word, _)| *word).filter(|word| !word.is_empty());
    let words = words.map(|word| format!("`{}:{word}`", set.name));
    let known: Vec<String> = std::iter::once(format!("`{}`", set.name)).chain(words).collect();
    let number = !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
    let what = if number {
        format!("`{}` has no size", set.name)
    } else {
        format!("there is no `{}:{}`", set.name, clip(word))
    };
    let why = if number { "it splits nothing" } else { "the word after the colon is not known" };
    Error::new("SW0310", what).why(why).fix(format!("write {}", known.join(" or ")))
}

fn bad_size(name: &str, set: &str, size: &str) -> Error {
    let (number, rest) = size.split_at(size.find(|c: char| !c.is_ascii_digit()).unwrap_or(size.len()));
    let next = rest.trim().trim_start_matches(['*', ',', '+', 'x', 'X', '×', '/']).trim();
    let known = next.split(':').next().and_then(set_named).is_some();
    let error = Error::new("SW0310", format!("`{size}` is not a size of `{set}` in the plan `{name}`"));
    if known && !number.is_empty() {
        error.why("between two axes stands an `x`").fix(format!("write `{set}:{number} x {next}`"))
    } else {
        error
            .why(format!("a size is a whole number from 1 to {MOST}"))
            .fix(format!("write for example `{set}:2`"))
    }
}

fn unknown(word: &str) -> Error {
    if word.eq_ignore_ascii_case("sp") {
        return sequence_parallelism(word);
    }
    let known: Vec<String> = ALL.iter().map(|s| format!("`{}`", s.name)).collect();
    let lower = word.to_ascii_lowercase();
    let alias = ALL.iter().find(|set| set.aliases.contains(&&lower[..])).map(|set| set.name);
    let near = alias.or_else(|| nearby(word, ALL.iter().map(|s| s.name)).first().copied());
    let meant = near.map_or_else(String::new, |name| format!("did you mean `{name}`? Else "));
    Error::new("SW0311", format!("there is no plan named `{word}`"))
        .why("it is neither a named plan nor the path of a plan file")
        .fix(format!(
            "{meant}use one of {}, a product such as `data:2 x megatron:2`, or a plan file",
            known.join(", ")
        ))
}

/// Megatron's is no axis of its own, and others call context parallelism so: no alias would be right for both.
fn sequence_parallelism(word: &str) -> Error {
    Error::new("SW0311", format!("there is no plan named `{word}`"))
        .why("sequence parallelism has no axis of its own: it is on the devices of tensor parallelism")
        .fix(
            "write `megatron-sp` in the place of `megatron`; if you mean context parallelism, write `sequence`, `zigzag` \
             or `ulysses`",
        )
}
