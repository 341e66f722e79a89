//! Instructions as methods of `run`.

use program::{Arg, BufId, Cut, Grad, GroupingId, Instr, LeafId, Slice, StepId};
use rules::Reduction;

use super::functions::{number, statement};
use crate::python::{Expr, Stmt};

/// How bufs, holes and groups of a role are written.
pub(crate) struct Words<'n> {
    pub(crate) bufs: &'n [String],
    pub(crate) leaves: &'n [String],
    pub(crate) holes: &'n [String],
    /// The size of this role's groups in each grouping.
    pub(crate) group_sizes: &'n [usize],
}

impl<'n> Words<'n> {
    pub(crate) fn buf(&self, id: BufId) -> Expr<'n> {
        Expr::Name(self.name(id))
    }

    pub(crate) fn name(&self, id: BufId) -> &'n str {
        self.bufs.get(id.index()).map_or("unknown", String::as_str)
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
            Instr::AllReduce { step, group, reduction, from, to } => {
                let args = vec![step_of(*step), self.buf(*from), group_id(*group)];
                let other =
                    (*reduction != Reduction::Sum).then(|| ("op", Expr::Str(reduction.name().into())));
                statement(
                    vec![self.name(*to)],
                    false,
                    method("all_reduce", args, other.into_iter().collect()),
                )
            }
            Instr::AllGather { step, group, from, to, cut } => {
                self.cut_call("all_gather", *step, *group, *from, *to, cut)
            }
            Instr::ReduceScatter { step, group, from, to, cut } => {
                self.cut_call("reduce_scatter", *step, *group, *from, *to, cut)
            }
            Instr::AllToAll { step, group, from, to, send, receive } => {
                self.all_to_all(*step, *group, (*from, *to), send, receive)
            }
            Instr::Exchange { step, from, to } => {
                let args = std::iter::once(step_of(*step)).chain(from.iter().map(|buf| self.buf(*buf)));
                let targets: Vec<_> = to.iter().map(|buf| self.name(*buf)).collect();
                statement(targets, to.len() > 1, method("exchange", args.collect(), vec![]))
            }
            Instr::ReduceGradients { step, group, leaves } => {
                let leaves = leaves.iter().map(|leaf| self.leaf(*leaf)).collect();
                let args = vec![step_of(*step), group_id(*group), Expr::Rows(leaves)];
                statement(vec![], false, method("reduce_gradients", args, vec![]))
            }
            Instr::ExchangeGradients { step, leaves, shards } => {
                let leaves = leaves.iter().map(|leaf| self.leaf(*leaf)).collect();
                let shards = shards.iter().map(|shard| index(*shard)).collect();
                let args = vec![step_of(*step), Expr::Rows(leaves), Expr::Rows(shards)];
                statement(vec![], false, method("exchange_gradients", args, vec![]))
            }
            Instr::Update { shard, from } => {
                statement(vec![], false, method("update", vec![index(*shard), self.buf(*from)], vec![]))
            }
        })
    }

    fn grad(&self, grad: &'n Grad) -> Stmt<'n> {
        let from = grad.from.iter().map(|buf| buf.map_or(Expr::None, |buf| self.buf(buf)));
        let args = std::iter::once(step_of(grad.step)).chain(from).collect();
        let targets: Vec<_> = grad.to.iter().map(|buf| buf.map_or("_", |buf| self.name(buf))).collect();
        let unpack = targets.len() > 1;
        statement(targets, unpack, method("grad", args, vec![]))
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

    fn cut_call(
        &self,
        name: &'static str,
        step: StepId,
        group: GroupingId,
        from: BufId,
        to: BufId,
        cut: &'n Cut,
    ) -> Stmt<'n> {
        let args = vec![step_of(step), self.buf(from), group_id(group), index(cut.factor)];
        let mut kwargs = vec![];
        kwargs.extend(self.sizes(group, cut).map(|sizes| ("sizes", sizes)));
        kwargs.push(("factors", self.extents(&cut.extents)));
        statement(vec![self.name(to)], false, method(name, args, kwargs))
    }

    fn all_to_all(
        &self,
        step: StepId,
        group: GroupingId,
        (from, to): (BufId, BufId),
        send: &'n Cut,
        receive: &'n Cut,
    ) -> Stmt<'n> {
        let args =
            vec![step_of(step), self.buf(from), group_id(group), index(send.factor), index(receive.factor)];
        let mut kwargs = vec![];
        kwargs.extend(self.sizes(group, send).map(|sizes| ("send_sizes", sizes)));
        kwargs.extend(self.sizes(group, receive).map(|sizes| ("receive_sizes", sizes)));
        kwargs.push(("send_factors", self.extents(&send.extents)));
        kwargs.push(("receive_factors", self.extents(&receive.extents)));
        statement(vec![self.name(to)], false, method("all_to_all", args, kwargs))
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

pub(crate) fn method<'a>(name: &'a str, args: Vec<Expr<'a>>, kwargs: Vec<(&'a str, Expr<'a>)>) -> Expr<'a> {
    Expr::Name("run").attr(name).call_with(args, kwargs)
}

pub(crate) fn step_of(step: StepId) -> Expr<'static> {
    Expr::Int(i64::from(step.0))
}

fn group_id(group: GroupingId) -> Expr<'static> {
    Expr::Int(i64::from(group.0))
}

fn index(index: usize) -> Expr<'static> {
    Expr::Int(i64::try_from(index).unwrap_or(i64::MAX))
}
