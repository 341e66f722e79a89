//! One-operator graphs as text, and sub-operators as text.

use graph::{Graph, OpId};
use rules::families::rule_text;
use rules::{LocalArg, LocalOp, Part, Rule, Through, View};

/// A graph of one operator. `inputs` are `x f32[2,3]`, separated by `;`, `param` before those that
/// have a gradient.
pub(crate) fn graph(inputs: &str, op: &str) -> Graph {
    let mut text = String::from("shardwright-graph 1\n");
    for (position, input) in inputs.split(';').map(str::trim).filter(|i| !i.is_empty()).enumerate() {
        match input.strip_prefix("param ") {
            Some(param) => text.push_str(&format!("param %{param} \"p{position}\"\n")),
            None => text.push_str(&format!("input %{input} {position}\n")),
        }
    }
    text.push_str(&format!("op {op} in \"m\" at \"model.py:1\"\n"));
    let outputs = op.split(" = ").next().unwrap_or_default();
    for name in outputs.split_whitespace().filter_map(|word| word.strip_prefix('%')) {
        text.push_str(&format!("output %{name}\n"));
    }
    graph::text::parse(&text).unwrap_or_else(|error| panic!("{error}\n{text}"))
}

pub(crate) fn view(graph: &Graph) -> View<'_> {
    View::new(graph, OpId(0))
}

/// The rule of a one-operator graph, which must be valid.
pub(crate) fn rule(graph: &Graph) -> Option<Rule> {
    let view = view(graph);
    let text = rule_text(view)?;
    let parsed = Rule::parse(&text, &view.input_shapes(), &view.output_shapes());
    Some(parsed.unwrap_or_else(|error| panic!("{error}")))
}

/// Asserts what rule an operator has, but for sizes and what it makes of maxima; an empty text stands for none.
pub(crate) fn check(inputs: &str, op: &str, expect: &str) {
    let graph = graph(inputs, op);
    let linear = |rule: Rule| {
        let passes = rule.passes.iter().filter(|passes| passes.through == Through::Linear).cloned().collect();
        Rule { passes, ..rule }.without_sizes()
    };
    assert_eq!(rule(&graph).map_or_else(String::new, linear), expect, "\n{inputs}\n{op}");
}

/// Asserts what an operator makes of shares of maxima and minima: `rising 0`, `falling 0`, or nothing.
pub(crate) fn passes(inputs: &str, op: &str, expect: &str) {
    let graph = graph(inputs, op);
    let text = rule(&graph).expect("it has a rule").without_sizes();
    let clauses = text.split(" ; ").skip(1).filter(|clause| !clause.starts_with("linear"));
    assert_eq!(clauses.collect::<Vec<_>>().join(" ; "), expect, "\n{inputs}\n{op}");
}

/// The second of two parts along each of the named dims, as `name lo..hi`.
pub(crate) fn part(rule: &Rule, split: &str) -> Part {
    let mut size: Vec<i64> = rule.dims.iter().map(|dim| dim.size).collect();
    let mut start: Vec<Option<i64>> = vec![Some(0); size.len()];
    let mut first = true;
    for one in split.split(',').map(str::trim).filter(|one| !one.is_empty()) {
        let (name, range) = one.split_once(' ').expect("`name lo..hi`");
        let (lo, hi) = range.split_once("..").expect("`lo..hi`");
        let dim = rule.find(name).unwrap_or_else(|| panic!("`{rule}` has no `{name}`"));
        let (lo, hi): (i64, i64) = (lo.parse().expect("a number"), hi.parse().expect("a number"));
        size[dim.index()] = hi - lo;
        start[dim.index()] = Some(lo);
        first &= !matches!(rule.dim(dim).kind, rules::Kind::Reduce(_)) || lo == 0;
    }
    let shapes = |operands: &[rules::Operand]| -> Vec<Vec<i64>> {
        let product = |dims: &Vec<rules::DimId>| dims.iter().map(|dim| size[dim.index()]).product();
        operands.iter().map(|operand| operand.dims.iter().map(product).collect()).collect()
    };
    let (inputs, outputs) = (shapes(&rule.inputs), shapes(&rule.outputs));
    Part { inputs, outputs, size, start, first, slot: 7 }
}

/// Asserts what one part of an operator executes.
pub(crate) fn check_local(inputs: &str, op: &str, split: &str, expect: &str) {
    let graph = graph(inputs, op);
    let rule = rule(&graph).expect("it has a rule");
    let part = part(&rule, split);
    let local = rules::families::local_of(view(&graph), &rule, &part);
    assert_eq!(print(&local), expect, "\n{inputs}\n{op}\n{rule}\n{split}");
}

pub(crate) fn print(local: &LocalOp) -> String {
    let keywords = local.kwargs.iter().map(|(name, arg)| format!("{name}={}", argument(arg)));
    let all: Vec<String> = local.args.iter().map(argument).chain(keywords).collect();
    format!("{}({})", local.target, all.join(", "))
}

fn argument(arg: &LocalArg) -> String {
    match arg {
        LocalArg::None => "None".into(),
        LocalArg::Bool(value) => value.to_string(),
        LocalArg::Int(value) => value.to_string(),
        LocalArg::Float(value) => value.to_string(),
        LocalArg::Str(value) => format!("{value:?}"),
        LocalArg::Dtype(value) => value.short().into(),
        LocalArg::Input(value) => format!("%{value}"),
        LocalArg::List(items) => {
            format!("[{}]", items.iter().map(argument).collect::<Vec<_>>().join(", "))
        }
    }
}
