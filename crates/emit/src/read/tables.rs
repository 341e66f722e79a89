//! `program.json` back to the tables.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use diag::{Error, Result};
use graph::{Graph, OpId, TensorId};
use program::{
    Boundary, Exchange, Gathered, Inputs, Of, Output, PerRank, Piece, Program, RankId, Shard, Table, Update,
};
use rules::{Reduction, Region, Rewriting, Slices};
use serde_json::Value;

use super::json::{Node, Place, int, string};
use super::per_rank::{self, Regions};
use crate::templates::DEVICE;
use crate::write::tables::{FORMAT, plain_factors};

/// What the tables say of a role; its body is in its file.
pub(super) struct RoleTable {
    pub(super) file: String,
    pub(super) ranks: Vec<RankId>,
    pub(super) table: Table,
    pub(super) holes: Vec<String>,
    pub(super) inputs: Vec<TensorId>,
    pub(super) leaves: Vec<(TensorId, u32)>,
    pub(super) outputs: Vec<Option<Gives>>,
    /// Operators that reading the code would not guess, by position among all local operators.
    pub(super) operators: BTreeMap<usize, OpId>,
    pub(super) gradients: Vec<TensorId>,
    /// What its calls are called, in their order.
    pub(super) calls: Vec<String>,
}

/// The tensor of an output, and whether it has a gradient.
type Gives = (TensorId, bool);

/// The program without its roles, and what is known of these.
pub(super) struct ProgramTables {
    pub(super) program: Program,
    pub(super) roles: Vec<RoleTable>,
    pub(super) files: HashSet<String>,
}

/// A program is for at most so many ranks.
const MOST: u32 = 1 << 20;

pub(super) fn value(text: &str) -> Result<Value> {
    serde_json::from_str(text).map_err(|error| {
        let place = format!("program.json:{}", error.line());
        Error::new("SW0602", "program.json is not JSON").at(place).why(error.to_string())
    })
}

/// What of the model is rewritten; refuses a program of another model.
pub(super) fn rewritings(model: &Graph, value: &Value) -> Result<Vec<Rewriting>> {
    let top = Node { value, place: Place::Top };
    check_origin(model, &top)?;
    top.get("rewritings")?.list(|node| {
        let dims = node.get("dims")?.list(string)?;
        Ok(Rewriting { op: OpId(node.get("op")?.id()?), dims })
    })
}

/// Where its sequence is cut; left out where it is whole.
pub(super) fn slices(value: &Value) -> Result<Option<Slices>> {
    let top = Node { value, place: Place::Top };
    let read = |node: Node<'_>| {
        let number = |key: &str| Ok(node.get(key)?.id()? as usize);
        let ends = node.get("ends")?.list(|end| Ok(i64::from(end.id()?)))?;
        Ok(Slices { input: number("input")?, dim: number("dim")?, ends })
    };
    top.maybe("slices")?.map(read).transpose()
}

/// The tables, which speak of the graph in slices and rewritten.
pub(super) fn read(
    graph: &Graph,
    slices: Option<Slices>,
    rewritings: Vec<Rewriting>,
    value: &Value,
) -> Result<ProgramTables> {
    let top = Node { value, place: Place::Top };
    let regions = Regions::read(&top.get("regions")?)?;
    let reader = Reader { regions, tensors: graph.tensors.len(), operators: graph.ops.len() };
    let world = top.get("world")?;
    let world = world
        .id()
        .ok()
        .filter(|count| *count <= MOST)
        .ok_or_else(|| world.refuse("this is no number of ranks"))?;
    let program = Program {
        model: top.get("model")?.string()?,
        digest: top.get("digest")?.string()?,
        slices,
        rewritings,
        plan: top.get("plan")?.string()?,
        world,
        boundary: boundary(&top)?,
        factors: reader.factors(graph, &top)?,
        state_on_host: on_host(&top, &reader, "state_on_host")?,
        held_on_host: on_host(&top, &reader, "held_on_host")?,
        groupings: top.get("groups")?.list(|grouping| per_rank::grouping(grouping, world))?,
        exchanges: top.get("exchanges")?.list(|node| reader.exchange(node, world))?,
        updates: updates(&top, &reader, world)?,
        roles: vec![],
    };
    let roles = top.get("roles")?.list(|node| reader.role(node, world))?;
    let files: HashSet<String> = roles.iter().map(|role| role.file.clone()).collect();
    if files.len() != roles.len() {
        return Err(top.get("roles")?.refuse("two roles name the same file"));
    }
    Ok(ProgramTables { program, roles, files })
}

/// Left out where there are none.
fn on_host(top: &Node<'_>, reader: &Reader, key: &str) -> Result<Vec<TensorId>> {
    top.maybe(key)?.map_or(Ok(vec![]), |tensors| tensors.list(|node| reader.tensor(node)))
}

/// Left out where there are none.
fn updates(top: &Node<'_>, reader: &Reader, world: u32) -> Result<Vec<Update>> {
    let Some(listed) = top.maybe("updates")? else { return Ok(vec![]) };
    listed.list(|node| {
        let [tensor, by] = node.tuple()?;
        Ok(Update { tensor: reader.tensor(&tensor)?, rank: rank(&by, world)? })
    })
}

fn boundary(top: &Node<'_>) -> Result<Boundary> {
    let (given, asked) = (top.get("inputs")?, top.get("outputs")?);
    let inputs = Inputs::parse(&given.string()?);
    let outputs = asked.list(|node| {
        Output::parse(&node.string()?).ok_or_else(|| node.refuse("this is no way in which an output leaves"))
    })?;
    let inputs = inputs.ok_or_else(|| given.refuse("this is no way in which inputs are given"))?;
    Ok(Boundary { inputs, outputs })
}

fn check_origin(model: &Graph, top: &Node<'_>) -> Result<()> {
    let format = top.get("format")?.int()?;
    let version = top.get("shardwright")?.string()?;
    if format != FORMAT as i64 || version != env!("CARGO_PKG_VERSION") {
        let what = format!("the program is of format {format} by shardwright {}", version.escape_debug());
        return Err(Error::new("SW0603", what)
            .at("program.json")
            .why(format!("this is shardwright {} and reads format {FORMAT}", env!("CARGO_PKG_VERSION")))
            .fix("compile the model again with this release"));
    }
    if top.get("digest")?.string()? != model.digest() {
        return Err(Error::new("SW0604", "the program was made from another graph")
            .at("program.json: digest")
            .why("the model, its inputs or the release of PyTorch have changed since")
            .fix("compile the model again"));
    }
    Ok(())
}

fn rank(node: &Node<'_>, world: u32) -> Result<RankId> {
    let rank = node.id()?;
    if rank < world {
        Ok(RankId(rank))
    } else {
        Err(node.refuse(format!("there is no rank {rank} among {world}")))
    }
}

struct Reader {
    regions: Regions,
    tensors: usize,
    operators: usize,
}

impl Reader {
    fn tensor(&self, node: &Node<'_>) -> Result<TensorId> {
        let id = TensorId(node.id()?);
        if id.index() < self.tensors { Ok(id) } else { Err(node.refuse("there is no tensor of this number")) }
    }

    /// The factors of all tensors; those that are not written are one for each dim.
    fn factors(&self, graph: &Graph, top: &Node<'_>) -> Result<Vec<Vec<Vec<i64>>>> {
        let mut all: Vec<_> = graph.tensors.iter().map(|tensor| plain_factors(&tensor.shape)).collect();
        let dims = |node: &Node<'_>| node.list(|dim| dim.list(int));
        top.get("tensors")?.list(|node| {
            let id = self.tensor(&node.get("id")?)?;
            all[id.index()] = dims(&node.get("factors")?)?;
            Ok(())
        })?;
        top.get("factors")?.entries(|id, node| {
            let entry =
                all.get_mut(id as usize).ok_or_else(|| node.refuse("there is no tensor of this number"))?;
            *entry = dims(node)?;
            Ok(())
        })?;
        Ok(all)
    }

    fn exchange(&self, node: &Node<'_>, world: u32) -> Result<Exchange> {
        let end = |node: &Node<'_>| {
            let [at, region] = node.tuple()?;
            Ok((rank(&at, world)?, self.regions.one(&region)?))
        };
        let sources = node.get("sources")?.list(end)?;
        let targets = node.get("targets")?.list(end)?;
        let pieces = node.get("pieces")?.list(|node| {
            let [from, to, region] = node.tuple()?;
            let piece = Piece { from: from.index()?, to: to.index()?, region: self.regions.one(&region)? };
            let exists = piece.from < sources.len() && piece.to < targets.len();
            if exists { Ok(piece) } else { Err(node.refuse("there is no source or target of this number")) }
        })?;
        let name = node.get("op")?.string()?;
        let reduction = reduction(&name).ok_or_else(|| node.refuse("`op` is no reduction"))?;
        let tensor = self.tensor(&node.get("tensor")?)?;
        let (sources, targets, pieces) = (Arc::new(sources), Arc::new(targets), Arc::new(pieces));
        Ok(Exchange { tensor, reduction, sources, targets, pieces })
    }

    fn role(&self, node: &Node<'_>, world: u32) -> Result<RoleTable> {
        let ranks = per_rank::ranks(&node.get("ranks")?, world)?;
        let (mut table, mut gives) = (Table::default(), vec![]);
        let regions = |node: &Node<'_>| self.regions.per_rank(node, ranks.len());
        table.constants = node.get("constants")?.list(|node| per_rank::numbers(node, ranks.len()))?;
        table.shards = node.get("shards")?.list(|node| {
            let [tensor, region] = node.tuple()?;
            Ok(Shard { tensor: self.tensor(&tensor)?, region: regions(&region)? })
        })?;
        table.copies = node.get("copies")?.list(|node| {
            let [shard, region, factor, parts] = node.tuple()?;
            let shard = number(&shard, table.shards.len(), "shard")?;
            let (region, factor, parts) = (regions(&region)?, factor.index()?, parts.id()?);
            Ok(Gathered { shard, region, factor, parts })
        })?;
        let leaves = node.get("leaves")?.list(|node| {
            let origin = match node.maybe("copy")? {
                Some(copy) => Of::Copy(number(&copy, table.copies.len(), "copy")?),
                None => Of::Shard(number(&node.get("shard")?, table.shards.len(), "shard")?),
            };
            table.leaves.push((origin, regions(&node.get("region")?)?));
            Ok((self.tensor(&node.get("tensor")?)?, node.get("number")?.id()?))
        })?;
        let inputs = node.get("inputs")?.list(|node| {
            let [tensor, region] = node.tuple()?;
            table.inputs.push(regions(&region)?);
            self.tensor(&tensor)
        })?;
        node.get("outputs")?.list(|node| {
            let (output, region) = self.output(node, &regions)?.unzip();
            gives.push(output);
            table.outputs.push(region);
            Ok(())
        })?;
        table.random = node.get("random")?.entries(|op, node| Ok((OpId(op), node.list(regions)?)))?;
        let role = RoleTable {
            file: node.get("file")?.string()?,
            holes: node.get("holes")?.list(string)?,
            inputs,
            leaves,
            outputs: gives,
            operators: self.operators(node.maybe("operators")?)?,
            gradients: node.get("gradients")?.list(|node| self.tensor(node))?,
            calls: node.get("calls")?.list(string)?,
            ranks,
            table,
        };
        if role.holes.iter().any(|hole| hole == DEVICE) {
            return Err(node.refuse("`rank.device` is where a rank computes, and no constant of it"));
        }
        let fits = role.table.constants.len() == role.holes.len() && !role.ranks.is_empty();
        if fits { Ok(role) } else { Err(node.refuse("a role has no ranks, or not a constant for each hole")) }
    }

    fn operators(&self, node: Option<Node<'_>>) -> Result<BTreeMap<usize, OpId>> {
        let Some(node) = node else { return Ok(BTreeMap::new()) };
        let entries = node.entries(|position, node| {
            let op = OpId(node.id()?);
            let exists = op.index() < self.operators;
            if exists {
                Ok((position as usize, op))
            } else {
                Err(node.refuse("there is no operator of this number"))
            }
        })?;
        Ok(entries.into_iter().collect())
    }

    /// The tensor, and whether it has a gradient; and the part that leaves.
    fn output(
        &self,
        node: &Node<'_>,
        regions: &impl Fn(&Node<'_>) -> Result<PerRank<Region>>,
    ) -> Result<Option<(Gives, PerRank<Region>)>> {
        if node.is_null() {
            return Ok(None);
        }
        let output = (self.tensor(&node.get("tensor")?)?, node.get("grad")?.bool()?);
        Ok(Some((output, regions(&node.get("region")?)?)))
    }
}

/// The number of something that a role has so many of.
fn number(node: &Node<'_>, count: usize, what: &str) -> Result<usize> {
    let index = node.index()?;
    if index < count { Ok(index) } else { Err(node.refuse(format!("the role has no {what} of this number"))) }
}

pub(super) fn reduction(name: &str) -> Option<Reduction> {
    Reduction::MARKS.iter().find(|row| row.2 == name).map(|row| row.0)
}
