//! The collectives: what the members of a group do together.
//!
//! Programs list them, reshardings are made of them, clusters know how long they take. They all mean these. Detailed a
//! reduction is named, and where a tensor is cut, each of them says in its own words.

/// The kinds of collectives. Beside each stands what its bytes are counted of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Collective {
    /// Bytes of the value.
    AllReduce,
    /// Bytes of the whole that arises.
    AllGather,
    /// Bytes of what each has before.
    ReduceScatter,
    /// Bytes of what each has.
    AllToAll,
}

/// A collective, by what reduction it reduces and where it cuts or joins.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Detailed<Reduction, Cut> {
    AllReduce(Reduction),
    AllGather(Cut),
    /// A sum, of which each member keeps a piece.
    ReduceScatter(Cut),
    /// What is there is cut along `send`, the pieces received are joined along `receive`.
    AllToAll {
        send: Cut,
        receive: Cut,
    },
}

impl Collective {
    pub const ALL: [Collective; 4] =
        [Collective::AllReduce, Collective::AllGather, Collective::ReduceScatter, Collective::AllToAll];

    /// As in emitted code, and in files of clusters.
    pub fn name(self) -> &'static str {
        match self {
            Collective::AllReduce => "all_reduce",
            Collective::AllGather => "all_gather",
            Collective::ReduceScatter => "reduce_scatter",
            Collective::AllToAll => "all_to_all",
        }
    }
}

impl<Reduction, Cut> Detailed<Reduction, Cut> {
    pub fn collective(&self) -> Collective {
        match self {
            Detailed::AllReduce(_) => Collective::AllReduce,
            Detailed::AllGather(_) => Collective::AllGather,
            Detailed::ReduceScatter(_) => Collective::ReduceScatter,
            Detailed::AllToAll { .. } => Collective::AllToAll,
        }
    }

    /// Where it cuts what is there, before where it joins what comes.
    pub fn cuts(&self) -> impl Iterator<Item = &Cut> {
        [self.sent(), self.joined()].into_iter().flatten()
    }

    pub fn cuts_mut(&mut self) -> impl Iterator<Item = &mut Cut> {
        let (first, second) = match self {
            Detailed::AllReduce(_) => (None, None),
            Detailed::AllGather(cut) | Detailed::ReduceScatter(cut) => (Some(cut), None),
            Detailed::AllToAll { send, receive } => (Some(send), Some(receive)),
        };
        first.into_iter().chain(second)
    }

    /// Where each member cuts what it has.
    pub fn sent(&self) -> Option<&Cut> {
        match self {
            Detailed::ReduceScatter(cut) | Detailed::AllToAll { send: cut, .. } => Some(cut),
            Detailed::AllReduce(_) | Detailed::AllGather(_) => None,
        }
    }

    /// Where the pieces of all members are joined.
    pub fn joined(&self) -> Option<&Cut> {
        match self {
            Detailed::AllGather(cut) | Detailed::AllToAll { receive: cut, .. } => Some(cut),
            Detailed::AllReduce(_) | Detailed::ReduceScatter(_) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_cut_and_joined() {
        let all = [
            Detailed::AllReduce("sum"),
            Detailed::AllGather(1),
            Detailed::ReduceScatter(2),
            Detailed::AllToAll { send: 3, receive: 4 },
        ];
        let kinds: Vec<Collective> = all.iter().map(Detailed::collective).collect();
        assert_eq!(kinds, Collective::ALL);
        let cuts: Vec<Vec<i32>> = all.iter().map(|how| how.cuts().copied().collect()).collect();
        assert_eq!(cuts, [vec![], vec![1], vec![2], vec![3, 4]]);
        let changed = all.map(|mut how| {
            how.cuts_mut().for_each(|cut| *cut += 1);
            (how.sent().copied(), how.joined().copied())
        });
        assert_eq!(changed, [(None, None), (None, Some(2)), (Some(3), None), (Some(4), Some(5))]);
    }
}
