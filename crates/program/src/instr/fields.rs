//! The fields of instructions: what each is, and how it is written.

use super::{Arg, How, LocalOp, Saves, Which};
use crate::{BufId, CallId, ExchangeId, GroupingId, KeepId, LeafId};

/// Defines the kinds of fields, and a field of each kind, to be read and to be changed.
macro_rules! fields {
    ($($(#[doc = $doc:literal])+ $name:ident($type:ty) $parameter:literal)*) => {
        /// What a field is.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum FieldKind {
            $($(#[doc = $doc])+ $name,)*
        }

        impl FieldKind {
            /// The parameter of the method in emitted code; none of results, and of what the text says in another
            /// form.
            pub fn parameter(self) -> &'static str {
                match self {
                    $(FieldKind::$name => $parameter,)*
                }
            }
        }

        /// A field of an instruction.
        #[derive(Clone, Copy, Debug)]
        pub enum Field<'a> {
            $($(#[doc = $doc])+ $name(&'a $type),)*
        }

        /// The same, to be changed.
        #[derive(Debug)]
        pub enum FieldMut<'a> {
            $($(#[doc = $doc])+ $name(&'a mut $type),)*
        }
    };
}

fields! {
    /// Whose groups communicate.
    Group(GroupingId) "group"
    /// The table by which it communicates.
    Exchange(ExchangeId) "number"
    /// Under which number values are saved for a later code.
    Kept(KeepId) "number"
    /// A call.
    Called(CallId) "function"
    /// Buffers that are read.
    Reads(Vec<BufId>) "*xs"
    /// A buffer that is read.
    Read(BufId) "x"
    /// Buffers that are read, where there are any.
    ReadsSome(Vec<Option<BufId>>) "*grads"
    /// Buffers that are written, in the order of results.
    Writes(Vec<BufId>) ""
    /// A buffer that is written.
    Written(BufId) ""
    /// Buffers that are written, where anybody reads them.
    WritesSome(Vec<Option<BufId>>) ""
    /// Leaves whose gradients are moved, each by its path.
    Leaves(Vec<LeafId>) "leaves"
    /// The same, by places of the tree: all leaves below a module are one.
    LeafPlaces(Vec<LeafId>) "places"
    /// Indices into [`crate::Table::copies`], by places of the tree.
    Copies(Vec<usize>) "places"
    /// Indices into [`crate::Table::shards`] of shards that are given something.
    Shards(Vec<usize>) "shards"
    /// The same, by places of the tree.
    ShardPlaces(Vec<usize>) "places"
    /// The same, of one.
    Shard(usize) "shard"
    /// When it is done: below `if last:`, or with each micro-batch.
    When(super::GradSync) ""
    /// Whether it goes to the host.
    Offloads(bool) "offload=False"
    /// What is brought back from the host.
    Fetched(super::Offloaded) "call=None, at=None, keep=None"
    /// The operators of a call.
    Ops(Vec<LocalOp>) ""
    /// Which gradients of a call.
    Which(Which) ""
    /// Factor extents, dim by dim.
    Extents(Vec<Vec<Arg>>) ""
    /// An interval for each factor.
    Region(Vec<(Arg, Arg)>) ""
    /// Which collective, and where it cuts and joins.
    How(How) ""
    /// What a call saves for its backward.
    Saves(Saves) ""
    /// Whether a collective runs beside the next instruction.
    Overlaps(bool) ""
}

impl<'a> Field<'a> {
    /// The buffers that it reads. What is inside of a call is not seen from outside.
    pub(super) fn reads(self) -> impl Iterator<Item = BufId> + use<'a> {
        let (all, some): (&[BufId], &[Option<BufId>]) = match self {
            Field::Reads(bufs) => (bufs, &[]),
            Field::Read(buf) => (std::slice::from_ref(buf), &[]),
            Field::ReadsSome(bufs) => (&[], bufs),
            _ => (&[], &[]),
        };
        all.iter().chain(some.iter().flatten()).copied()
    }

    /// The buffers that it writes.
    pub(super) fn writes(self) -> impl Iterator<Item = BufId> + use<'a> {
        let (all, some): (&[BufId], &[Option<BufId>]) = match self {
            Field::Writes(bufs) => (bufs, &[]),
            Field::Written(buf) => (std::slice::from_ref(buf), &[]),
            Field::WritesSome(bufs) => (&[], bufs),
            _ => (&[], &[]),
        };
        all.iter().chain(some.iter().flatten()).copied()
    }

    /// The arguments in which ranks of one role may differ, and a word for what each is.
    pub(super) fn args(self) -> impl Iterator<Item = (&'a Arg, &'static str)> + use<'a> {
        let (ops, extents, region, how): WithArgs<'_> = match self {
            Field::Ops(ops) => (ops, &[], &[], None),
            Field::Extents(extents) => (&[], extents, &[], None),
            Field::Region(region) => (&[], &[], region, None),
            Field::How(how) => (&[], &[], &[], Some(how)),
            _ => (&[], &[], &[], None),
        };
        let cut = how.into_iter().flat_map(How::cuts).flat_map(|cut| &cut.extents);
        let sizes = extents.iter().chain(cut).flatten().map(|size| (size, "size"));
        let ends = region.iter().flat_map(|(lo, hi)| [(lo, "lo"), (hi, "hi")]);
        ops.iter().flat_map(LocalOp::items).chain(sizes).chain(ends)
    }
}

/// Operators, extents, a region and a collective: what of a field has arguments.
type WithArgs<'a> = (&'a [LocalOp], &'a [Vec<Arg>], &'a [(Arg, Arg)], Option<&'a How>);

impl<'a> FieldMut<'a> {
    /// The buffers that it reads, those inside of a call included.
    pub fn reads(self) -> impl Iterator<Item = &'a mut BufId> {
        let (all, some, ops): (&mut [BufId], &mut [Option<BufId>], &mut [LocalOp]) = match self {
            FieldMut::Reads(bufs) => (bufs, &mut [], &mut []),
            FieldMut::Read(buf) => (std::slice::from_mut(buf), &mut [], &mut []),
            FieldMut::ReadsSome(bufs) => (&mut [], bufs, &mut []),
            FieldMut::Ops(ops) => (&mut [], &mut [], ops),
            _ => (&mut [], &mut [], &mut []),
        };
        let inside = ops.iter_mut().flat_map(LocalOp::items_mut).filter_map(|(arg, _)| match arg {
            Arg::Buf(buf) => Some(buf),
            _ => None,
        });
        all.iter_mut().chain(some.iter_mut().flatten()).chain(inside)
    }

    /// The buffers that it writes.
    pub fn writes(self) -> impl Iterator<Item = &'a mut BufId> {
        let (all, some): (&mut [BufId], &mut [Option<BufId>]) = match self {
            FieldMut::Writes(bufs) => (bufs, &mut []),
            FieldMut::Written(buf) => (std::slice::from_mut(buf), &mut []),
            FieldMut::WritesSome(bufs) => (&mut [], bufs),
            _ => (&mut [], &mut []),
        };
        all.iter_mut().chain(some.iter_mut().flatten())
    }

    /// The arguments in which ranks of one role may differ, and a word for what each is.
    pub(super) fn args(self) -> impl Iterator<Item = (&'a mut Arg, &'static str)> {
        type ArgsMut<'g> = (&'g mut [LocalOp], &'g mut [Vec<Arg>], &'g mut [(Arg, Arg)], Option<&'g mut How>);
        let (ops, extents, region, how): ArgsMut<'a> = match self {
            FieldMut::Ops(ops) => (ops, &mut [], &mut [], None),
            FieldMut::Extents(extents) => (&mut [], extents, &mut [], None),
            FieldMut::Region(region) => (&mut [], &mut [], region, None),
            FieldMut::How(how) => (&mut [], &mut [], &mut [], Some(how)),
            _ => (&mut [], &mut [], &mut [], None),
        };
        let cut = how.into_iter().flat_map(How::cuts_mut).flat_map(|cut| &mut cut.extents);
        let sizes = extents.iter_mut().chain(cut).flatten().map(|size| (size, "size"));
        let ends = region.iter_mut().flat_map(|(lo, hi)| [(lo, "lo"), (hi, "hi")]);
        ops.iter_mut().flat_map(LocalOp::items_mut).chain(sizes).chain(ends)
    }
}

impl LocalOp {
    /// The buffers that it reads.
    pub fn inputs(&self) -> impl Iterator<Item = BufId> + Clone {
        self.flat().filter_map(|arg| if let Arg::Buf(buf) = arg { Some(*buf) } else { None })
    }

    fn items(&self) -> impl Iterator<Item = (&Arg, &'static str)> {
        let word = self.word();
        self.flat().map(move |arg| (arg, word))
    }

    fn items_mut(&mut self) -> impl Iterator<Item = (&mut Arg, &'static str)> {
        let word = self.word();
        let args = self.args.iter_mut().chain(self.kwargs.iter_mut().map(|(_, arg)| arg));
        args.flat_map(items_mut).map(move |arg| (arg, word))
    }

    fn flat(&self) -> impl Iterator<Item = &Arg> + Clone {
        let args = self.args.iter().chain(self.kwargs.iter().map(|(_, arg)| arg));
        args.flat_map(items)
    }

    /// What its numbers are, most of the time.
    fn word(&self) -> &'static str {
        if self.target.starts_with("sw.") { "start" } else { "size" }
    }
}

/// What an argument is made of: itself, or the items of its lists.
fn items(arg: &Arg) -> impl Iterator<Item = &Arg> + Clone {
    let (mut one, mut lists) = (Some(arg), vec![]);
    std::iter::from_fn(move || {
        loop {
            match one.take() {
                Some(Arg::List(items)) => lists.push(items.iter()),
                Some(arg) => return Some(arg),
                None => {}
            }
            one = lists.last_mut()?.next();
            if one.is_none() {
                lists.pop();
            }
        }
    })
}

/// The same, to be changed.
fn items_mut(arg: &mut Arg) -> impl Iterator<Item = &mut Arg> {
    let (mut one, mut lists) = (Some(arg), vec![]);
    std::iter::from_fn(move || {
        loop {
            match one.take() {
                Some(Arg::List(items)) => lists.push(items.iter_mut()),
                Some(arg) => return Some(arg),
                None => {}
            }
            one = lists.last_mut()?.next();
            if one.is_none() {
                lists.pop();
            }
        }
    })
}
