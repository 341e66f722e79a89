//! Functions, statements and expressions to text, in lines of at most 100 columns.

use std::fmt::Write;

use super::{Call, Expr, Function, Stmt, StmtKind, precedence};

const WIDTH: usize = 100;
/// How tightly what stands before `.`, `(` or `[` must bind.
const RECEIVER: u8 = 11;

pub(crate) fn function(out: &mut String, function: &Function<'_>) {
    signature(out, function.name, &function.params);
    docstring(out, &function.doc);
    if function.body.iter().all(|s| matches!(s.kind, StmtKind::Comment)) {
        out.push_str("    pass\n");
    }
    function.body.iter().for_each(|stmt| statement(out, 4, stmt));
}

fn signature(out: &mut String, name: &str, params: &[&str]) {
    let flat = params.join(", ");
    if name.len() + flat.len() + 7 <= WIDTH {
        let _ = writeln!(out, "def {name}({flat}):");
    } else if flat.len() + 4 <= WIDTH {
        let _ = writeln!(out, "def {name}(\n    {flat}\n):");
    } else {
        let _ = writeln!(out, "def {name}(\n    {},\n):", params.join(",\n    "));
    }
}

fn docstring(out: &mut String, lines: &[String]) {
    if lines.is_empty() {
        return;
    }
    out.push_str("    \"\"\"");
    for (index, line) in lines.iter().enumerate() {
        if index > 0 {
            out.push_str("\n    ");
        }
        escape(out, line);
    }
    out.push_str(if lines.len() > 1 { "\n    \"\"\"\n" } else { "\"\"\"\n" });
}

fn statement(out: &mut String, indent: usize, stmt: &Stmt<'_>) {
    let start = out.len();
    spaces(out, indent);
    match &stmt.kind {
        StmtKind::Assign { targets, unpack, value } => assign(out, indent, targets, *unpack, value),
        StmtKind::Expr(value) => expression(out, indent, value),
        StmtKind::Return(values) => returned(out, indent, values),
        StmtKind::Yield(values) => {
            out.push_str("yield ");
            sequence(out, values);
        }
        StmtKind::NoGrad(body) => {
            out.push_str("with torch.no_grad()");
            return below(out, indent, body);
        }
        StmtKind::If(condition, body) => {
            out.push_str("if ");
            flat(out, condition);
            return below(out, indent, body);
        }
        StmtKind::For { target, values, body } => {
            let _ = write!(out, "for {target} in ");
            flat(out, values);
            return below(out, indent, body);
        }
        StmtKind::Comment => {
            let text = clean(stmt.comment.as_deref().unwrap_or_default());
            return writeln!(out, "# {text}").unwrap_or_default();
        }
    }
    if let Some(comment) = &stmt.comment {
        remark(out, start, indent, &clean(comment));
    }
    out.push('\n');
}

fn below(out: &mut String, indent: usize, body: &[Stmt<'_>]) {
    out.push_str(":\n");
    if body.is_empty() {
        spaces(out, indent + 4);
        out.push_str("pass\n");
    }
    body.iter().for_each(|stmt| statement(out, indent + 4, stmt));
}

/// A comment at the end of the first line if there is room, else above the statement.
fn remark(out: &mut String, start: usize, indent: usize, text: &str) {
    let end = out[start..].find('\n').map_or(out.len(), |at| start + at);
    if end - start + text.len() + 4 <= WIDTH {
        out.insert_str(end, &format!("  # {text}"));
    } else {
        out.insert_str(start, &format!("{:indent$}# {text}\n", ""));
    }
}

fn assign(out: &mut String, indent: usize, targets: &[&str], unpack: bool, value: &Expr<'_>) {
    let flat = targets.join(", ");
    if !unpack && targets.len() == 1 {
        out.push_str(&flat);
    } else if targets.len() == 1 {
        let _ = write!(out, "({flat},)");
    } else if indent + flat.len() + 24 <= WIDTH {
        out.push_str(&flat);
    } else {
        out.push_str("(\n");
        for target in targets {
            spaces(out, indent + 4);
            let _ = writeln!(out, "{target},");
        }
        spaces(out, indent);
        out.push(')');
    }
    out.push_str(" = ");
    expression(out, indent, value);
}

fn returned(out: &mut String, indent: usize, values: &[Expr<'_>]) {
    out.push_str("return");
    if let [value] = values {
        out.push(' ');
        return expression(out, indent, value);
    }
    if values.is_empty() {
        return;
    }
    let start = out.len();
    out.push(' ');
    sequence(out, values);
    if column(out) > WIDTH {
        out.truncate(start);
        out.push_str(" (");
        broken(out, indent, values.len(), |out, index| expression(out, indent + 4, &values[index]));
        out.push(')');
    }
}

/// An expression at the end of the current line; it is broken if it does not fit there.
fn expression(out: &mut String, indent: usize, expr: &Expr<'_>) {
    let start = out.len();
    flat(out, expr);
    if column(out) <= WIDTH {
        return;
    }
    match expr {
        Expr::Call(call) => {
            out.truncate(start);
            broken_call(out, indent, call);
        }
        Expr::List(items) | Expr::Rows(items) if !items.is_empty() => {
            out.truncate(start);
            let (open, close) = if matches!(expr, Expr::Rows(_)) { ("[", "]") } else { brackets(items) };
            out.push_str(open);
            broken(out, indent, items.len(), |out, index| expression(out, indent + 4, &items[index]));
            out.push_str(close.trim_start_matches(','));
        }
        Expr::Binary(..) => {
            out.truncate(start);
            out.push('(');
            let inner = out.len();
            newline(out, indent + 4);
            flat(out, expr);
            if column(out) > WIDTH {
                out.truncate(inner);
                terms(out, indent + 4, expr);
            }
            newline(out, indent);
            out.push(')');
        }
        _ => {}
    }
}

fn broken_call(out: &mut String, indent: usize, call: &Call<'_>) {
    operand(out, &call.function, RECEIVER);
    out.push('(');
    let start = out.len();
    newline(out, indent + 4);
    arguments(out, call);
    if column(out) <= WIDTH {
        newline(out, indent);
    } else {
        out.truncate(start);
        broken(out, indent, call.args.len() + call.kwargs.len(), |out, index| {
            if let Some(arg) = call.args.get(index) {
                return expression(out, indent + 4, arg);
            }
            let (name, value) = &call.kwargs[index - call.args.len()];
            let _ = write!(out, "{name}=");
            expression(out, indent + 4, value);
        });
    }
    out.push(')');
}

/// One item a line, each with a comma.
fn broken(out: &mut String, indent: usize, count: usize, mut item: impl FnMut(&mut String, usize)) {
    for index in 0..count {
        newline(out, indent + 4);
        item(out, index);
        out.push(',');
    }
    newline(out, indent);
}

/// The operands of a chain, one a line, each with its operator before it.
fn terms(out: &mut String, indent: usize, expr: &Expr<'_>) {
    match expr {
        Expr::Binary(operator @ ("+" | "*"), sides) => {
            terms(out, indent, &sides.0);
            newline(out, indent);
            let _ = write!(out, "{operator} ");
            operand(out, &sides.1, precedence(operator) + 1);
        }
        _ => {
            newline(out, indent);
            operand(out, expr, precedence("+"));
        }
    }
}

/// An expression on one line.
pub(crate) fn flat(out: &mut String, expr: &Expr<'_>) {
    match expr {
        Expr::Name(name) => out.push_str(name),
        Expr::None => out.push_str("None"),
        Expr::Bool(value) => out.push_str(if *value { "True" } else { "False" }),
        Expr::Int(value) => write!(out, "{value}").unwrap_or_default(),
        Expr::Float(value) => float(out, *value),
        Expr::Str(text) => string(out, text),
        Expr::List(items) => {
            out.push_str(brackets(items).0);
            sequence(out, items);
            out.push_str(brackets(items).1);
        }
        Expr::Rows(items) => {
            out.push('[');
            sequence(out, items);
            out.push(']');
        }
        Expr::Attr(object, name) => {
            operand(out, object, RECEIVER);
            let _ = write!(out, ".{name}");
        }
        Expr::Index(object, subscripts) => {
            operand(out, object, RECEIVER);
            out.push('[');
            sequence(out, subscripts);
            out.push(']');
        }
        Expr::Slice(parts) => slice(out, parts),
        Expr::Call(call) => {
            operand(out, &call.function, RECEIVER);
            out.push('(');
            arguments(out, call);
            out.push(')');
        }
        Expr::Unary(sign, inner) => {
            out.push(*sign);
            operand(out, inner, 8);
        }
        Expr::Binary(operator, sides) => binary(out, operator, &sides.0, &sides.1),
        Expr::Place(_) | Expr::Rest(_) => {}
    }
}

fn binary(out: &mut String, operator: &str, left: &Expr<'_>, right: &Expr<'_>) {
    let tight = precedence(operator);
    // `**` groups to the right, and comparisons do not chain.
    operand(out, left, if matches!(tight, 1 | 9) { tight + 1 } else { tight });
    let _ = write!(out, " {operator} ");
    operand(out, right, if tight == 9 { 8 } else { tight + 1 });
}

/// An expression in a place that wants at least this tightness.
fn operand(out: &mut String, expr: &Expr<'_>, wanted: u8) {
    let tight = match expr {
        Expr::Binary(operator, _) => precedence(operator),
        Expr::Unary(..) => 8,
        Expr::Int(value) if *value < 0 => 8,
        Expr::Float(value) if value.is_sign_negative() && value.is_finite() => 8,
        // `1.x` would read as a float.
        Expr::Int(_) | Expr::Float(_) => 10,
        _ => RECEIVER,
    };
    if tight < wanted {
        out.push('(');
        flat(out, expr);
        out.push(')');
    } else {
        flat(out, expr);
    }
}

fn slice(out: &mut String, parts: &[Option<Expr<'_>>; 3]) {
    for (index, part) in parts.iter().enumerate() {
        if index == 1 || (index == 2 && part.is_some()) {
            out.push(':');
        }
        part.iter().for_each(|part| flat(out, part));
    }
}

fn arguments(out: &mut String, call: &Call<'_>) {
    sequence(out, &call.args);
    for (index, (name, value)) in call.kwargs.iter().enumerate() {
        if index > 0 || !call.args.is_empty() {
            out.push_str(", ");
        }
        let _ = write!(out, "{name}=");
        flat(out, value);
    }
}

fn sequence(out: &mut String, items: &[Expr<'_>]) {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        flat(out, item);
    }
}

/// Numbers stand in a tuple, as PyTorch prints shapes; anything else in a list.
fn brackets(items: &[Expr<'_>]) -> (&'static str, &'static str) {
    let number = |item: &Expr<'_>| match item {
        Expr::Int(_) => true,
        Expr::Attr(object, _) => **object == Expr::Name("rank"),
        _ => false,
    };
    match items {
        [one] if number(one) => ("(", ",)"),
        _ if !items.is_empty() && items.iter().all(number) => ("(", ")"),
        _ => ("[", "]"),
    }
}

fn float(out: &mut String, value: f64) {
    let special = match value {
        f64::INFINITY => "float(\"inf\")",
        f64::NEG_INFINITY => "float(\"-inf\")",
        _ if value.is_nan() => "float(\"nan\")",
        _ => return write!(out, "{value:?}").unwrap_or_default(),
    };
    out.push_str(special);
}

pub(crate) fn string(out: &mut String, text: &str) {
    out.push('"');
    escape(out, text);
    out.push('"');
}

/// The inside of a string literal: printable ASCII, no quotes, no backslashes of its own.
fn escape(out: &mut String, text: &str) {
    for c in text.chars() {
        let code = u32::from(c);
        let _ = match c {
            '"' | '\\' => write!(out, "\\{c}"),
            '\n' => write!(out, "\\n"),
            ' '..='~' => write!(out, "{c}"),
            _ if code <= 0xff => write!(out, "\\x{code:02x}"),
            _ if code <= 0xffff => write!(out, "\\u{code:04x}"),
            _ => write!(out, "\\U{code:08x}"),
        };
    }
}

/// The inside of a comment: letters and printable ASCII, and nothing that Python takes for the
/// encoding of the file.
pub(crate) fn clean(text: &str) -> String {
    let plain = |c: char| if c.is_alphanumeric() || matches!(c, ' '..='~') { c } else { '?' };
    let text: String = text.chars().map(plain).collect();
    if text.contains("coding") {
        text.replace("coding:", "coding :").replace("coding=", "coding =")
    } else {
        text
    }
}

fn column(out: &str) -> usize {
    out.len() - out.rfind('\n').map_or(0, |at| at + 1)
}

fn newline(out: &mut String, indent: usize) {
    out.push('\n');
    spaces(out, indent);
}

fn spaces(out: &mut String, count: usize) {
    out.extend(std::iter::repeat_n(' ', count));
}
