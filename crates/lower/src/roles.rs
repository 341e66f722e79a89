//! Ranks that run the same code share it; the integers in which they differ become holes.

use program::{Arg, Body, PerRank, RankId, Role, Table};

use crate::project::Projected;

/// Ranks whose code is the same but for integers, which are columns in the code's order.
struct CodeKind {
    ranks: Vec<RankId>,
    body: Body,
    table: Table,
    numbers: Vec<PerRank<i64>>,
}

pub fn roles(projected: Vec<Projected>) -> Vec<Role> {
    let mut kinds: Vec<CodeKind> = vec![];
    for Projected { ranks, mut body, table, numbers } in projected {
        let numbers = take_integers(&mut body, &numbers);
        let kind = CodeKind { ranks, body, table, numbers };
        match kinds
            .iter_mut()
            .find(|known| known.body == kind.body && have_same_shapes(&known.table, &kind.table))
        {
            Some(known) => known.join(&kind),
            None => kinds.push(kind),
        }
    }
    kinds.into_iter().map(punch).collect()
}

/// The integers of a body, which are left as zeros.
fn take_integers(body: &mut Body, numbers: &[PerRank<i64>]) -> Vec<PerRank<i64>> {
    let mut integers = vec![];
    visit(body, &mut |arg, _| {
        match arg {
            Arg::Int(value) => integers.push(PerRank::Same(*value)),
            Arg::Hole(hole) => integers.push(numbers[*hole as usize].clone()),
            _ => return,
        }
        *arg = Arg::Int(0);
    });
    integers
}

/// Whether two tables have as many of everything, of the same tensors.
fn have_same_shapes(a: &Table, b: &Table) -> bool {
    let (shards, others) = (a.shards.iter().map(|s| s.tensor), b.shards.iter().map(|s| s.tensor));
    let (leaves, their_leaves) = (a.leaves.iter().map(|l| l.0), b.leaves.iter().map(|l| l.0));
    let (outputs, their_outputs) =
        (a.outputs.iter().map(Option::is_some), b.outputs.iter().map(Option::is_some));
    let random =
        |table: &Table| -> Vec<_> { table.random.iter().map(|(op, slots)| (*op, slots.len())).collect() };
    let copies = |table: &Table| -> Vec<_> {
        table.copies.iter().map(|copy| (copy.shard, copy.factor, copy.parts)).collect()
    };
    shards.eq(others)
        && copies(a) == copies(b)
        && leaves.eq(their_leaves)
        && a.inputs.len() == b.inputs.len()
        && outputs.eq(their_outputs)
        && random(a) == random(b)
}

impl CodeKind {
    fn join(&mut self, other: &CodeKind) {
        let (ranks, theirs) = (self.ranks.iter().zip(0..), other.ranks.iter().zip(0..));
        let ours = ranks.map(|(rank, at): (&RankId, usize)| (*rank, false, at));
        let mut order: Vec<(RankId, bool, usize)> =
            ours.chain(theirs.map(|(rank, at): (&RankId, usize)| (*rank, true, at))).collect();
        order.sort_unstable();
        self.ranks = order.iter().map(|it| it.0).collect();
        let joined = MergedRanks { order: &order };
        joined.all(self.numbers.iter_mut().zip(&other.numbers));
        let (table, theirs) = (&mut self.table, &other.table);
        joined
            .all(table.shards.iter_mut().map(|s| &mut s.region).zip(theirs.shards.iter().map(|s| &s.region)));
        joined
            .all(table.copies.iter_mut().map(|c| &mut c.region).zip(theirs.copies.iter().map(|c| &c.region)));
        joined.all(table.leaves.iter_mut().map(|l| &mut l.1).zip(theirs.leaves.iter().map(|l| &l.1)));
        joined.all(table.inputs.iter_mut().zip(&theirs.inputs));
        joined.all(table.outputs.iter_mut().flatten().zip(theirs.outputs.iter().flatten()));
        let slots = table.random.iter_mut().flat_map(|(_, slots)| slots);
        joined.all(slots.zip(theirs.random.iter().flat_map(|(_, slots)| slots)));
    }
}

/// In which order two lists of ranks are one: of each rank whose it is, and where in its list.
struct MergedRanks<'a> {
    order: &'a [(RankId, bool, usize)],
}

impl MergedRanks<'_> {
    fn all<'c, T: PartialEq + Clone + 'c>(
        &self,
        columns: impl Iterator<Item = (&'c mut PerRank<T>, &'c PerRank<T>)>,
    ) {
        for (ours, theirs) in columns {
            let value =
                |(_, other, at): &(RankId, bool, usize)| if *other { theirs.get(*at) } else { ours.get(*at) };
            *ours = PerRank::from_values(self.order.iter().map(|it| value(it).clone()).collect());
        }
    }
}

fn punch(kind: CodeKind) -> Role {
    let CodeKind { ranks, mut body, mut table, numbers } = kind;
    let mut holes: Vec<(String, PerRank<i64>)> = vec![];
    let mut numbers = numbers.into_iter();
    visit(&mut body, &mut |arg, name| {
        let Arg::Int(_) = arg else { return };
        let per_rank = match numbers.next() {
            Some(PerRank::Same(value)) => {
                *arg = Arg::Int(value);
                return;
            }
            Some(per_rank) => per_rank,
            None => return,
        };
        let at = holes.iter().position(|(_, known)| *known == per_rank).unwrap_or_else(|| {
            let count = holes
                .iter()
                .filter(|(n, _)| n.rsplit_once('_').is_some_and(|(base, _)| base == name))
                .count();
            holes.push((format!("{name}_{count}"), per_rank));
            holes.len() - 1
        });
        *arg = Arg::Hole(u32::try_from(at).unwrap_or(u32::MAX));
    });
    (body.holes, table.constants) = holes.into_iter().unzip();
    Role { ranks, table, body }
}

/// Every argument of a body that may hold an integer, with a word for what it is.
fn visit(body: &mut Body, see: &mut impl FnMut(&mut Arg, &str)) {
    for instr in body.codes.iter_mut().flat_map(|code| &mut code.instrs) {
        instr.args_mut().for_each(|(arg, word)| see(arg, word));
    }
}

#[cfg(test)]
mod tests {
    use graph::TensorId;
    use program::{Buf, BufId, Instr, Pass, Shard, Slice};
    use rules::{Interval, Region};

    use super::*;

    /// One slice from `lo` on, of one shard.
    fn projected(ranks: &[u32], lo: Arg, numbers: &[PerRank<i64>], shard: PerRank<Region>) -> Projected {
        let mut body = Body::default();
        for name in ["x", "y"] {
            body.bufs.push(Buf { name: name.into(), tensor: TensorId(0), grad: false });
        }
        let (from, to, extents) = (BufId(0), BufId(1), vec![vec![Arg::Int(8)]]);
        let slice = Slice { from, to, extents, region: vec![(lo, Arg::Int(8))] };
        body.code_mut(0, Pass::Forward).instrs.push(Instr::Slice(slice));
        let shards = vec![Shard { tensor: TensorId(0), region: shard }];
        let ranks = ranks.iter().copied().map(RankId).collect();
        Projected { ranks, body, table: Table { shards, ..Table::default() }, numbers: numbers.to_vec() }
    }

    fn region(lo: i64) -> Region {
        Region([Interval { lo, hi: lo + 2 }].into())
    }

    #[test]
    fn ranks_that_were_projected_apart_and_run_the_same_share_a_role() {
        let two = PerRank::from_values(vec![region(0), region(4)]);
        let numbers = [PerRank::Same(3), PerRank::from_values(vec![5, 7])];
        let all = vec![
            projected(&[0, 2], Arg::Hole(1), &numbers, two),
            projected(&[1], Arg::Int(6), &[], PerRank::Same(region(2))),
        ];
        let [role] = <[Role; 1]>::try_from(roles(all)).expect("one role");
        assert_eq!(role.ranks, [RankId(0), RankId(1), RankId(2)]);
        assert_eq!(role.table.constants, [PerRank::from_values(vec![5, 6, 7])]);
        assert_eq!(role.table.shards[0].region, PerRank::from_values(vec![region(0), region(2), region(4)]));
        let Instr::Slice(slice) = &role.body.codes[0].instrs[0] else { panic!("a slice") };
        assert_eq!(slice.region, [(Arg::Hole(0), Arg::Int(8))]);
    }

    #[test]
    fn ranks_that_hold_different_things_share_none() {
        let mut other = projected(&[1], Arg::Int(6), &[], PerRank::Same(region(2)));
        other.table.shards.clear();
        let all = vec![projected(&[0], Arg::Int(6), &[], PerRank::Same(region(2))), other];
        assert_eq!(roles(all).len(), 2);
    }
}
