//! Ranks that run the same code share it; the integers in which they differ become holes.

use program::{Arg, Body, RankId, Role, Table};

/// Ranks whose code is the same but for integers, and each rank's integers in the code's order.
#[derive(Default)]
pub struct Roles {
    found: Vec<(Role, Vec<Vec<i64>>)>,
}

impl Roles {
    pub fn add(&mut self, rank: RankId, mut body: Body, table: Table) {
        let ints = take_integers(&mut body);
        match self.found.iter_mut().find(|(role, _)| role.body == body) {
            Some((role, all)) => {
                role.ranks.push(rank);
                role.tables.push(table);
                all.push(ints);
            }
            None => self.found.push((Role { ranks: vec![rank], tables: vec![table], body }, vec![ints])),
        }
    }

    /// The roles, with holes where their ranks differ.
    pub fn finish(self) -> Vec<Role> {
        self.found.into_iter().map(|(role, ints)| punch(role, &ints)).collect()
    }
}

/// The integers of a body, which are left as zeros.
fn take_integers(body: &mut Body) -> Vec<i64> {
    let mut found = vec![];
    visit(body, &mut |arg, _| {
        if let Arg::Int(value) = arg {
            found.push(std::mem::take(value));
        }
    });
    found
}

fn punch(mut role: Role, ints: &[Vec<i64>]) -> Role {
    let mut holes: Vec<(String, Vec<i64>)> = vec![];
    let mut position = 0;
    visit(&mut role.body, &mut |arg, name| {
        let Arg::Int(_) = arg else { return };
        let first = ints[0][position];
        let differs = ints.iter().any(|list| list[position] != first);
        position += 1;
        if !differs {
            *arg = Arg::Int(first);
            return;
        }
        let values: Vec<i64> = ints.iter().map(|list| list[position - 1]).collect();
        let at = holes.iter().position(|(_, known)| *known == values).unwrap_or_else(|| {
            let count = holes
                .iter()
                .filter(|(n, _)| n.rsplit_once('_').is_some_and(|(base, _)| base == name))
                .count();
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
    for instr in body.codes.iter_mut().flat_map(|code| &mut code.instrs) {
        instr.args_mut().into_iter().for_each(|(arg, word)| see(arg, word));
    }
}
