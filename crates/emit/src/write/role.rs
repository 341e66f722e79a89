//! The file of one role: functions, `forward`, `backward`, and the timetable `step`.

use std::collections::{BTreeSet, HashMap};

use graph::Graph;
use program::{Body, BufId, Call, CallId, Code, Collective, How, Instr, Pass, Program, Role, Saves};
use rules::Analysis;

use super::call_names;
use super::calls::{CallName, Words, method};
use super::comments::{self, Comments, partition};
use super::functions::{CallText, Names, Printer, statement};
use super::iterations::LinesOf;
use super::loops::Params;
use super::modules::Modules;
use super::naming::Naming;
use super::outline::{FunctionUse, Outline};
use super::ranks::{group_of, rank_names};
use super::sharding::Shardings;
use super::{loops, timetable};
use crate::leaves::Leaves;
use crate::names::{Scope, code_name};
use crate::python::parser::IMPORTS;
use crate::python::{Expr, Function, Stmt, StmtKind, print};
use crate::templates::DEVICE;

/// The text, and what its calls are called, in their order.
pub(crate) fn text(
    graph: &Graph,
    analysis: &Analysis,
    program: &Program,
    role: &Role,
    modules: &Modules<'_>,
) -> (String, Vec<String>) {
    let body = &role.body;
    let leaves = Leaves::new(graph, body);
    let shardings = Shardings::new(graph, analysis, program, role);
    let mut outline = Outline::new(graph, modules, body, &leaves, &shardings);
    let uses: Vec<FunctionUse<'_>> = body.calls().map(|call| outline.call(call)).collect();
    let texts: Vec<CallText> = uses.iter().map(|used| CallText::new(used, &leaves)).collect();
    let (names, scope) = Names::new(&outline.functions);
    let calls: Vec<&Call> = body.calls().collect();
    let called: Vec<(CallId, CallName<'_>)> =
        (calls.iter().zip(&uses).zip(call_names::numbers(&calls, &uses)))
            .map(|((call, used), at)| (call.id, CallName { function: &names.functions[used.function], at }))
            .collect();
    let by_id = called.iter().copied().collect();
    let holes = hole_names(body);
    let leaf_texts: Vec<String> = (0..body.leaves.len()).map(|leaf| leaves.full(leaf)).collect();
    let printer = Printer { functions: &outline.functions, names: &names, holes: &holes };
    let wanted = wanted(body, &Naming { graph, modules });
    let comments = Comments { graph, program, role, modules, shardings: &shardings, wanted: &wanted };
    let group_sizes: Vec<usize> = (0..program.groupings.len())
        .map(|id| group_of(program, role, program::GroupingId::new(id)).map_or(0, <[_]>::len))
        .collect();

    let mut out = head(program, role, &shardings.held(&leaves));
    printer.text(&mut out);
    let mut used = uses.iter().zip(&texts);
    let several = program.roles.iter().flat_map(|role| &role.body.codes).any(|code| code.block > 0);
    let named: Vec<Named> = body
        .codes
        .iter()
        .map(|code| {
            let mut scope = scope.clone();
            let bufs = buf_names(body, &leaf_texts, &mut scope, &wanted, code);
            Named { name: code_name(several, code.block, code.pass), scope, bufs }
        })
        .collect();
    let (leaves, holes, group_sizes) = (&leaf_texts[..], &holes[..], &group_sizes[..]);
    let words: Vec<Words<'_>> = { named.iter() }
        .map(|named| Words {
            bufs: &named.bufs,
            leaves,
            holes,
            group_sizes,
            table: &role.table,
            calls: &by_id,
        })
        .collect();
    for ((code, named), words) in body.codes.iter().zip(&named).zip(&words) {
        let file = File { printer: &printer, comments: &comments, words };
        let text = written_code(&file, &named.name, code, &mut used);
        function(&mut out, text, &named.scope, &file.wanted(&wanted));
    }
    let settling = body.codes.iter().filter(|code| code.pass.settles());
    let settles = { settling }.any(|code| code.instrs.iter().any(Instr::settles));
    if let Some(step) = timetable::step(&body.timetable, several, settles) {
        timetable::print(&mut out, &step);
    }
    (out, called.iter().map(|(_, name)| name.text()).collect())
}

/// What a code and its buffers are called.
struct Named {
    name: String,
    scope: Scope,
    bufs: Vec<String>,
}

struct File<'n> {
    printer: &'n Printer<'n>,
    comments: &'n Comments<'n>,
    words: &'n Words<'n>,
}

impl<'n> File<'n> {
    fn commented(&self, stmt: Stmt<'n>, instr: &Instr) -> Stmt<'n> {
        stmt.with(self.comments.text(instr)).about(self.comments.about(instr))
    }

    /// What values would like to be called, by what they are called.
    fn wanted(&self, wanted: &'n [String]) -> HashMap<&'n str, &'n str> {
        self.words.bufs.iter().map(String::as_str).zip(wanted.iter().map(String::as_str)).collect()
    }
}

fn head(program: &Program, role: &Role, held: &[String]) -> String {
    let version = env!("CARGO_PKG_VERSION");
    let used: BTreeSet<usize> = role.body.instrs().filter_map(|i| Some(i.group()?.index())).collect();
    let named = |id: &usize| Some(format!("# group {id}: {}\n", partition(program.groupings.get(*id)?)));
    let groups: String = used.iter().filter_map(named).collect();
    let held = comments::wrapped("divided: ", held);
    format!(
        "# {}, plan {}: {} of {}. Generated by shardwright {version}; edits run with `program=`.\n\
         # graph {} (the digest of the model's graph)\n{groups}{held}\n{}\n{}\n\n{}\n",
        print::clean(&program.model),
        print::clean(&program.plan),
        rank_names(&role.ranks),
        program.world,
        print::clean(&program.digest),
        IMPORTS[0],
        IMPORTS[1],
        IMPORTS[2],
    )
}

/// Prints a function, layers that are alike in a loop.
fn function(out: &mut String, mut function: Function<'_>, names: &Scope, wanted: &HashMap<&str, &str>) {
    let stmts = loops::with_paths(std::mem::take(&mut function.body));
    let params = Params { fixed: &function.params, free: &[] };
    let loops = loops::find(&stmts, LinesOf::Code, params, names, wanted);
    let Function { line, name, params, doc, .. } = function;
    out.push_str("\n\n");
    print::function(out, &Function { line, name, params, doc, body: loops::apply(stmts, &loops) });
}

/// The calls of all codes, in their order.
type Calls<'c, 'n> = dyn Iterator<Item = (&'c FunctionUse<'n>, &'n CallText)> + 'c;

/// The function of a code.
fn written_code<'n>(
    file: &File<'n>,
    name: &'n str,
    code: &'n Code,
    used: &mut Calls<'_, 'n>,
) -> Function<'n> {
    let words = file.words;
    let mut params = vec!["run", "p", "rank"];
    params.extend(code.pass.settles().then_some("last"));
    params.extend(code.takes.iter().map(|taken| words.name(*taken)));
    let doc = match code.pass {
        Pass::Begin => vec!["Once a step.".to_owned()],
        Pass::End => vec!["Once a step, after all else.".to_owned()],
        Pass::Forward | Pass::Backward | Pass::Inputs | Pass::Weights => vec![],
    };
    let mut body = match code.pass {
        Pass::Backward | Pass::Weights => settling(file, code, used),
        _ => written(file, &code.instrs, used),
    };
    // With several blocks, what gives no output returns nothing.
    if code.pass == Pass::Forward && code.block == 0 && name == "forward"
        || code.gives.iter().any(Option::is_some)
    {
        let given = code.gives.iter().map(|buf| buf.map_or(Expr::None, |buf| words.buf(buf)));
        body.push(Stmt::new(StmtKind::Return(given.collect())));
    }
    Function { line: 0, name, params, doc, body }
}

/// What communicates sums of gradients stands below `if last:`.
fn settling<'n>(file: &File<'n>, code: &'n Code, used: &mut Calls<'_, 'n>) -> Vec<Stmt<'n>> {
    let mut stmts = vec![];
    for together in code.instrs.chunk_by(|a, b| a.settles() == b.settles()) {
        let written = written(file, together, used);
        if together[0].settles() {
            stmts.push(Stmt::new(StmtKind::If(Expr::Name("last"), written)));
        } else {
            stmts.extend(written);
        }
    }
    stmts
}

/// Instructions, and the module of each call where it is another one than before.
fn written<'n>(file: &File<'n>, instrs: &'n [Instr], used: &mut Calls<'_, 'n>) -> Vec<Stmt<'n>> {
    let mut stmts = vec![];
    let mut place = String::new();
    for instr in instrs {
        if let (Instr::Call(call), Some((used, text))) = (instr, call_of(instr, used)) {
            let here = place_of(used);
            if here != place && !here.is_empty() && !text.tells(used.path) {
                stmts.push(Stmt::comment(&here));
            }
            place = here;
            stmts.push(called(file, call, text));
        }
        let stmt = file.words.instr(instr);
        stmts.extend(stmt.map(|stmt| file.commented(stmt, instr)));
    }
    stmts
}

/// The module that a call is (a part of), and the operator of the model that it is a piece of.
fn place_of(used: &FunctionUse<'_>) -> String {
    match used.piece {
        Some(piece) if used.path.is_empty() => format!("{piece} in pieces"),
        Some(piece) => format!("{}: {piece} in pieces", used.path),
        None => used.path.to_owned(),
    }
}

fn call_of<T>(instr: &Instr, uses: &mut (impl Iterator<Item = T> + ?Sized)) -> Option<T> {
    if matches!(instr, Instr::Call(_)) { uses.next() } else { None }
}

fn called<'n>(file: &File<'n>, call: &'n Call, text: &'n CallText) -> Stmt<'n> {
    let args = file.printer.arguments(text, &|buf| file.words.buf(buf));
    let marks = Saves::MARKS.into_iter().zip(call.saves.marks());
    let marks = marks.filter(|(_, set)| *set).map(|(mark, _)| (mark, Expr::Bool(true)));
    let marks = file.words.call(call.id).at().into_iter().chain(marks);
    let targets: Vec<_> = call.outputs.iter().map(|buf| file.words.name(*buf)).collect();
    let unpack = targets.len() > 1;
    statement(targets, unpack, method("call", args, marks.collect()))
}

pub(crate) fn hole_names(body: &Body) -> Vec<String> {
    let mut scope = Scope::new();
    let _ = scope.fresh(DEVICE);
    body.holes.iter().map(|hole| scope.fresh(hole)).collect()
}

/// How each buf is written: leaves by their path, those of this code by names of their own.
fn buf_names(
    body: &Body,
    leaves: &[String],
    scope: &mut Scope,
    wanted: &[String],
    code: &Code,
) -> Vec<String> {
    let mut names = vec![String::new(); body.bufs.len()];
    for (leaf, text) in body.leaves.iter().zip(leaves) {
        names[leaf.buf.index()].clone_from(text);
    }
    for buf in bufs_of(code) {
        if names[buf.index()].is_empty() {
            names[buf.index()] = scope.fresh(&wanted[buf.index()]);
        }
    }
    names
}

/// What each buf would like to be called: `g_x` is a gradient, `x_part` a share of a value.
fn wanted(body: &Body, naming: &Naming<'_>) -> Vec<String> {
    let plain = |buf: &program::Buf| {
        let other = buf.name.strip_prefix("g_").unwrap_or(&buf.name);
        format!("{}{}", if buf.grad { "g_" } else { "" }, naming.name_of(buf.tensor, other))
    };
    let mut wanted: Vec<String> = body.bufs.iter().map(plain).collect();
    for instr in body.instrs() {
        let Instr::Collective(Collective { how: How::AllReduce(_) | How::ReduceScatter(_), from, .. }) =
            instr
        else {
            continue;
        };
        for buf in from {
            let name = &mut wanted[buf.index()];
            *name = format!("{}_part", name.strip_suffix("_part").unwrap_or(name));
        }
    }
    wanted
}

/// What a code is given, and what it makes.
fn bufs_of(code: &Code) -> Vec<BufId> {
    code.takes.iter().copied().chain(code.instrs.iter().flat_map(Instr::writes)).collect()
}
