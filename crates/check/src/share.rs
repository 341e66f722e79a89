//! Which share of a value, or of a gradient, a buffer holds.
//!
//! A share is made of terms, all of one kind: the reduction by which shares are completed. What follows is said of
//! sums, and holds of maxima and the like, of which several may overlap.
//!
//! A share is a sum of terms. A term of a value says which part of its producer's reduced loops is
//! in; a term of a gradient names one use of the tensor, and the part of the using operator's loops
//! that the tensor does not carry. Where an operator was applied to partial operands, the term also
//! names their shares. A share is complete when every cell of every space is covered exactly once.

use std::cmp::Ordering;

use graph::{OpId, TensorId};
use hashing::Map;
use rules::{Interval, Reduction};

use crate::facts::{Facts, Use};
use crate::intern::Lists;
use crate::region::is_any;
use crate::sweep::sweep;
use crate::tiling;

pub(crate) type ListId = u32;
pub(crate) type ShareId = u32;
type TermId = u32;

pub(crate) const EMPTY: ShareId = 0;
pub(crate) const WHOLE: ShareId = 1;
/// The box that is all of its space.
pub(crate) const FULL: ListId = 0;
/// An entry that holds everywhere in the buffer's region.
const EVERYWHERE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Owner {
    /// Complete by itself.
    Whole,
    /// A part of what this operator produces.
    LocalPart(OpId),
    /// A contribution to the gradient by this use.
    Use(u32),
}

/// What the lists of shares in [`Term::subs`] belong to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) enum Mode {
    /// Nothing: all operands are complete.
    Plain,
    /// The gradients of the operator's outputs.
    Outputs,
    /// The operands of this clause of the rule, through which shares of their kind pass.
    Clause(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Term {
    pub(crate) owner: Owner,
    pub(crate) cut: ListId,
    pub(crate) mode: Mode,
    pub(crate) subs: ListId,
    /// Whether what is added once is in, if operands are partial.
    pub(crate) once: bool,
    /// By which reduction it is put together with others.
    pub(crate) kind: Reduction,
}

/// One cut made of three, which have as many intervals.
pub(crate) type Combine<'c> = &'c mut dyn FnMut([&[Interval]; 3]) -> Option<Vec<Interval>>;

/// A term, and where in the buffer it holds: a region, or everywhere.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Entry {
    support: u32,
    term: TermId,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    Complete,
    /// Nothing covers this cell.
    Missing(Owner, ListId),
    Twice(Owner, ListId),
}

/// A tensor's value, or its gradient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Quantity {
    pub(crate) tensor: TensorId,
    pub(crate) grad: bool,
}

pub(crate) struct Store {
    /// Regions, boxes, and the intervals of operators' loops.
    pub(crate) intervals: Lists<Interval>,
    subs: Lists<ShareId>,
    shares: Lists<Entry>,
    terms: Vec<Term>,
    numbers: Map<Term, TermId>,
    verdicts: Vec<Option<Verdict>>,
    /// Whether what was found complete had something several times, as a maximum may.
    pub(crate) overlaps: bool,
    /// Whether a part was read of what is not the same everywhere: another part of it may be nothing.
    pub(crate) partly_read: bool,
    room: Vec<Interval>,
}

impl Store {
    pub(crate) fn new() -> Self {
        let mut store = Self {
            intervals: Lists::new(),
            subs: Lists::new(),
            shares: Lists::new(),
            terms: vec![],
            numbers: Map::default(),
            verdicts: vec![],
            overlaps: false,
            partly_read: false,
            room: vec![],
        };
        let whole = Term {
            owner: Owner::Whole,
            cut: FULL,
            mode: Mode::Plain,
            subs: 0,
            once: true,
            kind: Reduction::Sum,
        };
        let whole = store.share(whole);
        debug_assert_eq!(whole, WHOLE);
        store
    }

    pub(crate) fn region(&self, id: ListId) -> &[Interval] {
        self.intervals.get(id)
    }

    pub(crate) fn is_void(&self, region: ListId) -> bool {
        self.region(region).iter().any(|i| i.is_empty())
    }

    /// The region of an operand, given the intervals of its operator's loops.
    pub(crate) fn part(
        &mut self,
        facts: &Facts<'_>,
        tensor: TensorId,
        carried: &[Option<usize>],
        at: &[Interval],
    ) -> ListId {
        let mut region = std::mem::take(&mut self.room);
        region.clear();
        let factors = &facts.flat[tensor.index()];
        region
            .extend(factors.iter().zip(carried).map(|(&size, l)| l.map_or(Interval::whole(size), |l| at[l])));
        let number = self.intervals.number(&region);
        self.room = region;
        number
    }

    /// A box, given the size of its space.
    pub(crate) fn cut(&mut self, intervals: &[Interval], sizes: &[i64]) -> ListId {
        let full = intervals.iter().zip(sizes).all(|(i, &size)| i.lo == 0 && i.hi == size);
        if full { FULL } else { self.intervals.number(intervals) }
    }

    pub(crate) fn list(&mut self, shares: &[ShareId]) -> ListId {
        self.subs.number(shares)
    }

    /// Whether all shares of a list are nothing: a linear operator makes nothing of them.
    pub(crate) fn are_nothing(&self, list: ListId) -> bool {
        self.subs.get(list).iter().all(|share| *share == EMPTY)
    }

    /// The share that is this one term.
    pub(crate) fn share(&mut self, term: Term) -> ShareId {
        let number = match self.numbers.get(&term) {
            Some(&known) => known,
            None => {
                let number = u32::try_from(self.terms.len()).expect("fewer than 2^32 terms");
                self.terms.push(term);
                self.numbers.insert(term, number);
                number
            }
        };
        self.shares.number(&[Entry { support: EVERYWHERE, term: number }])
    }

    /// The same, made complete if it is: the one use of a tensor, whole, is its gradient.
    pub(crate) fn contribution(&mut self, facts: &Facts<'_>, tensor: TensorId, term: Term) -> ShareId {
        let all = term.cut == FULL && term.mode == Mode::Plain;
        if all && facts.uses_of(tensor).len() == 1 { WHOLE } else { self.share(term) }
    }

    pub(crate) fn is_everywhere(&self, share: ShareId) -> bool {
        self.shares.get(share).iter().all(|entry| entry.support == EVERYWHERE)
    }

    /// What is left of a share in a smaller region.
    pub(crate) fn within(&mut self, share: ShareId, region: ListId) -> ShareId {
        if self.is_everywhere(share) {
            return share;
        }
        self.partly_read = true;
        let entries = self.shares.get(share).clone();
        let mut left = vec![];
        for entry in entries.iter() {
            let support = match entry.support {
                EVERYWHERE => EVERYWHERE,
                support => {
                    let met = self.meet(support, region);
                    if self.is_void(met) {
                        continue;
                    }
                    if met == region { EVERYWHERE } else { met }
                }
            };
            left.push(Entry { support, ..*entry });
        }
        left.sort_unstable();
        self.shares.number(&left)
    }

    fn meet(&mut self, a: ListId, b: ListId) -> ListId {
        let pairs = self.region(a).iter().zip(self.region(b));
        let met: Vec<Interval> = pairs.map(|(a, b)| a.meet(*b)).collect();
        self.intervals.number(&met)
    }

    /// A share of `from` put into the larger region `to`, with nothing around it.
    pub(crate) fn placed(&mut self, share: ShareId, from: ListId, to: ListId) -> ShareId {
        if from == to {
            return share;
        }
        if self.is_void(from) {
            return EMPTY;
        }
        let place = |entry: &Entry| match entry.support {
            EVERYWHERE => Entry { support: from, ..*entry },
            _ => *entry,
        };
        let mut entries: Vec<Entry> = self.shares.get(share).iter().map(place).collect();
        entries.sort_unstable();
        self.shares.number(&entries)
    }

    /// Whether it is not known where in a region a part of it lies.
    pub(crate) fn is_somewhere(&self, part: ListId, region: ListId) -> bool {
        let mut pairs = self.region(part).iter().zip(self.region(region));
        pairs.any(|(part, whole)| is_any(*part) && part != whole)
    }

    /// The sum of shares of one region, if nothing is in it twice.
    pub(crate) fn sum(
        &mut self,
        facts: &Facts<'_>,
        quantity: Quantity,
        region: ListId,
        shares: &[ShareId],
    ) -> Result<ShareId, Verdict> {
        let mut filled = shares.iter().copied().filter(|share| *share != EMPTY);
        let joined = match (filled.next(), filled.next()) {
            (None, _) => EMPTY,
            (Some(only), None) => only,
            _ => self.union(shares),
        };
        match self.verdict(facts, quantity, region, joined) {
            Verdict::Complete => Ok(WHOLE),
            Verdict::Missing(..) => Ok(self.joined_up(region, joined)),
            twice => Err(twice),
        }
    }

    /// A term whose supports fill the region, each place once, holds everywhere. One that is one of several equal parts may
    /// be in the share several times, and in one place more often than in another: so sizes alone do not tell.
    fn joined_up(&mut self, region: ListId, share: ShareId) -> ShareId {
        if self.is_everywhere(share) {
            return share;
        }
        let size = |list: &[Interval]| list.iter().map(|i| i.len()).product::<i64>();
        let mut supports: Map<TermId, Vec<&[Interval]>> = Map::default();
        let entries = self.shares.get(share).clone();
        for entry in entries.iter().filter(|entry| entry.support != EVERYWHERE) {
            supports.entry(entry.term).or_default().push(self.region(entry.support));
        }
        let frame = self.region(region);
        supports.retain(|_, boxes| {
            boxes.iter().map(|&list| size(list)).sum::<i64>() == size(frame)
                && sweep(frame, boxes, &mut |inside, _| (inside.len() != 1).then_some(())).is_none()
        });
        let fills = |entry: &Entry| entry.support != EVERYWHERE && supports.contains_key(&entry.term);
        let mut joined: Vec<Entry> =
            entries.iter().filter(|e| fills(e)).map(|e| Entry { support: EVERYWHERE, ..*e }).collect();
        joined.sort_unstable();
        joined.dedup();
        let mut left: Vec<Entry> = entries.iter().filter(|e| !fills(e)).copied().chain(joined).collect();
        left.sort_unstable();
        self.shares.number(&left)
    }

    /// Three shares that differ only in the cuts of their terms, or of what these are partial in, as one whose cuts
    /// are made of theirs. `both`: also where a term's own cut and what it is partial in differ. Else what is the same in all
    /// three stands for more of it, so none of it may lie anywhere: another one would lie beside it.
    pub(crate) fn combine(&mut self, shares: [ShareId; 3], both: bool, cut: Combine<'_>) -> Option<ShareId> {
        if shares[0] == shares[1] && shares[1] == shares[2] {
            return (both || !self.is_open(shares[0])).then_some(shares[0]);
        }
        let mut entries = shares.map(|share| self.shares.get(share).to_vec());
        let key = |entry: &Entry| {
            let Term { owner, mode, once, kind, .. } = self.terms[entry.term as usize];
            (owner, mode, once, kind, entry.support)
        };
        entries.iter_mut().for_each(|entries| entries.sort_by_key(key));
        let [first, second, third] = &entries;
        let symmetric = |(a, (b, c)): (&Entry, (&Entry, &Entry))| {
            key(a) == key(b) && key(a) == key(c) && a.support == EVERYWHERE
        };
        let same_length = first.len() == second.len() && first.len() == third.len();
        if !same_length || !first.iter().zip(second.iter().zip(third)).all(symmetric) {
            return None;
        }
        let mut all = vec![];
        for ((a, b), c) in first.iter().zip(second).zip(third) {
            let terms = [a, b, c].map(|entry| self.terms[entry.term as usize]);
            let term = self.combined(terms, both, cut)?;
            let share = self.share(term);
            all.extend(self.shares.get(share).iter().copied());
        }
        all.sort_unstable();
        Some(self.shares.number(&all))
    }

    fn combined(&mut self, terms: [Term; 3], both: bool, cut: Combine<'_>) -> Option<Term> {
        let [first, second, third] = terms;
        let same_cut = first.cut == second.cut && second.cut == third.cut;
        let same_subs = first.subs == second.subs && second.subs == third.subs;
        let is_same = same_cut && same_subs;
        if !both && (!same_cut && !same_subs || is_same && self.is_open_term(first)) {
            return None;
        }
        let mut made = first;
        if !same_cut {
            let cuts = terms.map(|term| &**self.intervals.get(term.cut));
            if cuts.iter().any(|cut| cut.len() != cuts[0].len()) {
                return None;
            }
            let list = cut(cuts)?;
            made.cut = self.intervals.number(&list);
        }
        if !same_subs {
            let [a, b, c] = terms.map(|term| self.subs.get(term.subs).to_vec());
            if a.len() != b.len() || b.len() != c.len() {
                return None;
            }
            let each = a.iter().zip(b).zip(c).map(|((a, b), c)| self.combine([*a, b, c], both, cut));
            let list: Vec<ShareId> = each.collect::<Option<_>>()?;
            made.subs = self.list(&list);
        }
        Some(made)
    }

    /// The same share, of whose terms those are one that differ in one interval, and follow each other in it.
    pub(crate) fn neighbours_as_one(&mut self, share: ShareId) -> ShareId {
        let (everywhere, mut entries): (Vec<Entry>, Vec<Entry>) =
            self.shares.get(share).iter().partition(|entry| entry.support == EVERYWHERE);
        let mut terms: Vec<Term> = everywhere.iter().map(|entry| self.terms[entry.term as usize]).collect();
        terms.sort_by_key(|term| (term.owner, term.mode, term.once, term.subs, self.region(term.cut)));
        let mut joined: Vec<Term> = vec![];
        for term in terms {
            let cut = |last: &Term| {
                let symmetric = Term { cut: last.cut, ..term } == *last;
                symmetric.then(|| one_box(self.region(last.cut), self.region(term.cut))).flatten()
            };
            match joined.last().and_then(cut) {
                Some(cut) => joined.last_mut().expect("one").cut = self.intervals.number(&cut),
                None => joined.push(term),
            }
        }
        for term in joined {
            let share = self.share(term);
            entries.extend(self.shares.get(share).iter().copied());
        }
        entries.sort_unstable();
        self.shares.number(&entries)
    }

    /// Whether some of it may lie anywhere.
    fn is_open(&self, share: ShareId) -> bool {
        self.shares.get(share).iter().any(|entry| self.is_open_term(self.terms[entry.term as usize]))
    }

    fn is_open_term(&self, term: Term) -> bool {
        let is_open = |share: &ShareId| self.is_open(*share);
        self.region(term.cut).iter().any(|interval| is_any(*interval))
            || self.subs.get(term.subs).iter().any(is_open)
    }

    fn union(&mut self, shares: &[ShareId]) -> ShareId {
        let mut entries: Vec<Entry> =
            shares.iter().flat_map(|share| self.shares.get(*share).iter().copied()).collect();
        entries.sort_unstable();
        self.shares.number(&entries)
    }

    /// The kinds of its terms: none of what is nothing, one of what is whole.
    pub(crate) fn kinds(&self, share: ShareId) -> impl Iterator<Item = Reduction> {
        self.shares.get(share).iter().map(|entry| self.terms[entry.term as usize].kind)
    }

    /// The one kind of a share; of what is nothing that of a sum, in which it is a zero.
    pub(crate) fn kind(&self, share: ShareId) -> Option<Reduction> {
        let mut kinds = self.kinds(share);
        let first = kinds.next().unwrap_or(Reduction::Sum);
        kinds.all(|kind| kind == first).then_some(first)
    }

    /// Whether a share is all of a value or gradient, in its region.
    pub(crate) fn verdict(
        &mut self,
        facts: &Facts<'_>,
        quantity: Quantity,
        region: ListId,
        share: ShareId,
    ) -> Verdict {
        if share == WHOLE || self.is_void(region) {
            return Verdict::Complete;
        }
        if self.is_everywhere(share) {
            return self.flat(facts, quantity, share);
        }
        let entries = self.shares.get(share).clone();
        let frame = self.intervals.get(region).clone();
        let supports: Vec<ListId> =
            entries.iter().map(|e| if e.support == EVERYWHERE { region } else { e.support }).collect();
        let lists: Vec<_> = supports.iter().map(|s| self.intervals.get(*s).clone()).collect();
        let boxes: Vec<&[Interval]> = lists.iter().map(|list| &list[..]).collect();
        let mut missing = Verdict::Complete;
        let twice = sweep(&frame, &boxes, &mut |inside, _| {
            let mut left: Vec<Entry> =
                inside.iter().map(|&i| Entry { support: EVERYWHERE, ..entries[i] }).collect();
            left.sort_unstable();
            let share = self.shares.number(&left);
            match self.flat(facts, quantity, share) {
                Verdict::Complete => None,
                lack @ Verdict::Missing(..) => {
                    missing = lack;
                    None
                }
                twice => Some(twice),
            }
        });
        twice.unwrap_or(missing)
    }

    fn flat(&mut self, facts: &Facts<'_>, quantity: Quantity, share: ShareId) -> Verdict {
        // However often zeros are added, the sum is the same.
        if quantity.grad && facts.has_zero_gradient(quantity.tensor) {
            return Verdict::Complete;
        }
        if let Some(Some(known)) = self.verdicts.get(share as usize).filter(|_| share != EMPTY) {
            return *known;
        }
        let verdict = self.judge(facts, quantity, share);
        if self.verdicts.len() <= share as usize {
            self.verdicts.resize(share as usize + 1, None);
        }
        self.verdicts[share as usize] = Some(verdict);
        verdict
    }

    fn judge(&mut self, facts: &Facts<'_>, quantity: Quantity, share: ShareId) -> Verdict {
        let entries = self.shares.get(share).clone();
        let mut terms: Vec<Term> = entries.iter().map(|e| self.terms[e.term as usize]).collect();
        terms.sort_by_key(|term| term.owner);
        if terms.first().is_some_and(|term| term.owner == Owner::Whole) {
            let last = terms[terms.len() - 1];
            return if terms.len() == 1 { Verdict::Complete } else { Verdict::Twice(last.owner, last.cut) };
        }
        let owners: Vec<Owner> = match (quantity.grad, facts.producer(quantity.tensor)) {
            (true, _) => facts.uses_of(quantity.tensor).iter().map(|&u| Owner::Use(u)).collect(),
            (false, Some(op)) => vec![Owner::LocalPart(op)],
            (false, None) => return Verdict::Missing(Owner::Whole, FULL),
        };
        let mut missing = Verdict::Complete;
        for owner in owners {
            let from = terms.partition_point(|term| term.owner < owner);
            let to = terms.partition_point(|term| term.owner <= owner);
            match self.cover(facts, owner, &terms[from..to]) {
                Verdict::Complete => {}
                Verdict::Missing(..) if missing != Verdict::Complete => {}
                lack @ Verdict::Missing(..) => missing = lack,
                twice => return twice,
            }
        }
        missing
    }

    fn cover(&mut self, facts: &Facts<'_>, owner: Owner, terms: &[Term]) -> Verdict {
        if matches!(owner, Owner::Use(number) if facts.is_zero(number)) {
            return Verdict::Complete;
        }
        if terms.is_empty() {
            return Verdict::Missing(owner, FULL);
        }
        if terms.iter().all(|term| term.cut == FULL) {
            return self.cell(facts, owner, terms, true);
        }
        let space: Vec<Interval> = sizes(facts, owner).into_iter().map(Interval::whole).collect();
        let cut = |term: &Term| match self.intervals.get(term.cut) {
            list if list.is_empty() => space.clone(),
            // Of a maximum, or the like, of what is the same everywhere each part is all.
            list if term.kind != Reduction::Sum => {
                let all = |(i, whole): (&Interval, &Interval)| {
                    if is_any(*i) && !i.is_empty() { *whole } else { *i }
                };
                list.iter().zip(&space).map(all).collect()
            }
            list => list.to_vec(),
        };
        let mut placed: Vec<Vec<Interval>> = terms.iter().map(cut).collect();
        let is_sum = |term: &Term| term.mode == Mode::Plain && term.kind == Reduction::Sum;
        if let (Owner::LocalPart(op), true) = (owner, terms.iter().all(is_sum)) {
            // Where something is added once, it matters which part is the first.
            let is_open = !has_once(facts, op);
            if let Some(verdict) = is_open.then(|| self.counted(facts, op, &placed, &space)).flatten() {
                return verdict;
            }
        }
        tiling::normalise(&mut placed, &space);
        let boxes: Vec<&[Interval]> = placed.iter().map(|list| &list[..]).collect();
        let mut missing = Verdict::Complete;
        let twice = sweep(&space, &boxes, &mut |inside, cell| {
            let here: Vec<Term> = inside.iter().map(|&i| terms[i]).collect();
            let origin = cell.iter().all(|i| i.lo == 0);
            match self.cell(facts, owner, &here, origin) {
                Verdict::Missing(owner, _) => {
                    if missing == Verdict::Complete {
                        missing = Verdict::Missing(owner, self.intervals.number(cell));
                    }
                    None
                }
                Verdict::Twice(owner, _) => Some(Verdict::Twice(owner, self.intervals.number(cell))),
                Verdict::Complete => None,
            }
        });
        twice.unwrap_or(missing)
    }

    /// Along loops in which a part may lie anywhere all elements are the same: only how many are summed counts.
    fn counted(
        &mut self,
        facts: &Facts<'_>,
        op: OpId,
        boxes: &[Vec<Interval>],
        space: &[Interval],
    ) -> Option<Verdict> {
        let (owner, loops) = (Owner::LocalPart(op), &facts.analysis.op(op).loops);
        let reduced = &facts.op(op).reduced;
        let is_open = |d: usize| boxes.iter().any(|b| is_any(b[d]));
        let dims: Vec<_> = (0..space.len()).filter(|&d| is_open(d)).map(|d| loops[reduced[d]].dim).collect();
        // Of a dim's factors one may be all there: which of them is divided cannot be told from how many there are.
        let (open, closed): (Vec<usize>, Vec<usize>) = (0..space.len()).partition(|&d| {
            is_open(d) || dims.contains(&loops[reduced[d]].dim) && facts.is_same_along(op, reduced[d])
        });
        if open.is_empty() {
            return None;
        }
        let count = |list: &[Interval]| open.iter().map(|&d| list[d].len()).product::<i64>();
        let of_closed = |list: &[Interval]| closed.iter().map(|&d| list[d]).collect::<Vec<_>>();
        let parts: Vec<Vec<Interval>> = boxes.iter().map(|b| of_closed(b)).collect();
        let parts: Vec<&[Interval]> = parts.iter().map(|part| &part[..]).collect();
        let mut missing = Verdict::Complete;
        let twice = sweep(&of_closed(space), &parts, &mut |inside, cell| {
            let summed: i64 = inside.iter().map(|&i| count(&boxes[i])).sum();
            let mut here = || {
                let mut whole = space.to_vec();
                closed.iter().zip(cell).for_each(|(&d, i)| whole[d] = *i);
                self.intervals.number(&whole)
            };
            match summed.cmp(&count(space)) {
                Ordering::Greater => return Some(Verdict::Twice(owner, here())),
                Ordering::Less => missing = Verdict::Missing(owner, here()),
                Ordering::Equal => {}
            }
            None
        });
        Some(twice.unwrap_or(missing))
    }

    /// Whether the terms that cover one cell are one whole.
    fn cell(&mut self, facts: &Facts<'_>, owner: Owner, terms: &[Term], origin: bool) -> Verdict {
        let Some(first) = terms.first().copied() else { return Verdict::Missing(owner, FULL) };
        if terms.iter().any(|term| term.kind != first.kind) {
            return Verdict::Missing(owner, FULL);
        }
        let is_sum = first.kind == Reduction::Sum;
        self.overlaps |= !is_sum && terms.len() > 1;
        if terms.iter().any(|term| term.mode == Mode::Plain) {
            if is_sum && terms.len() > 1 {
                return Verdict::Twice(owner, FULL);
            }
            // Nothing is added where a part begins that may lie anywhere.
            let lacks = matches!(owner, Owner::LocalPart(op) if origin && has_once(facts, op) && !first.once);
            return if lacks { Verdict::Missing(owner, FULL) } else { Verdict::Complete };
        }
        if terms.iter().any(|term| term.mode != first.mode) {
            return Verdict::Missing(owner, FULL);
        }
        if let (Owner::LocalPart(op), true) = (owner, origin) {
            let once = terms.iter().filter(|term| term.once).count();
            if has_once(facts, op) && once != 1 {
                return if once == 0 { Verdict::Missing(owner, FULL) } else { Verdict::Twice(owner, FULL) };
            }
        }
        self.subs_complete(facts, owner, first.mode, terms)
    }

    fn subs_complete(&mut self, facts: &Facts<'_>, owner: Owner, mode: Mode, terms: &[Term]) -> Verdict {
        for (index, quantity) in parts_of(facts, owner, mode).into_iter().enumerate() {
            let shares: Vec<ShareId> = terms.iter().map(|term| self.subs.get(term.subs)[index]).collect();
            let joined = self.union(&shares);
            match self.flat(facts, quantity, joined) {
                Verdict::Complete => {}
                other => return other,
            }
        }
        Verdict::Complete
    }
}

/// The box that two are which follow each other in one interval, and have the others in common.
fn one_box(first: &[Interval], second: &[Interval]) -> Option<Vec<Interval>> {
    let mut differ = (0..first.len()).filter(|&at| first[at] != second[at]);
    let at = differ.next().filter(|_| first.len() == second.len())?;
    let follows = differ.next().is_none() && first[at].hi == second[at].lo;
    let mut made = first.to_vec();
    made[at].hi = second[at].hi;
    follows.then_some(made)
}

pub(crate) fn has_once(facts: &Facts<'_>, op: OpId) -> bool {
    let rule = facts.analysis.rules[op.index()].as_ref();
    rule.is_some_and(|rule| rule.inputs.iter().any(|input| input.once))
}

/// The sizes of the loops that the boxes of an owner's terms are about.
pub(crate) fn sizes(facts: &Facts<'_>, owner: Owner) -> Vec<i64> {
    loops_of(facts, owner).map_or_else(Vec::new, |(op, loops)| {
        loops.iter().map(|&l| facts.analysis.op(op).loops[l].size).collect()
    })
}

pub(crate) fn loops_of<'f>(facts: &'f Facts<'_>, owner: Owner) -> Option<(OpId, &'f [usize])> {
    match owner {
        Owner::Whole => None,
        Owner::LocalPart(op) => Some((op, &facts.op(op).reduced)),
        Owner::Use(number) => match facts.uses[number as usize] {
            Use::Operand { op, position } => Some((op, &facts.op(op).loose[position])),
            Use::Seed { .. } => None,
        },
    }
}

/// What each of a term's shares of others is a share of.
fn parts_of(facts: &Facts<'_>, owner: Owner, mode: Mode) -> Vec<Quantity> {
    let op = match owner {
        Owner::LocalPart(op) => op,
        Owner::Use(number) => match facts.uses[number as usize] {
            Use::Operand { op, .. } => op,
            Use::Seed { .. } => return vec![],
        },
        Owner::Whole => return vec![],
    };
    match mode {
        Mode::Plain => vec![],
        Mode::Outputs => {
            reached_outputs(facts, op).map(|(_, tensor)| Quantity { tensor, grad: true }).collect()
        }
        Mode::Clause(clause) => {
            let rule = facts.analysis.rules[op.index()].as_ref();
            let clause = rule.map_or(&[][..], |rule| &rule.passes[clause as usize].operands);
            clause.iter().map(|&i| Quantity { tensor: facts.op(op).inputs[i], grad: false }).collect()
        }
    }
}

/// The outputs of an operator that a gradient reaches, and their positions.
pub(crate) fn reached_outputs<'f>(
    facts: &'f Facts<'f>,
    op: OpId,
) -> impl Iterator<Item = (usize, TensorId)> + use<'f> {
    let outputs = facts.op(op).outputs.iter().enumerate();
    let present = outputs.filter_map(|(index, tensor)| tensor.map(|tensor| (index, tensor)));
    present.filter(|(_, tensor)| facts.reached(*tensor))
}

#[cfg(test)]
mod tests;
