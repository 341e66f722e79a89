//! Whether the numbers of a program name things that are there, so that running it cannot go astray.

use graph::Graph;
use program::{Instr, Of, Program, Role};
use rules::Region;

/// The first thing that is not.
pub fn fault(graph: &Graph, program: &Program) -> Option<String> {
    let tensors = graph.tensors.len();
    let factors_fit = program.factors.len() == tensors
        && program.factors.iter().zip(&graph.tensors).all(|(factors, tensor)| {
            factors.len() == tensor.shape.len()
                && factors.iter().zip(&tensor.shape).all(|(dim, size)| dim.iter().product::<i64>() == *size)
        });
    if !factors_fit {
        return Some("has other factors than its model".into());
    }
    let mut seen = vec![false; program.world as usize];
    for rank in program.roles.iter().flat_map(|role| &role.ranks) {
        match seen.get_mut(rank.index()) {
            Some(seen) if !*seen => *seen = true,
            _ => return Some(format!("has rank {} twice or too many", rank.0)),
        }
    }
    if seen.contains(&false) {
        return Some("has a rank without a role".into());
    }
    if program.boundary.outputs.len() != graph.outputs.len() {
        return Some("gives another number of outputs".into());
    }
    program.roles.iter().find_map(|role| of_role(program, role, tensors)).or_else(|| of_tables(program))
}

fn of_role(program: &Program, role: &Role, tensors: usize) -> Option<String> {
    let (table, body) = (&role.table, &role.body);
    let rank_of = |tensor: graph::TensorId| {
        program.factors.get(tensor.index()).map(|dims| dims.iter().map(Vec::len).sum::<usize>())
    };
    let fits = |tensor: graph::TensorId, regions: &[Region]| {
        let rank = rank_of(tensor);
        regions.iter().all(|region| Some(region.0.len()) == rank)
    };
    let buf_fits = |buf: &program::BufId| buf.index() < body.bufs.len();
    let tables = table.fits(role.ranks.len())
        && table.leaves.len() == body.leaves.len()
        && table.inputs.len() == body.inputs.len()
        && table.shards.iter().all(|it| fits(it.tensor, it.region.values()))
        && table.copies.iter().all(|it| {
            it.shard < table.shards.len() && fits(table.shards[it.shard].tensor, it.region.values())
        })
        && body.inputs.iter().zip(&table.inputs).all(|(tensor, it)| fits(*tensor, it.values()))
        && body.leaves.iter().zip(&table.leaves).all(|(leaf, (origin, region))| {
            let there = match origin {
                Of::Shard(at) => table.shards.get(*at).is_some_and(|it| it.tensor == leaf.tensor),
                Of::Copy(at) => {
                    table.copies.get(*at).is_some_and(|it| table.shards[it.shard].tensor == leaf.tensor)
                }
            };
            there && fits(leaf.tensor, region.values()) && buf_fits(&leaf.buf)
        })
        && body.gradients.iter().all(|tensor| tensor.index() < tensors);
    if !tables {
        return Some("has tables that do not fit its code".into());
    }
    let instrs = body.instrs().all(|instr| {
        instr.copies().iter().all(|at| *at < table.copies.len())
            && instr.leaves().iter().all(|at| at.index() < body.leaves.len())
            && instr.shards().iter().all(|at| *at < table.shards.len())
            && instr.reads().chain(instr.writes()).all(|buf| buf_fits(&buf))
            && match instr {
                Instr::Call(call) => call.ops.iter().all(|op| {
                    op.inputs().chain(op.outputs.iter().flatten().copied()).all(|buf| buf_fits(&buf))
                }),
                Instr::Collective(it) => !it.from.is_empty() && it.from.len() == it.to.len(),
                _ => true,
            }
    });
    (!instrs).then(|| "has numbers of what is not there".into())
}

fn of_tables(program: &Program) -> Option<String> {
    let fits = program.exchanges.iter().all(|table| {
        let rank =
            program.factors.get(table.tensor.index()).map(|dims| dims.iter().map(Vec::len).sum::<usize>());
        let region = |region: &Region| Some(region.0.len()) == rank;
        table.sources.iter().chain(table.targets.iter()).all(|(_, it)| region(it))
            && table.pieces.iter().all(|piece| {
                region(&piece.region) && piece.from < table.sources.len() && piece.to < table.targets.len()
            })
    });
    (!fits).then(|| "has a table of an exchange that does not fit".into())
}
