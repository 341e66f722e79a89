use std::collections::{BTreeSet, HashMap, HashSet};

use diag::{Error, Result};

use super::scan::Line;
use super::{FORMAT, VERSION};
use crate::{Arg, Dtype, Graph, Op, OpId, Source, Tensor, TensorId};

/// Reads a graph. The error names the line.
pub fn parse(text: &str) -> Result<Graph> {
    let mut lines = lines(text);
    header(lines.next())?;
    let mut parser = Parser { text, ..Parser::default() };
    for line in lines {
        parser.line(line)?;
    }
    Ok(parser.graph)
}

/// Deeper lists are refused, so that neither reading nor dropping them can exhaust the stack.
const MAX_DEPTH: usize = 32;

fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let all = text.lines().enumerate().map(|(index, text)| Line::new(index + 1, text));
    all.filter(|line| !matches!(line.peek(), None | Some('#')))
}

fn header(first: Option<Line<'_>>) -> Result<()> {
    let mut line = first.unwrap_or(Line::new(1, ""));
    let start = line;
    if !line.eat(FORMAT) {
        let what = format!("the text is not a graph: it does not start with `{FORMAT}`");
        return Err(start.refuse("SW0205", what).fix(format!("start with `{FORMAT} {VERSION}`")));
    }
    let version = line.word().ok_or_else(|| line.expected("the version of the format"))?;
    if version != VERSION {
        let what = format!("version {version} of the graph format is unknown");
        let fix = "capture the model again with this release of Shardwright";
        let why = format!("this release reads version {VERSION}");
        return Err(line.refuse("SW0205", what).why(why).fix(fix));
    }
    line.end()
}

#[derive(Default)]
struct Parser<'a> {
    text: &'a str,
    graph: Graph,
    tensors: HashMap<&'a str, (TensorId, usize)>,
    /// Buffers and parameters, the latter by their first names.
    held: HashSet<String>,
    /// The line of every name that must be unique among its kind.
    taken: HashMap<(&'static str, String), usize>,
}

/// What stands left of an operator's `=`, or after the keyword of a source.
type Typed<'a> = (&'a str, Dtype, Vec<i64>);

/// The positional arguments and the keyword arguments.
type Arguments = (Vec<Arg>, Vec<(String, Arg)>);

impl<'a> Parser<'a> {
    fn line(&mut self, mut line: Line<'a>) -> Result<()> {
        let start = line;
        match line.word() {
            Some("op") => self.op(&mut line)?,
            Some("input") => self.input(&mut line)?,
            Some("param") => self.param(&mut line)?,
            Some("buffer") => self.buffer(&mut line)?,
            Some("const") => self.constant(&mut line)?,
            Some("output") => self.output(&mut line)?,
            Some("update") => self.update(&mut line)?,
            Some("module") => self.module(&mut line)?,
            Some("model") => self.graph.model = self.setting(&mut line, "model")?,
            Some("in_spec") => self.graph.in_spec = self.setting(&mut line, "in_spec")?,
            Some("out_spec") => self.graph.out_spec = self.setting(&mut line, "out_spec")?,
            _ => return Err(start.expected("a keyword").fix(format!("start with {KEYWORDS}"))),
        }
        line.end()
    }

    fn setting(&mut self, line: &mut Line<'a>, keyword: &str) -> Result<String> {
        self.unique(line, "line", keyword)?;
        line.string()
    }

    fn module(&mut self, line: &mut Line<'a>) -> Result<()> {
        let path = line.string()?;
        self.unique(line, "module", &path)?;
        let class = line.string()?;
        self.graph.modules.push((path, class));
        Ok(())
    }

    fn input(&mut self, line: &mut Line<'a>) -> Result<()> {
        let tensor = typed(line)?;
        let start = *line;
        let text = line.number().unwrap_or_default();
        let position = text.parse().map_err(|_| start.expected("the position of an input"))?;
        self.unique(line, "input position", &format!("{position}"))?;
        let grad = line.eat_word("grad");
        self.define(line, tensor, Source::Input { position, grad })
    }

    fn param(&mut self, line: &mut Line<'a>) -> Result<()> {
        let tensor = typed(line)?;
        let mut names = vec![line.string()?];
        while line.peek() == Some('"') {
            names.push(line.string()?);
        }
        for name in &names {
            self.unique(line, "state dict entry", name)?;
        }
        self.held.insert(names[0].clone());
        let frozen = line.eat_word("frozen");
        self.define(line, tensor, Source::Param { names, frozen })
    }

    fn buffer(&mut self, line: &mut Line<'a>) -> Result<()> {
        let tensor = typed(line)?;
        let name = line.string()?;
        self.unique(line, "state dict entry", &name)?;
        self.held.insert(name.clone());
        let persistent = !line.eat_word("transient");
        self.define(line, tensor, Source::Buffer { name, persistent })
    }

    fn constant(&mut self, line: &mut Line<'a>) -> Result<()> {
        let tensor = typed(line)?;
        let name = line.string()?;
        self.unique(line, "constant", &name)?;
        self.define(line, tensor, Source::Const { name })
    }

    fn output(&mut self, line: &mut Line<'a>) -> Result<()> {
        let tensor = if line.eat_word("none") { None } else { Some(self.tensor(line)?) };
        self.graph.outputs.push(tensor);
        Ok(())
    }

    fn update(&mut self, line: &mut Line<'a>) -> Result<()> {
        let name = line.string()?;
        if !self.held.contains(&name) {
            let what = format!("the update of `{}` has no buffer or parameter", name.escape_debug());
            let fix =
                "name the `buffer` or `param` line above it that the forward changes, by its first name";
            return Err(line.refuse("SW0207", what).fix(fix));
        }
        self.unique(line, "update of", &name)?;
        let tensor = self.tensor(line)?;
        self.graph.updates.push((name, tensor));
        Ok(())
    }

    fn op(&mut self, line: &mut Line<'a>) -> Result<()> {
        let outputs = outputs(line)?;
        let target = line.word().ok_or_else(|| line.expected("the name of an operator"))?;
        let (args, kwargs) = self.arguments(line)?;
        let module = clause(line, "in")?;
        let place = clause(line, "at")?;
        let no_grad = line.eat_word("nograd");
        let spans = if line.eat_word("span") { numbers(line, "the number of a span")? } else { vec![] };
        let dims = outputs.iter().flatten().next().map_or(0, |(_, _, shape)| shape.len());
        let order = if line.eat_word("order") { order(line, dims)? } else { vec![] };
        let op = OpId::new(self.graph.ops.len());
        let mut ids = Vec::with_capacity(outputs.len());
        for (output, tensor) in outputs.into_iter().enumerate() {
            ids.push(tensor.as_ref().map(|_| TensorId::new(self.graph.tensors.len())));
            if let Some(tensor) = tensor {
                self.define(line, tensor, Source::Op { op, output })?;
            }
        }
        let target = target.to_owned();
        let op = Op { target, args, kwargs, outputs: ids, module, line: place, no_grad, spans, order };
        self.graph.ops.push(op);
        Ok(())
    }

    fn arguments(&self, line: &mut Line<'a>) -> Result<Arguments> {
        let (mut args, mut kwargs) = Arguments::default();
        expect(line, "(")?;
        while !line.eat(")") {
            if !args.is_empty() || !kwargs.is_empty() {
                comma(line, ")")?;
            }
            let start = *line;
            let name = keyword(line);
            if name.is_some_and(|name| kwargs.iter().any(|(other, _)| other == name)) {
                let what = format!("the argument `{}` is given twice", name.unwrap_or_default());
                return Err(start.refuse("SW0203", what));
            }
            let value = self.value(line, 0)?;
            match name {
                Some(name) => kwargs.push((name.to_owned(), value)),
                None if kwargs.is_empty() => args.push(value),
                None => {
                    let what = "a positional argument follows a keyword argument";
                    return Err(start.refuse("SW0201", what));
                }
            }
        }
        Ok((args, kwargs))
    }

    fn value(&self, line: &mut Line<'a>, depth: usize) -> Result<Arg> {
        match line.peek() {
            Some('%') => self.tensor(line).map(Arg::Tensor),
            Some('"') => line.string().map(Arg::Str),
            Some('[') => self.list(line, depth + 1),
            Some('-' | '.' | '0'..='9') => number(line),
            _ => constant(line),
        }
    }

    fn list(&self, line: &mut Line<'a>, depth: usize) -> Result<Arg> {
        if depth > MAX_DEPTH {
            let what = format!("an argument holds lists more than {MAX_DEPTH} deep");
            return Err(line.refuse("SW0201", what));
        }
        let mut items = Vec::new();
        expect(line, "[")?;
        while !line.eat("]") {
            if !items.is_empty() {
                comma(line, "]")?;
            }
            items.push(self.value(line, depth)?);
        }
        Ok(Arg::List(items))
    }

    fn tensor(&self, line: &mut Line<'a>) -> Result<TensorId> {
        let name = line.tensor().ok_or_else(|| line.expected("a tensor such as `%x`"))?;
        let known = self.tensors.get(name).map(|(id, _)| *id);
        known.ok_or_else(|| self.unknown(line, name))
    }

    fn unknown(&self, line: &Line<'_>, name: &str) -> Error {
        let later = |other: &Line<'_>| other.number >= line.number && defines(*other, name);
        match lines(self.text).find(later) {
            Some(later) => line
                .refuse("SW0206", format!("the tensor `%{name}` is read before it is defined"))
                .why(format!("line {} defines it", later.number))
                .fix("put operators in the order in which they run"),
            None => line
                .refuse("SW0202", format!("the tensor `%{name}` is not defined"))
                .fix(format!("define `%{name}` on a line above, or correct its name")),
        }
    }

    fn define(&mut self, line: &Line<'_>, tensor: Typed<'a>, source: Source) -> Result<()> {
        let (name, dtype, shape) = tensor;
        let id = TensorId::new(self.graph.tensors.len());
        if let Some((_, first)) = self.tensors.insert(name, (id, line.number)) {
            return Err(taken(line, &format!("tensor `%{name}`"), first));
        }
        self.graph.tensors.push(Tensor { name: name.to_owned(), dtype, shape, source });
        Ok(())
    }

    fn unique(&mut self, line: &Line<'_>, kind: &'static str, name: &str) -> Result<()> {
        match self.taken.insert((kind, name.to_owned()), line.number) {
            Some(first) => Err(taken(line, &format!("{kind} `{}`", name.escape_debug()), first)),
            None => Ok(()),
        }
    }
}

const KEYWORDS: &str = "`model`, `in_spec`, `out_spec`, `module`, `input`, `param`, `buffer`, \
                        `const`, `op`, `output` or `update`";

fn taken(line: &Line<'_>, what: &str, first: usize) -> Error {
    let error = line.refuse("SW0203", format!("the {what} is defined twice"));
    error.why(format!("line {first} defines it first"))
}

fn defines(mut line: Line<'_>, name: &str) -> bool {
    match line.word() {
        Some("op") => {
            outputs(&mut line).is_ok_and(|outputs| outputs.iter().flatten().any(|(other, ..)| *other == name))
        }
        Some("input" | "param" | "buffer" | "const") => line.tensor() == Some(name),
        _ => false,
    }
}

/// Everything up to and with the `=`.
fn outputs<'a>(line: &mut Line<'a>) -> Result<Vec<Option<Typed<'a>>>> {
    let mut outputs = Vec::new();
    while !line.eat("=") {
        if !outputs.is_empty() {
            comma(line, "=")?;
        }
        outputs.push(if line.eat_word("_") { None } else { Some(typed(line)?) });
    }
    Ok(outputs)
}

fn typed<'a>(line: &mut Line<'a>) -> Result<Typed<'a>> {
    let name = line.tensor().ok_or_else(|| line.expected("a tensor such as `%x`"))?;
    let start = *line;
    let short = line.word().ok_or_else(|| line.expected("a dtype such as `f32`"))?;
    let dtype = Dtype::parse(short).ok_or_else(|| unknown_dtype(&start, short))?;
    let shape = shape(line)?;
    let bytes = shape.iter().try_fold(dtype.bytes() as i64, |bytes, size| bytes.checked_mul(*size));
    if bytes.is_none() {
        let what = format!("the tensor `%{name}` holds more bytes than 63 bits can count");
        return Err(start.refuse("SW0208", what));
    }
    Ok((name, dtype, shape))
}

fn shape(line: &mut Line<'_>) -> Result<Vec<i64>> {
    let mut shape = Vec::new();
    expect(line, "[")?;
    while !line.eat("]") {
        if !shape.is_empty() {
            comma(line, "]")?;
        }
        let start = *line;
        match number(line) {
            Ok(Arg::Int(size)) if size >= 0 => shape.push(size),
            Ok(Arg::Int(size)) => {
                let error = start.refuse("SW0208", format!("the size {size} is negative"));
                return Err(error.fix("capture the model with example inputs of fixed sizes"));
            }
            Err(error) if error.code == "SW0209" => return Err(error),
            _ => return Err(start.expected("a size")),
        }
    }
    Ok(shape)
}

fn unknown_dtype(line: &Line<'_>, name: &str) -> Error {
    let error = line.refuse("SW0204", format!("the dtype `{name}` is unknown"));
    match Dtype::parse_torch(name).or_else(|| Dtype::parse_torch(&format!("torch.{name}"))) {
        Some(dtype) => error.fix(format!("write `{}`", dtype.short())),
        None => error.fix(format!("use one of {}", Dtype::ALL.map(|row| row.1).join(", "))),
    }
}

fn clause(line: &mut Line<'_>, word: &str) -> Result<String> {
    if !line.eat_word(word) {
        return Err(line.expected(&format!("`{word} \"...\"`")));
    }
    line.string()
}

/// Each of so many dims once.
fn order(line: &mut Line<'_>, dims: usize) -> Result<Vec<usize>> {
    let start = *line;
    let order = numbers(line, "a dim")?;
    let every: BTreeSet<usize> = order.iter().copied().collect();
    if order.len() == dims && every.into_iter().eq(0..dims) {
        return Ok(order);
    }
    Err(start.refuse("SW0201", format!("`order` does not list each of {dims} dims once")))
}

/// A list of whole numbers, none of them negative.
fn numbers(line: &mut Line<'_>, what: &str) -> Result<Vec<usize>> {
    let start = *line;
    let mut numbers = Vec::new();
    expect(line, "[")?;
    while !line.eat("]") {
        if !numbers.is_empty() {
            comma(line, "]")?;
        }
        match number(line)? {
            Arg::Int(value) => numbers.push(usize::try_from(value).map_err(|_| start.expected(what))?),
            _ => return Err(start.expected(what)),
        }
    }
    Ok(numbers)
}

fn expect(line: &mut Line<'_>, mark: &str) -> Result<()> {
    if line.eat(mark) { Ok(()) } else { Err(line.expected(&format!("`{mark}`"))) }
}

fn comma(line: &mut Line<'_>, close: &str) -> Result<()> {
    if line.eat(",") { Ok(()) } else { Err(line.expected(&format!("`,` or `{close}`"))) }
}

/// `name=`, or nothing and the line as it was.
fn keyword<'a>(line: &mut Line<'a>) -> Option<&'a str> {
    let mut ahead = *line;
    let name = ahead.word()?;
    ahead.eat("=").then(|| {
        *line = ahead;
        name
    })
}

fn number(line: &mut Line<'_>) -> Result<Arg> {
    let start = *line;
    let text = line.number().unwrap_or_default();
    if text == "-inf" {
        return Ok(Arg::Float(f64::NEG_INFINITY));
    }
    let large = || start.refuse("SW0209", format!("the number `{text}` does not fit in 64 bits"));
    let digits = text.strip_prefix('-').unwrap_or(text);
    if !digits.is_empty() && digits.bytes().all(|b| b.is_ascii_digit()) {
        return text.parse().map(Arg::Int).map_err(|_| large());
    }
    // Rust also reads words such as `infinity`, which Python does not write.
    let plain = text.bytes().all(|b| b.is_ascii_digit() || b"+-.eE".contains(&b));
    match text.parse::<f64>() {
        Ok(value) if plain && value.is_finite() => Ok(Arg::Float(value)),
        Ok(_) if plain => Err(large()),
        _ => Err(start.expected("a number")),
    }
}

fn constant(line: &mut Line<'_>) -> Result<Arg> {
    let start = *line;
    let word = line.word().ok_or_else(|| start.expected("a value"))?;
    match word {
        "None" => Ok(Arg::None),
        "True" => Ok(Arg::Bool(true)),
        "False" => Ok(Arg::Bool(false)),
        "inf" => Ok(Arg::Float(f64::INFINITY)),
        "nan" => Ok(Arg::Float(f64::NAN)),
        _ if word.starts_with("torch.") => Err(unknown_dtype(&start, word)),
        _ => Dtype::parse(word).map(Arg::Dtype).ok_or_else(|| start.expected("a value")),
    }
}
