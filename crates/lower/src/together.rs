//! All-reduces that follow each other in one group become one: a message costs more than its bytes.
//!
//! All members of a group must do the same, so two become one only where they follow each other on every rank that
//! is in any group of the grouping.

use std::collections::{HashMap, HashSet};

use program::{Body, Collective, GroupingId, How, Instr, OrderKey, Program};

/// The meeting of a grouping with this number in a code, and the next one.
type Pair = (OrderKey, GroupingId, usize);

pub fn together(program: &mut Program) {
    let mut wanted: HashMap<GroupingId, HashSet<Pair>> = HashMap::new();
    for role in &program.roles {
        let pairs: HashSet<Pair> = pairs(&role.body).collect();
        for (index, grouping) in program.groupings.iter().enumerate() {
            if grouping.iter().flatten().any(|rank| role.ranks.contains(rank)) {
                let id = GroupingId::new(index);
                let of_group = || pairs.iter().filter(|(_, group, _)| *group == id).copied().collect();
                wanted
                    .entry(id)
                    .and_modify(|all| all.retain(|pair| pairs.contains(pair)))
                    .or_insert_with(of_group);
            }
        }
    }
    let wanted: HashSet<Pair> = wanted.into_values().flatten().collect();
    for role in &mut program.roles {
        for code in &mut role.body.codes {
            code.instrs = joined(code.place(), std::mem::take(&mut code.instrs), &wanted);
        }
    }
}

/// Where one all-reduce follows another that it could be done with.
fn pairs(body: &Body) -> impl Iterator<Item = Pair> {
    body.codes.iter().flat_map(|code| {
        let mut met: HashMap<GroupingId, usize> = HashMap::new();
        code.instrs.windows(2).filter_map(move |two| {
            let group = two[0].group()?;
            let number = met.entry(group).or_default();
            *number += 1;
            fits(&two[0], &two[1]).then_some((code.place(), group, *number - 1))
        })
    })
}

fn fits(first: &Instr, second: &Instr) -> bool {
    match (first, second) {
        (Instr::Collective(a), Instr::Collective(b)) => {
            matches!(a.how, How::AllReduce(_))
                && a.how == b.how
                && a.group == b.group
                && b.from.iter().all(|buf| !a.to.contains(buf))
        }
        _ => false,
    }
}

fn joined(place: OrderKey, instrs: Vec<Instr>, wanted: &HashSet<Pair>) -> Vec<Instr> {
    let mut met: HashMap<GroupingId, usize> = HashMap::new();
    let mut merged: Vec<Instr> = Vec::with_capacity(instrs.len());
    for instr in instrs {
        let before = instr.group().and_then(|group| {
            let number = met.entry(group).or_default();
            *number += 1;
            Some((place, group, number.checked_sub(2)?))
        });
        let joins = before.is_some_and(|pair| wanted.contains(&pair));
        match (merged.last_mut(), instr) {
            (Some(Instr::Collective(first)), Instr::Collective(Collective { from, to, .. })) if joins => {
                first.from.extend(from);
                first.to.extend(to);
            }
            (_, instr) => merged.push(instr),
        }
    }
    merged
}
