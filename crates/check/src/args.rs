//! Compares what a program executes with what a rule says a part executes, argument by argument.

use program::{Arg, BufId, LocalOp, Own};
use rules::LocalArg;

/// An integer argument, holes filled.
pub(crate) fn integer(arg: &Arg, rank_table: Own<'_>) -> Option<i64> {
    match arg {
        Arg::Int(value) => Some(*value),
        Arg::Hole(hole) => rank_table.constant(*hole),
        _ => None,
    }
}

/// Which buffer is which operand, if the two are the same operator with the same arguments.
pub(crate) fn compare(
    expected: &rules::LocalOp,
    actual: &LocalOp,
    rank_table: Own<'_>,
) -> Option<Vec<(BufId, usize)>> {
    let same = expected.target == actual.target
        && expected.args.len() == actual.args.len()
        && expected.kwargs.len() == actual.kwargs.len();
    let mut binding = vec![];
    let args = expected.args.iter().zip(&actual.args);
    let all = same
        && { args }.all(|(a, b)| same_arg(a, b, rank_table, &mut binding))
        && expected.kwargs.iter().all(|(name, a)| {
            let kwarg = actual.kwargs.iter().find(|(other, _)| other == name);
            kwarg.is_some_and(|(_, b)| same_arg(a, b, rank_table, &mut binding))
        });
    all.then_some(binding)
}

fn same_arg(
    expected: &LocalArg,
    actual: &Arg,
    rank_table: Own<'_>,
    binding: &mut Vec<(BufId, usize)>,
) -> bool {
    match (expected, actual) {
        (LocalArg::None, Arg::None) => true,
        (LocalArg::Bool(a), Arg::Bool(b)) => a == b,
        (LocalArg::Int(a), Arg::Int(_) | Arg::Hole(_)) => integer(actual, rank_table) == Some(*a),
        // What is divided by the one zero is not what is divided by the other.
        (LocalArg::Float(a), Arg::Float(b)) => a.to_bits() == b.to_bits(),
        (LocalArg::Str(a), Arg::Str(b)) => a == b,
        (LocalArg::Dtype(a), Arg::Dtype(b)) => a == b,
        (LocalArg::Input(position), Arg::Buf(buf)) => {
            binding.push((*buf, *position));
            true
        }
        (LocalArg::List(a), Arg::List(b)) => {
            a.len() == b.len() && a.iter().zip(b).all(|(a, b)| same_arg(a, b, rank_table, binding))
        }
        _ => false,
    }
}

pub(crate) fn has_holes(op: &LocalOp) -> bool {
    fn holes(arg: &Arg) -> bool {
        match arg {
            Arg::Hole(_) => true,
            Arg::List(items) => items.iter().any(holes),
            _ => false,
        }
    }
    op.args.iter().chain(op.kwargs.iter().map(|(_, arg)| arg)).any(holes)
}

/// The integers of the rule's arguments, in order.
pub(crate) fn expected_ints(op: &rules::LocalOp) -> Vec<i64> {
    fn collect(arg: &LocalArg, ints: &mut Vec<i64>) {
        match arg {
            LocalArg::Int(value) => ints.push(*value),
            LocalArg::List(items) => items.iter().for_each(|item| collect(item, ints)),
            _ => {}
        }
    }
    let mut ints = vec![];
    op.args.iter().chain(op.kwargs.iter().map(|(_, arg)| arg)).for_each(|arg| collect(arg, &mut ints));
    ints
}

/// The integers of the program's arguments, in order, holes filled.
pub(crate) fn found_ints(op: &LocalOp, rank_table: Own<'_>) -> Vec<i64> {
    fn collect(arg: &Arg, rank_table: Own<'_>, ints: &mut Vec<i64>) {
        match arg {
            Arg::List(items) => items.iter().for_each(|item| collect(item, rank_table, ints)),
            other => ints.extend(integer(other, rank_table)),
        }
    }
    let mut ints = vec![];
    let all = op.args.iter().chain(op.kwargs.iter().map(|(_, arg)| arg));
    all.for_each(|arg| collect(arg, rank_table, &mut ints));
    ints
}

pub(crate) fn expected_text(op: &rules::LocalOp) -> String {
    fn text(arg: &LocalArg) -> String {
        match arg {
            LocalArg::None => "None".into(),
            LocalArg::Bool(value) => if *value { "True" } else { "False" }.into(),
            LocalArg::Int(value) => value.to_string(),
            LocalArg::Float(value) => format!("{value:?}"),
            LocalArg::Str(value) => format!("{value:?}"),
            LocalArg::Dtype(value) => value.short().into(),
            LocalArg::Input(_) => "_".into(),
            LocalArg::List(items) => bracket(items.iter().map(text).collect()),
        }
    }
    call(&op.target, op.args.iter().map(text), op.kwargs.iter().map(|(name, arg)| (name, text(arg))))
}

pub(crate) fn found_text(op: &LocalOp, rank_table: Own<'_>) -> String {
    fn text(arg: &Arg, rank_table: Own<'_>) -> String {
        match arg {
            Arg::None => "None".into(),
            Arg::Bool(value) => if *value { "True" } else { "False" }.into(),
            Arg::Int(_) | Arg::Hole(_) => {
                integer(arg, rank_table).map_or_else(|| "?".into(), |value| value.to_string())
            }
            Arg::Float(value) => format!("{value:?}"),
            Arg::Str(value) => format!("{value:?}"),
            Arg::Dtype(value) => value.short().into(),
            Arg::Buf(_) => "_".into(),
            Arg::List(items) => bracket(items.iter().map(|item| text(item, rank_table)).collect()),
        }
    }
    let args = op.args.iter().map(|arg| text(arg, rank_table));
    call(&op.target, args, op.kwargs.iter().map(|(name, arg)| (name, text(arg, rank_table))))
}

fn bracket(items: Vec<String>) -> String {
    let items = if items.len() > 8 { [&items[..8], &["...".to_string()]].concat() } else { items };
    format!("[{}]", items.join(", "))
}

fn call<'a>(
    target: &str,
    args: impl Iterator<Item = String>,
    kwargs: impl Iterator<Item = (&'a String, String)>,
) -> String {
    let all: Vec<String> = args.chain(kwargs.map(|(name, value)| format!("{name}={value}"))).collect();
    format!("{target}({})", all.join(", "))
}
