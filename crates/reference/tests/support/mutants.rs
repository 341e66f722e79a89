//! Faults of many kinds, each planted at a random place of a program.

use std::sync::Arc;

use program::*;

use super::wild;
use rules::{Interval, Reduction, Region};

/// Plants one, or finds no place for it.
pub type Make = fn(&mut Program, &mut Random) -> Option<()>;

#[rustfmt::skip]
pub const KINDS: &[(&str, Make)] = &[
    ("an instruction is left out", |p, r| { let (c, at) = instr(p, r, |_| true)?; c.remove(at); Some(()) }),
    ("an instruction runs twice", |p, r| { let (c, at) = instr(p, r, |_| true)?; let it = c[at].clone(); c.insert(at, it); Some(()) }),
    ("two instructions change places", |p, r| { let (c, at) = instr(p, r, |_| true)?; (at + 1 < c.len()).then(|| c.swap(at, at + 1)) }),
    ("an instruction moves elsewhere", |p, r| { let (c, at) = instr(p, r, |_| true)?; let it = c.remove(at); let to = r.below(c.len() + 1); c.insert(to, it); Some(()) }),
    ("a communication is left out", without_communication),
    ("an instruction reads another value", another_value),
    ("an operator reads another value", another_operand),
    ("an operator's operands change places", swapped_operands),
    ("an operator is left out", without_operator),
    ("an operator is another one", another_operator),
    ("a number is one more", |p, r| number(p, r, |r, n| *n += if r.coin() { 1 } else { -1 })),
    ("a number is another one", |p, r| number(p, r, |r, n| *n = r.below(5) as i64)),
    ("a float is twice as much", |p, r| argument(p, r, |a| if let Arg::Float(x) = a { *x *= 2.0; true } else { false })),
    ("a flag is the other way", |p, r| argument(p, r, |a| if let Arg::Bool(x) = a { *x = !*x; true } else { false })),
    ("a constant of a rank is one more", constant),
    ("gradients are off where they are on", |p, r| { let op = operator(p, r)?; op.no_grad = !op.no_grad; Some(()) }),
    ("a sum is a maximum", another_reduction),
    ("an all-gather is an all-reduce", gather_to_reduce),
    ("a reduce-scatter is an all-gather", scatter_to_gather),
    ("a cut is along another factor", |p, r| { let cut = cut(p, r)?; let all = cut.extents.concat().len(); cut.factor = r.below(all); Some(()) }),
    ("pieces have other lengths", |p, r| { let cut = cut(p, r)?; let n = cut.sizes.len(); let (a, b) = (r.below(n), r.below(n)); cut.sizes[a] += 1; cut.sizes[b] -= 1; Some(()) }),
    ("a communication is in another grouping", another_group),
    ("a group has another order", |p, r| { let n = p.groupings.len(); let g = &mut p.groupings[below(r, n)?]; let n = g.len(); let g = &mut g[below(r, n)?]; (g.len() > 1).then(|| g.swap(0, 1)) }),
    ("two groups exchange members", |p, r| { let n = p.groupings.len(); let g = &mut p.groupings[below(r, n)?]; (g.len() > 1).then(|| { let x = g[0][0]; g[0][0] = g[1][0]; g[1][0] = x; }) }),
    ("a slice is one further", |p, r| { let s = slice(p, r)?; let n = s.region.len(); let (lo, hi) = &mut s.region[below(r, n)?]; shifted(lo)?; shifted(hi) }),
    ("a slice begins elsewhere", |p, r| { let s = slice(p, r)?; let n = s.region.len(); shifted(&mut s.region[below(r, n)?].0) }),
    ("a leaf is another part of its shard", |p, r| { let t = table(p, r)?; let n = t.leaves.len(); moved(&mut t.leaves[below(r, n)?].1, r) }),
    ("a shard is another part of its tensor", |p, r| { let t = table(p, r)?; let n = t.shards.len(); moved(&mut t.shards[below(r, n)?].region, r) }),
    ("an input is another part", |p, r| { let t = table(p, r)?; let n = t.inputs.len(); moved(&mut t.inputs[below(r, n)?], r) }),
    ("an output is another part", |p, r| { let t = table(p, r)?; let n = t.outputs.len(); moved(t.outputs[below(r, n)?].as_mut()?, r) }),
    ("random numbers are of another part", |p, r| { let t = table(p, r)?; let n = t.random.len(); let (_, all) = &mut t.random[below(r, n)?]; let n = all.len(); moved(&mut all[below(r, n)?], r) }),
    ("a copy has other parts", |p, r| { let t = table(p, r)?; let n = t.copies.len(); let c = &mut t.copies[below(r, n)?]; if r.coin() { c.factor += 1 } else { c.parts += 1 } Some(()) }),
    ("a piece is not exchanged", |p, r| { let e = exchange(p, r)?; let n = e.pieces.len(); e.lists().2.remove(below(r, n)?); Some(()) }),
    ("a piece is exchanged twice", |p, r| { let e = exchange(p, r)?; let n = e.pieces.len(); let it = e.pieces[below(r, n)?].clone(); e.lists().2.push(it); Some(()) }),
    ("a piece is another part", |p, r| { let e = exchange(p, r)?; let n = e.pieces.len(); shift(&mut e.lists().2[below(r, n)?].region, r) }),
    ("a piece comes from another source", |p, r| { let e = exchange(p, r)?; let n = e.pieces.len(); let s = e.sources.len(); e.lists().2[below(r, n)?].from = below(r, s)?; Some(()) }),
    ("a piece goes to another target", |p, r| { let e = exchange(p, r)?; let n = e.pieces.len(); let t = e.targets.len(); e.lists().2[below(r, n)?].to = below(r, t)?; Some(()) }),
    ("pieces are combined otherwise", |p, r| { let e = exchange(p, r)?; e.reduction = other_reduction(e.reduction); Some(()) }),
    ("a source is another part", |p, r| { let e = exchange(p, r)?; let n = e.sources.len(); shift(&mut e.lists().0[below(r, n)?].1, r) }),
    ("a message is of another table", another_table),
    ("a gradient is not given to a call", |p, r| { let g = grad(p, r)?; let n = g.from.len(); g.from[below(r, n)?].take().map(|_| ()) }),
    ("a gradient is not taken from a call", |p, r| { let g = grad(p, r)?; let n = g.to.len(); g.to[below(r, n)?].take().map(|_| ()) }),
    ("gradients are given in another order", |p, r| { let g = grad(p, r)?; (g.from.len() > 1).then(|| g.from.swap(0, 1)) }),
    ("gradients are taken in another order", |p, r| { let g = grad(p, r)?; (g.to.len() > 1).then(|| g.to.swap(0, 1)) }),
    ("a backward is of another call", |p, r| { let n = p.roles[0].body.calls().count(); let g = grad(p, r)?; g.call = CallId::new(below(r, n)?); Some(()) }),
    ("half of a backward is all of it", |p, r| { let g = grad(p, r)?; g.which = match g.which { Which::Both => Which::Inputs, Which::Inputs => Which::Both, Which::Weights => return None }; Some(()) }),
    ("a message runs beside what follows, or does not", |p, r| { let (c, at) = instr(p, r, |i| matches!(i, Instr::Collective(_)))?; let Instr::Collective(it) = &mut c[at] else { return None }; it.overlaps = !it.overlaps; Some(()) }),
    ("what a call forgot is given in another order", |p, r| { let g = grad(p, r)?; (g.recomputed.len() > 1).then(|| g.recomputed.swap(0, 1)) }),
    ("a call keeps what it should forget", |p, r| { let c = call(p, r)?; let mut marks = c.saves.marks(); let mark = &mut marks[r.below(3)]; *mark = !*mark; c.saves = Saves::from_marks(marks)?; Some(()) }),
    ("a call gives its results in another order", |p, r| { let c = call(p, r)?; (c.outputs.len() > 1).then(|| c.outputs.swap(0, 1)) }),
    ("a sum lacks one", |p, r| addends(p, r, |all, r| { let n = all.len(); (n > 1).then(|| { all.remove(r.below(n)); }) })),
    ("a sum has one twice", |p, r| addends(p, r, |all, r| { let n = all.len(); let it = all[r.below(n)]; all.push(it); Some(()) })),
    ("a gradient is not reduced", |p, r| leaves(p, r, |all, r| { let n = all.len(); all.remove(below(r, n)?); Some(()) })),
    ("a gradient is reduced twice", |p, r| leaves(p, r, |all, r| { let n = all.len(); let it = all[below(r, n)?]; all.push(it); Some(()) })),
    ("gradients are communicated at another time", |p, r| { let (c, at) = instr(p, r, |i| timing(&mut i.clone()).is_some())?; let it = timing(&mut c[at])?; *it = if *it == GradSync::Each { GradSync::Last } else { GradSync::Each }; Some(()) }),
    ("a copy is not gathered", |p, r| copies(p, r, |all, r| { let n = all.len(); all.remove(below(r, n)?); Some(()) })),
    ("an update is of another shard", |p, r| { let n = p.roles[0].table.shards.len(); let (c, at) = instr(p, r, |i| matches!(i, Instr::Update { .. }))?; if let Instr::Update { shard, .. } = &mut c[at] { *shard = r.below(n) } Some(()) }),
    ("what is kept is in another order", |p, r| { let (c, at) = instr(p, r, |i| matches!(i, Instr::Keep { .. }))?; if let Instr::Keep { from, .. } = &mut c[at] { if from.len() > 1 { from.swap(0, 1); return Some(()) } } None }),
    ("an output is another value", |p, r| { let body = body(p, r)?; let n = body.bufs.len(); let c = body.codes.len(); let code = &mut body.codes[below(r, c)?]; let g = code.gives.len(); let at = below(r, g)?; let buf = code.gives[at].as_mut()?; *buf = BufId::new(r.below(n)); Some(()) }),
    ("what a code takes is in another order", |p, r| { let body = body(p, r)?; let c = body.codes.len(); let code = &mut body.codes[below(r, c)?]; (code.takes.len() > 1).then(|| code.takes.swap(0, 1)) }),
    ("a loss is scaled otherwise", |p, r| task(p, r, |t, r| match &mut t.does { Does::Backward { scaled, .. } | Does::Inputs { scaled } => { *scaled = if r.coin() { 0 } else { *scaled + 1 }; Some(()) } _ => None })),
    ("gradients are reduced in another micro-batch", |p, r| task(p, r, |t, r| match &mut t.does { Does::Backward { settles, .. } | Does::Weights { settles } => { *settles = [When::Never, When::Each, When::First][r.below(3)]; Some(()) } _ => None })),
    ("a code runs for another micro-batch", |p, r| task(p, r, |t, r| { t.at += if r.coin() { 1 } else { -1 }; Some(()) })),
    ("a code is of another block", |p, r| task(p, r, |t, _| { t.block ^= 1; Some(()) })),
    ("a code does not run", |p, r| { let l = iterations(p, r)?; let n = l.tasks.len(); l.tasks.remove(below(r, n)?); Some(()) }),
    ("codes run in another order", |p, r| { let l = iterations(p, r)?; let n = l.tasks.len(); (n > 1).then(|| { let at = r.below(n - 1); l.tasks.swap(at, at + 1) }) }),
    ("a step does not begin or end", |p, r| { let t = &mut body(p, r)?.timetable; if r.coin() { t.begins = !t.begins } else { t.ends = !t.ends } Some(()) }),
    ("a loop has other turns", |p, r| { let l = iterations(p, r)?; l.iterations = match l.iterations { Some(n) => Some(n + 1), None => Some(1) }; Some(()) }),
    ("a step does not stash", |p, r| { let t = &mut body(p, r)?.timetable; match &mut t.steps { Steps::On { stashes } => { *stashes = !*stashes; Some(()) } Steps::Apart => None } }),
    ("a number is any number, or a list has any length", wild::plant),
];

/// Numbers that are the same each time.
pub struct Random(pub u64);

impl Random {
    pub fn below(&mut self, count: usize) -> usize {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut x = self.0;
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((x ^ (x >> 31)) % count.max(1) as u64) as usize
    }

    pub fn coin(&mut self) -> bool {
        self.below(2) == 0
    }
}

fn below(r: &mut Random, count: usize) -> Option<usize> {
    (count > 0).then(|| r.below(count))
}

fn body<'p>(p: &'p mut Program, r: &mut Random) -> Option<&'p mut Body> {
    let n = p.roles.len();
    Some(&mut p.roles[below(r, n)?].body)
}

fn table<'p>(p: &'p mut Program, r: &mut Random) -> Option<&'p mut Table> {
    let n = p.roles.len();
    Some(&mut p.roles[below(r, n)?].table)
}

/// A random instruction of a kind: its code, and where in it.
fn instr<'p>(
    p: &'p mut Program,
    r: &mut Random,
    is: impl Fn(&Instr) -> bool,
) -> Option<(&'p mut Vec<Instr>, usize)> {
    let mut found = vec![];
    for (role, it) in p.roles.iter().enumerate() {
        for (code, it) in it.body.codes.iter().enumerate() {
            let all = it.instrs.iter().enumerate().filter(|(_, instr)| is(instr));
            found.extend(all.map(|(at, _)| (role, code, at)));
        }
    }
    let (role, code, at) = found[below(r, found.len())?];
    Some((&mut p.roles[role].body.codes[code].instrs, at))
}

macro_rules! one {
    ($name:ident, $pattern:pat => $it:expr, $type:ty) => {
        fn $name<'p>(p: &'p mut Program, r: &mut Random) -> Option<&'p mut $type> {
            #[allow(unused_variables)]
            let (code, at) = instr(p, r, |instr| matches!(instr, $pattern))?;
            match &mut code[at] {
                $pattern => Some($it),
                _ => None,
            }
        }
    };
}

one!(call, Instr::Call(it) => it, Call);
one!(grad, Instr::Grad(it) => it, Grad);
one!(slice, Instr::Slice(it) => it, Slice);

fn cut<'p>(p: &'p mut Program, r: &mut Random) -> Option<&'p mut Cut> {
    let is = |instr: &Instr| matches!(instr, Instr::Collective(it) if !matches!(it.how, How::AllReduce(_)));
    let (code, at) = instr(p, r, is)?;
    let Instr::Collective(it) = &mut code[at] else { return None };
    match &mut it.how {
        How::AllGather(cut) | How::ReduceScatter(cut) => Some(cut),
        How::AllToAll { send, receive } => Some(if r.coin() { send } else { receive }),
        How::AllReduce(_) => None,
    }
}

fn exchange<'p>(p: &'p mut Program, r: &mut Random) -> Option<&'p mut Exchange> {
    let n = p.exchanges.len();
    Some(&mut p.exchanges[below(r, n)?])
}

fn operator<'p>(p: &'p mut Program, r: &mut Random) -> Option<&'p mut LocalOp> {
    let call = call(p, r)?;
    let n = call.ops.len();
    Some(&mut call.ops[below(r, n)?])
}

fn iterations<'p>(p: &'p mut Program, r: &mut Random) -> Option<&'p mut Loop> {
    let loops = &mut body(p, r)?.timetable.loops;
    let n = loops.len();
    Some(&mut loops[below(r, n)?])
}

fn task(p: &mut Program, r: &mut Random, f: impl FnOnce(&mut Task, &mut Random) -> Option<()>) -> Option<()> {
    let all = iterations(p, r)?;
    let n = all.tasks.len();
    let at = below(r, n)?;
    f(&mut all.tasks[at], r)
}

fn addends(
    p: &mut Program,
    r: &mut Random,
    f: impl FnOnce(&mut Vec<BufId>, &mut Random) -> Option<()>,
) -> Option<()> {
    let (code, at) = instr(p, r, |i| matches!(i, Instr::Add { .. }))?;
    let Instr::Add { from, .. } = &mut code[at] else { return None };
    f(from, r)
}

fn leaves(
    p: &mut Program,
    r: &mut Random,
    f: impl FnOnce(&mut Vec<LeafId>, &mut Random) -> Option<()>,
) -> Option<()> {
    let (code, at) = instr(p, r, |i| !i.leaves().is_empty())?;
    let leaves = code[at].fields_mut().find_map(|field| match field {
        FieldMut::Leaves(leaves) | FieldMut::LeafPlaces(leaves) => Some(leaves),
        _ => None,
    });
    f(leaves?, r)
}

fn copies(
    p: &mut Program,
    r: &mut Random,
    f: impl FnOnce(&mut Vec<usize>, &mut Random) -> Option<()>,
) -> Option<()> {
    let (code, at) = instr(p, r, |i| !i.copies().is_empty())?;
    let copies = |field| if let FieldMut::Copies(copies) = field { Some(copies) } else { None };
    f(code[at].fields_mut().find_map(copies)?, r)
}

fn timing(instr: &mut Instr) -> Option<&mut GradSync> {
    instr.fields_mut().find_map(|field| if let FieldMut::When(when) = field { Some(when) } else { None })
}

fn without_communication(p: &mut Program, r: &mut Random) -> Option<()> {
    let (code, at) = instr(p, r, |i| matches!(i, Instr::Collective(it) if it.from.len() == 1))?;
    let Instr::Collective(it) = &code[at] else { return None };
    code[at] = Instr::Add { from: it.from.clone(), to: it.to[0] };
    Some(())
}

fn another_value(p: &mut Program, r: &mut Random) -> Option<()> {
    let body = body(p, r)?;
    let n = body.bufs.len();
    let c = body.codes.len();
    let code = &mut body.codes[below(r, c)?];
    let i = code.instrs.len();
    let at = below(r, i)?;
    let before: Vec<BufId> = code.instrs[..at].iter().flat_map(Instr::writes).collect();
    let instr = &mut code.instrs[at];
    if matches!(instr, Instr::Call(_)) {
        return None;
    }
    let mut reads: Vec<&mut BufId> = instr.reads_mut().collect();
    let count = reads.len();
    let place = below(r, count)?;
    *reads[place] = before.get(r.below(before.len())).copied().unwrap_or(BufId::new(r.below(n)));
    Some(())
}

/// What a call reads anyway, or makes before.
fn another_operand(p: &mut Program, r: &mut Random) -> Option<()> {
    let call = call(p, r)?;
    let n = call.ops.len();
    let at = below(r, n)?;
    let made = call.ops[..at].iter().flat_map(|op| op.outputs.iter().flatten().copied());
    let there: Vec<BufId> = call.inputs.iter().copied().chain(made).collect();
    let new = there[below(r, there.len())?];
    let bufs = call.ops[at].args.iter_mut().filter(|arg| matches!(arg, Arg::Buf(_)));
    let mut bufs: Vec<&mut Arg> = bufs.collect();
    let count = bufs.len();
    *bufs[below(r, count)?] = Arg::Buf(new);
    Some(())
}

fn swapped_operands(p: &mut Program, r: &mut Random) -> Option<()> {
    let op = operator(p, r)?;
    let places: Vec<usize> = (0..op.args.len()).filter(|at| matches!(op.args[*at], Arg::Buf(_))).collect();
    (places.len() > 1).then(|| op.args.swap(places[0], places[1]))
}

/// Its readers read what it would have read.
fn without_operator(p: &mut Program, r: &mut Random) -> Option<()> {
    let call = call(p, r)?;
    let n = call.ops.len();
    if n < 2 {
        return None;
    }
    let op = call.ops.remove(below(r, n)?);
    let (from, Some(to)) = (op.inputs().next()?, op.outputs.first().copied().flatten()) else {
        return None;
    };
    for op in &mut call.ops {
        for arg in &mut op.args {
            if *arg == Arg::Buf(to) {
                *arg = Arg::Buf(from);
            }
        }
    }
    Some(())
}

fn another_operator(p: &mut Program, r: &mut Random) -> Option<()> {
    const PAIRS: [(&str, &str); 12] = [
        ("aten.gelu.default", "aten.silu.default"),
        ("aten.relu.default", "aten.tanh.default"),
        ("aten.tanh.default", "aten.sigmoid.default"),
        ("aten.add.Tensor", "aten.sub.Tensor"),
        ("aten.sub.Tensor", "aten.add.Tensor"),
        ("aten.mul.Tensor", "aten.div.Tensor"),
        ("aten.div.Tensor", "aten.mul.Tensor"),
        ("aten.amax.default", "aten.amin.default"),
        ("aten.exp.default", "aten.log.default"),
        ("aten.log.default", "aten.exp.default"),
        ("aten.sum.default", "aten.mean.default"),
        ("aten.detach.default", "aten.relu.default"),
    ];
    let known = |target: &str| PAIRS.iter().find(|(from, _)| *from == target);
    let (code, at) = instr(
        p,
        r,
        |i| matches!(i, Instr::Call(call) if call.ops.iter().any(|op| known(&op.target).is_some())),
    )?;
    let Instr::Call(call) = &mut code[at] else { return None };
    let mut all: Vec<&mut LocalOp> = call.ops.iter_mut().filter(|op| known(&op.target).is_some()).collect();
    let n = all.len();
    let op = &mut all[below(r, n)?];
    op.target = known(&op.target)?.1.to_owned();
    Some(())
}

fn argument(p: &mut Program, r: &mut Random, f: impl Fn(&mut Arg) -> bool) -> Option<()> {
    let (code, at) = instr(p, r, |i| i.args().any(|(arg, _)| f(&mut (*arg).clone())))?;
    let mut args: Vec<&mut Arg> =
        code[at].args_mut().map(|(arg, _)| arg).filter(|arg| f(&mut (**arg).clone())).collect();
    let n = args.len();
    f(args[below(r, n)?]).then_some(())
}

fn number(p: &mut Program, r: &mut Random, f: impl Fn(&mut Random, &mut i64)) -> Option<()> {
    let (code, at) = instr(p, r, |i| i.args().any(|(arg, _)| matches!(arg, Arg::Int(_))))?;
    let args = code[at].args_mut().map(|(arg, _)| arg);
    let mut args: Vec<&mut Arg> = args.filter(|arg| matches!(arg, Arg::Int(_))).collect();
    let place = below(r, args.len())?;
    let Arg::Int(value) = &mut *args[place] else { return None };
    f(r, value);
    Some(())
}

fn constant(p: &mut Program, r: &mut Random) -> Option<()> {
    let table = table(p, r)?;
    let n = table.constants.len();
    each(&mut table.constants[below(r, n)?], r, |value, _| {
        *value += 1;
        Some(())
    })
}

fn each<T: Clone + PartialEq>(
    column: &mut PerRank<T>,
    r: &mut Random,
    f: impl FnOnce(&mut T, &mut Random) -> Option<()>,
) -> Option<()> {
    match column {
        PerRank::Same(value) => f(value, r),
        PerRank::Each(values) => {
            let mut all = values.to_vec();
            let n = all.len();
            f(&mut all[r.below(n)], r)?;
            *values = Arc::from(all);
            Some(())
        }
    }
}

fn moved(column: &mut PerRank<Region>, r: &mut Random) -> Option<()> {
    each(column, r, shift)
}

/// One further, or back where it cannot, along one factor.
fn shift(region: &mut Region, r: &mut Random) -> Option<()> {
    let n = region.0.len();
    let Interval { lo, hi } = &mut region.0[below(r, n)?];
    let by = if *lo > 0 { -1 } else { 1 };
    *lo += by;
    *hi += by;
    Some(())
}

fn shifted(arg: &mut Arg) -> Option<()> {
    match arg {
        Arg::Int(value) => *value += if *value > 0 { -1 } else { 1 },
        _ => return None,
    }
    Some(())
}

fn other_reduction(reduction: Reduction) -> Reduction {
    match reduction {
        Reduction::Sum => Reduction::Max,
        Reduction::Max => Reduction::Sum,
        Reduction::Min => Reduction::Max,
        Reduction::Any => Reduction::All,
        Reduction::All => Reduction::Any,
    }
}

fn another_reduction(p: &mut Program, r: &mut Random) -> Option<()> {
    let (code, at) =
        instr(p, r, |i| matches!(i, Instr::Collective(it) if matches!(it.how, How::AllReduce(_))))?;
    let Instr::Collective(it) = &mut code[at] else { return None };
    let How::AllReduce(reduction) = &mut it.how else { return None };
    *reduction = other_reduction(*reduction);
    Some(())
}

fn gather_to_reduce(p: &mut Program, r: &mut Random) -> Option<()> {
    let (code, at) =
        instr(p, r, |i| matches!(i, Instr::Collective(it) if matches!(it.how, How::AllGather(_))))?;
    let Instr::Collective(it) = &mut code[at] else { return None };
    it.how = How::AllReduce(Reduction::Sum);
    Some(())
}

fn scatter_to_gather(p: &mut Program, r: &mut Random) -> Option<()> {
    let (code, at) =
        instr(p, r, |i| matches!(i, Instr::Collective(it) if matches!(it.how, How::ReduceScatter(_))))?;
    let Instr::Collective(it) = &mut code[at] else { return None };
    if let How::ReduceScatter(cut) = &it.how {
        it.how = How::AllGather(cut.clone());
    }
    Some(())
}

fn another_group(p: &mut Program, r: &mut Random) -> Option<()> {
    let n = p.groupings.len();
    let (code, at) = instr(p, r, |i| i.group().is_some())?;
    let group = |field| if let FieldMut::Group(group) = field { Some(group) } else { None };
    *code[at].fields_mut().find_map(group)? = GroupingId::new(below(r, n)?);
    Some(())
}

fn another_table(p: &mut Program, r: &mut Random) -> Option<()> {
    let n = p.exchanges.len();
    let (code, at) = instr(p, r, |i| i.exchange().is_some())?;
    let table = |field| if let FieldMut::Exchange(exchange) = field { Some(exchange) } else { None };
    *code[at].fields_mut().find_map(table)? = ExchangeId::new(below(r, n)?);
    Some(())
}
