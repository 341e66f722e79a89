//! Ranks, as comments speak of them.

use program::{GroupingId, Program, RankId, Role};

/// The group of a grouping that a role's first rank is in; a role's groups are of one size.
pub(crate) fn group_of<'a>(program: &'a Program, role: &Role, id: GroupingId) -> Option<&'a [RankId]> {
    let grouping = program.groupings.get(id.index())?;
    let rank = role.ranks.first()?;
    grouping.iter().find(|group| group.contains(rank)).map(Vec::as_slice)
}

/// Which ranks a role is for, to people: a row of them as in plans, without its end.
pub(crate) fn rank_names(ranks: &[RankId]) -> String {
    const MOST: usize = 8;
    let some = |ranks: &[RankId]| ranks.iter().map(|r| r.0.to_string()).collect::<Vec<_>>().join(", ");
    match ranks {
        [] => "no rank".to_owned(),
        [one] => format!("rank {}", one.0),
        [first, .., last] if is_run(ranks) => format!("ranks {}..{}", first.0, last.0 + 1),
        _ if ranks.len() <= MOST => format!("ranks {}", some(ranks)),
        _ => format!("ranks {} and {} more", some(&ranks[..MOST]), ranks.len() - MOST),
    }
}

pub(crate) fn is_run(ranks: &[RankId]) -> bool {
    ranks.windows(2).all(|pair| pair[1].0 == pair[0].0.wrapping_add(1))
}
