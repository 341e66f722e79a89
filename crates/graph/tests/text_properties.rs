//! Any graph prints and parses; no text makes the parser panic.

use graph::text::{parse, print};
use graph::{Arg, Dtype, Graph, Op, OpId, Source, Tensor, TensorId};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

proptest! {
    #[test]
    fn what_prints_parses(graph in graphs()) {
        let text = print(&graph);
        let again = parse(&text).map_err(|e| TestCaseError::fail(format!("{e}\n{text}")))?;
        // Through Debug, since NaN is not equal to itself.
        prop_assert_eq!(format!("{again:?}"), format!("{graph:?}"));
        prop_assert_eq!(print(&again), text);
        prop_assert_eq!(again.digest(), graph.digest());
    }

    #[test]
    fn any_text_is_read_or_refused(text in any::<String>(), lines in "(\\PC|[ \t\r\n\"%\\\\])*") {
        reads_or_refuses(&text)?;
        reads_or_refuses(&format!("shardwright-graph 1\n{lines}"))?;
    }

    #[test]
    fn words_of_the_grammar_are_read_or_refused(words in vec(words(), 0..40)) {
        reads_or_refuses(&format!("shardwright-graph 1\n{}", words.concat()))?;
    }

    #[test]
    fn a_changed_text_is_read_or_refused(graph in graphs(), edits in vec(edits(), 1..6)) {
        let mut text: Vec<char> = print(&graph).chars().collect();
        for (at, removed, added) in edits {
            let at = at.index(text.len() + 1);
            let end = (at + removed).min(text.len());
            text.splice(at..end, added.chars());
        }
        reads_or_refuses(&text.into_iter().collect::<String>())?;
    }

    #[test]
    fn floats_round_trip(bits in any::<u64>()) {
        let value = f64::from_bits(bits);
        let ops = vec![op(vec![Arg::Float(value)], Vec::new())];
        let text = print(&Graph { ops, ..Graph::default() });
        let read = parse(&text).unwrap().ops[0].args[0].clone();
        prop_assert!(matches!(read, Arg::Float(read) if read == value || value.is_nan()), "{}", text);
    }
}

fn reads_or_refuses(text: &str) -> Result<(), TestCaseError> {
    match parse(text) {
        Ok(graph) => {
            let printed = print(&graph);
            let again = parse(&printed).map_err(|e| TestCaseError::fail(e.to_string()))?;
            prop_assert_eq!(format!("{again:?}"), format!("{graph:?}"));
        }
        Err(error) => {
            prop_assert!(error.code.starts_with("SW020") && error.place.is_some());
            prop_assert_eq!(error.what.lines().count(), 1);
        }
    }
    Ok(())
}

fn words() -> impl Strategy<Value = String> {
    let plain = "op |%x |f64|[2] |= |f|(|)|, |_ |in |at |\"\"|\"a\"|\n|input |0|-1|1e5|k=|output |none\
                 |update |param |buffer |const |frozen|nograd|[|]|None|inf|module |model |%y |\\u";
    proptest::sample::select(plain.split('|').map(str::to_owned).collect::<Vec<_>>())
}

fn edits() -> impl Strategy<Value = (Index, usize, String)> {
    let added = prop_oneof![words(), any::<String>(), Just(String::new())];
    (any::<Index>(), 0_usize..12, added)
}

/// Each step defines one source, or one operator that reads tensors above it.
#[derive(Clone, Debug)]
enum Step {
    Source {
        kind: u8,
        flag: bool,
        text: String,
        dtype: Dtype,
        shape: Vec<i64>,
    },
    Op {
        args: Vec<Arg>,
        kwargs: Vec<Arg>,
        outputs: Vec<bool>,
        no_grad: bool,
        spans: Vec<usize>,
        text: String,
    },
}

fn graphs() -> impl Strategy<Value = Graph> {
    (vec(steps(), 0..8), any::<[String; 3]>(), vec(any::<Option<Index>>(), 0..3)).prop_map(
        |(steps, [model, in_spec, out_spec], outputs)| {
            let mut graph = Graph { model, in_spec, out_spec, ..Graph::default() };
            for step in steps {
                add(&mut graph, step);
            }
            for output in outputs {
                let output = output.filter(|_| !graph.tensors.is_empty());
                let output = output.map(|index| TensorId::new(index.index(graph.tensors.len())));
                graph.outputs.push(output);
            }
            graph
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    let dtype = proptest::sample::select(Dtype::ALL.map(|row| row.0).to_vec());
    let source = (0..4_u8, any::<bool>(), any::<String>(), dtype, vec(0..1000_i64, 0..4))
        .prop_map(|(kind, flag, text, dtype, shape)| Step::Source { kind, flag, text, dtype, shape });
    let outputs = vec(any::<bool>(), 0..4);
    let marks = (any::<bool>(), vec(0..9_usize, 0..3));
    let op = (vec(args(), 0..4), vec(args(), 0..3), outputs, marks, any::<String>()).prop_map(
        |(args, kwargs, outputs, (no_grad, spans), text)| Step::Op {
            args,
            kwargs,
            outputs,
            no_grad,
            spans,
            text,
        },
    );
    prop_oneof![source, op]
}

/// Tensors are numbers that [`add`] brings into range.
fn args() -> impl Strategy<Value = Arg> {
    let leaf = prop_oneof![
        Just(Arg::None),
        any::<bool>().prop_map(Arg::Bool),
        any::<i64>().prop_map(Arg::Int),
        prop_oneof![any::<f64>(), Just(f64::NAN), Just(f64::INFINITY)].prop_map(Arg::Float),
        any::<String>().prop_map(Arg::Str),
        Just(Arg::Dtype(Dtype::Bf16)),
        any::<u32>().prop_map(|id| Arg::Tensor(TensorId(id))),
    ];
    leaf.prop_recursive(3, 12, 4, |inner| vec(inner, 0..4).prop_map(Arg::List))
}

fn add(graph: &mut Graph, step: Step) {
    let number = graph.tensors.len();
    match step {
        Step::Source { kind, flag, text, dtype, shape } => {
            let name = format!("{number}.{text}");
            let source = match kind {
                0 => Source::Input { position: number, grad: flag },
                1 => Source::Param { names: vec![name.clone(), name + "'"], frozen: flag },
                2 => Source::Buffer { name, persistent: flag },
                _ => Source::Const { name },
            };
            if let Source::Buffer { name, .. } = &source {
                graph.updates.push((name.clone(), TensorId(0)));
            }
            graph.modules.push((number.to_string(), text));
            graph.tensors.push(Tensor { name: format!("t.{number}"), dtype, shape, source });
        }
        Step::Op { mut args, mut kwargs, outputs, no_grad, spans, text } => {
            args.iter_mut().chain(&mut kwargs).for_each(|arg| bring_into_range(arg, number));
            let id = OpId::new(graph.ops.len());
            let mut op = op(args, kwargs);
            for (output, kept) in outputs.into_iter().enumerate() {
                let tensor = kept.then(|| TensorId::new(graph.tensors.len()));
                op.outputs.push(tensor);
                if let Some(tensor) = tensor {
                    let name = format!("{}_", tensor.index());
                    let source = Source::Op { op: id, output };
                    graph.tensors.push(Tensor { name, dtype: Dtype::F64, shape: vec![2], source });
                }
            }
            graph.ops.push(Op { no_grad, spans, line: text, ..op });
        }
    }
}

fn op(args: Vec<Arg>, kwargs: Vec<Arg>) -> Op {
    let kwargs = kwargs.into_iter().enumerate().map(|(index, arg)| (format!("k{index}"), arg));
    Op {
        target: "aten.f.default".into(),
        args,
        kwargs: kwargs.collect(),
        outputs: Vec::new(),
        module: "h.0".into(),
        line: String::new(),
        no_grad: false,
        spans: Vec::new(),
        order: Vec::new(),
    }
}

fn bring_into_range(arg: &mut Arg, count: usize) {
    match arg {
        Arg::Tensor(_) if count == 0 => *arg = Arg::None,
        Arg::Tensor(id) => *id = TensorId::new(id.index() % count),
        Arg::List(items) => items.iter_mut().for_each(|item| bring_into_range(item, count)),
        _ => {}
    }
}
