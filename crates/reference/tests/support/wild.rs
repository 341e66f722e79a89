//! Faults that know nothing of what a program means: a number is any other one, a list has any other length. Most of
//! them no compiler makes and no reader lets through, but whoever is given a program has an answer to each.

use program::*;
use rules::{Interval, Region};

use super::mutants::Random;

/// Changes one place of those with one name.
pub fn plant(program: &mut Program, random: &mut Random) -> Option<()> {
    let mut seen = Visit { wanted: None, names: vec![], found: 0, random };
    walk(program, &mut seen);
    let mut names = seen.names.clone();
    names.sort_unstable();
    names.dedup();
    let name = names[seen.random.below(names.len())];
    let count = seen.names.iter().filter(|other| **other == name).count();
    let at = seen.random.below(count);
    walk(program, &mut Visit { wanted: Some((name, at)), names: vec![], found: 0, random: seen.random });
    Some(())
}

/// Sees all places that can be changed, and changes the one that is wanted.
struct Visit<'r> {
    wanted: Option<(&'static str, usize)>,
    /// Of all places, while none is wanted.
    names: Vec<&'static str>,
    found: usize,
    random: &'r mut Random,
}

impl Visit<'_> {
    fn is_it(&mut self, name: &'static str) -> bool {
        let Some((wanted, at)) = self.wanted else {
            self.names.push(name);
            return false;
        };
        self.found += usize::from(wanted == name);
        wanted == name && self.found == at + 1
    }

    fn one_of<T: Copy>(&mut self, values: &[T]) -> T {
        values[self.random.below(values.len())]
    }

    fn size(&mut self, name: &'static str, value: &mut usize) {
        if self.is_it(name) {
            let near = value.wrapping_add(1);
            *value = self.one_of(&[0, 1, 2, 3, near, 1 << 20, u32::MAX as usize, usize::MAX]);
        }
    }

    fn id(&mut self, name: &'static str, value: &mut u32) {
        if self.is_it(name) {
            let near = value.wrapping_add(1);
            *value = self.one_of(&[0, 1, 2, 3, near, 1 << 20, u32::MAX - 1, u32::MAX]);
        }
    }

    fn long(&mut self, name: &'static str, value: &mut i64) {
        if self.is_it(name) {
            let near = value.wrapping_add(1);
            *value = self.one_of(&[0, 1, 2, -1, near, 1 << 33, 1 << 62, i64::MIN / 4, i64::MIN, i64::MAX]);
        }
    }

    fn list<T: Clone>(&mut self, name: &'static str, list: &mut Vec<T>) {
        if self.is_it(name) {
            match self.random.below(4) {
                0 => drop(list.pop()),
                1 => list.clear(),
                2 => list.extend(list.last().cloned()),
                _ => list.reverse(),
            }
        }
    }

    fn flag(&mut self, name: &'static str, flag: &mut bool) {
        if self.is_it(name) {
            *flag = !*flag;
        }
    }

    fn maybe<T: Clone>(&mut self, name: &'static str, value: &mut Option<T>, other: &T) {
        if self.is_it(name) {
            *value = if value.is_some() { None } else { Some(other.clone()) };
        }
    }

    fn bufs(&mut self, name: &'static str, bufs: &mut Vec<BufId>) {
        self.list(name, bufs);
        bufs.iter_mut().for_each(|buf| self.id("a buf", &mut buf.0));
    }

    fn maybe_bufs(&mut self, name: &'static str, bufs: &mut Vec<Option<BufId>>) {
        self.list(name, bufs);
        for buf in bufs {
            self.maybe("a buf that may be there", buf, &BufId(0));
            buf.iter_mut().for_each(|buf| self.id("a buf", &mut buf.0));
        }
    }

    fn region(&mut self, region: &mut Region) {
        let mut all = region.0.to_vec();
        self.list("a region", &mut all);
        for Interval { lo, hi } in &mut all {
            self.long("a bound", lo);
            self.long("a bound", hi);
        }
        region.0 = all.into();
    }

    fn column(&mut self, column: &mut PerRank<Region>) {
        let mut all = column.values().to_vec();
        self.list("a column", &mut all);
        all.iter_mut().for_each(|region| self.region(region));
        match column {
            PerRank::Same(own) => all.into_iter().next().into_iter().for_each(|region| *own = region),
            PerRank::Each(own) if **own != *all => *own = all.into(),
            PerRank::Each(_) => {}
        }
    }

    fn arg(&mut self, arg: &mut Arg) {
        if self.is_it("an argument") {
            *arg = match self.random.below(6) {
                0 => Arg::None,
                1 => Arg::Int(i64::MAX),
                2 => Arg::Hole(u32::MAX),
                3 => Arg::List(vec![]),
                4 => Arg::Str(String::new()),
                _ => Arg::Buf(BufId(0)),
            };
        }
        match arg {
            Arg::Int(value) => self.long("an integer", value),
            Arg::Hole(hole) => self.id("a hole", hole),
            Arg::Buf(buf) => self.id("a buf", &mut buf.0),
            Arg::List(items) => {
                self.list("a list", items);
                items.iter_mut().for_each(|item| self.arg(item));
            }
            _ => {}
        }
    }

    fn extents(&mut self, extents: &mut Vec<Vec<Arg>>) {
        self.list("extents", extents);
        for dim in extents {
            self.list("extents of a dim", dim);
            dim.iter_mut().for_each(|arg| self.arg(arg));
        }
    }

    fn cut(&mut self, cut: &mut Cut) {
        self.extents(&mut cut.extents);
        self.size("the factor of a cut", &mut cut.factor);
        self.list("the sizes of a cut", &mut cut.sizes);
        cut.sizes.iter_mut().for_each(|size| self.long("the size of a piece", size));
    }
}

fn walk(p: &mut Program, v: &mut Visit<'_>) {
    v.id("the world", &mut p.world);
    v.list("asked outputs", &mut p.boundary.outputs);
    v.list("rewritings", &mut p.rewritings);
    for rewriting in &mut p.rewritings {
        v.id("a rewritten operator", &mut rewriting.op.0);
        v.list("the dims of a rewriting", &mut rewriting.dims);
    }
    if let Some(slices) = &mut p.slices {
        v.size("the input in slices", &mut slices.input);
        v.size("the dim in slices", &mut slices.dim);
        v.list("the ends of slices", &mut slices.ends);
        slices.ends.iter_mut().for_each(|end| v.long("the end of a slice", end));
    }
    v.maybe("slices", &mut p.slices, &rules::Slices { input: 0, dim: 0, ends: vec![1] });
    v.list("factors", &mut p.factors);
    for tensor in [&mut p.state_on_host, &mut p.held_on_host] {
        v.list("what is on the host", tensor);
        tensor.iter_mut().for_each(|tensor| v.id("a tensor on the host", &mut tensor.0));
    }
    v.list("updates", &mut p.updates);
    for Update { tensor, rank } in &mut p.updates {
        v.id("the tensor of an update", &mut tensor.0);
        v.id("the rank of an update", &mut rank.0);
    }
    groups(p, v);
    p.exchanges.iter_mut().for_each(|table| exchange(table, v));
    v.list("exchanges", &mut p.exchanges);
    for role in &mut p.roles {
        v.list("the ranks of a role", &mut role.ranks);
        role.ranks.iter_mut().for_each(|rank| v.id("a rank of a role", &mut rank.0));
        table(&mut role.table, v);
        body(&mut role.body, v);
    }
    v.list("roles", &mut p.roles);
}

fn groups(p: &mut Program, v: &mut Visit<'_>) {
    v.list("groupings", &mut p.groupings);
    for grouping in &mut p.groupings {
        v.list("groups", grouping);
        for group in grouping {
            v.list("a group", group);
            group.iter_mut().for_each(|rank| v.id("a rank of a group", &mut rank.0));
        }
    }
}

fn exchange(it: &mut Exchange, v: &mut Visit<'_>) {
    v.id("the tensor of an exchange", &mut it.tensor.0);
    let (sources, targets, pieces) = it.lists();
    for ends in [sources, targets] {
        v.list("the ends of an exchange", ends);
        for (rank, region) in ends {
            v.id("the rank of an end", &mut rank.0);
            v.region(region);
        }
    }
    v.list("pieces", pieces);
    for Piece { from, to, region } in pieces {
        v.size("the source of a piece", from);
        v.size("the target of a piece", to);
        v.region(region);
    }
}

fn table(table: &mut Table, v: &mut Visit<'_>) {
    v.list("constants", &mut table.constants);
    v.list("shards", &mut table.shards);
    for shard in &mut table.shards {
        v.id("the tensor of a shard", &mut shard.tensor.0);
        v.column(&mut shard.region);
    }
    v.list("copies", &mut table.copies);
    for copy in &mut table.copies {
        v.size("the shard of a copy", &mut copy.shard);
        v.size("the factor of a copy", &mut copy.factor);
        v.id("the parts of a copy", &mut copy.parts);
        v.column(&mut copy.region);
    }
    v.list("the parts of leaves", &mut table.leaves);
    for (of, region) in &mut table.leaves {
        match of {
            Of::Shard(at) | Of::Copy(at) => v.size("what a leaf is of", at),
        }
        v.column(region);
    }
    v.list("the parts of inputs", &mut table.inputs);
    table.inputs.iter_mut().for_each(|region| v.column(region));
    v.list("the parts of outputs", &mut table.outputs);
    for region in &mut table.outputs {
        region.iter_mut().for_each(|region| v.column(region));
        v.maybe("the part of an output", region, &PerRank::Same(Region(Box::new([]))));
    }
    v.list("random parts", &mut table.random);
    for (op, regions) in &mut table.random {
        v.id("a random operator", &mut op.0);
        v.list("the parts of a random operator", regions);
        regions.iter_mut().for_each(|region| v.column(region));
    }
}

fn body(body: &mut Body, v: &mut Visit<'_>) {
    v.list("holes", &mut body.holes);
    v.list("leaves", &mut body.leaves);
    for leaf in &mut body.leaves {
        v.id("the tensor of a leaf", &mut leaf.tensor.0);
        v.id("the number of a leaf", &mut leaf.number);
        v.id("a buf", &mut leaf.buf.0);
    }
    v.list("bufs", &mut body.bufs);
    body.bufs.iter_mut().for_each(|buf| v.id("the tensor of a buf", &mut buf.tensor.0));
    for tensors in [&mut body.inputs, &mut body.gradients] {
        v.list("inputs", tensors);
        tensors.iter_mut().for_each(|tensor| v.id("the tensor of an input", &mut tensor.0));
    }
    for code in &mut body.codes {
        v.id("the block of a code", &mut code.block);
        v.bufs("what a code takes", &mut code.takes);
        v.maybe_bufs("what a code gives", &mut code.gives);
        code.instrs.iter_mut().for_each(|it| instr(it, v));
        v.list("instructions", &mut code.instrs);
        if v.is_it("the pass of a code") {
            const ALL: [Pass; 6] =
                [Pass::Begin, Pass::Forward, Pass::Backward, Pass::Inputs, Pass::Weights, Pass::End];
            code.pass = v.one_of(&ALL);
        }
    }
    v.list("codes", &mut body.codes);
    timetable(&mut body.timetable, v);
}

fn timetable(timetable: &mut Timetable, v: &mut Visit<'_>) {
    v.list("loops", &mut timetable.loops);
    if v.is_it("whether steps go on") {
        timetable.steps = if v.random.coin() { Steps::Apart } else { Steps::On { stashes: v.random.coin() } };
    }
    for it in &mut timetable.loops {
        v.id("how far a turn goes", &mut it.every);
        v.maybe("the turns of a loop", &mut it.iterations, &u32::MAX);
        it.iterations.iter_mut().for_each(|iterations| v.id("the number of turns", iterations));
        v.list("tasks", &mut it.tasks);
        for task in &mut it.tasks {
            v.id("the block of a task", &mut task.block);
            if v.is_it("the micro-batch of a task") {
                task.at = v.one_of(&[0, 1, -1, 7, 1 << 12, i32::MIN, i32::MAX]);
            }
            match &mut task.does {
                Does::Backward { scaled, .. } | Does::Inputs { scaled } => v.id("a scale", scaled),
                Does::Forward | Does::Weights { .. } => {}
            }
        }
    }
}

fn instr(instr: &mut Instr, v: &mut Visit<'_>) {
    // What is rare is changed as often as what is not.
    let method = instr.kind().name();
    for field in instr.fields_mut() {
        match field {
            FieldMut::Group(group) => v.id("a group of an instruction", &mut group.0),
            FieldMut::Exchange(exchange) => v.id("an exchange", &mut exchange.0),
            FieldMut::Kept(kept) => v.id("what is kept", &mut kept.0),
            FieldMut::Called(call) => v.id("the number of a call", &mut call.0),
            FieldMut::Reads(bufs) => v.bufs(method, bufs),
            FieldMut::Writes(bufs) => v.bufs("what is written", bufs),
            FieldMut::Read(buf) | FieldMut::Written(buf) => v.id("a buf", &mut buf.0),
            FieldMut::ReadsSome(bufs) => v.maybe_bufs("gradients that are given", bufs),
            FieldMut::WritesSome(bufs) => v.maybe_bufs("gradients that are taken", bufs),
            FieldMut::Leaves(leaves) | FieldMut::LeafPlaces(leaves) => all_leaves(leaves, v),
            FieldMut::Copies(all) | FieldMut::Shards(all) | FieldMut::ShardPlaces(all) => sizes(all, v),
            FieldMut::Shard(shard) => v.size("a shard or copy", shard),
            FieldMut::Fetched(Offloaded::Call(call)) => v.id("what is fetched", &mut call.0),
            FieldMut::Fetched(Offloaded::Kept(kept)) => v.id("what is fetched", &mut kept.0),
            FieldMut::Ops(ops) => all_ops(ops, v),
            FieldMut::Extents(extents) => v.extents(extents),
            FieldMut::Region(region) => {
                v.list("the region of a slice", region);
                for (lo, hi) in region {
                    v.arg(lo);
                    v.arg(hi);
                }
            }
            FieldMut::How(how) => cuts(how, v),
            FieldMut::Saves(saves) => {
                if v.is_it("what a call saves") {
                    let (made, all) =
                        (|offloaded| Saves::Made { offloaded }, |offloaded| Saves::All { offloaded });
                    *saves = v.one_of(&[Saves::Nothing, made(false), made(true), all(false), all(true)]);
                }
            }
            FieldMut::Offloads(flag) => v.flag("whether something goes to the host", flag),
            FieldMut::Overlaps(_) | FieldMut::When(_) | FieldMut::Which(_) => {}
        }
    }
}

fn all_leaves(leaves: &mut Vec<LeafId>, v: &mut Visit<'_>) {
    v.list("leaves of an instruction", leaves);
    leaves.iter_mut().for_each(|leaf| v.id("a leaf", &mut leaf.0));
}

fn sizes(all: &mut Vec<usize>, v: &mut Visit<'_>) {
    v.list("shards or copies", all);
    all.iter_mut().for_each(|at| v.size("a shard or copy", at));
}

fn all_ops(ops: &mut Vec<LocalOp>, v: &mut Visit<'_>) {
    for op in ops.iter_mut() {
        v.id("an operator", &mut op.op.0);
        v.list("arguments", &mut op.args);
        op.args.iter_mut().for_each(|arg| v.arg(arg));
        v.list("arguments by name", &mut op.kwargs);
        op.kwargs.iter_mut().for_each(|(_, arg)| v.arg(arg));
        v.maybe_bufs("the outputs of an operator", &mut op.outputs);
    }
    v.list("the operators of a call", ops);
}

fn cuts(how: &mut How, v: &mut Visit<'_>) {
    match how {
        How::AllReduce(_) => {}
        How::AllGather(cut) | How::ReduceScatter(cut) => v.cut(cut),
        How::AllToAll { send, receive } => {
            v.cut(send);
            v.cut(receive);
        }
    }
}
