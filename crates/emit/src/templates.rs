//! How operators are written in Python, and read back: one table for both ways.
//!
//! Left is the operator with its arguments, right what a person would write for it. `{0}` is the
//! first argument, `{dtype}` a keyword argument, `{*1}` a list spread over several arguments, `*5`
//! all positional arguments, at most five, `**` all further keyword arguments. A letter says what
//! an argument must be: `t` a tensor, `n` a number or an integer of the rank, `i` an integer, `o` a tensor or a number, `u` an
//! integer that is not negative, `l` a list, `s` a string, `d` a dtype, `b` a bool.
//!
//! A row is used only where reading its text back gives exactly the same operator; anything else is
//! written as `torch.ops.aten.name.overload(...)`, which is always right.

mod created;
mod lists;
mod matching;
mod spelling;
mod table;

use std::borrow::Cow;
use std::collections::HashMap;
use std::sync::OnceLock;

use rules::{LocalArg, LocalOp};

use crate::python::parser::template;
use crate::python::print::flat;
use crate::python::{Expr, is_identifier};

pub(crate) use spelling::known as known_spelling;

/// The rows of the table: operator, Python.
pub fn templates() -> &'static [(&'static str, &'static str)] {
    table::TABLE
}

/// An operator and its arguments as expressions.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Applied<'a> {
    pub(crate) target: Cow<'a, str>,
    pub(crate) args: Vec<Expr<'a>>,
    pub(crate) kwargs: Vec<(Cow<'a, str>, Expr<'a>)>,
}

struct TemplateRow {
    args: Vec<Expr<'static>>,
    kwargs: Vec<(&'static str, Expr<'static>)>,
    target: String,
    python: Expr<'static>,
}

/// The compiled table. Order is preference.
struct TemplateTable {
    rows: Vec<TemplateRow>,
    by_target: HashMap<String, Vec<usize>>,
    by_head: HashMap<String, Vec<usize>>,
}

fn table() -> &'static TemplateTable {
    static TABLE: OnceLock<TemplateTable> = OnceLock::new();
    TABLE.get_or_init(compile)
}

fn compile() -> TemplateTable {
    let mut table = TemplateTable { rows: vec![], by_target: HashMap::new(), by_head: HashMap::new() };
    for (left, right) in table::TABLE {
        let (Ok(Expr::Call(call)), Ok(python)) = (template(left), template(right)) else {
            unreachable!("the row `{left}` of the templates is not readable");
        };
        let index = table.rows.len();
        let target = call.function.dotted().unwrap_or_default().into_owned();
        table.by_target.entry(target.clone()).or_default().push(index);
        table.by_head.entry(head(&python)).or_default().push(index);
        table.rows.push(TemplateRow { args: call.args, kwargs: call.kwargs, target, python });
    }
    table
}

/// What an expression is at its top: a function, a method or an operator.
fn head(expr: &Expr<'_>) -> String {
    match expr {
        Expr::Call(call) => match (&call.function, call.function.root()) {
            (function, Some("torch" | "F")) => function.dotted().unwrap_or_default().into_owned(),
            (Expr::Attr(_, name), _) => format!(".{name}"),
            _ => String::new(),
        },
        Expr::Unary(sign, _) => format!("{sign}x"),
        Expr::Binary(operator, _) => (*operator).to_owned(),
        Expr::Index(..) => "[]".to_owned(),
        _ => String::new(),
    }
}

/// The Python of an operator.
pub(crate) fn write<'a>(applied: Applied<'a>) -> Expr<'a> {
    let creates = creates(&applied.target);
    match written(applied) {
        Expr::Call(mut call) if creates => {
            call.kwargs.push((DEVICE, device()));
            Expr::Call(call)
        }
        expr => expr,
    }
}

fn written<'a>(applied: Applied<'a>) -> Expr<'a> {
    if let Some(expr) = matching::write_slice(&applied) {
        return expr;
    }
    for index in table().by_target.get(applied.target.as_ref()).into_iter().flatten() {
        let row = &table().rows[*index];
        if let Some(expr) = matching::fill(row, &applied) {
            if read_anywhere(&expr).as_ref() == Some(&applied) {
                return expr;
            }
        }
    }
    fallback(applied)
}

/// What a part with so many inputs executes, as a person would write it: they are `x0`, `x1`.
pub fn call(op: &LocalOp, inputs: usize) -> String {
    let names: Vec<String> = (0..inputs).map(|at| format!("x{at}")).collect();
    let applied = Applied {
        target: op.target.as_str().into(),
        args: op.args.iter().map(|arg| expr(arg, &names)).collect(),
        kwargs: op.kwargs.iter().map(|(key, arg)| (key.as_str().into(), expr(arg, &names))).collect(),
    };
    let mut text = String::new();
    flat(&mut text, &write(applied));
    text
}

fn expr<'a>(arg: &'a LocalArg, names: &'a [String]) -> Expr<'a> {
    match arg {
        LocalArg::None => Expr::None,
        LocalArg::Bool(value) => Expr::Bool(*value),
        LocalArg::Int(value) => Expr::Int(*value),
        LocalArg::Float(value) => Expr::Float(*value),
        LocalArg::Str(value) => Expr::Str(value.as_str().into()),
        LocalArg::Dtype(value) => Expr::Name("torch").attr(value.torch()),
        LocalArg::Input(at) => Expr::Name(names.get(*at).map_or("x", String::as_str)),
        LocalArg::List(items) => Expr::List(items.iter().map(|item| expr(item, names)).collect()),
    }
}

/// The operator that an expression is, if it is one; and whether it makes its tensor where the rank computes,
/// as those do that [`creates`] knows.
pub(crate) fn read<'a>(expr: &Expr<'a>) -> Option<(Applied<'a>, bool)> {
    match expr {
        Expr::Call(call) if call.kwargs.last() == Some(&(DEVICE, device())) => {
            let mut call = call.clone();
            call.kwargs.pop();
            Some((read_anywhere(&Expr::Call(call))?, true))
        }
        _ => Some((read_anywhere(expr)?, false)),
    }
}

fn read_anywhere<'a>(expr: &Expr<'a>) -> Option<Applied<'a>> {
    if let Expr::Call(call) = expr {
        match call.function.root() {
            Some("ops") => return read_runtime(call),
            Some("torch") => {
                let name = call.function.dotted()?;
                if let Some(target) = name.strip_prefix("torch.ops.") {
                    return is_overload(target).then(|| matching::plain(target.to_owned(), call));
                }
            }
            _ => {}
        }
    }
    if let Expr::Index(..) = expr {
        return matching::read_slice(expr);
    }
    let rows = table().by_head.get(&head(expr))?;
    rows.iter().find_map(|index| matching::take(&table().rows[*index], expr))
}

/// `ops.name(...)` is the runtime's operator `sw.name`; `ops.call` is for what has no name in Python.
fn read_runtime<'a>(call: &crate::python::Call<'a>) -> Option<Applied<'a>> {
    let Expr::Attr(object, name) = &call.function else { return None };
    if **object != Expr::Name("ops") {
        return None;
    }
    match (*name, call.args.as_slice(), call.kwargs.as_slice()) {
        ("cut", ..) => None,
        ("call", [Expr::Str(target), Expr::List(args), Expr::List(kwargs)], []) => {
            let mut named = vec![];
            for pair in kwargs {
                let Expr::List(pair) = pair else { return None };
                let [Expr::Str(key), value] = pair.as_slice() else { return None };
                named.push((key.clone(), value.clone()));
            }
            Some(Applied { target: target.clone(), args: args.clone(), kwargs: named })
        }
        ("call", ..) => None,
        _ => Some(format!("sw.{name}")).filter(|t| is_runtime(t)).map(|target| matching::plain(target, call)),
    }
}

/// An operator of PyTorch, such as `aten.add.Tensor`; `torch.ops.load_library` is none, and what
/// Python keeps to itself is none either.
fn is_overload(target: &str) -> bool {
    let parts: Vec<&str> = target.split('.').collect();
    let [namespace, name, overload] = parts.as_slice() else { return false };
    let plain = |part: &str| is_identifier(part) && !part.starts_with("__");
    let operator = ["__and__", "__or__", "__xor__", "__lshift__", "__rshift__"].contains(name);
    plain(namespace) && plain(overload) && (plain(name) || operator) && *namespace != "sw"
}

fn is_runtime(target: &str) -> bool {
    let name = target.strip_prefix("sw.").filter(|name| is_identifier(name) && !name.starts_with("__"));
    name.is_some_and(|name| name != "cut" && name != "call")
}

/// What is right for every operator.
fn fallback<'a>(applied: Applied<'a>) -> Expr<'a> {
    let known = is_overload(&applied.target) || is_runtime(&applied.target);
    if !known || !applied.kwargs.iter().all(|(name, _)| is_identifier(name)) {
        return unnamed(applied);
    }
    let mut kwargs = Vec::with_capacity(applied.kwargs.len());
    for (name, value) in &applied.kwargs {
        // Borrowed wherever the program or the table lends it, which is everywhere in practice.
        let Cow::Borrowed(name) = name else { return unnamed(applied) };
        kwargs.push((*name, value.clone()));
    }
    let Cow::Borrowed(target) = applied.target else { return unnamed(applied) };
    let function = match target.strip_prefix("sw.") {
        Some(name) => Expr::Name("ops").attr(name),
        None => target.split('.').fold(Expr::Name("torch").attr("ops"), Expr::attr),
    };
    function.call_with(applied.args, kwargs)
}

fn unnamed<'a>(applied: Applied<'a>) -> Expr<'a> {
    let pair = |(name, value)| Expr::List(vec![Expr::Str(name), value]);
    let kwargs = Expr::List(applied.kwargs.into_iter().map(pair).collect());
    Expr::Name("ops").attr("call").call(vec![Expr::Str(applied.target), Expr::List(applied.args), kwargs])
}

/// `device=rank.device` is the last argument of what creates a tensor.
pub(crate) const DEVICE: &str = "device";

fn device<'a>() -> Expr<'a> {
    Expr::Name("rank").attr(DEVICE)
}

/// Whether an operator makes a tensor of numbers alone, and has to be told where. A test compares `CREATED`
/// with PyTorch's own signatures.
pub(crate) fn creates(target: &str) -> bool {
    target.strip_prefix("aten.").is_some_and(|name| created::CREATED.contains(&name))
}

/// What runs as the Python that it was.
const AS_PYTHON: [&str; 2] = ["shardwright.function.default", "shardwright.module.default"];

/// Whether an operator's result is a list also where it has one element. A test compares `LISTS` with
/// PyTorch's own signatures.
pub(crate) fn gives_list(target: &str) -> bool {
    let name = target.strip_prefix("aten.");
    name.is_some_and(|name| lists::LISTS.contains(&name)) || AS_PYTHON.contains(&target)
}
