use std::fmt::{self, Write};

use super::{FORMAT, VERSION};
use crate::{Arg, Graph, Op, Source, Tensor};

/// The text of a valid graph; [`super::parse()`] gives the graph back.
pub fn print(graph: &Graph) -> String {
    let mut out = String::with_capacity(160 * (graph.ops.len() + graph.tensors.len()) + 256);
    write_graph(&mut out, graph).expect("writing to a string never fails");
    out
}

fn write_graph(out: &mut String, graph: &Graph) -> fmt::Result {
    writeln!(out, "{FORMAT} {VERSION}")?;
    writeln!(out, "model {}", Quoted(&graph.model))?;
    writeln!(out, "in_spec {}", Quoted(&graph.in_spec))?;
    writeln!(out, "out_spec {}", Quoted(&graph.out_spec))?;
    for (path, class) in &graph.modules {
        writeln!(out, "module {} {}", Quoted(path), Quoted(class))?;
    }
    write_definitions(out, graph)?;
    for output in &graph.outputs {
        match output {
            Some(id) => writeln!(out, "output %{}", graph.tensor(*id).name)?,
            None => writeln!(out, "output none")?,
        }
    }
    for (buffer, id) in &graph.updates {
        writeln!(out, "update {} %{}", Quoted(buffer), graph.tensor(*id).name)?;
    }
    Ok(())
}

/// Interleaves sources and operators in the order of the tensor arena, so that parsing numbers the
/// tensors as before; a source that an earlier operator reads moves above it.
fn write_definitions(out: &mut String, graph: &Graph) -> fmt::Result {
    let mut done = 0;
    for op in &graph.ops {
        let end = graph.defined_above(op).max(done);
        write_sources(out, &graph.tensors[done..end])?;
        write_op(out, graph, op)?;
        done = end;
    }
    write_sources(out, &graph.tensors[done..])
}

fn write_sources(out: &mut String, tensors: &[Tensor]) -> fmt::Result {
    for tensor in tensors {
        let typed = Typed(tensor);
        match &tensor.source {
            Source::Op { .. } => continue,
            Source::Input { position, grad } => {
                let grad = if *grad { " grad" } else { "" };
                write!(out, "input {typed} {position}{grad}")?;
            }
            Source::Param { names, frozen } => {
                write!(out, "param {typed}")?;
                for name in names {
                    write!(out, " {}", Quoted(name))?;
                }
                out.push_str(if *frozen { " frozen" } else { "" });
            }
            Source::Buffer { name, persistent } => {
                let transient = if *persistent { "" } else { " transient" };
                write!(out, "buffer {typed} {}{transient}", Quoted(name))?;
            }
            Source::Const { name } => write!(out, "const {typed} {}", Quoted(name))?,
        }
        out.push('\n');
    }
    Ok(())
}

fn write_op(out: &mut String, graph: &Graph, op: &Op) -> fmt::Result {
    out.push_str("op ");
    separated(out, &op.outputs, |out, output| match output {
        Some(id) => write!(out, "{}", Typed(graph.tensor(*id))),
        None => out.write_char('_'),
    })?;
    out.push_str(if op.outputs.is_empty() { "= " } else { " = " });
    write!(out, "{}(", op.target)?;
    separated(out, &op.args, |out, arg| write_arg(out, graph, arg))?;
    if !op.args.is_empty() && !op.kwargs.is_empty() {
        out.push_str(", ");
    }
    separated(out, &op.kwargs, |out, (name, arg)| {
        write!(out, "{name}=")?;
        write_arg(out, graph, arg)
    })?;
    write!(out, ") in {} at {}", Quoted(&op.module), Quoted(&op.line))?;
    out.push_str(if op.no_grad { " nograd" } else { "" });
    if !op.spans.is_empty() {
        write!(out, " span {:?}", op.spans)?;
    }
    if !op.order.is_empty() {
        write!(out, " order {:?}", op.order)?;
    }
    out.push('\n');
    Ok(())
}

fn write_arg(out: &mut String, graph: &Graph, arg: &Arg) -> fmt::Result {
    match arg {
        Arg::None => out.write_str("None"),
        Arg::Bool(true) => out.write_str("True"),
        Arg::Bool(false) => out.write_str("False"),
        Arg::Int(value) => write!(out, "{value}"),
        Arg::Float(value) => write_float(out, *value),
        Arg::Str(value) => write!(out, "{}", Quoted(value)),
        Arg::Dtype(dtype) => out.write_str(dtype.short()),
        Arg::Tensor(id) => write!(out, "%{}", graph.tensor(*id).name),
        Arg::List(items) => {
            out.push('[');
            separated(out, items, |out, item| write_arg(out, graph, item))?;
            out.write_char(']')
        }
    }
}

fn separated<T>(
    out: &mut String,
    items: &[T],
    mut write: impl FnMut(&mut String, &T) -> fmt::Result,
) -> fmt::Result {
    for (index, item) in items.iter().enumerate() {
        if index > 0 {
            out.push_str(", ");
        }
        write(out, item)?;
    }
    Ok(())
}

/// Python's `repr`: the shortest digits that read back as the same number, with an exponent below
/// 1e-4 and from 1e16 on.
fn write_float(out: &mut String, value: f64) -> fmt::Result {
    if value.is_nan() {
        return out.write_str("nan");
    }
    if value.is_infinite() {
        return out.write_str(if value > 0.0 { "inf" } else { "-inf" });
    }
    let magnitude = value.abs();
    if magnitude == 0.0 || (1e-4..1e16).contains(&magnitude) {
        let digits = value.to_string();
        let point = if digits.contains('.') { "" } else { ".0" };
        return write!(out, "{digits}{point}");
    }
    let scientific = format!("{value:e}");
    let (digits, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let (sign, exponent) = exponent.strip_prefix('-').map_or(('+', exponent), |e| ('-', e));
    write!(out, "{digits}e{sign}{exponent:0>2}")
}

/// A tensor where it is defined: `%x f64[2,3]`.
struct Typed<'a>(&'a Tensor);

impl fmt::Display for Typed<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Tensor { name, dtype, shape, .. } = self.0;
        write!(f, "%{name} {}[", dtype.short())?;
        for (index, size) in shape.iter().enumerate() {
            let comma = if index > 0 { "," } else { "" };
            write!(f, "{comma}{size}")?;
        }
        f.write_char(']')
    }
}

/// A JSON string on one line.
struct Quoted<'a>(&'a str);

impl fmt::Display for Quoted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_char('"')?;
        for c in self.0.chars() {
            match c {
                '"' => f.write_str("\\\"")?,
                '\\' => f.write_str("\\\\")?,
                '\n' => f.write_str("\\n")?,
                '\r' => f.write_str("\\r")?,
                '\t' => f.write_str("\\t")?,
                // Python's `str.splitlines` also ends a line at the last two.
                c if c.is_control() || matches!(c, '\u{2028}' | '\u{2029}') => {
                    write!(f, "\\u{:04x}", u32::from(c))?;
                }
                c => f.write_char(c)?,
            }
        }
        f.write_char('"')
    }
}
