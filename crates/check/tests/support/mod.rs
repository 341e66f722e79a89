//! Programs as short texts, for tests only.
//!
//! ```text
//! rewrite 1 b, v                  operator 1 of the model is rewritten along these dims; first of all
//! group 0,1                       a grouping: groups separated by spaces
//! ranks 0,1                       a role; what follows is its code
//! constant start 0 8              a hole: its values, rank by rank
//! shard w %w 0..4,: | 4..8,:      a shard that is also a leaf: a region for each rank, or one for all
//! hold w %w 0..4,:                a shard only
//! leaf w2 w 0..2,:                a leaf that is a part of a shard, by the shard's name
//! input x %x 0..2,:
//! random 3 0..2,:                 the region of operator 3's slot 0
//! call 0 x, w -> y : h = aten.relu.default(x) ; y = aten.mul.Tensor(h, 2)
//! all_reduce g0 sum y -> z
//! all_gather g0 y -> z : [2, 8] 0 [1, 1]                 extents, factor, sizes
//! reduce_scatter g0 y -> z : [2, 8] 0 [1, 1]
//! all_to_all g0 y -> z : [2, 8] 0 [1, 1] : [1, 16] 1 [8, 8]
//! exchange 1 a, b -> c
//! slice y -> z : [2, 8] 0..1, 0..8
//! add a, b -> c
//! update w y
//! output y                        or `output none`
//! output y local 0..2,: | 2..4,:  an output that leaves in parts, or `output none local`
//! inputs local                    each rank is given its part, not the whole; before the roles
//! gradient dx %x                  the gradient of an input that is given to the caller
//! seed dy
//! grad 0 dy -> dx, _              backward begins with the first of seed, grad
//! block 1                         of several: what follows is of this one; or `backward`, of its backward, or `end`
//! send 1 y                        to those who receive it, in another block
//! receive 1 -> z
//! reduce_gradients g0 w, b
//! exchange_gradients 5 w -> w
//! task forward                    the timetable, where it is not the usual one
//! task backward 1 last            scaled so often; gradients are communicated never, in each, the first, the last
//! table 1 %y sum                  an exchange: sources, targets, pieces by these three lines
//! from 0 0..2,:
//! to 1 0..2,:
//! piece 0 0 0..2,:
//! ```

pub mod texts;

use std::collections::BTreeMap;
use std::sync::Arc;

use graph::{Graph, OpId, TensorId};
use program::*;
use rules::{Analysis, Interval, Reduction, Region, Rewriting, rewrite};

/// Two linears, one after the other.
pub const LINEARS: &str = "input %x f64[4,8] 0
param %w f64[8,8] \"w\"
param %v f64[8,8] \"v\"
op %y f64[4,8] = aten.linear.default(%x, %w) in \"a\" at \"m.py:1\"
op %z f64[4,8] = aten.linear.default(%y, %v) in \"b\" at \"m.py:2\"
op %s f64[] = aten.sum.default(%z) in \"\" at \"m.py:3\"
output %s
";

pub fn graph(text: &str) -> Graph {
    graph::text::parse(&format!("shardwright-graph 1\nmodel \"M\"\n{text}")).unwrap()
}

/// The faults of a program, or nothing.
pub fn faults(model: &Graph, text: &str) -> Vec<check::Fault> {
    check::check(model, &program(model, text)).err().unwrap_or_default()
}

pub fn proof(model: &Graph, text: &str) -> check::Proof {
    match check::check(model, &program(model, text)) {
        Ok(proof) => proof,
        Err(faults) => {
            let all: Vec<String> = faults.iter().map(ToString::to_string).collect();
            panic!("not proved:\n{}", all.join("\n"))
        }
    }
}

pub fn program(model: &Graph, text: &str) -> Program {
    let (rewritings, rest): (Vec<&str>, Vec<&str>) = text
        .lines()
        .map(str::trim)
        .filter(|line| !line.is_empty() && !line.starts_with('#'))
        .partition(|line| line.starts_with("rewrite "));
    let rewritings: Vec<Rewriting> = rewritings.into_iter().map(rewriting).collect();
    let rewritten = rewrite(model, &rewritings).unwrap();
    let analysis = Analysis::new(&rewritten.graph);
    let mut reader = Reader::new(&rewritten.graph, &analysis);
    let tables = rest.iter().filter_map(|line| line.strip_prefix("table "));
    reader.tables = tables.map(|rest| rest.split(' ').next().unwrap().into()).collect();
    rest.into_iter().for_each(|line| reader.line(line));
    Program { digest: model.digest(), rewritings, ..reader.finish() }
}

fn rewriting(line: &str) -> Rewriting {
    let mut words = line.split([' ', ',']).filter(|word| !word.is_empty()).skip(1);
    let op = OpId(words.next().unwrap().parse().unwrap());
    Rewriting { op, dims: words.map(str::to_owned).collect() }
}

struct Reader<'a> {
    graph: &'a Graph,
    analysis: &'a Analysis,
    program: Program,
    names: BTreeMap<String, BufId>,
    leaves: BTreeMap<String, LeafId>,
    shards: BTreeMap<String, usize>,
    copies: BTreeMap<String, usize>,
    block: u32,
    pass: Pass,
    /// The numbers in the text of this role's calls, and of all tables.
    calls: Vec<String>,
    tables: Vec<String>,
}

impl<'a> Reader<'a> {
    fn new(graph: &'a Graph, analysis: &'a Analysis) -> Self {
        let program = Program {
            model: graph.model.clone(),
            digest: String::new(),
            slices: None,
            rewritings: vec![],
            plan: "test".into(),
            world: 0,
            boundary: Boundary::default(),
            factors: analysis.factors.clone(),
            state_on_host: vec![],
            held_on_host: vec![],
            groupings: vec![],
            exchanges: vec![],
            updates: vec![],
            roles: vec![],
        };
        let (names, leaves, shards, copies, calls, tables) = Default::default();
        let (block, pass) = (0, Pass::Forward);
        Self { graph, analysis, program, names, leaves, shards, copies, block, pass, calls, tables }
    }

    fn finish(mut self) -> Program {
        for role in &mut self.program.roles {
            let task = |code: &Code| match code.pass {
                Pass::Forward => Task::forward(code.block),
                _ => Task::backward(code.block, When::Last),
            };
            if role.body.timetable.loops.is_empty() {
                let tasks = role.body.codes_of_batches().map(task).collect();
                role.body.timetable.loops = vec![Loop::over_all(tasks)];
            }
        }
        self.program.world = self.program.roles.iter().map(|role| role.ranks.len() as u32).sum();
        self.program
    }

    fn role(&mut self) -> &mut Role {
        self.program.roles.last_mut().expect("a role")
    }

    fn body(&mut self) -> &mut Body {
        &mut self.role().body
    }

    fn code(&mut self, pass: Pass) -> &mut Code {
        let block = self.block;
        self.body().code_mut(block, pass)
    }

    fn buf(&mut self, name: &str) -> BufId {
        let name = name.trim();
        if let Some(known) = self.names.get(name) {
            return *known;
        }
        let body = self.body();
        let id = BufId::new(body.bufs.len());
        body.bufs.push(Buf { name: name.into(), tensor: TensorId(u32::MAX), grad: false });
        self.names.insert(name.into(), id);
        id
    }

    fn bufs(&mut self, list: &str) -> Vec<BufId> {
        list.split(',').map(str::trim).filter(|name| !name.is_empty()).map(|name| self.buf(name)).collect()
    }

    fn optional(&mut self, list: &str) -> Vec<Option<BufId>> {
        let names = list.split(',').map(str::trim).filter(|name| !name.is_empty());
        names.map(|name| (name != "_").then(|| self.buf(name))).collect()
    }

    fn tensor(&self, name: &str) -> TensorId {
        self.graph.find(name.trim_start_matches('%')).unwrap_or_else(|| panic!("no {name}"))
    }

    fn region(&self, tensor: TensorId, text: &str) -> Region {
        let sizes = self.analysis.flat(tensor);
        let parts: Vec<&str> = text.split(',').map(str::trim).filter(|part| !part.is_empty()).collect();
        assert_eq!(parts.len(), sizes.len(), "{text}: {sizes:?}");
        let interval = |(part, size): (&&str, &i64)| match part.split_once("..") {
            Some((lo, hi)) => Interval { lo: lo.parse().unwrap(), hi: hi.parse().unwrap() },
            None => Interval::whole(*size),
        };
        Region(parts.iter().zip(&sizes).map(interval).collect())
    }

    fn regions(&mut self, tensor: TensorId, text: &str) -> Vec<Region> {
        let all: Vec<Region> = text.split('|').map(|part| self.region(tensor, part)).collect();
        let ranks = self.role().ranks.len();
        if all.len() == 1 { vec![all[0].clone(); ranks] } else { all }
    }

    fn push(&mut self, instr: Instr) {
        let (block, pass) = (self.block, self.pass);
        self.body().code_mut(block, pass).instrs.push(instr);
    }

    fn line(&mut self, line: &str) {
        let (word, rest) = line.split_once(' ').unwrap_or((line, ""));
        let rest = rest.trim();
        match word {
            "group" => {
                let group = |text: &str| text.split(',').map(|rank| RankId(rank.parse().unwrap())).collect();
                self.program.groupings.push(rest.split(' ').map(group).collect());
            }
            "ranks" => self.new_role(rest),
            "constant" => self.constant(rest),
            "shard" | "hold" => self.shard(rest, word == "shard"),
            "leaf" => self.leaf(rest),
            "copy" => self.copy(rest),
            "begin" => {
                self.body().timetable.begins = true;
                self.pass = Pass::Begin;
            }
            "forward" => self.pass = Pass::Forward,
            "backward" => self.pass = Pass::Backward,
            "end" => {
                self.body().timetable.ends = true;
                (self.block, self.pass) = (0, Pass::End);
            }
            "block" => (self.block, self.pass) = (rest.parse().unwrap(), Pass::Forward),
            "input" => self.input(rest),
            "random" => self.random(rest),
            "output" => self.output(rest),
            "gradient" => self.gradient(rest),
            "inputs" => self.program.boundary.inputs = Inputs::parse(rest).expect("a way to give inputs"),
            "seed" => {
                let buf = self.buf(rest);
                self.code(Pass::Backward).takes.push(buf);
                self.pass = Pass::Backward;
            }
            "task" => self.task(rest),
            "table" => self.exchange_table(rest),
            "from" | "to" | "piece" => self.exchange_row(word, rest),
            _ => self.instr(word, rest),
        }
    }

    fn new_role(&mut self, rest: &str) {
        self.calls.clear();
        let ranks: Vec<RankId> = rest.split(',').map(|rank| RankId(rank.parse().unwrap())).collect();
        self.program.roles.push(Role { ranks, table: Table::default(), body: Body::default() });
        self.names.clear();
        self.leaves.clear();
        self.shards.clear();
        self.copies.clear();
        (self.block, self.pass) = (0, Pass::Forward);
    }

    fn constant(&mut self, rest: &str) {
        let (name, values) = rest.split_once(' ').unwrap();
        let values: Vec<i64> = values.split(' ').map(|value| value.parse().unwrap()).collect();
        let role = self.role();
        role.body.holes.push(name.into());
        role.table.constants.push(PerRank::from_values(values));
    }

    fn shard(&mut self, rest: &str, leaf: bool) {
        let mut words = rest.splitn(3, ' ');
        let (name, tensor) = (words.next().unwrap(), self.tensor(words.next().unwrap()));
        let regions = self.regions(tensor, words.next().unwrap_or(""));
        let index = self.role().table.shards.len();
        self.role().table.shards.push(Shard { tensor, region: PerRank::from_values(regions.clone()) });
        self.shards.insert(name.into(), index);
        if leaf {
            self.new_leaf(name, Of::Shard(index), tensor, regions);
        }
    }

    fn leaf(&mut self, rest: &str) {
        let mut words = rest.splitn(3, ' ');
        let (name, shard) = (words.next().unwrap(), self.shards[words.next().unwrap()]);
        let tensor = self.role().table.shards[shard].tensor;
        let regions = self.regions(tensor, words.next().unwrap_or(""));
        self.new_leaf(name, Of::Shard(shard), tensor, regions);
    }

    /// `copy w part_of_w 0 2`: of a shard, joined along a factor of so many parts, with a leaf that is all of it.
    fn copy(&mut self, rest: &str) {
        let mut words = rest.splitn(5, ' ');
        let (name, shard) = (words.next().unwrap(), self.shards[words.next().unwrap()]);
        let (factor, parts) =
            (words.next().unwrap().parse().unwrap(), words.next().unwrap().parse().unwrap());
        let tensor = self.role().table.shards[shard].tensor;
        let regions = self.regions(tensor, words.next().unwrap_or(""));
        let index = self.role().table.copies.len();
        let region = PerRank::from_values(regions.clone());
        self.role().table.copies.push(Gathered { shard, region, factor, parts });
        self.copies.insert(name.into(), index);
        self.new_leaf(name, Of::Copy(index), tensor, regions);
    }

    fn all(known: &BTreeMap<String, usize>, list: &str) -> Vec<usize> {
        list.split(',').map(|name| known[name.trim()]).collect()
    }

    fn new_leaf(&mut self, name: &str, of: Of, tensor: TensorId, regions: Vec<Region>) {
        let buf = self.buf(name);
        let body = self.body();
        let number = body.leaves.iter().filter(|leaf| leaf.tensor == tensor).count() as u32;
        let id = LeafId::new(body.leaves.len());
        body.leaves.push(Leaf { tensor, number, buf });
        self.role().table.leaves.push((of, PerRank::from_values(regions)));
        self.leaves.insert(name.into(), id);
    }

    fn input(&mut self, rest: &str) {
        let mut words = rest.splitn(3, ' ');
        let (buf, tensor) = (self.buf(words.next().unwrap()), self.tensor(words.next().unwrap()));
        let regions = self.regions(tensor, words.next().unwrap_or(""));
        self.body().inputs.push(tensor);
        self.code(Pass::Forward).takes.push(buf);
        self.role().table.inputs.push(PerRank::from_values(regions));
    }

    fn output(&mut self, rest: &str) {
        let mut words = rest.splitn(3, ' ');
        let (name, mode) = (words.next().unwrap(), words.next());
        let number = self.code(Pass::Forward).gives.len();
        let asked = match (name, mode) {
            ("none", None) => Output::None,
            (_, None) => Output::Whole,
            _ => Output::Local,
        };
        let has = self.graph.outputs[number].filter(|_| name != "none");
        let regions = has.map(|tensor| match words.next() {
            Some(regions) => self.regions(tensor, regions),
            None => vec![Region::whole(&self.analysis.flat(tensor)); self.role().ranks.len()],
        });
        let buf = has.map(|_| self.buf(name));
        self.code(Pass::Forward).gives.push(buf);
        self.role().table.outputs.push(regions.map(PerRank::from_values));
        let all = &mut self.program.boundary.outputs;
        if number == all.len() {
            all.push(asked);
        }
    }

    fn gradient(&mut self, rest: &str) {
        let (name, tensor) = rest.split_once(' ').unwrap();
        let (buf, tensor) = (self.buf(name), self.tensor(tensor));
        self.body().gradients.push(tensor);
        self.code(Pass::Backward).gives.push(Some(buf));
    }

    fn task(&mut self, rest: &str) {
        let words: Vec<&str> = rest.split(' ').collect();
        let task = match words[..] {
            ["forward"] => Task::forward(0),
            ["backward", scaled, settles] => {
                let named = [When::Never, When::Each, When::First, When::Last].into_iter();
                let settles =
                    named.zip(["never", "each", "first", "last"]).find(|(_, name)| *name == settles);
                let does = Does::Backward { scaled: scaled.parse().unwrap(), settles: settles.unwrap().0 };
                Task { does, ..Task::backward(0, When::Last) }
            }
            _ => panic!("no task: {rest}"),
        };
        let loops = &mut self.body().timetable.loops;
        if loops.is_empty() {
            loops.push(Loop::over_all(vec![]));
        }
        loops[0].tasks.push(task);
    }

    fn random(&mut self, rest: &str) {
        let (op, regions) = rest.split_once(' ').unwrap();
        let op = OpId(op.parse().unwrap());
        let tensor = self.graph.op(op).outputs[0].unwrap();
        let regions = self.regions(tensor, regions);
        self.role().table.random.push((op, vec![PerRank::from_values(regions)]));
    }

    fn exchange_table(&mut self, rest: &str) {
        let words: Vec<&str> = rest.split(' ').collect();
        let (tensor, reduction) = (self.tensor(words[1]), reduction(words[2]));
        let exchange = Exchange {
            tensor,
            reduction,
            sources: Arc::default(),
            targets: Arc::default(),
            pieces: Arc::default(),
        };
        self.program.exchanges.push(exchange);
    }

    fn exchange_row(&mut self, word: &str, rest: &str) {
        let tensor = self.program.exchanges.last().unwrap().tensor;
        let (numbers, region) = match word {
            "piece" => {
                let mut words = rest.splitn(3, ' ');
                let pair = [words.next().unwrap(), words.next().unwrap()];
                (pair.map(|w| w.parse::<usize>().unwrap()).to_vec(), words.next().unwrap_or(""))
            }
            _ => {
                let (rank, region) = rest.split_once(' ').unwrap_or((rest, ""));
                (vec![rank.parse::<usize>().unwrap()], region)
            }
        };
        let region = self.region(tensor, region);
        let exchange = self.program.exchanges.last_mut().unwrap();
        match word {
            "from" => exchange.lists().0.push((RankId::new(numbers[0]), region)),
            "to" => exchange.lists().1.push((RankId::new(numbers[0]), region)),
            _ => exchange.lists().2.push(Piece { from: numbers[0], to: numbers[1], region }),
        }
    }

    fn instr(&mut self, word: &str, rest: &str) {
        let mut sections = rest.split(" : ");
        let head = sections.next().unwrap();
        let sections: Vec<&str> = sections.collect();
        let (left, right) = head.split_once("->").unwrap_or((head, ""));
        let mut left = left.trim();
        let mut next = || {
            let (first, others) = left.split_once(' ').unwrap_or((left, ""));
            left = others.trim();
            first.to_string()
        };
        let numbered = matches!(
            word,
            "call"
                | "recompute"
                | "forget"
                | "offload"
                | "grad"
                | "exchange"
                | "exchange_gradients"
                | "send"
                | "receive"
                | "keep"
                | "keep_away"
                | "take"
                | "fetch"
                | "fetch_kept"
        );
        let number = if numbered { next() } else { String::new() };
        let grouped = matches!(
            word,
            "all_reduce"
                | "all_gather"
                | "reduce_scatter"
                | "all_to_all"
                | "reduce_gradients"
                | "gather"
                | "scatter"
                | "scatter_last"
                | "reduce_shards"
        );
        let group = GroupingId(if grouped { next()[1..].parse().unwrap() } else { 0 });
        let by = (word == "all_reduce").then(|| reduction(&next()));
        let instr = match word {
            "call" | "recompute" | "forget" | "offload" => {
                let (inputs, outputs) = (self.bufs(left), self.bufs(right));
                let ops = sections[0].split(';').map(|op| self.op(op.trim())).collect();
                self.calls.push(number);
                let id = CallId::new(self.calls.len() - 1);
                let saves = Saves::from_marks(Saves::MARKS.map(|mark| word == mark)).unwrap();
                Instr::Call(Call { id, inputs, outputs, ops, saves })
            }
            "grad" => {
                self.pass = Pass::Backward;
                let call = CallId::new(at(&self.calls, &number));
                let again = sections.first().map_or_else(Vec::new, |again| self.bufs(again));
                Instr::Grad(Grad {
                    call,
                    which: Which::Both,
                    from: self.optional(left),
                    to: self.optional(right),
                    recomputed: again,
                })
            }
            "keep" | "keep_away" => Instr::Keep {
                id: KeepId(number.parse().unwrap()),
                from: self.bufs(left),
                offloads: word == "keep_away",
            },
            "fetch" | "fetch_kept" => {
                self.pass = Pass::Backward;
                let number = number.parse().unwrap();
                let kept = word == "fetch_kept";
                let what =
                    if kept { Offloaded::Kept(KeepId(number)) } else { Offloaded::Call(CallId(number)) };
                Instr::Fetch { what }
            }
            "take" => {
                self.pass = Pass::Backward;
                Instr::Take { id: KeepId(number.parse().unwrap()), to: self.bufs(right) }
            }
            "add" => Instr::Add { from: self.bufs(left), to: self.buf(right) },
            "slice" => self.slice(left, right, sections[0]),
            "update" => {
                let (shard, from) = left.split_once(' ').unwrap();
                Instr::Update { shard: self.shards[shard], from: self.buf(from) }
            }
            "all_reduce" | "all_gather" | "reduce_scatter" | "all_to_all" => {
                let (from, to) = (self.bufs(left), self.bufs(right));
                let how = match word {
                    "all_reduce" => How::AllReduce(by.unwrap()),
                    "all_gather" => How::AllGather(self.cut(sections[0])),
                    "reduce_scatter" => How::ReduceScatter(self.cut(sections[0])),
                    _ => How::AllToAll { send: self.cut(sections[0]), receive: self.cut(sections[1]) },
                };
                Instr::Collective(Collective { how, group, from, to, overlaps: false })
            }
            "exchange" => {
                let exchange = ExchangeId::new(at(&self.tables, &number));
                Instr::Exchange { exchange, from: self.bufs(left), to: self.bufs(right) }
            }
            "send" | "receive" => {
                let exchange = ExchangeId::new(at(&self.tables, &number));
                match word {
                    "send" => Instr::Send { exchange, from: self.bufs(left) },
                    _ => Instr::Receive { exchange, to: self.bufs(right) },
                }
            }
            "reduce_gradients" => {
                let leaves = left.split(',').map(|name| self.leaves[name.trim()]).collect();
                Instr::ReduceGradients { group, leaves }
            }
            "exchange_gradients" => {
                let names = |text: &'_ str| -> Vec<String> {
                    text.split(',').map(|n| n.trim().to_string()).filter(|n| !n.is_empty()).collect()
                };
                let leaves = names(left).iter().map(|name| self.leaves[name]).collect();
                let shards = names(right).iter().map(|name| self.shards[name]).collect();
                let exchange = ExchangeId::new(at(&self.tables, &number));
                Instr::ExchangeGradients { exchange, leaves, shards, when: GradSync::Last }
            }
            "gather" => Instr::Gather { group, copies: Self::all(&self.copies, left) },
            "release" => Instr::Release { copies: Self::all(&self.copies, left) },
            "scatter" | "scatter_last" | "part" => {
                let leaves = left.split(',').map(|name| self.leaves[name.trim()]).collect();
                let when = if word == "scatter_last" { GradSync::Last } else { GradSync::Each };
                match word {
                    "part" => Instr::Part { leaves, when },
                    _ => Instr::Scatter { group, leaves, when },
                }
            }
            "reduce_shards" => Instr::ReduceShards { group, shards: Self::all(&self.shards, left) },
            other => panic!("unknown {other}"),
        };
        self.push(instr);
    }

    /// `[2, 8] 0 [1, 1]`: each extent is a dim, `[[3, 4], [8]]` gives factors.
    fn cut(&mut self, text: &str) -> Cut {
        let (extents, rest) = self.extents(text);
        let (factor, sizes) = rest.trim().split_once(' ').unwrap();
        let sizes =
            sizes.trim_matches(['[', ']']).split(',').map(|size| size.trim().parse().unwrap()).collect();
        Cut { extents, factor: factor.parse().unwrap(), sizes }
    }

    fn extents<'t>(&mut self, text: &'t str) -> (Vec<Vec<Arg>>, &'t str) {
        let mut rest = text.trim();
        let Arg::List(dims) = self.value(&mut rest) else { panic!("{text}") };
        let dim = |arg| match arg {
            Arg::List(items) => items,
            one => vec![one],
        };
        (dims.into_iter().map(dim).collect(), rest)
    }

    fn slice(&mut self, from: &str, to: &str, text: &str) -> Instr {
        let (extents, rest) = self.extents(text);
        let region = rest
            .split(',')
            .map(|pair| {
                let (lo, hi) = pair.trim().split_once("..").unwrap();
                (self.value(&mut { lo }), self.value(&mut { hi }))
            })
            .collect();
        Instr::Slice(Slice { from: self.buf(from), to: self.buf(to), extents, region })
    }

    fn op(&mut self, text: &str) -> LocalOp {
        let (outputs, call) = text.split_once('=').unwrap();
        let outputs = self.optional(outputs);
        let (target, mut rest) = call.trim().split_once('(').unwrap();
        let (mut args, mut kwargs) = (vec![], vec![]);
        while !rest.starts_with(')') {
            let end = rest.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap();
            if rest[end..].starts_with('=') {
                let name = rest[..end].to_string();
                rest = &rest[end + 1..];
                kwargs.push((name, self.value(&mut rest)));
            } else {
                args.push(self.value(&mut rest));
            }
            rest = rest.trim_start_matches([',', ' ']);
        }
        let no_grad = rest.contains("nograd");
        LocalOp { op: OpId(u32::MAX), target: target.into(), args, kwargs, outputs, no_grad }
    }

    fn value(&mut self, rest: &mut &str) -> Arg {
        if let Some(mut inner) = rest.strip_prefix('[') {
            let mut items = vec![];
            while !inner.starts_with(']') {
                items.push(self.value(&mut inner));
                inner = inner.trim_start_matches([',', ' ']);
            }
            *rest = &inner[1..];
            return Arg::List(items);
        }
        let end = rest.find([',', ')', ']', ' ']).unwrap_or(rest.len());
        let word = rest[..end].trim();
        *rest = &rest[end..];
        let holes = &self.role().body.holes;
        if let Some(hole) = holes.iter().position(|hole| hole == word) {
            return Arg::Hole(hole as u32);
        }
        if let Some(dtype) = graph::Dtype::parse(word) {
            return Arg::Dtype(dtype);
        }
        match word {
            "None" => Arg::None,
            "True" => Arg::Bool(true),
            "False" => Arg::Bool(false),
            text if text.starts_with('"') => Arg::Str(text.trim_matches('"').into()),
            _ => match (word.parse::<i64>(), word.parse::<f64>()) {
                (Ok(value), _) => Arg::Int(value),
                (_, Ok(value)) => Arg::Float(value),
                _ => Arg::Buf(self.buf(word)),
            },
        }
    }
}

fn reduction(name: &str) -> Reduction {
    Reduction::MARKS.iter().find(|row| row.2 == name).expect("a reduction").0
}

fn at(names: &[String], name: &str) -> usize {
    names.iter().position(|known| known == name).unwrap_or(names.len())
}
