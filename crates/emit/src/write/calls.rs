//! Instructions as methods of `run`.

use std::collections::{HashMap, HashSet};

use program::{
    Arg, BufId, CallId, Collective, Cut, Field, Grad, GroupingId, How, Instr, LeafId, Of, Offloaded, Slice,
    Table, Which,
};
use rules::Reduction;

use super::functions::{number, statement};
use crate::names::{AT, call_name};
use crate::python::{Expr, Stmt};

/// How bufs, holes and groups of a role are written.
pub(crate) struct Words<'n> {
    pub(crate) bufs: &'n [String],
    pub(crate) leaves: &'n [String],
    pub(crate) holes: &'n [String],
    /// The size of this role's groups in each grouping.
    pub(crate) group_sizes: &'n [usize],
    pub(crate) table: &'n Table,
    pub(crate) calls: &'n HashMap<CallId, CallName<'n>>,
}

/// What a call is called: the function that it runs, and which of its calls it is, where there are several.
#[derive(Clone, Copy)]
pub(crate) struct CallName<'n> {
    pub(crate) function: &'n str,
    pub(crate) at: Option<i64>,
}

impl<'n> CallName<'n> {
    /// As tables have it.
    pub(crate) fn text(&self) -> String {
        call_name(self.function, self.at)
    }

    /// The keyword argument that says which.
    pub(crate) fn at(&self) -> Option<(&'static str, Expr<'n>)> {
        self.at.map(|at| (AT, Expr::Int(at)))
    }
}

impl<'n> Words<'n> {
    pub(crate) fn buf(&self, id: BufId) -> Expr<'n> {
        Expr::Name(self.name(id))
    }

    pub(crate) fn name(&self, id: BufId) -> &'n str {
        self.bufs.get(id.index()).map_or("unknown", String::as_str)
    }

    pub(crate) fn call(&self, id: CallId) -> CallName<'n> {
        self.calls.get(&id).copied().unwrap_or(CallName { function: "unknown", at: None })
    }

    fn leaf(&self, id: LeafId) -> Expr<'n> {
        Expr::Name(self.leaves.get(id.index()).map_or("unknown", String::as_str))
    }

    /// Every instruction but calls.
    pub(crate) fn instr(&self, instr: &'n Instr) -> Option<Stmt<'n>> {
        Some(match instr {
            Instr::Call(_) => return None,
            Instr::Grad(grad) => self.grad(grad),
            Instr::Slice(slice) => self.slice(slice),
            Instr::Add { from, to } => self.add(from, *to),
            Instr::Collective(collective) => self.collective(instr.kind().name(), collective),
            _ => self.method_of(instr),
        })
    }

    /// An instruction whose text is its fields in turn.
    fn method_of(&self, instr: &'n Instr) -> Stmt<'n> {
        let (mut args, mut kwargs, mut targets) = (vec![], vec![], vec![]);
        for field in instr.fields() {
            match field {
                Field::Group(group) => args.push(id(group.0)),
                Field::Exchange(exchange) => args.push(id(exchange.0)),
                Field::Kept(kept) => args.push(id(kept.0)),
                Field::Reads(bufs) => args.extend(bufs.iter().map(|buf| self.buf(*buf))),
                Field::Read(buf) => args.push(self.buf(*buf)),
                Field::Writes(bufs) => targets.extend(bufs.iter().map(|buf| self.name(*buf))),
                Field::Written(buf) => targets.push(self.name(*buf)),
                Field::Leaves(leaves) => args.push(self.leaves(leaves)),
                Field::LeafPlaces(leaves) => args.push(self.leaf_places(leaves)),
                Field::Copies(copies) => args.push(self.copies(copies)),
                Field::Shards(shards) => args.push(indices(shards)),
                Field::ShardPlaces(shards) => args.push(self.shard_places(shards)),
                Field::Shard(shard) => args.push(index(*shard)),
                Field::Offloads(offloads) => kwargs.extend(offloads.then_some(("offload", Expr::Bool(true)))),
                Field::Fetched(Offloaded::Call(call)) => {
                    let call = self.call(*call);
                    kwargs.push(("call", Expr::Name(call.function)));
                    kwargs.extend(call.at());
                }
                Field::Fetched(Offloaded::Kept(kept)) => kwargs.push(("keep", id(kept.0))),
                // Where the statement stands says it.
                Field::When(_) => {}
                // Only of instructions that have a form of their own.
                Field::Called(_)
                | Field::ReadsSome(_)
                | Field::WritesSome(_)
                | Field::Ops(_)
                | Field::Which(_)
                | Field::How(_) => {}
                Field::Extents(_) | Field::Region(_) => {}
                Field::Saves(_) | Field::Overlaps(_) => {}
            }
        }
        let unpack = targets.len() > 1;
        statement(targets, unpack, method(instr.kind().name(), args, kwargs))
    }

    fn leaves(&self, leaves: &[LeafId]) -> Expr<'n> {
        Expr::Rows(leaves.iter().map(|leaf| self.leaf(*leaf)).collect())
    }

    fn leaf_places(&self, leaves: &[LeafId]) -> Expr<'n> {
        self.trees(leaves.iter().map(|leaf| leaf.index()), Gathered::Each)
    }

    /// Shards by the copies that are gathered of them.
    fn shard_places(&self, shards: &[usize]) -> Expr<'n> {
        let copy = |shard: &usize| self.table.copies.iter().position(|copy| copy.shard == *shard);
        self.copies(&shards.iter().filter_map(copy).collect::<Vec<_>>())
    }

    /// Copies by the first leaf of each.
    fn copies(&self, copies: &[usize]) -> Expr<'n> {
        let first = |copy: &usize| self.table.leaves.iter().position(|leaf| leaf.0 == Of::Copy(*copy));
        self.trees(copies.iter().filter_map(first), Gathered::First)
    }

    /// Leaves, where all that is gathered of a module by the module.
    fn trees(&self, leaves: impl Iterator<Item = usize>, which: Gathered) -> Expr<'n> {
        let leaves: Vec<usize> = leaves.collect();
        let all: Vec<(usize, &str)> =
            gathered(self.table, which).map(|leaf| (leaf, &self.leaves[leaf][..])).collect();
        let mut items = vec![];
        let mut rest = &leaves[..];
        while let [first, ..] = rest {
            let text = &self.leaves[*first][..];
            let whole = |tree: &&str| *tree != "p" && rest.starts_with(&below(&all, tree));
            let tree = trees(text).find(whole).unwrap_or(text);
            rest = &rest[below(&all, tree).len().max(1)..];
            items.push(Expr::Name(tree));
        }
        Expr::Rows(items)
    }

    fn grad(&self, grad: &'n Grad) -> Stmt<'n> {
        let from = grad.from.iter().map(|buf| buf.map_or(Expr::None, |buf| self.buf(buf)));
        let call = self.call(grad.call);
        let args = std::iter::once(Expr::Name(call.function)).chain(from).collect();
        let targets: Vec<_> = grad.to.iter().map(|buf| buf.map_or("_", |buf| self.name(buf))).collect();
        let unpack = targets.len() > 1;
        let recomputed = grad.recomputed.iter().map(|buf| self.buf(*buf)).collect::<Vec<_>>();
        let recomputed = (!recomputed.is_empty()).then_some(("again", Expr::List(recomputed)));
        let name = match grad.which {
            Which::Both => "grad",
            Which::Inputs => "grad_inputs",
            Which::Weights => "grad_weights",
        };
        statement(targets, unpack, method(name, args, call.at().into_iter().chain(recomputed).collect()))
    }

    fn slice(&self, slice: &'n Slice) -> Stmt<'n> {
        let pair =
            |(lo, hi): &'n (Arg, Arg)| Expr::List(vec![number(lo, self.holes), number(hi, self.holes)]);
        let region = Expr::Rows(slice.region.iter().map(pair).collect());
        let args = vec![self.buf(slice.from), self.extents(&slice.extents), region];
        statement(vec![self.name(slice.to)], false, Expr::Name("ops").attr("cut").call(args))
    }

    fn add(&self, from: &[BufId], to: BufId) -> Stmt<'n> {
        let sum = from.iter().map(|buf| self.buf(*buf));
        let sum = sum.reduce(|sum, next| Expr::Binary("+", Box::new((sum, next))));
        statement(vec![self.name(to)], false, sum.unwrap_or(Expr::None))
    }

    fn extents(&self, extents: &'n [Vec<Arg>]) -> Expr<'n> {
        let dim = |factors: &'n Vec<Arg>| Expr::Rows(factors.iter().map(|f| number(f, self.holes)).collect());
        Expr::Rows(extents.iter().map(dim).collect())
    }

    fn collective(&self, name: &'static str, it: &'n Collective) -> Stmt<'n> {
        let given = match it.from[..] {
            [one] => self.buf(one),
            _ => Expr::Rows(it.from.iter().map(|buf| self.buf(*buf)).collect()),
        };
        let mut args = vec![given, id(it.group.0)];
        args.extend(it.how.cuts().map(|cut| index(cut.factor)));
        let mut kwargs = match &it.how {
            How::AllReduce(Reduction::Sum) => vec![],
            How::AllReduce(reduction) => vec![("op", Expr::Str(reduction.name().into()))],
            How::AllGather(cut) | How::ReduceScatter(cut) => {
                let sizes = self.sizes(it.group, cut).map(|sizes| ("sizes", sizes));
                sizes.into_iter().chain([("factors", self.extents(&cut.extents))]).collect()
            }
            How::AllToAll { send, receive } => {
                let sent = self.sizes(it.group, send).map(|sizes| ("send_sizes", sizes));
                let received = self.sizes(it.group, receive).map(|sizes| ("receive_sizes", sizes));
                let factors = [
                    ("send_factors", self.extents(&send.extents)),
                    ("receive_factors", self.extents(&receive.extents)),
                ];
                sent.into_iter().chain(received).chain(factors).collect()
            }
        };
        kwargs.extend(it.overlaps.then_some(("async_op", Expr::Bool(true))));
        let targets: Vec<_> = it.to.iter().map(|buf| self.name(*buf)).collect();
        let unpack = targets.len() > 1;
        statement(targets, unpack, method(name, args, kwargs))
    }

    /// The sizes of the pieces, unless they are what anybody would expect.
    fn sizes(&self, group: GroupingId, cut: &Cut) -> Option<Expr<'n>> {
        let count = self.group_sizes.get(group.index()).copied().unwrap_or(0);
        let even = even_sizes(&cut.extents, cut.factor, count);
        let list = || Expr::Rows(cut.sizes.iter().map(|size| Expr::Int(*size)).collect());
        (even.as_ref() != Some(&cut.sizes)).then(list)
    }
}

/// Pieces of one size, if the extent is a number that divides so.
pub(crate) fn even_sizes(extents: &[Vec<Arg>], factor: usize, count: usize) -> Option<Vec<i64>> {
    let Some(Arg::Int(extent)) = extents.iter().flatten().nth(factor) else { return None };
    let pieces = i64::try_from(count).ok().filter(|n| *n > 0 && extent % n == 0)?;
    Some(vec![extent / pieces; count])
}

/// The leaves by which what is gathered is named.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gathered {
    /// The first of each copy.
    First,
    Each,
}

pub(crate) fn gathered(table: &Table, which: Gathered) -> impl Iterator<Item = usize> + '_ {
    let mut seen = HashSet::new();
    let wanted = move |leaf: &usize| match table.leaves[*leaf].0 {
        Of::Copy(copy) => which == Gathered::Each || seen.insert(copy),
        Of::Shard(_) => false,
    };
    (0..table.leaves.len()).filter(wanted)
}

/// The leaves at a place in the tree, in their order.
fn below(all: &[(usize, &str)], tree: &str) -> Vec<usize> {
    all.iter().filter(|(_, text)| is_below(text, tree)).map(|(leaf, _)| *leaf).collect()
}

pub(crate) fn is_below(leaf: &str, tree: &str) -> bool {
    leaf.strip_prefix(tree).is_some_and(|rest| rest.starts_with(['.', '[']))
}

/// The places in the tree that hold a leaf, from the root on.
fn trees(leaf: &str) -> impl Iterator<Item = &str> {
    leaf.match_indices(['.', '[']).map(|(at, _)| &leaf[..at])
}

pub(crate) fn method<'a>(name: &'a str, args: Vec<Expr<'a>>, kwargs: Vec<(&'a str, Expr<'a>)>) -> Expr<'a> {
    Expr::Name("run").attr(name).call_with(args, kwargs)
}

fn id(number: u32) -> Expr<'static> {
    Expr::Int(i64::from(number))
}

fn indices(all: &[usize]) -> Expr<'static> {
    Expr::Rows(all.iter().map(|at| index(*at)).collect())
}

fn index(index: usize) -> Expr<'static> {
    Expr::Int(i64::try_from(index).unwrap_or(i64::MAX))
}
