//! Identifiers from names that people or PyTorch gave.

use std::collections::{HashMap, HashSet};

use program::Pass;

use crate::python::{KEYWORDS, is_identifier};

/// Names that mean the same in every emitted file.
const RESERVED: [&str; 13] =
    ["p", "rank", "run", "last", "torch", "F", "ops", "float", "range", "reversed", "min", "max", "_"];
/// The functions that the runtime calls.
const CALLED: [&str; 6] = ["begin", "forward", "backward", "end", "step", "steady"];

/// For what has no name of its own.
pub(crate) const UNNAMED: [&str; 6] = ["x", "y", "z", "u", "v", "w"];

/// The keyword argument that says which of a function's calls one is.
pub(crate) const AT: &str = "at";

/// What a call is called in tables and messages.
pub(crate) fn call_name(function: &str, at: Option<i64>) -> String {
    at.map_or_else(|| function.to_owned(), |at| format!("{function} {at}"))
}

/// The block and pass of a code's function, by its name: `backward_3`.
pub(crate) fn code_of(name: &str) -> Option<(u32, Pass)> {
    let (pass, block) = match name.split_once('_') {
        Some((pass, block)) => (pass, block.parse().ok().filter(|number: &u32| number.to_string() == block)?),
        None => (name, 0),
    };
    let named = |wanted: &&Pass| wanted.name() == pass;
    const PASSES: [Pass; 4] = [Pass::Forward, Pass::Backward, Pass::Inputs, Pass::Weights];
    PASSES.iter().find(named).map(|pass| (block, *pass))
}

/// What the function of a code is called.
pub(crate) fn code_name(several: bool, block: u32, pass: Pass) -> String {
    match pass {
        Pass::Begin | Pass::End => pass.name().into(),
        _ if several => format!("{}_{block}", pass.name()),
        _ => pass.name().into(),
    }
}

/// Whether a value may not be called so. As halves of a backward are called so many values are, which no function reads.
fn is_kept_free(name: &str) -> bool {
    matches!(code_of(name), Some((_, Pass::Forward | Pass::Backward)))
}

/// Whether nothing in a file may be called so.
pub(crate) fn is_reserved(name: &str) -> bool {
    RESERVED.contains(&name)
}

/// The names of one scope.
#[derive(Clone, Default)]
pub(crate) struct Scope {
    taken: HashSet<String>,
    next: HashMap<String, u32>,
}

impl Scope {
    pub(crate) fn new() -> Self {
        let taken = RESERVED.iter().chain(&CALLED).map(|name| (*name).to_owned()).collect();
        Self { taken, next: HashMap::new() }
    }

    /// The same, but that these names are free again.
    pub(crate) fn without<'n>(&self, names: impl Iterator<Item = &'n str>) -> Self {
        let mut taken = self.taken.clone();
        for name in names {
            taken.remove(name);
        }
        Self { taken, next: HashMap::new() }
    }

    /// The same for a function.
    pub(crate) fn fresh_function(&mut self, wanted: &str) -> String {
        let name = identifier(wanted);
        if code_of(&name).is_some() { self.fresh(&format!("{name}_")) } else { self.fresh(&name) }
    }

    /// This name as an identifier, with a number if it is taken.
    pub(crate) fn fresh(&mut self, wanted: &str) -> String {
        let base = match identifier(wanted) {
            code if is_kept_free(&code) => format!("{code}_"),
            base => base,
        };
        if self.taken.insert(base.clone()) {
            return base;
        }
        let next = self.next.entry(base.clone()).or_insert(1);
        loop {
            let name = format!("{base}_{next}");
            *next += 1;
            if !is_kept_free(&name) && self.taken.insert(name.clone()) {
                return name;
            }
        }
    }
}

pub(crate) fn identifier(text: &str) -> String {
    const LONGEST: usize = 60;
    if is_identifier(text) && text.len() <= LONGEST {
        return text.to_owned();
    }
    let letter = |c: char| if c.is_ascii_alphanumeric() { c } else { '_' };
    let mut name: String = text.chars().take(LONGEST).map(letter).collect();
    if !name.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') {
        name.insert_str(0, "x_");
    }
    if KEYWORDS.contains(&name.as_str()) {
        name.push('_');
    }
    name
}

/// `CausalSelfAttention` to `causal_self_attention`, `GPT2Block` to `gpt2_block`.
pub(crate) fn snake(class: &str) -> String {
    let chars: Vec<char> = class.chars().collect();
    let mut name = String::with_capacity(class.len() + 4);
    for (at, &c) in chars.iter().enumerate() {
        let before = at.checked_sub(1).map(|at| chars[at]);
        let word = c.is_uppercase()
            && before.is_some_and(|b| {
                b.is_lowercase()
                    || (b.is_alphanumeric() && chars.get(at + 1).is_some_and(|n| n.is_lowercase()))
            });
        if word {
            name.push('_');
        }
        name.extend(c.to_lowercase());
    }
    identifier(name.trim_matches('_'))
}

/// `linear_3` to `linear`.
pub(crate) fn base(name: &str) -> &str {
    let stem = name.trim_end_matches(|c: char| c.is_ascii_digit());
    match stem.strip_suffix(['_', '.']) {
        Some(base) if stem.len() < name.len() && !base.is_empty() => self::base(base),
        _ => name,
    }
}

/// Operators whose results have a shorter name among people.
pub(crate) fn nickname(name: &str) -> &str {
    match name {
        "scaled_dot_product_attention" => "attended",
        "cross_entropy_loss" => "loss",
        "sum" => "total",
        "pow" => "power",
        "to" | "to_copy" => "cast",
        "view" | "unsafe_view" => "reshape",
        "native_batch_norm_legit_functional" | "native_batch_norm_legit" => "norm",
        _ => name,
    }
}

/// The last part of a module path: `c_attn`, or `mlp_0` where that is a number. The mark of a
/// second call, `@1`, is left out.
pub(crate) fn tail(path: &str) -> String {
    let mut parts = path.rsplit('.').map(|part| part.split('@').next().unwrap_or(part));
    let last = parts.next().unwrap_or_default();
    let number = last.bytes().all(|b| b.is_ascii_digit());
    let name = match parts.next().filter(|_| number) {
        Some(outer) => format!("{outer}_{last}"),
        None => last.to_owned(),
    };
    identifier(if name.is_empty() { "x" } else { &name })
}

/// Tensors inside a rewritten operator are named after that: `cross_entropy_loss.3`.
pub(crate) fn is_made_up(name: &str) -> bool {
    name.contains('.')
}

/// Whether the last part of a path is a number.
pub(crate) fn is_number(path: &str) -> bool {
    let last = path.rsplit('.').next().unwrap_or(path);
    last.split('@').next().unwrap_or(last).bytes().all(|b| b.is_ascii_digit())
}
