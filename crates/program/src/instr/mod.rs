//! What a rank does, one instruction after the other, and what can be asked of any of them.

use graph::{Dtype, OpId};
use rules::Reduction;

use crate::{BufId, CallId, ExchangeId, GroupingId, KeepId, LeafId};

#[macro_use]
mod generate;
mod fields;
mod table;

use table::FACTS;

pub use fields::{Field, FieldKind, FieldMut};
pub use table::{Call, Collective, Grad, Instr, Kind, Slice};

/// What a call saves for its backward.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Saves {
    /// Nothing: what backward needs of it, another call makes again.
    Nothing,
    /// What is inside, and its results. Its backward is given again what it reads, leaves apart.
    Made { offloaded: bool },
    /// What it reads, too.
    All { offloaded: bool },
}

impl Saves {
    /// What emitted code says of it, if it is so.
    pub const MARKS: [&str; 3] = ["recompute", "forget", "offload"];

    /// Whether it is saved on the host.
    pub fn is_offloaded(self) -> bool {
        self.marks()[2]
    }

    /// Which of [`Self::MARKS`] hold.
    pub fn marks(self) -> [bool; 3] {
        match self {
            Self::Nothing => [true, false, false],
            Self::Made { offloaded } => [false, true, offloaded],
            Self::All { offloaded } => [false, false, offloaded],
        }
    }

    /// Of nothing, nothing is forgotten or offloaded.
    pub fn from_marks(marks: [bool; 3]) -> Option<Self> {
        match marks {
            [true, false, false] => Some(Self::Nothing),
            [true, ..] => None,
            [false, true, offloaded] => Some(Self::Made { offloaded }),
            [false, false, offloaded] => Some(Self::All { offloaded }),
        }
    }
}

/// What is on the host meanwhile.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Offloaded {
    /// What a call keeps for its backward.
    Call(CallId),
    /// Values that a later code reads.
    Kept(KeepId),
}

/// So many copies to the host are in flight at once, each with all that a call or number keeps. What is copied needs memory
/// of the device until then. A copy that is one more waits for the first of them, and what comes back does so, too.
pub const COPIES_IN_FLIGHT: usize = 3;

/// Which gradients of a call arise. The second half reads and writes no buffers: the first one keeps what it needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Which {
    Both,
    /// Those of what is no leaf.
    Inputs,
    /// Those of leaves.
    Weights,
}

/// When gradients are communicated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum GradSync {
    /// With each micro-batch, so that what adds up is what arrives.
    Each,
    /// Where the timetable says, when they have added up.
    Last,
}

/// A collective, as a rank takes part in it.
pub type How = collective::Detailed<Reduction, Cut>;

/// Where a local tensor is cut or joined: one factor of it.
#[derive(Clone, Debug, PartialEq)]
pub struct Cut {
    /// Factor extents, dim by dim, of the tensor that is whole along the cut.
    pub extents: Vec<Vec<Arg>>,
    /// The position of the factor, counted over all dims.
    pub factor: usize,
    /// The pieces' lengths, in the order of the group.
    pub sizes: Vec<i64>,
}

/// One sub-operator: `outputs = target(args, kwargs)`.
#[derive(Clone, Debug, PartialEq)]
pub struct LocalOp {
    /// The operator it is a part of. A hint for printing (its line and module); the checker finds
    /// the operator from target, arguments and inputs.
    pub op: OpId,
    pub target: String,
    pub args: Vec<Arg>,
    pub kwargs: Vec<(String, Arg)>,
    pub outputs: Vec<Option<BufId>>,
    pub no_grad: bool,
}

#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    None,
    Bool(bool),
    Int(i64),
    /// An integer that differs among the ranks of the role: an index into [`crate::Body::holes`].
    Hole(u32),
    Float(f64),
    Str(String),
    Dtype(Dtype),
    Buf(BufId),
    List(Vec<Arg>),
}

/// What the table says of a kind.
struct Facts {
    method: &'static str,
    collective: Option<collective::Collective>,
    communicates: bool,
    noun: &'static str,
    when_last: bool,
    written: &'static [&'static str],
    fields: &'static [FieldKind],
    text: &'static [&'static str],
}

impl Kind {
    fn facts(self) -> &'static Facts {
        &FACTS[self as usize]
    }

    /// As in emitted code.
    pub fn name(self) -> &'static str {
        self.facts().method
    }

    /// The kind of a method of `run`.
    pub fn of_method(method: &str) -> Option<Kind> {
        let is_method = |kind: &&Kind| match kind.facts().written {
            [] => kind.name() == method,
            forms => forms.iter().any(|form| form.split_once('(').is_some_and(|(name, _)| name == method)),
        };
        Kind::ALL.iter().find(is_method).copied()
    }

    /// How it is written in emitted code, in all of its forms: `gather(group, places)`.
    pub fn forms(self) -> Vec<String> {
        let facts = self.facts();
        let parameters = facts.fields.iter().map(|field| field.parameter()).filter(|it| !it.is_empty());
        match facts.written {
            [] => vec![format!("{}({})", facts.method, parameters.collect::<Vec<_>>().join(", "))],
            forms => forms.iter().map(|form| (*form).to_owned()).collect(),
        }
    }

    /// Whether a method has a parameter of this name with a default value.
    pub fn has_keyword(self, method: &str, keyword: &str) -> bool {
        let is_it = |it: &str| it.split_once('=').is_some_and(|(name, _)| name == keyword);
        let in_form = |form: &str| {
            let given = form.strip_prefix(method).and_then(|rest| rest.strip_prefix('(')?.strip_suffix(')'));
            given.is_some_and(|given| given.split(", ").any(is_it))
        };
        match self.facts().written {
            [] => self.facts().fields.iter().any(|field| field.parameter().split(", ").any(is_it)),
            forms => forms.iter().any(|form| in_form(form)),
        }
    }

    /// What it does, in the words of the documentation of emitted programs.
    pub fn text(self) -> String {
        let lines = self.facts().text.iter().map(|line| line.trim()).filter(|line| !line.is_empty());
        lines.collect::<Vec<_>>().join(" ")
    }

    /// What it is called in messages.
    pub fn noun(self) -> &'static str {
        self.facts().noun
    }

    /// The collective by which its bytes move. None of what is done on this rank, or by a table.
    pub fn collective(self) -> Option<collective::Collective> {
        self.facts().collective
    }

    /// Whether other ranks take part in it.
    pub fn communicates(self) -> bool {
        self.facts().communicates
    }
}

impl Instr {
    /// Whose groups communicate.
    pub fn group(&self) -> Option<GroupingId> {
        self.fields().find_map(|field| if let Field::Group(group) = field { Some(*group) } else { None })
    }

    /// The table by which it communicates.
    pub fn exchange(&self) -> Option<ExchangeId> {
        self.fields().find_map(|field| if let Field::Exchange(id) = field { Some(*id) } else { None })
    }

    /// Whether it is about gradients as they have added up over the micro-batches of a step.
    pub fn settles(&self) -> bool {
        self.kind().facts().when_last
            || self.fields().any(|field| matches!(field, Field::When(GradSync::Last)))
    }

    /// The copies that it is about: indices into [`crate::Table::copies`].
    pub fn copies(&self) -> &[usize] {
        let copies = |field| if let Field::Copies(copies) = field { Some(&copies[..]) } else { None };
        self.fields().find_map(copies).unwrap_or_default()
    }

    /// The leaves whose gradients it moves.
    pub fn leaves(&self) -> &[LeafId] {
        let leaves = |field| match field {
            Field::Leaves(leaves) | Field::LeafPlaces(leaves) => Some(&leaves[..]),
            _ => None,
        };
        self.fields().find_map(leaves).unwrap_or_default()
    }

    /// The shards that it gives something to: indices into [`crate::Table::shards`].
    pub fn shards(&self) -> &[usize] {
        let shards = |field| match field {
            Field::Shards(shards) | Field::ShardPlaces(shards) => Some(&shards[..]),
            Field::Shard(shard) => Some(std::slice::from_ref(shard)),
            _ => None,
        };
        self.fields().find_map(shards).unwrap_or_default()
    }

    /// The buffers that it reads. What is inside of a call is not seen from outside.
    pub fn reads(&self) -> impl Iterator<Item = BufId> {
        self.fields().flat_map(Field::reads)
    }

    /// The same to be changed, those inside of a call included.
    pub fn reads_mut(&mut self) -> impl Iterator<Item = &mut BufId> {
        self.fields_mut().flat_map(FieldMut::reads)
    }

    /// The buffers that it writes, in the order of its results.
    pub fn writes(&self) -> impl Iterator<Item = BufId> {
        self.fields().flat_map(Field::writes)
    }

    /// The same, to be changed.
    pub fn writes_mut(&mut self) -> impl Iterator<Item = &mut BufId> {
        self.fields_mut().flat_map(FieldMut::writes)
    }

    /// Every argument in which ranks of one role may differ, and a word for what it is.
    pub fn args(&self) -> impl Iterator<Item = (&Arg, &'static str)> {
        self.fields().flat_map(Field::args)
    }

    pub fn args_mut(&mut self) -> impl Iterator<Item = (&mut Arg, &'static str)> {
        self.fields_mut().flat_map(FieldMut::args)
    }
}

/// No instruction has more fields.
const MOST_FIELDS: usize = 5;

fn fill<T, const N: usize>(all: &mut [Option<T>; MOST_FIELDS], fields: [T; N]) {
    const { assert!(N <= MOST_FIELDS) };
    for (place, field) in all.iter_mut().zip(fields) {
        *place = Some(field);
    }
}

/// What a field is before it is set.
trait Blank {
    fn blank() -> Self;
}

/// Before it is set, a field is this.
macro_rules! blank_is {
    ($($type:ty: $value:expr),* $(,)?) => {
        $(impl Blank for $type {
            fn blank() -> Self {
                $value
            }
        })*
    };
}

impl<T> Blank for Vec<T> {
    fn blank() -> Self {
        vec![]
    }
}

blank_is! {
    bool: false,
    usize: usize::MAX,
    BufId: BufId(u32::MAX),
    ExchangeId: ExchangeId(u32::MAX),
    GroupingId: GroupingId(u32::MAX),
    KeepId: KeepId(u32::MAX),
    GradSync: Self::Each,
    Offloaded: Self::Kept(KeepId(u32::MAX)),
}
