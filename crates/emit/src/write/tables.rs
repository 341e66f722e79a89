//! `program.json`: the tables behind the code, one entry a line.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::fmt::Write;

use graph::{Arg, Graph, Op, OpId, Source, TensorId};
use program::{Body, BufId, Exchange, Instr, Of, Pass, PerRank, Program, RankId, Role, Update, Which};
use rules::{Region, Rewriting, Slices};
use serde_json::Value;

use super::file_name;
use super::per_rank::{self, Regions};
use super::role::hole_names;
use crate::hints::missed;

pub(crate) const FORMAT: u64 = 8;

/// `calls` is what the calls of each role are called.
pub(crate) fn text(graph: &Graph, program: &Program, calls: &[Vec<String>]) -> String {
    // What refers to regions comes first, so that the regions are known.
    let mut tables = TableWriter::new(graph, program);
    let roles: Vec<String> =
        program.roles.iter().zip(calls).map(|(role, calls)| tables.role(role, calls)).collect();
    let exchanges: Vec<String> = program.exchanges.iter().map(|e| tables.exchange(e)).collect();
    let listed = listed(graph, program);
    let tensors: Vec<String> = listed.iter().filter_map(|id| tables.tensor(*id)).collect();
    let random: Vec<String> = graph.op_ids().filter_map(|id| random(graph, id)).collect();

    let mut out = String::from("{\n");
    let _ = writeln!(out, "  \"format\": {FORMAT},");
    let version = env!("CARGO_PKG_VERSION");
    let head = [
        ("shardwright", version),
        ("model", &program.model),
        ("digest", &program.digest),
        ("plan", &program.plan),
    ];
    for (key, value) in head {
        let _ = writeln!(out, "  \"{key}\": {},", quoted(value));
    }
    let _ = writeln!(out, "  \"world\": {},", program.world);
    let _ = writeln!(out, "  \"inputs\": \"{}\",", program.boundary.inputs.name());
    let asked = joined(&program.boundary.outputs, |output| format!("\"{}\"", output.name()));
    let _ = writeln!(out, "  \"outputs\": [{asked}],");
    if let Some(Slices { input, dim, ends }) = &program.slices {
        let ends = joined(ends, i64::to_string);
        let _ = writeln!(out, "  \"slices\": {{\"input\": {input}, \"dim\": {dim}, \"ends\": [{ends}]}},");
    }
    let rewritings: Vec<String> = program.rewritings.iter().map(rewriting).collect();
    list(&mut out, "rewritings", &rewritings, '[');
    let on_host = [("state_on_host", &program.state_on_host), ("held_on_host", &program.held_on_host)];
    for (key, tensors) in on_host.into_iter().filter(|(_, tensors)| !tensors.is_empty()) {
        let offloaded = joined(tensors, |tensor| tensor.0.to_string());
        let _ = writeln!(out, "  \"{key}\": [{offloaded}],");
    }
    list(&mut out, "groups", &program.groupings.iter().map(|g| per_rank::groups(g)).collect::<Vec<_>>(), '[');
    list(&mut out, "regions", &tables.regions.texts, '[');
    list(&mut out, "tensors", &tensors, '[');
    list(&mut out, "factors", &tables.factors(&listed), '{');
    list(&mut out, "random", &random, '[');
    list(&mut out, "roles", &roles, '[');
    list(&mut out, "exchanges", &exchanges, '[');
    if !program.updates.is_empty() {
        let update = |update: &Update| format!("[{}, {}]", update.tensor.0, update.rank.0);
        list(&mut out, "updates", &program.updates.iter().map(update).collect::<Vec<_>>(), '[');
    }
    out.truncate(out.len() - 2);
    out.push_str("\n}\n");
    out
}

/// Whether what tables say of tensors, of random operators and of what needs a gradient is what the graph
/// says, and no tensor that the runtime looks up is left out.
pub(crate) fn agree(graph: &Graph, program: &Program, given: &Value) -> bool {
    let tables = TableWriter::new(graph, program);
    let value = |text: String| serde_json::from_str::<Value>(&text).ok();
    let list = |key: &str| given.get(key).and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
    let id = |entry: &Value| entry.get("id").and_then(Value::as_u64).and_then(|id| usize::try_from(id).ok());
    let mut said = BTreeSet::new();
    for entry in list("tensors") {
        let Some(id) = id(entry).filter(|id| *id < graph.tensors.len()).map(TensorId::new) else {
            return false;
        };
        if tables.tensor(id).and_then(value).as_ref() != Some(entry) || !said.insert(id) {
            return false;
        }
    }
    let random: Vec<Value> = graph.op_ids().filter_map(|id| random(graph, id)).filter_map(value).collect();
    let mut roles = program.roles.iter().zip(list("roles"));
    random == list("random")
        && listed(graph, program).is_subset(&said)
        && roles.all(|(role, entry)| tables.agrees(role, entry))
        && program.exchanges.iter().enumerate().all(|(at, exchange)| tables.moves_as(at, exchange, given))
}

/// The outputs for which the caller gives a gradient.
fn seeded(body: &Body) -> BTreeSet<usize> {
    let mut outputs = BTreeSet::new();
    for code in body.codes_of(Pass::Forward) {
        let seeds = body.back_of(code.block).map_or(&[][..], |code| &code.takes);
        let mut seeds = seeds.iter().map(|seed| body.buf(*seed).tensor).peekable();
        for (number, output) in code.gives.iter().enumerate() {
            let tensor = output.map(|output| body.buf(output).tensor);
            if tensor.is_some_and(|tensor| seeds.next_if_eq(&tensor).is_some()) {
                outputs.insert(number);
            }
        }
    }
    outputs
}

/// The tensors that the tables mention, all of which the runtime looks up.
fn listed(graph: &Graph, program: &Program) -> BTreeSet<TensorId> {
    let mut tensors: BTreeSet<_> =
        graph.op_ids().filter_map(|id| drawn(graph, id)).map(|d| d.tensor).collect();
    for role in &program.roles {
        let body = &role.body;
        tensors.extend(body.leaves.iter().map(|leaf| leaf.tensor));
        tensors.extend(&body.inputs);
        tensors.extend(body.outputs().iter().flatten().map(|buf| body.buf(*buf).tensor));
        tensors.extend(role.table.shards.iter().map(|shard| shard.tensor));
    }
    tensors.extend(program.exchanges.iter().map(|exchange| exchange.tensor));
    tensors
}

struct TableWriter<'a> {
    graph: &'a Graph,
    program: &'a Program,
    regions: Regions<'a>,
    needs_grad: Vec<bool>,
}

impl<'a> TableWriter<'a> {
    fn new(graph: &'a Graph, program: &'a Program) -> Self {
        let needs_grad = program.boundary.needs_grad(graph);
        Self { graph, program, regions: Regions::default(), needs_grad }
    }

    fn exchange(&mut self, exchange: &'a Exchange) -> String {
        let mut ends = |ends: &'a [(RankId, Region)]| {
            joined(ends, |(rank, region)| format!("[{}, {}]", rank.0, self.regions.one(region)))
        };
        let (sources, targets) = (ends(&exchange.sources), ends(&exchange.targets));
        let pieces =
            joined(&exchange.pieces, |p| format!("[{}, {}, {}]", p.from, p.to, self.regions.one(&p.region)));
        format!(
            "{{\"tensor\": {}, \"op\": \"{}\", \"grad\": {}, \"sources\": [{sources}], \
             \"targets\": [{targets}], \"pieces\": [{pieces}]}}",
            exchange.tensor.0,
            exchange.reduction.name(),
            self.needs_grad.get(exchange.tensor.index()).copied().unwrap_or(false),
        )
    }

    /// Whether a role's outputs are those of the graph, and its calls need the gradients that they need.
    fn agrees(&self, role: &Role, entry: &Value) -> bool {
        let grads = serde_json::from_str(&format!("{{{}}}", self.grads(&role.body))).ok();
        let number = |output: &Value| output.get("tensor").and_then(Value::as_u64);
        let outputs = entry.get("outputs").and_then(Value::as_array).map_or(&[][..], Vec::as_slice);
        let fits = |(output, tensor): (&Value, &Option<TensorId>)| {
            output.is_null() || number(output) == tensor.map(|tensor| u64::from(tensor.0))
        };
        entry.get("grads") == grads.as_ref() && outputs.iter().zip(&self.graph.outputs).all(fits)
    }

    /// Whether the tables say of an exchange's tensor whether it needs a gradient.
    fn moves_as(&self, at: usize, exchange: &Exchange, given: &Value) -> bool {
        let said = given.get("exchanges").and_then(|all| all.get(at)?.get("grad"));
        said.and_then(Value::as_bool) == self.needs_grad.get(exchange.tensor.index()).copied()
    }

    fn tensor(&self, id: TensorId) -> Option<String> {
        let tensor = self.graph.tensors.get(id.index())?;
        let names = |names: &[String]| joined(names, |name| quoted(name));
        let (kind, names, more) = match &tensor.source {
            Source::Param { names: all, frozen } => ("param", names(all), format!(", \"frozen\": {frozen}")),
            Source::Buffer { name, persistent } => {
                ("buffer", quoted(name), format!(", \"persistent\": {persistent}"))
            }
            Source::Const { name } => ("const", quoted(name), String::new()),
            Source::Input { position, grad } => {
                let more = format!(", \"position\": {position}, \"grad\": {grad}");
                ("input", quoted(&tensor.name), more)
            }
            Source::Op { .. } => ("value", quoted(&tensor.name), String::new()),
        };
        let (number, dtype) = (id.0, tensor.dtype.short());
        let factors = factors(self.program.factors.get(id.index()).map_or(&[], Vec::as_slice));
        Some(format!(
            "{{\"id\": {number}, \"kind\": \"{kind}\", \"names\": [{names}], \"dtype\": \"{dtype}\", \
             \"factors\": {factors}{more}}}"
        ))
    }

    /// The factors of the other tensors, unless each dim is one factor.
    fn factors(&self, listed: &BTreeSet<TensorId>) -> Vec<String> {
        let all = self.program.factors.iter().enumerate();
        let others = all.filter(|(index, dims)| {
            let tensor = self.graph.tensors.get(*index);
            tensor.is_none_or(|t| plain_factors(&t.shape) != **dims)
                && !listed.contains(&TensorId::new(*index))
        });
        others.map(|(index, dims)| format!("\"{index}\": {}", factors(dims))).collect()
    }

    /// Which arguments and results of each call need a gradient, where that agrees with backward.
    fn grads(&self, body: &Body) -> String {
        let calls: HashMap<_, _> = body.calls().map(|call| (call.id, call)).collect();
        let leaves: HashSet<BufId> = body.leaves.iter().map(|leaf| leaf.buf).collect();
        let needs =
            |buf: &BufId| self.needs_grad.get(body.buf(*buf).tensor.index()).is_some_and(|needs| *needs);
        let entries = body.instrs().filter_map(|instr| {
            let Instr::Grad(grad) = instr else { return None };
            if grad.which == Which::Weights {
                return None;
            }
            let call = calls.get(&grad.call)?;
            let tensors = call.inputs.iter().filter(|buf| !leaves.contains(buf));
            let (arguments, results) = (positions(tensors, needs), positions(call.outputs.iter(), needs));
            let agree = arguments.len() == grad.to.len() && results.len() == grad.from.len();
            let list = |positions: &[usize]| joined(positions, usize::to_string);
            let (id, arguments, results) = (grad.call.0, list(&arguments), list(&results));
            let split = if grad.which == Which::Inputs { ", \"split\": true" } else { "" };
            let text = format!("\"{id}\": {{\"arguments\": [{arguments}], \"results\": [{results}]{split}}}");
            agree.then_some(text)
        });
        entries.collect::<Vec<_>>().join(", ")
    }

    /// The operators that reading the code would not guess, if there are any.
    fn operators(&self, body: &Body) -> String {
        let entries = missed(self.graph, &self.program.boundary, body).into_iter();
        let entries: Vec<String> = entries.map(|(at, op)| format!("\"{at}\": {}", op.0)).collect();
        if entries.is_empty() {
            String::new()
        } else {
            format!(", \"operators\": {{{}}}", entries.join(", "))
        }
    }

    fn role(&mut self, role: &'a Role, calls: &[String]) -> String {
        let (body, table) = (&role.body, &role.table);
        let regions = &mut self.regions;
        let shards = joined(&table.shards, |s| format!("[{}, {}]", s.tensor.0, regions.per_rank(&s.region)));
        let copies = joined(&table.copies, |c| {
            format!("[{}, {}, {}, {}]", c.shard, regions.per_rank(&c.region), c.factor, c.parts)
        });
        let leaves: Vec<String> = (body.leaves.iter().zip(&table.leaves))
            .map(|(leaf, (origin, region))| {
                let (tensor, number, region) = (leaf.tensor.0, leaf.number, regions.per_rank(region));
                let names = format!("\"tensor\": {tensor}, \"number\": {number}");
                let entry = match origin {
                    Of::Shard(shard) => format!("\"shard\": {shard}"),
                    Of::Copy(copy) => format!("\"copy\": {copy}"),
                };
                format!("{{{names}, {entry}, \"region\": {region}}}")
            })
            .collect();
        let inputs = body.inputs.iter().zip(&table.inputs);
        let inputs: Vec<String> =
            inputs.map(|(input, region)| format!("[{}, {}]", input.0, regions.per_rank(region))).collect();
        let seeds = seeded(body);
        let mut output =
            |((number, output), region): ((usize, Option<BufId>), &'a Option<PerRank<Region>>)| {
                let (Some(output), Some(region)) = (output, region) else { return "null".to_owned() };
                let tensor = body.buf(output).tensor;
                let grad = seeds.contains(&number);
                let region = regions.per_rank(region);
                format!("{{\"tensor\": {}, \"grad\": {grad}, \"region\": {region}}}", tensor.0)
            };
        let given = body.outputs().into_iter().chain(std::iter::repeat(None));
        let outputs: Vec<String> = given.enumerate().zip(&table.outputs).map(&mut output).collect();
        let random = joined(&table.random, |(op, slots)| {
            format!("\"{}\": [{}]", op.0, joined(slots, |region| regions.per_rank(region).to_string()))
        });
        format!(
            "{{\"file\": {}, \"ranks\": {}, \"holes\": [{}], \"constants\": [{}], \"shards\": [{shards}], \
             \"copies\": [{copies}], \"leaves\": [{}], \"inputs\": [{}], \"outputs\": [{}], \"random\": {{{random}}}, \
             \"gradients\": [{}], \"calls\": [{}], \"grads\": {{{}}}{}}}",
            quoted(&file_name(role)),
            per_rank::ranks(&role.ranks),
            joined(&hole_names(body), |hole| quoted(hole)),
            joined(&table.constants, per_rank::numbers),
            leaves.join(", "),
            inputs.join(", "),
            outputs.join(", "),
            joined(&body.gradients, |gradient| gradient.0.to_string()),
            joined(calls, |call| quoted(call)),
            self.grads(body),
            self.operators(body),
        )
    }
}

/// The positions of what satisfies.
fn positions<'a>(bufs: impl Iterator<Item = &'a BufId>, is: impl Fn(&BufId) -> bool) -> Vec<usize> {
    bufs.enumerate().filter(|(_, buf)| is(buf)).map(|(at, _)| at).collect()
}

/// The factors of a tensor that nothing splits.
pub(crate) fn plain_factors(shape: &[i64]) -> Vec<Vec<i64>> {
    shape.iter().map(|&size| if size == 1 { vec![] } else { vec![size] }).collect()
}

/// A random operator: what it draws for, and how.
struct Drawn {
    tensor: TensorId,
    p: f64,
    /// `None` for the mask of a dropout.
    kind: Option<&'static str>,
}

/// A random operator of the graph, that is not one only in evaluation or for other probabilities.
fn drawn(graph: &Graph, id: OpId) -> Option<Drawn> {
    let op = graph.op(id);
    let tensor = *op.outputs.iter().flatten().next()?;
    let numbers = |kind, p| Some(Drawn { tensor, p, kind: Some(kind) });
    let (p, kind) = match op.target.as_str() {
        "aten.rand.default" | "aten.rand_like.default" => return numbers("uniform", 0.0),
        "aten.randn.default" | "aten.randn_like.default" => return numbers("normal", 0.0),
        "aten.bernoulli.p" => return numbers("bernoulli", number(op, 1, "p").unwrap_or(0.5)),
        "aten.exponential.default" => return numbers("exponential", number(op, 1, "lambd").unwrap_or(1.0)),
        "aten.randint.default" => return numbers("integers", number(op, 0, "high")?),
        "aten.randint_like.default" => return numbers("integers", number(op, 1, "high")?),
        "aten.scaled_dot_product_attention.default" => (number(op, 4, "dropout_p")?, Some("attention")),
        _ => (dropout(op)?, None),
    };
    (p != 0.0).then_some(Drawn { tensor, p, kind })
}

fn random(graph: &Graph, id: OpId) -> Option<String> {
    let Drawn { tensor, p, kind } = drawn(graph, id)?;
    let kind = kind.map(|kind| format!(", \"kind\": \"{kind}\"{}", keys(graph, id, kind)));
    let kind = kind.unwrap_or_default();
    let order = &graph.op(id).order;
    let order = if order.is_empty() { String::new() } else { format!(", \"order\": {order:?}") };
    Some(format!("{{\"op\": {}, \"tensor\": {}, \"p\": {}{kind}{order}}}", id.0, tensor.0, float(p)))
}

/// The mask of attention has the shape of its probabilities: keys where the output has values.
fn keys(graph: &Graph, id: OpId, kind: &str) -> String {
    let shape = graph.op(id).inputs().get(1).map(|k| &graph.tensor(*k).shape);
    let keys = shape.and_then(|shape| shape.iter().nth_back(1)).filter(|_| kind == "attention");
    keys.map_or_else(String::new, |keys| format!(", \"keys\": {keys}"))
}

fn dropout(op: &Op) -> Option<f64> {
    if !matches!(op.target.as_str(), "aten.dropout.default" | "aten.native_dropout.default") {
        return None;
    }
    let off = matches!(op.arg(2, "train"), Some(Arg::Bool(false)));
    number(op, 1, "p").filter(|_| !off)
}

fn number(op: &Op, position: usize, name: &str) -> Option<f64> {
    match op.arg(position, name)? {
        Arg::Float(value) => Some(*value),
        Arg::Int(value) => Some(*value as f64),
        _ => None,
    }
}

fn list(out: &mut String, key: &str, items: &[String], open: char) {
    let close = if open == '[' { ']' } else { '}' };
    let _ = write!(out, "  \"{key}\": {open}");
    if !items.is_empty() {
        let _ = write!(out, "\n    {}\n  ", items.join(",\n    "));
    }
    let _ = writeln!(out, "{close},");
}

fn joined<'a, T>(items: &'a [T], item: impl FnMut(&'a T) -> String) -> String {
    items.iter().map(item).collect::<Vec<_>>().join(", ")
}

fn rewriting(rewriting: &Rewriting) -> String {
    format!("{{\"op\": {}, \"dims\": [{}]}}", rewriting.op.0, joined(&rewriting.dims, |dim| quoted(dim)))
}

fn factors(dims: &[Vec<i64>]) -> String {
    format!("[{}]", joined(dims, |dim| format!("[{}]", joined(dim, i64::to_string))))
}

fn float(value: f64) -> String {
    serde_json::Number::from_f64(value).map_or_else(|| "null".to_owned(), |n| n.to_string())
}

fn quoted(text: &str) -> String {
    serde_json::Value::from(text).to_string()
}
