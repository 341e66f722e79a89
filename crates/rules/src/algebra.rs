//! The algebra of named dims: rules as text, checked when they are built.
//!
//! ```text
//! b k+, n k+, !n -> b n ; linear 0
//! ```
//! Operands are separated by commas; each lists one term per tensor dim: a name, `1` for a dim of
//! size one, or `(h d)` for a dim that is a product. A name may carry marks:
//!
//! | mark | meaning of splitting the dim |
//! | --- | --- |
//! | none | every part computes its part of the outputs |
//! | `+` `>` `<` `\|` `&` | outputs are partial: to be completed by sum, max, min, any, all |
//! | `^` | may not be split |
//! | `@` | has its own algorithm: the operator is first rewritten into simpler ones |
//! | `~` | only as one contiguous interval of the whole dim (the operator needs its offset) |
//!
//! `!` before an operand: it is given to the first part of every summed dim only (a bias is added
//! once). `-` stands for an operand or output that does not matter (an absent output).
//! `; linear 0 1` says that the operator is linear in operands 0 and 1 jointly, so it may be applied
//! to partial sums of them. Several such clauses may follow each other.

use std::fmt;

use diag::{Error, Result};

graph::id!(
    /// A named dim of a rule.
    DimId
);

/// How partial results are completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Reduction {
    Sum,
    Max,
    Min,
    Any,
    All,
}

impl Reduction {
    pub const MARKS: [(Reduction, char, &'static str); 5] = [
        (Reduction::Sum, '+', "sum"),
        (Reduction::Max, '>', "max"),
        (Reduction::Min, '<', "min"),
        (Reduction::Any, '|', "any"),
        (Reduction::All, '&', "all"),
    ];

    pub fn name(self) -> &'static str {
        Self::MARKS.iter().find(|row| row.0 == self).expect("every reduction has a mark").2
    }

    fn mark(self) -> char {
        Self::MARKS.iter().find(|row| row.0 == self).expect("every reduction has a mark").1
    }
}

/// What splitting a dim means.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Each part computes its part of the outputs.
    Map,
    /// Each part computes a partial result of the outputs.
    Reduce(Reduction),
    /// May not be split.
    Whole,
    /// The operator is rewritten before the dim is split: [`crate::rewriting`].
    Own,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dim {
    pub name: String,
    pub size: i64,
    pub kind: Kind,
    /// Only as one contiguous interval.
    pub contiguous: bool,
}

/// One operand: for each tensor dim the named dims it is a product of, outer to inner.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Operand {
    pub dims: Vec<Vec<DimId>>,
    /// Given to the first part of every reduced dim only.
    pub once: bool,
    /// Absent: an output that nothing reads.
    pub absent: bool,
}

impl Operand {
    pub fn has(&self, dim: DimId) -> bool {
        self.dims.iter().any(|product| product.contains(&dim))
    }
}

/// How one operator, with these shapes, may be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    pub dims: Vec<Dim>,
    pub inputs: Vec<Operand>,
    pub outputs: Vec<Operand>,
    /// Sets of inputs in which the operator is jointly linear.
    pub linear: Vec<Vec<usize>>,
}

impl Rule {
    /// Reads a rule and gives its dims the sizes that the shapes imply. `inputs` has a shape per
    /// tensor argument, `outputs` a shape per output, `None` for an absent one.
    pub fn parse(text: &str, inputs: &[&[i64]], outputs: &[Option<&[i64]>]) -> Result<Rule> {
        let names = Text::read(text)?;
        let mut sizes = vec![None; names.dims.len()];
        let shapes = inputs.iter().map(|s| Some(*s)).chain(outputs.iter().copied());
        let operands = || names.inputs.iter().chain(&names.outputs);
        if names.inputs.len() != inputs.len() || names.outputs.len() != outputs.len() {
            return Err(bad(text, "the number of operands differs from the operator's"));
        }
        // Single names first, then what is left of each product.
        for (operand, shape) in operands().zip(shapes.clone()) {
            let Some(shape) = shape else { continue };
            if operand.absent {
                continue;
            }
            if operand.dims.len() != shape.len() {
                return Err(bad(text, "an operand has another number of dims than its tensor"));
            }
            for (product, &size) in operand.dims.iter().zip(shape) {
                if let [one] = product[..] {
                    unify(text, &mut sizes[one.index()], size)?;
                }
            }
        }
        // One operand may leave what another one tells, so in rounds until nothing new is known.
        let mut known = usize::MAX;
        loop {
            let before = std::mem::replace(&mut known, sizes.iter().flatten().count());
            for (operand, shape) in operands().zip(shapes.clone()) {
                let Some(shape) = shape else { continue };
                for (product, &size) in operand.dims.iter().zip(shape) {
                    solve(text, product, size, &mut sizes, before == known)?;
                }
            }
            if before == known {
                break;
            }
        }
        let dims = names
            .dims
            .into_iter()
            .zip(sizes)
            .map(|(dim, size)| {
                let size = size.ok_or_else(|| bad(text, "a dim's size cannot be inferred"))?;
                Ok(Dim { size, ..dim })
            })
            .collect::<Result<_>>()?;
        let rule = Rule { dims, inputs: names.inputs, outputs: names.outputs, linear: names.linear };
        rule.check(text)?;
        Ok(rule)
    }

    pub fn dim(&self, id: DimId) -> &Dim {
        &self.dims[id.index()]
    }

    pub fn find(&self, name: &str) -> Option<DimId> {
        self.dims.iter().position(|d| d.name == name).map(DimId::new)
    }

    fn check(&self, text: &str) -> Result<()> {
        for (index, dim) in self.dims.iter().enumerate() {
            let id = DimId::new(index);
            let read = self.inputs.iter().any(|o| o.has(id));
            let written = self.outputs.iter().any(|o| o.has(id));
            let everywhere = self.outputs.iter().all(|o| o.absent || o.has(id));
            match dim.kind {
                Kind::Reduce(_) if written => {
                    return Err(bad(text, "a reduced dim appears in an output"));
                }
                Kind::Map if written && !everywhere => {
                    return Err(bad(text, "a mapped dim must appear in every output"));
                }
                Kind::Map if read && !written => {
                    return Err(bad(text, "a dim that only inputs have must say what becomes of it"));
                }
                _ => {}
            }
        }
        let twice = |o: &Operand| {
            let mut seen: Vec<DimId> = o.dims.iter().flatten().copied().collect();
            seen.sort_unstable();
            seen.windows(2).any(|w| w[0] == w[1])
        };
        if self.inputs.iter().chain(&self.outputs).any(twice) {
            return Err(bad(text, "a dim appears twice in one operand"));
        }
        if self.linear.iter().flatten().any(|&i| i >= self.inputs.len()) {
            return Err(bad(text, "`linear` names an operand that does not exist"));
        }
        Ok(())
    }
}

fn unify(text: &str, slot: &mut Option<i64>, size: i64) -> Result<()> {
    match slot {
        Some(known) if *known != size => Err(bad(text, "a dim has two different sizes")),
        _ => {
            *slot = Some(size);
            Ok(())
        }
    }
}

/// Gives the one unknown dim of a product the size that is left. Several unknown ones are refused
/// in the last round.
fn solve(text: &str, product: &[DimId], size: i64, sizes: &mut [Option<i64>], last: bool) -> Result<()> {
    let known: i64 = product.iter().filter_map(|d| sizes[d.index()]).product();
    let unknown: Vec<DimId> = product.iter().copied().filter(|d| sizes[d.index()].is_none()).collect();
    match unknown[..] {
        [] if known == size => Ok(()),
        [one] if known > 0 && size % known == 0 => {
            sizes[one.index()] = Some(size / known);
            Ok(())
        }
        [_, _, ..] if !last => Ok(()),
        _ => Err(bad(text, "a product of dims does not have its tensor's size")),
    }
}

fn bad(text: &str, why: &str) -> Error {
    Error::new("SW0320", format!("the rule `{text}` is not valid")).why(why)
}

/// A rule's text before sizes are known.
struct Text {
    dims: Vec<Dim>,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    linear: Vec<Vec<usize>>,
}

impl Text {
    fn read(text: &str) -> Result<Text> {
        let mut clauses = text.split(';').map(str::trim);
        let body = clauses.next().unwrap_or_default();
        let (left, right) = body.split_once("->").ok_or_else(|| bad(text, "`->` is missing"))?;
        let mut read = Text { dims: vec![], inputs: vec![], outputs: vec![], linear: vec![] };
        read.inputs = read.operands(text, left)?;
        read.outputs = read.operands(text, right)?;
        for clause in clauses {
            let positions = clause
                .strip_prefix("linear")
                .ok_or_else(|| bad(text, "only `linear` clauses may follow `;`"))?;
            let parse = |word: &str| word.parse().map_err(|_| bad(text, "`linear` takes positions"));
            read.linear.push(positions.split_whitespace().map(parse).collect::<Result<_>>()?);
        }
        Ok(read)
    }

    fn operands(&mut self, text: &str, side: &str) -> Result<Vec<Operand>> {
        if side.trim().is_empty() {
            return Ok(vec![]);
        }
        side.split(',').map(|operand| self.operand(text, operand.trim())).collect()
    }

    fn operand(&mut self, text: &str, operand: &str) -> Result<Operand> {
        if operand == "-" {
            return Ok(Operand { absent: true, ..Operand::default() });
        }
        let (once, operand) = match operand.strip_prefix('!') {
            Some(rest) => (true, rest),
            None => (false, operand),
        };
        let spaced = operand.replace('(', " ( ").replace(')', " ) ");
        let mut dims = vec![];
        let mut product: Option<Vec<DimId>> = None;
        for word in spaced.split_whitespace() {
            match (word, &mut product) {
                ("(", None) => product = Some(vec![]),
                (")", Some(_)) => dims.extend(product.take()),
                ("(" | ")", _) => return Err(bad(text, "parentheses do not match")),
                ("1", None) => dims.push(vec![]),
                ("scalar", None) => {}
                (name, Some(inner)) => inner.push(self.name(text, name)?),
                (name, None) => dims.push(vec![self.name(text, name)?]),
            }
        }
        if product.is_some() {
            return Err(bad(text, "parentheses do not match"));
        }
        Ok(Operand { dims, once, absent: false })
    }

    fn name(&mut self, text: &str, word: &str) -> Result<DimId> {
        let name: String = word.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            return Err(bad(text, "a dim's name is made of letters, digits and `_`"));
        }
        let known = self.dims.iter().position(|d| d.name == name);
        let index = known.unwrap_or_else(|| {
            self.dims.push(Dim { name: name.clone(), size: 0, kind: Kind::Map, contiguous: false });
            self.dims.len() - 1
        });
        let dim = &mut self.dims[index];
        for mark in word[name.len()..].chars() {
            let kind = match mark {
                '~' => {
                    dim.contiguous = true;
                    continue;
                }
                '^' => Kind::Whole,
                '@' => Kind::Own,
                mark => match Reduction::MARKS.iter().find(|row| row.1 == mark) {
                    Some(row) => Kind::Reduce(row.0),
                    None => return Err(bad(text, "an unknown mark")),
                },
            };
            if dim.kind != Kind::Map && dim.kind != kind {
                return Err(bad(text, "a dim carries two different marks"));
            }
            dim.kind = kind;
        }
        Ok(DimId::new(index))
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let side = |operands: &[Operand]| {
            operands.iter().map(|o| self.operand_text(o)).collect::<Vec<_>>().join(", ")
        };
        write!(f, "{} -> {}", side(&self.inputs), side(&self.outputs))?;
        for set in &self.linear {
            let positions: Vec<String> = set.iter().map(ToString::to_string).collect();
            write!(f, " ; linear {}", positions.join(" "))?;
        }
        Ok(())
    }
}

impl Rule {
    fn operand_text(&self, operand: &Operand) -> String {
        if operand.absent {
            return "-".into();
        }
        let once = if operand.once { "!" } else { "" };
        if operand.dims.is_empty() {
            return format!("{once}scalar");
        }
        let term = |product: &Vec<DimId>| match product[..] {
            [] => "1".into(),
            [one] => self.dim_text(one),
            _ => {
                let inner: Vec<String> = product.iter().map(|d| self.dim_text(*d)).collect();
                format!("({})", inner.join(" "))
            }
        };
        let terms: Vec<String> = operand.dims.iter().map(term).collect();
        format!("{once}{}", terms.join(" "))
    }

    fn dim_text(&self, id: DimId) -> String {
        let dim = self.dim(id);
        let mut text = dim.name.clone();
        match dim.kind {
            Kind::Map => {}
            Kind::Reduce(reduction) => text.push(reduction.mark()),
            Kind::Whole => text.push('^'),
            Kind::Own => text.push('@'),
        }
        if dim.contiguous {
            text.push('~');
        }
        text
    }
}
