//! Ranks that run the same code share it; the integers in which they differ become holes.

use std::collections::HashMap;

use program::{Arg, Body, Instr, RankId, Role, Table};

/// Groups ranks by their code with all integers left out, then makes holes where they differ.
pub fn merge(ranks: Vec<(RankId, Body, Table)>) -> Vec<Role> {
    let mut roles: Vec<(Role, Vec<Vec<i64>>)> = vec![];
    let mut known: HashMap<String, usize> = HashMap::new();
    for (rank, mut body, table) in ranks {
        let ints = integers(&mut body);
        let key = shape(&mut body, &ints);
        match known.get(&key) {
            Some(&at) => {
                roles[at].0.ranks.push(rank);
                roles[at].0.tables.push(table);
                roles[at].1.push(ints);
            }
            None => {
                known.insert(key, roles.len());
                roles.push((Role { ranks: vec![rank], tables: vec![table], body }, vec![ints]));
            }
        }
    }
    roles.into_iter().map(|(role, ints)| punch(role, &ints)).collect()
}

fn integers(body: &mut Body) -> Vec<i64> {
    let mut found = vec![];
    visit(body, &mut |arg, _| {
        if let Arg::Int(value) = arg {
            found.push(*value);
        }
    });
    found
}

/// The text of a body without its integers.
fn shape(body: &mut Body, ints: &[i64]) -> String {
    visit(body, &mut |arg, _| {
        if matches!(arg, Arg::Int(_)) {
            *arg = Arg::Int(0);
        }
    });
    let text = format!("{body:?}");
    let mut at = ints.iter();
    visit(body, &mut |arg, _| {
        if let (Arg::Int(slot), true) = (&mut *arg, true) {
            *slot = *at.next().expect("as many integers as before");
        }
    });
    text
}

fn punch(mut role: Role, ints: &[Vec<i64>]) -> Role {
    let mut holes: Vec<(String, Vec<i64>)> = vec![];
    let mut position = 0;
    visit(&mut role.body, &mut |arg, name| {
        let Arg::Int(_) = arg else { return };
        let values: Vec<i64> = ints.iter().map(|list| list[position]).collect();
        position += 1;
        if values.iter().all(|v| *v == values[0]) {
            return;
        }
        let at = holes.iter().position(|(_, known)| *known == values).unwrap_or_else(|| {
            let count = holes.iter().filter(|(n, _)| n.rsplit_once('_').is_some_and(|(base, _)| base == name)).count();
            holes.push((format!("{name}_{count}"), values));
            holes.len() - 1
        });
        *arg = Arg::Hole(u32::try_from(at).unwrap_or(u32::MAX));
    });
    for (index, table) in role.tables.iter_mut().enumerate() {
        table.constants = holes.iter().map(|(_, values)| values[index]).collect();
    }
    role.body.holes = holes.into_iter().map(|(name, _)| name).collect();
    role
}

/// Every argument of a body that may hold an integer, with a word for what it is.
fn visit(body: &mut Body, see: &mut impl FnMut(&mut Arg, &str)) {
    for instr in body.forward.iter_mut().chain(&mut body.backward) {
        match instr {
            Instr::Call(call) => {
                for op in &mut call.ops {
                    let word = if op.target.starts_with("sw.") { "start" } else { "size" };
                    op.args.iter_mut().for_each(|a| visit_arg(a, word, see));
                    op.kwargs.iter_mut().for_each(|(_, a)| visit_arg(a, word, see));
                }
            }
            Instr::Slice(slice) => {
                slice.extents.iter_mut().flatten().for_each(|a| see(a, "size"));
                for (lo, hi) in &mut slice.region {
                    see(lo, "lo");
                    see(hi, "hi");
                }
            }
            Instr::AllGather { cut, .. } | Instr::ReduceScatter { cut, .. } => {
                cut.extents.iter_mut().flatten().for_each(|a| see(a, "size"));
            }
            Instr::AllToAll { send, receive, .. } => {
                send.extents.iter_mut().chain(&mut receive.extents).flatten().for_each(|a| see(a, "size"));
            }
            _ => {}
        }
    }
}

fn visit_arg(arg: &mut Arg, word: &str, see: &mut impl FnMut(&mut Arg, &str)) {
    match arg {
        Arg::List(items) => items.iter_mut().for_each(|a| visit_arg(a, word, see)),
        arg => see(arg, word),
    }
}
