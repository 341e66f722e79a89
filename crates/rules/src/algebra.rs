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
//! A share of a value has a kind, the reduction that completes it. Clauses say through which kinds an operator
//! passes, so that it may be applied to shares of the operands that they name, jointly:
//!
//! | clause | shares of a sum | of a maximum | of a minimum | of `any` | of `all` |
//! | --- | --- | --- | --- | --- | --- |
//! | `; linear 0 1` | of a sum | - | - | - | - |
//! | `; rising 0 1` | - | of a maximum | of a minimum | of `any` | of `all` |
//! | `; falling 0` | - | of a minimum | of a maximum | of `all` | of `any` |
//!
//! `-`: the value is completed first. `; size h=8` gives a dim its size. Several clauses may follow each other.
//! `; found` says that nobody vouches for the rule: it was tried.
//!
//! `...` in place of a term stands for all dims that the other terms leave, the same ones in every operand
//! that has it.

use std::fmt;
use std::ops::Range;

use diag::Error;

graph::id!(
    /// A named dim of a rule.
    DimId
);

/// How partial results are completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
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

    /// What an order turned round makes of it.
    fn opposite(self) -> Self {
        match self {
            Reduction::Sum => Reduction::Sum,
            Reduction::Max => Reduction::Min,
            Reduction::Min => Reduction::Max,
            Reduction::Any => Reduction::All,
            Reduction::All => Reduction::Any,
        }
    }

    fn mark(self) -> char {
        Self::MARKS.iter().find(|row| row.0 == self).expect("every reduction has a mark").1
    }
}

/// How an operator treats shares of its operands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Through {
    /// `f(a + b) = f(a) + f(b)`.
    Linear,
    /// `f(max(a, b)) = max(f(a), f(b))`, and the same of minima.
    Rising,
    /// `f(max(a, b)) = min(f(a), f(b))`, and the other way round.
    Falling,
}

impl Through {
    const WORDS: [(Through, &'static str); 3] =
        [(Through::Linear, "linear"), (Through::Rising, "rising"), (Through::Falling, "falling")];

    fn word(self) -> &'static str {
        Self::WORDS.iter().find(|row| row.0 == self).expect("each has a word").1
    }

    /// Whether a clause that begins so says through which shares an operator passes.
    pub fn is_word(word: &str) -> bool {
        Self::WORDS.iter().any(|row| row.1 == word)
    }

    /// The kind of share that the operator makes of shares of this kind; `None` where it must be given the whole.
    pub fn gives(self, share: Reduction) -> Option<Reduction> {
        match (self, share) {
            (Through::Linear, Reduction::Sum) => Some(Reduction::Sum),
            (Through::Linear, _) | (_, Reduction::Sum) => None,
            (Through::Rising, share) => Some(share),
            (Through::Falling, share) => Some(share.opposite()),
        }
    }
}

/// Operands that an operator may be given shares of, jointly.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Passes {
    pub through: Through,
    pub operands: Vec<usize>,
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

/// Its mark.
impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Map => Ok(()),
            Kind::Reduce(reduction) => write!(f, "{}", reduction.mark()),
            Kind::Whole => f.write_str("^"),
            Kind::Own => f.write_str("@"),
        }
    }
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
    /// Through which shares of its operands the operator passes.
    pub passes: Vec<Passes>,
}

/// Why a text is no rule, and which bytes of it are to blame.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Invalid {
    pub why: String,
    pub at: Range<usize>,
}

impl Invalid {
    /// Of a rule that is called so.
    pub fn error(&self, named: &str, why: String) -> Error {
        Error::new("SW0320", format!("the rule {named} is not valid")).why(why)
    }

    /// The text with a caret under what is to blame.
    pub fn shown(&self, text: &str) -> String {
        let before = text[..self.at.start].chars().count();
        let wide = text[self.at.clone()].chars().count().max(1);
        format!("{text}\n{}{} {}", " ".repeat(before), "^".repeat(wide), self.why)
    }
}

type Result<T> = std::result::Result<T, Invalid>;

impl Rule {
    /// Reads a rule and gives its dims the sizes that the shapes imply. `inputs` has a shape per
    /// tensor argument, `outputs` a shape per output, `None` for an absent one.
    pub fn parse(text: &str, inputs: &[&[i64]], outputs: &[Option<&[i64]>]) -> diag::Result<Rule> {
        Self::read(text, inputs, outputs)
            .map_err(|invalid| invalid.error(&format!("`{text}`"), invalid.why.clone()))
    }

    /// The same, with the place of what is to blame.
    pub fn read(text: &str, inputs: &[&[i64]], outputs: &[Option<&[i64]>]) -> Result<Rule> {
        let shapes: Vec<Option<&[i64]>> =
            inputs.iter().map(|shape| Some(*shape)).chain(outputs.iter().copied()).collect();
        let ranks: Vec<Option<usize>> = shapes.iter().map(|shape| shape.map(<[i64]>::len)).collect();
        let read = Text::read(text, &ranks)?;
        read.count(&read.inputs, inputs.len(), &text[..read.arrow], "operands")?;
        read.count(&read.outputs, outputs.len(), &text[read.arrow + 2..read.end], "results")?;
        let sizes = read.sizes(&shapes)?;
        let dims = read.dims.iter().zip(sizes).map(|(dim, size)| Dim { size, ..dim.clone() }).collect();
        read.check()?;
        Ok(Rule { dims, inputs: read.inputs, outputs: read.outputs, passes: read.passes })
    }

    /// Sets of operands in which the operator is jointly linear.
    pub fn linear(&self) -> impl Iterator<Item = &Vec<usize>> {
        self.passes.iter().filter(|passes| passes.through == Through::Linear).map(|passes| &passes.operands)
    }

    pub fn dim(&self, id: DimId) -> &Dim {
        &self.dims[id.index()]
    }

    pub fn find(&self, name: &str) -> Option<DimId> {
        self.dims.iter().position(|d| d.name == name).map(DimId::new)
    }
}

fn bad(at: Range<usize>, why: impl Into<String>) -> Invalid {
    Invalid { why: why.into(), at }
}

/// Which bytes of a text a part of it is.
fn span(text: &str, part: &str) -> Range<usize> {
    let start = part.as_ptr() as usize - text.as_ptr() as usize;
    start..start + part.len()
}

/// A side's words; each parenthesis is one.
fn words(side: &str) -> Vec<&str> {
    let mut words = vec![];
    for mut word in side.split_whitespace() {
        while let Some(at) = word.find(['(', ')']) {
            words.extend([&word[..at], &word[at..=at]].into_iter().filter(|part| !part.is_empty()));
            word = &word[at + 1..];
        }
        words.extend(Some(word).filter(|word| !word.is_empty()));
    }
    words
}

const REST: &str = "...";
/// The clause of a rule that was tried, and that nobody has stated.
pub const FOUND: &str = "found";

/// A rule's text before sizes are known.
struct Text<'t> {
    text: &'t str,
    dims: Vec<Dim>,
    /// Where each dim is named first.
    named: Vec<Range<usize>>,
    inputs: Vec<Operand>,
    outputs: Vec<Operand>,
    /// Where each operand is, and each of its terms.
    places: Vec<(Range<usize>, Vec<Range<usize>>)>,
    passes: Vec<Passes>,
    given: Vec<(DimId, i64)>,
    arrow: usize,
    /// Where clauses begin.
    end: usize,
}

impl<'t> Text<'t> {
    /// `ranks` are the numbers of dims of the operands, inputs first, as far as they are known.
    fn read(text: &'t str, ranks: &[Option<usize>]) -> Result<Self> {
        let mut clauses = text.split(';');
        let body = clauses.next().unwrap_or_default();
        let Some(arrow) = body.find("->") else {
            return Err(bad(span(text, body.trim()), "`->` is missing"));
        };
        let mut read = Text {
            text,
            dims: vec![],
            named: vec![],
            inputs: vec![],
            outputs: vec![],
            places: vec![],
            passes: vec![],
            given: vec![],
            arrow,
            end: body.trim_end().len(),
        };
        read.inputs = read.operands(&body[..arrow], ranks)?;
        let left = ranks.get(read.inputs.len()..).unwrap_or_default();
        read.outputs = read.operands(&body[arrow + 2..], left)?;
        for clause in clauses {
            read.clause(clause.trim())?;
        }
        Ok(read)
    }

    fn span(&self, part: &str) -> Range<usize> {
        span(self.text, part)
    }

    fn count(&self, side: &[Operand], has: usize, text: &str, what: &str) -> Result<()> {
        let why = || format!("{what}: {}, where the operator has {has}", side.len());
        if side.len() == has { Ok(()) } else { Err(bad(self.span(text.trim()), why())) }
    }

    fn clause(&mut self, clause: &'t str) -> Result<()> {
        let (kind, rest) = clause.split_once(' ').unwrap_or((clause, ""));
        if let Some((through, _)) = Through::WORDS.iter().find(|row| row.1 == kind) {
            let operands = rest.split_whitespace().map(|word| self.position(word, kind));
            let operands = operands.collect::<Result<_>>()?;
            self.passes.push(Passes { through: *through, operands });
            return Ok(());
        }
        match kind {
            "size" => {
                for word in rest.split_whitespace() {
                    let given = self.given_size(word)?;
                    self.given.push(given);
                }
            }
            FOUND if rest.is_empty() => {}
            _ => {
                return Err(bad(
                    self.span(kind),
                    "only `linear`, `rising`, `falling` and `size` clauses may follow `;`",
                ));
            }
        }
        Ok(())
    }

    fn position(&self, word: &str, clause: &str) -> Result<usize> {
        let why = |what: &str| bad(self.span(word), format!("`{clause}` {what}"));
        let at: usize = word.parse().map_err(|_| why("takes positions"))?;
        let known = at < self.inputs.len();
        known.then_some(at).ok_or_else(|| why("names an operand that does not exist"))
    }

    fn given_size(&self, word: &str) -> Result<(DimId, i64)> {
        let given = word.split_once('=').and_then(|(name, size)| Some((name, size.parse().ok()?)));
        let (name, size) = given.ok_or_else(|| bad(self.span(word), "`size` takes dims, as `h=8`"))?;
        let known = self.dims.iter().position(|dim| dim.name == name);
        let id = known.ok_or_else(|| bad(self.span(name), "no operand has this dim"))?;
        Ok((DimId::new(id), size))
    }

    fn operands(&mut self, side: &'t str, ranks: &[Option<usize>]) -> Result<Vec<Operand>> {
        if side.trim().is_empty() {
            return Ok(vec![]);
        }
        let rank = |at: usize| ranks.get(at).copied().flatten();
        side.split(',').enumerate().map(|(at, operand)| self.operand(operand.trim(), rank(at))).collect()
    }

    fn operand(&mut self, operand: &'t str, rank: Option<usize>) -> Result<Operand> {
        self.places.push((self.span(operand), vec![]));
        if operand == "-" {
            return Ok(Operand { absent: true, ..Operand::default() });
        }
        let once = operand.starts_with('!');
        let words = words(operand.strip_prefix('!').unwrap_or(operand));
        let mut dims = vec![];
        let mut product: Option<(Vec<DimId>, usize)> = None;
        for word in &words {
            let at = self.span(word);
            match (*word, &mut product) {
                ("(", None) => product = Some((vec![], at.start)),
                (")", Some(_)) => {
                    let (inner, start) = product.take().expect("a product is open");
                    self.term(&mut dims, inner, start..at.end);
                }
                ("(" | ")", _) => return Err(bad(at, "parentheses do not match")),
                ("1", None) => self.term(&mut dims, vec![], at),
                ("scalar", None) => {}
                (REST, None) => {
                    for dim in 0..rest(&words, rank) {
                        let id = self.dim_of(&format!("_{dim}"), at.clone());
                        self.term(&mut dims, vec![id], at.clone());
                    }
                }
                (name, Some((inner, _))) => inner.push(self.name(name)?),
                (name, None) => {
                    let id = self.name(name)?;
                    self.term(&mut dims, vec![id], at);
                }
            }
        }
        match product {
            Some((_, start)) => Err(bad(start..start + 1, "parentheses do not match")),
            None => Ok(Operand { dims, once, absent: false }),
        }
    }

    fn term(&mut self, dims: &mut Vec<Vec<DimId>>, product: Vec<DimId>, at: Range<usize>) {
        dims.push(product);
        self.places.last_mut().expect("an operand is read").1.push(at);
    }

    /// The dim of this name, known or new.
    fn dim_of(&mut self, name: &str, at: Range<usize>) -> DimId {
        let known = self.dims.iter().position(|dim| dim.name == name);
        DimId::new(known.unwrap_or_else(|| {
            self.dims.push(Dim { name: name.into(), size: 0, kind: Kind::Map, contiguous: false });
            self.named.push(at);
            self.dims.len() - 1
        }))
    }

    fn name(&mut self, word: &'t str) -> Result<DimId> {
        let at = self.span(word);
        let name: String = word.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect();
        if name.is_empty() {
            return Err(bad(at, "a dim's name is made of letters, digits and `_`"));
        }
        if name.starts_with('_') && self.text.contains(REST) {
            return Err(bad(at, "with `...`, no dim's name may begin with `_`"));
        }
        let id = self.dim_of(&name, at.clone());
        let dim = &mut self.dims[id.index()];
        for (offset, mark) in word[name.len()..].char_indices() {
            let from = at.start + name.len() + offset;
            let here = from..from + mark.len_utf8();
            let kind = match mark {
                '~' => {
                    dim.contiguous = true;
                    continue;
                }
                '^' => Kind::Whole,
                '@' => Kind::Own,
                mark => match Reduction::MARKS.iter().find(|row| row.1 == mark) {
                    Some(row) => Kind::Reduce(row.0),
                    None => return Err(bad(here, "an unknown mark")),
                },
            };
            if dim.kind != Kind::Map && dim.kind != kind {
                return Err(bad(here, "a dim carries two different marks"));
            }
            dim.kind = kind;
        }
        Ok(id)
    }

    /// The sizes of all dims.
    fn sizes(&self, shapes: &[Option<&[i64]>]) -> Result<Vec<i64>> {
        let mut sizes = vec![None; self.dims.len()];
        for (dim, size) in &self.given {
            sizes[dim.index()] = Some(*size);
        }
        let operands = || self.inputs.iter().chain(&self.outputs).zip(shapes).zip(&self.places);
        let known = || operands().filter_map(|((operand, shape), place)| Some((operand, (*shape)?, place)));
        // Single names first, then what is left of each product.
        for (operand, shape, (at, terms)) in known().filter(|(operand, ..)| !operand.absent) {
            if operand.dims.len() != shape.len() {
                let why = format!("{} dims, where its tensor is {shape:?}", operand.dims.len());
                return Err(bad(at.clone(), why));
            }
            for ((product, &size), at) in operand.dims.iter().zip(shape).zip(terms) {
                if let [one] = product[..] {
                    unify(&mut sizes[one.index()], size, at)?;
                }
            }
        }
        // One operand may leave what another one tells, so in rounds until nothing new is known.
        let mut num_known = usize::MAX;
        loop {
            let before = std::mem::replace(&mut num_known, sizes.iter().flatten().count());
            for (operand, shape, (_, terms)) in known() {
                for ((product, &size), at) in operand.dims.iter().zip(shape).zip(terms) {
                    solve(product, size, &mut sizes, before == num_known, at)?;
                }
            }
            if before == num_known {
                break;
            }
        }
        let known = |(size, at): (Option<i64>, &Range<usize>)| {
            size.ok_or_else(|| bad(at.clone(), "a dim's size cannot be inferred"))
        };
        sizes.into_iter().zip(&self.named).map(known).collect()
    }

    fn check(&self) -> Result<()> {
        for (index, (dim, at)) in self.dims.iter().zip(&self.named).enumerate() {
            let id = DimId::new(index);
            let read = self.inputs.iter().any(|o| o.has(id));
            let written = self.outputs.iter().any(|o| o.has(id));
            let everywhere = self.outputs.iter().all(|o| o.absent || o.has(id));
            let why = match dim.kind {
                Kind::Reduce(_) if written => "a reduced dim appears in an output",
                Kind::Map if written && !everywhere => "a mapped dim must appear in every output",
                Kind::Map if read && !written => "a dim that only inputs have needs a mark",
                _ => continue,
            };
            return Err(bad(at.clone(), why));
        }
        self.one_reduction()?;
        let twice = |operand: &Operand| {
            let mut seen: Vec<DimId> = operand.dims.iter().flatten().copied().collect();
            seen.sort_unstable();
            seen.windows(2).any(|pair| pair[0] == pair[1])
        };
        let mut operands = self.inputs.iter().chain(&self.outputs).zip(&self.places);
        match operands.find(|(operand, _)| twice(operand)) {
            Some((_, (at, _))) => Err(bad(at.clone(), "a dim appears twice in one operand")),
            None => Ok(()),
        }
    }
}

impl Text<'_> {
    /// A share has one kind, so the reduced dims of a rule have one.
    fn one_reduction(&self) -> Result<()> {
        let reduction =
            |dim: &Dim| if let Kind::Reduce(reduction) = dim.kind { Some(reduction) } else { None };
        let first = self.dims.iter().find_map(reduction);
        let other = self.dims.iter().position(|dim| reduction(dim).is_some_and(|kind| Some(kind) != first));
        other.map_or(Ok(()), |at| Err(bad(self.named[at].clone(), "dims are reduced in two different ways")))
    }
}

/// How many dims `...` stands for.
fn rest(words: &[&str], rank: Option<usize>) -> usize {
    let mut depth = 0_usize;
    let others = words.iter().filter(|word| {
        let outer = depth == 0 && !["scalar", REST].contains(word);
        match **word {
            "(" => depth += 1,
            ")" => depth = depth.saturating_sub(1),
            _ => {}
        }
        outer && **word != ")"
    });
    rank.unwrap_or_default().saturating_sub(others.count())
}

fn unify(slot: &mut Option<i64>, size: i64, at: &Range<usize>) -> Result<()> {
    match slot {
        Some(known) if *known != size => {
            Err(bad(at.clone(), format!("a dim has two different sizes, {known} and {size}")))
        }
        _ => {
            *slot = Some(size);
            Ok(())
        }
    }
}

/// Gives the one unknown dim of a product the size that is left. Several unknown ones are refused
/// in the last round.
fn solve(
    product: &[DimId],
    size: i64,
    sizes: &mut [Option<i64>],
    last: bool,
    at: &Range<usize>,
) -> Result<()> {
    let known: i64 = product.iter().filter_map(|d| sizes[d.index()]).product();
    let unknown: Vec<DimId> = product.iter().copied().filter(|d| sizes[d.index()].is_none()).collect();
    match unknown[..] {
        [] if known == size => Ok(()),
        [one] if known > 0 && size % known == 0 => {
            sizes[one.index()] = Some(size / known);
            Ok(())
        }
        [_, _, ..] if !last => Ok(()),
        [] => Err(bad(at.clone(), format!("a product of {known}, where its tensor has {size}"))),
        [_] => Err(bad(at.clone(), format!("{known} does not divide its tensor's size, {size}"))),
        _ => Err(bad(at.clone(), format!("of a product of {size} the sizes of several dims are unknown"))),
    }
}

/// Whether a text is a rule as far as that can be said without shapes.
pub fn check_grammar(text: &str) -> Result<()> {
    Text::read(text, &[])?.check()
}

/// Whether a rule's text says that it was found by trying.
pub fn was_found(text: &str) -> bool {
    text.split(';').skip(1).any(|clause| clause.trim() == FOUND)
}

/// Refuses a text that says so, which only whoever tried it may.
pub fn refuse_found(text: &str) -> Result<()> {
    let claim = text.split(';').skip(1).find(|clause| clause.trim() == FOUND);
    match claim {
        Some(clause) => Err(bad(span(text, clause.trim()), "only a rule that is found by trying says so")),
        None => Ok(()),
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_sizes())?;
        self.untold(&[]).iter().try_for_each(|(name, size)| write!(f, " ; size {name}={size}"))
    }
}

impl Rule {
    /// Its text but for sizes that shapes do not tell.
    pub fn without_sizes(&self) -> String {
        let side = |operands: &[Operand]| {
            operands.iter().map(|o| self.operand_text(o)).collect::<Vec<_>>().join(", ")
        };
        let mut text = format!("{} -> {}", side(&self.inputs), side(&self.outputs));
        for Passes { through, operands } in &self.passes {
            let positions: Vec<String> = operands.iter().map(ToString::to_string).collect();
            text += &format!(" ; {} {}", through.word(), positions.join(" "));
        }
        text
    }

    /// Dims that are always beside others in a product whose sizes are not told; of two the whole one is.
    pub fn untold(&self, sizes: &[(String, i64)]) -> Vec<(String, i64)> {
        let products = || self.inputs.iter().chain(&self.outputs).flat_map(|operand| &operand.dims);
        let is_told = |dim: &Dim| sizes.iter().any(|(name, _)| *name == dim.name);
        let mut known: Vec<bool> = self.dims.iter().map(is_told).collect();
        let mut given = vec![];
        loop {
            let unknown = |product: &Vec<DimId>, known: &[bool]| -> Vec<DimId> {
                product.iter().copied().filter(|dim| !known[dim.index()]).collect()
            };
            let left: Vec<Vec<DimId>> =
                products().map(|product| unknown(product, &known)).filter(|left| !left.is_empty()).collect();
            let Some(first) = left.iter().find(|left| left.len() == 1).or(left.first()) else { return given };
            let whole = first.iter().find(|dim| self.dim(**dim).kind == Kind::Whole);
            let dim = *whole.unwrap_or(&first[0]);
            known[dim.index()] = true;
            if first.len() > 1 {
                given.push((self.dim(dim).name.clone(), self.dim(dim).size));
            }
        }
    }

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
        text += &dim.kind.to_string();
        if dim.contiguous {
            text.push('~');
        }
        text
    }
}
