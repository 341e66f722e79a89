//! Functions of a role as Python, and calls of them.

use program::{Arg, BufId};

use super::comments;
use super::hole;
use super::iterations::LinesOf;
use super::loops::{self, Params};
use super::outline::{FunctionUse, Hint, Item, Note, Outlined, Value, Var};
use crate::names::{Scope, UNNAMED};
use crate::python::{Expr, Function, Stmt, StmtKind, print};
use crate::templates::{self, Applied};

/// The names of all functions, and of everything inside them.
pub(crate) struct Names {
    pub(crate) functions: Vec<String>,
    locals: Vec<Locals>,
}

struct Locals {
    scope: Scope,
    vars: Vec<String>,
    /// Numbers of random operators that differ between uses: parameters.
    numbers: Vec<Option<String>>,
}

impl Names {
    /// The second result knows all names of functions: no variable may hide one.
    pub(crate) fn new(functions: &[Outlined<'_>]) -> (Names, Scope) {
        let mut scope = Scope::new();
        let names: Vec<String> = functions.iter().map(|f| scope.fresh_function(&f.name)).collect();
        let locals = functions.iter().map(|f| Locals::new(f, scope.clone())).collect();
        (Names { functions: names, locals }, scope)
    }
}

impl Locals {
    fn new(function: &Outlined<'_>, mut scope: Scope) -> Locals {
        let mut unnamed = UNNAMED.iter().chain(std::iter::repeat(&"x"));
        let mut fresh = |hint: &Hint| match hint.name.as_str() {
            "" => scope.fresh(unnamed.next().unwrap_or(&"x")),
            name => scope.fresh(name),
        };
        let vars = function.hints.iter().map(&mut fresh).collect();
        let number = |known: &Option<i64>| known.is_none().then_some("operator");
        let numbers = function.numbers.iter().map(|n| number(n).map(|name| scope.fresh(name))).collect();
        Locals { scope, vars, numbers }
    }
}

pub(crate) struct Printer<'n> {
    pub(crate) functions: &'n [Outlined<'n>],
    pub(crate) names: &'n Names,
    pub(crate) holes: &'n [String],
}

impl<'n> Printer<'n> {
    pub(crate) fn text(&self, out: &mut String) {
        for index in 0..self.functions.len() {
            out.push_str("\n\n");
            self.function(out, index);
        }
    }

    /// Prints a function, layers that are alike in a loop.
    fn function(&self, out: &mut String, index: usize) {
        let (outlined, locals) = (&self.functions[index], &self.names.locals[index]);
        let shape = &outlined.shape;
        let mut fixed = vec![];
        fixed.extend(shape.uses_leaves.then_some("p"));
        fixed.extend(shape.uses_rank.then_some("rank"));
        let tensors: Vec<&str> = shape.params.iter().map(|var| locals.vars[*var].as_str()).collect();
        let numbers: Vec<&str> = locals.numbers.iter().flatten().map(String::as_str).collect();
        let stmts = loops::with_paths(self.body(index));
        let wanted = locals.vars.iter().zip(&outlined.hints).filter(|(_, hint)| !hint.name.is_empty());
        let wanted = wanted.map(|(name, hint)| (name.as_str(), hint.name.as_str())).collect();
        let params = Params { fixed: &[&fixed[..], &numbers].concat(), free: &tensors };
        let loops = loops::find(&stmts, LinesOf::Called, params, &locals.scope, &wanted);
        let mut params = fixed;
        params.extend(tensors.iter().map(|name| loops.name(name)));
        params.extend(numbers);
        let mut doc = comments::docstring(&outlined.paths, outlined.users.len());
        let line = place_in_doc(&mut doc, &outlined.notes).to_owned();
        let mut body = loops::apply(stmts, &loops);
        remark(&mut body, &mut Said { line, sharding: String::new() });
        print::function(out, &Function { line: 0, name: &self.names.functions[index], params, doc, body });
    }

    /// What it does, line by line, each with all that is said of it.
    fn body(&self, index: usize) -> Vec<Stmt<'n>> {
        let outlined = &self.functions[index];
        let mut body = vec![];
        for (item, note) in outlined.shape.items.iter().zip(&outlined.notes) {
            let no_grad = matches!(item, Item::Op { no_grad: true, .. });
            push(&mut body, self.item(index, item).with(note_text(note)), no_grad);
        }
        if !outlined.shape.results.is_empty() {
            let results = outlined.shape.results.iter().map(|value| self.value(index, value)).collect();
            body.push(Stmt::new(StmtKind::Return(results)));
        }
        body
    }

    fn item(&self, index: usize, item: &'n Item<'n>) -> Stmt<'n> {
        match item {
            Item::Op { target, args, kwargs, outputs, .. } => {
                let args = args.iter().map(|value| self.value(index, value)).collect();
                let kwargs =
                    kwargs.iter().map(|(name, value)| ((*name).into(), self.value(index, value))).collect();
                let value = templates::write(Applied { target: (*target).into(), args, kwargs });
                let unpack = outputs.len() > 1 || templates::gives_list(target);
                let targets = outputs.iter().map(|var| var.map_or("_", |var| self.var(index, var))).collect();
                statement(targets, unpack, value)
            }
            Item::Call { function, tree, args, outputs, numbers } => {
                let inner = &self.functions[*function];
                let mut all = vec![];
                all.extend(tree.as_deref().map(Expr::Name));
                all.extend(inner.shape.uses_rank.then_some(Expr::Name("rank")));
                all.extend(args.iter().map(|value| self.value(index, value)));
                let differ = inner.numbers.iter().enumerate().filter(|(_, known)| known.is_none());
                all.extend(differ.map(|(at, _)| self.number(index, numbers + at)));
                let targets = outputs.iter().map(|var| self.var(index, *var)).collect();
                let value = Expr::Name(&self.names.functions[*function]).call(all);
                statement(targets, outputs.len() > 1, value)
            }
        }
    }

    fn var(&self, index: usize, var: Var) -> &'n str {
        self.names.locals[index].vars.get(var).map_or("unknown", String::as_str)
    }

    fn number(&self, index: usize, at: usize) -> Expr<'n> {
        match &self.names.locals[index].numbers[at] {
            Some(name) => Expr::Name(name),
            None => Expr::Int(self.functions[index].numbers[at].unwrap_or_default()),
        }
    }

    fn value(&self, index: usize, value: &'n Value<'n>) -> Expr<'n> {
        match value {
            Value::Var(var) => Expr::Name(self.var(index, *var)),
            Value::Leaf(text) => Expr::Name(text),
            Value::Hole(at) => hole(self.holes, *at),
            Value::Number(at) => self.number(index, *at),
            Value::None => Expr::None,
            Value::Bool(value) => Expr::Bool(*value),
            Value::Int(value) => Expr::Int(*value),
            Value::Float(bits) => Expr::Float(f64::from_bits(*bits)),
            Value::Str(text) => Expr::Str((*text).into()),
            Value::Dtype(dtype) => Expr::Name("torch").attr(&dtype.torch()["torch.".len()..]),
            Value::List(items) => Expr::List(items.iter().map(|item| self.value(index, item)).collect()),
        }
    }

    /// The arguments of `run.call`: function, `p`, `rank`, tensors, leaves, numbers.
    pub(crate) fn arguments(&self, used: &'n CallText, buf: &dyn Fn(BufId) -> Expr<'n>) -> Vec<Expr<'n>> {
        let function = &self.functions[used.function];
        let mut all = vec![Expr::Name(&self.names.functions[used.function])];
        all.extend(used.tree.as_deref().map(Expr::Name));
        all.extend(function.shape.uses_rank.then_some(Expr::Name("rank")));
        all.extend(used.tensors.iter().map(|id| buf(*id)));
        all.extend(used.leaves.iter().map(|text| Expr::Name(text)));
        let differ = function.numbers.iter().zip(&used.numbers).filter(|(known, _)| known.is_none());
        all.extend(differ.map(|(_, number)| Expr::Int(*number)));
        all
    }
}

/// A call's own part of its arguments, as it is written.
pub(crate) struct CallText {
    pub(crate) function: usize,
    tree: Option<String>,
    tensors: Vec<BufId>,
    leaves: Vec<String>,
    numbers: Vec<i64>,
}

impl CallText {
    /// Whether it names this module.
    pub(crate) fn tells(&self, path: &str) -> bool {
        self.tree.as_deref() == Some(&crate::leaves::path(path))
    }

    pub(crate) fn new(used: &FunctionUse<'_>, leaves: &crate::leaves::Leaves<'_>) -> CallText {
        CallText {
            function: used.function,
            tree: used.tree.as_ref().map(|tree| crate::leaves::path(tree)),
            tensors: used.tensors.clone(),
            leaves: used.leaves.iter().map(|leaf| leaves.full(*leaf)).collect(),
            numbers: used.numbers.clone(),
        }
    }
}

pub(crate) fn statement<'a>(targets: Vec<&'a str>, unpack: bool, value: Expr<'a>) -> Stmt<'a> {
    Stmt::new(if targets.is_empty() {
        StmtKind::Expr(value)
    } else {
        StmtKind::Assign { targets, unpack, value }
    })
}

/// Names the file of the first line in the docstring, if there is room. Gives the file as a line without a number.
fn place_in_doc<'n>(doc: &mut [String], notes: &[Note<'n>]) -> &'n str {
    const ROOM: usize = 88;
    let first = notes.iter().map(|note| note.line).find(|line| !line.is_empty()).unwrap_or_default();
    let (Some(colon), Some(text)) = (first.rfind(':'), doc.last_mut()) else { return "" };
    if text.len() + colon + 2 > ROOM {
        return "";
    }
    *text += &format!(": {}", &first[..colon]);
    &first[..=colon]
}

/// Leaves of what is said of each line what was not said just before.
fn remark(body: &mut [Stmt<'_>], last: &mut Said) {
    for stmt in body {
        if let StmtKind::NoGrad(inner) | StmtKind::For { body: inner, .. } = &mut stmt.kind {
            remark(inner, last);
        } else if stmt.kind != StmtKind::Comment && !matches!(stmt.kind, StmtKind::Return(_)) {
            stmt.comment = said(stmt.comment.as_deref().unwrap_or_default(), last);
        }
    }
}

/// The place in the model, and the sharding, that were said last.
struct Said {
    line: String,
    sharding: String,
}

fn said(text: &str, last: &mut Said) -> Option<String> {
    let (line, sharding) = text.split_once(BETWEEN).unwrap_or_default();
    let new = Some(sharding).filter(|sharding| !sharding.is_empty() && *sharding != last.sharding);
    let said: Vec<String> = source(line, &last.line).into_iter().chain(new.map(str::to_owned)).collect();
    if !line.is_empty() {
        line.clone_into(&mut last.line);
    }
    sharding.clone_into(&mut last.sharding);
    (!said.is_empty()).then(|| said.join(" "))
}

/// Where an operator comes from, as far as it is another place than that of the one before: of the same file
/// only the line.
fn source(line: &str, last: &str) -> Option<String> {
    if line == last || line.is_empty() {
        return None;
    }
    let file = |place: &'_ str| place.rsplit_once(':').map(|(file, _)| file.to_owned());
    Some(match line.rsplit_once(':') {
        Some((here, number)) if file(last).as_deref() == Some(here) => format!(":{number}"),
        _ => line.to_owned(),
    })
}

/// Stands between the place in the model and the sharding, until it is known what of both was said before.
const BETWEEN: char = '\0';

fn note_text(note: &Note<'_>) -> Option<String> {
    let silent = note.line.is_empty() && note.sharding.is_empty();
    (!silent).then(|| format!("{}{BETWEEN}{}", note.line, note.sharding))
}

/// Statements without gradients stand together in one block.
fn push<'a>(body: &mut Vec<Stmt<'a>>, stmt: Stmt<'a>, no_grad: bool) {
    if !no_grad {
        return body.push(stmt);
    }
    if let Some(Stmt { kind: StmtKind::NoGrad(block), .. }) = body.last_mut() {
        return block.push(stmt);
    }
    body.push(Stmt::new(StmtKind::NoGrad(vec![stmt])));
}

/// A number that may be a hole.
pub(crate) fn number<'a>(arg: &'a Arg, holes: &'a [String]) -> Expr<'a> {
    super::argument(arg, holes, &|_| Expr::None)
}
