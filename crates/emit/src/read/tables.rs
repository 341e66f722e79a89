//! `program.json` back to the tables.

use std::collections::{BTreeMap, HashSet};

use diag::{Error, Result};
use graph::{Graph, OpId, TensorId};
use program::{Boundary, Exchange, Inputs, Output, Piece, Program, RankId, Shard, Table};
use rules::{Interval, Reduction, Region, Rewriting};
use serde_json::Value;

use super::json::{Node, Place, int, string};
use crate::write::tables::{FORMAT, plain_factors};

/// What the tables say of a role; its body is in its file.
pub(super) struct RoleTable {
    pub(super) file: String,
    pub(super) ranks: Vec<RankId>,
    pub(super) tables: Vec<Table>,
    pub(super) holes: Vec<String>,
    pub(super) inputs: Vec<TensorId>,
    pub(super) leaves: Vec<(TensorId, u32)>,
    /// The tensor, and whether it has a gradient.
    pub(super) outputs: Vec<Option<(TensorId, bool)>>,
    /// Operators that reading the code would not guess, by position among all local operators.
    pub(super) operators: BTreeMap<usize, OpId>,
    pub(super) gradients: Vec<TensorId>,
}

/// The program without its roles, and what is known of these.
pub(super) struct Tables {
    pub(super) program: Program,
    pub(super) roles: Vec<RoleTable>,
    pub(super) files: HashSet<String>,
}

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

/// The tables, which speak of the rewritten graph.
pub(super) fn read(graph: &Graph, rewritings: Vec<Rewriting>, value: &Value) -> Result<Tables> {
    let top = Node { value, place: Place::Top };
    let regions = top.get("regions")?.list(region)?;
    let reader = Reader { regions, tensors: graph.tensors.len(), operators: graph.ops.len() };
    let world = top.get("world")?.id()?;
    let program = Program {
        model: top.get("model")?.string()?,
        digest: top.get("digest")?.string()?,
        rewritings,
        plan: top.get("plan")?.string()?,
        world,
        boundary: boundary(&top)?,
        factors: reader.factors(graph, &top)?,
        groupings: top.get("groups")?.list(|g| g.list(|group| group.list(|r| rank(r, world))))?,
        exchanges: top.get("exchanges")?.list(|node| reader.exchange(node, world))?,
        roles: vec![],
    };
    let mut tables: Vec<Option<Table>> = top.get("ranks")?.list(|node| reader.table(node).map(Some))?;
    if tables.len() != world as usize {
        return Err(top.get("ranks")?.refuse(format!("there are {} ranks, not {world}", tables.len())));
    }
    let roles = top.get("roles")?.list(|node| reader.role(node, world, &mut tables))?;
    let files: HashSet<String> = roles.iter().map(|role| role.file.clone()).collect();
    if files.len() != roles.len() {
        return Err(top.get("roles")?.refuse("two roles name the same file"));
    }
    Ok(Tables { program, roles, files })
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

fn region(node: &Node<'_>) -> Result<Region> {
    let interval = |node: &Node<'_>| {
        let [lo, hi] = node.tuple()?;
        Ok(Interval { lo: lo.int()?, hi: hi.int()? })
    };
    Ok(Region(node.list(interval)?.into_boxed_slice()))
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
    regions: Vec<Region>,
    tensors: usize,
    operators: usize,
}

impl Reader {
    fn region(&self, node: &Node<'_>) -> Result<Region> {
        let found = self.regions.get(node.index()?).cloned();
        found.ok_or_else(|| node.refuse("there is no region of this number"))
    }

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
            Ok((rank(&at, world)?, self.region(&region)?))
        };
        let sources = node.get("sources")?.list(end)?;
        let targets = node.get("targets")?.list(end)?;
        let pieces = node.get("pieces")?.list(|node| {
            let [from, to, region] = node.tuple()?;
            let piece = Piece { from: from.index()?, to: to.index()?, region: self.region(&region)? };
            let exists = piece.from < sources.len() && piece.to < targets.len();
            if exists { Ok(piece) } else { Err(node.refuse("there is no source or target of this number")) }
        })?;
        let name = node.get("op")?.string()?;
        let reduction = reduction(&name).ok_or_else(|| node.refuse("`op` is no reduction"))?;
        Ok(Exchange { tensor: self.tensor(&node.get("tensor")?)?, reduction, sources, targets, pieces })
    }

    fn table(&self, node: &Node<'_>) -> Result<Table> {
        let shards = node.get("shards")?.list(|node| {
            let [tensor, region] = node.tuple()?;
            Ok(Shard { tensor: self.tensor(&tensor)?, region: self.region(&region)? })
        })?;
        let leaves = node.get("leaves")?.list(|node| {
            let [shard, region] = node.tuple()?;
            if shard.index()? >= shards.len() {
                return Err(shard.refuse("the rank has no shard of this number"));
            }
            Ok((shard.index()?, self.region(&region)?))
        })?;
        let random = node
            .get("random")?
            .entries(|op, node| Ok((OpId(op), node.list(|region| self.region(region))?)))?;
        Ok(Table {
            constants: node.get("constants")?.list(int)?,
            inputs: node.get("inputs")?.list(|region| self.region(region))?,
            outputs: node
                .get("outputs")?
                .list(|region| if region.is_null() { Ok(None) } else { self.region(region).map(Some) })?,
            shards,
            leaves,
            random,
        })
    }

    fn role(&self, node: &Node<'_>, world: u32, tables: &mut [Option<Table>]) -> Result<RoleTable> {
        let ranks = node.get("ranks")?.list(|node| rank(node, world))?;
        let mut own = Vec::with_capacity(ranks.len());
        for rank in &ranks {
            let table = tables[rank.index()].take();
            own.push(table.ok_or_else(|| node.refuse(format!("rank {} has no table of its own", rank.0)))?);
        }
        let role = RoleTable {
            file: node.get("file")?.string()?,
            ranks,
            tables: own,
            holes: node.get("holes")?.list(string)?,
            inputs: node.get("inputs")?.list(|node| self.tensor(node))?,
            leaves: node
                .get("leaves")?
                .list(|node| Ok((self.tensor(&node.get("tensor")?)?, node.get("number")?.id()?)))?,
            outputs: node.get("outputs")?.list(|node| self.output(node))?,
            operators: self.operators(node.maybe("operators")?)?,
            gradients: node.get("gradients")?.list(|node| self.tensor(node))?,
        };
        let fits = role.tables.iter().all(|table| {
            table.constants.len() == role.holes.len()
                && table.leaves.len() == role.leaves.len()
                && table.inputs.len() == role.inputs.len()
                && (table.outputs.iter().map(Option::is_some)).eq(role.outputs.iter().map(Option::is_some))
        });
        if fits { Ok(role) } else { Err(node.refuse("a rank's table does not fit its role")) }
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

    fn output(&self, node: &Node<'_>) -> Result<Option<(TensorId, bool)>> {
        if node.is_null() {
            return Ok(None);
        }
        Ok(Some((self.tensor(&node.get("tensor")?)?, node.get("grad")?.bool()?)))
    }
}

pub(super) fn reduction(name: &str) -> Option<Reduction> {
    Reduction::MARKS.iter().find(|row| row.2 == name).map(|row| row.0)
}
