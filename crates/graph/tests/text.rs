//! The text form, by example.

use graph::text::{parse, print};
use graph::{Arg, Dtype, Graph, Op, OpId, Source, Tensor, TensorId};

const EXAMPLE: &str = r#"shardwright-graph 1
model "GPT"
in_spec "[\"*\", null]"
out_spec "*"
module "" "GPT"
module "h.0" "Block"
input %idx i64[4,16] 0
param %p_wte f64[257,32] "wte.weight" "lm_head.weight"
param %p_w f64[3] "w" frozen
buffer %b_mean f64[8] "bn.running_mean"
buffer %b_cos f64[8] "rope.cos" transient
const %c_0 f64[] "c_0"
op %x f64[4,16,32] = aten.embedding.default(%p_wte, %idx) in "wte" at "model.py:55"
op %a f64[2,16,32], %b f64[2,16,32], _ = aten.split.Tensor(%x, 2, dim=0) in "" at "model.py:57" nograd span [0, 3] order [1, 2, 0]
const %c_1 bf16[0,2] "c_1"
op _ = f(None, True, False, -3, 1.5, f32, "s", [%a, [], [1, -0.0]], %c_1, k=[None], x.y=nan) in "" at ""
op = g(a=inf, f64=f64, b=-inf) in "" at ""
op %s f64[] = h() in "" at ""
output %s
output none
update "bn.running_mean" %c_0
"#;

#[test]
fn what_parses_prints_to_the_same_bytes() {
    let graph = parse(EXAMPLE).unwrap();
    assert_eq!(graph.to_string(), EXAMPLE);
    assert_eq!(graph.tensors.len(), 11);
    assert_eq!(EXAMPLE.parse::<Graph>().unwrap().digest(), graph.digest());
}

#[test]
fn every_part_of_an_operator_is_read() {
    let graph = parse(EXAMPLE).unwrap();
    let op = graph.op(OpId(1));
    let expected = Op {
        target: "aten.split.Tensor".into(),
        args: vec![Arg::Tensor(TensorId(6)), Arg::Int(2)],
        kwargs: vec![("dim".into(), Arg::Int(0))],
        outputs: vec![Some(TensorId(7)), Some(TensorId(8)), None],
        module: String::new(),
        line: "model.py:57".into(),
        no_grad: true,
        spans: vec![0, 3],
        order: vec![1, 2, 0],
    };
    assert_eq!(*op, expected);
    assert_eq!(graph.producer(TensorId(8)), Some((OpId(1), 1)));
    let tied = vec!["wte.weight".into(), "lm_head.weight".into()];
    assert_eq!(graph.tensor(TensorId(1)).source, Source::Param { names: tied, frozen: false });
}

#[test]
fn an_empty_graph_is_a_header_and_three_settings() {
    let text = "shardwright-graph 1\nmodel \"\"\nin_spec \"\"\nout_spec \"\"\n";
    assert_eq!(print(&Graph::default()), text);
    assert_eq!(parse("shardwright-graph 1").unwrap(), Graph::default());
    assert_eq!(Graph::default().digest(), "b11f68b1483b04d114a15702c1c1044e");
}

#[test]
fn blank_lines_comments_and_spacing_do_not_matter() {
    let loose = "\n# a comment\r\n shardwright-graph  1\n\t# another\n\ninput %x f64[ 2 , 3 ]\t0\n\
                 op %y f64[]=f( %x,k = [1 ,2] )in \"\"at\"\"\n";
    let graph = parse(loose).unwrap();
    assert_eq!(
        graph.to_string().lines().skip(4).collect::<Vec<_>>(),
        ["input %x f64[2,3] 0", "op %y f64[] = f(%x, k=[1, 2]) in \"\" at \"\""]
    );
}

#[test]
fn floats_print_as_in_python() {
    for (value, text) in [
        (0.0, "0.0"),
        (-0.0, "-0.0"),
        (1.0, "1.0"),
        (0.1, "0.1"),
        (1e-4, "0.0001"),
        (1.5e-5, "1.5e-05"),
        (-1e-12, "-1e-12"),
        (123_456_789.25, "123456789.25"),
        (9_999_999_999_999_998.0, "9999999999999998.0"),
        (1e16, "1e+16"),
        (1.25e22, "1.25e+22"),
        (f64::MAX, "1.7976931348623157e+308"),
        (5e-324, "5e-324"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
        (f64::NAN, "nan"),
    ] {
        let printed = print(&with_argument(Arg::Float(value)));
        assert!(printed.contains(&format!("f({text})")), "{text}: {printed}");
        let Arg::Float(read) = parse(&printed).unwrap().ops[0].args[0] else { panic!("{text}") };
        assert!(read.to_bits() == value.to_bits() || read.is_nan() && value.is_nan(), "{text}");
    }
}

#[test]
fn strings_escape_what_would_break_a_line() {
    let value = "a\"b\\c\n\r\t\u{0}\u{7f}\u{85}\u{2028}é😀/";
    let printed = print(&with_argument(Arg::Str(value.into())));
    let quoted = r#"f("a\"b\\c\n\r\t\u0000\u007f\u0085\u2028é😀/")"#;
    assert!(printed.contains(quoted), "{printed}");
    assert_eq!(parse(&printed).unwrap().ops[0].args[0], Arg::Str(value.into()));
}

#[test]
fn strings_read_what_python_json_writes() {
    let graph = parse("shardwright-graph 1\nmodel \"\\ud83d\\ude00 \\u00E9\\/\\b\\f\"").unwrap();
    assert_eq!(graph.model, "😀 é/\u{8}\u{c}");
}

#[test]
fn a_source_that_a_pass_added_late_prints_above_its_reader() {
    let mut graph = with_argument(Arg::Tensor(TensorId(1)));
    let name = "y".to_owned();
    graph.tensors.push(Tensor {
        name,
        dtype: Dtype::F32,
        shape: vec![],
        source: Source::Op { op: OpId(0), output: 0 },
    });
    graph.ops[0].outputs = vec![Some(TensorId(0))];
    let source = Source::Const { name: "c".into() };
    graph.tensors.push(Tensor { name: "c".into(), dtype: Dtype::F32, shape: vec![], source });
    let printed = graph.to_string();
    assert_eq!(
        printed.lines().skip(4).collect::<Vec<_>>(),
        ["const %c f32[] \"c\"", "op %y f32[] = f(%c) in \"\" at \"\""]
    );
    assert_eq!(parse(&printed).unwrap().to_string(), printed);
}

fn with_argument(arg: Arg) -> Graph {
    let op = Op {
        target: "f".into(),
        args: vec![arg],
        kwargs: vec![],
        outputs: vec![],
        module: String::new(),
        line: String::new(),
        no_grad: false,
        spans: vec![],
        order: vec![],
    };
    Graph { ops: vec![op], ..Graph::default() }
}
