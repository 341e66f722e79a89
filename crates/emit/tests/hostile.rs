//! Nothing that a model, a path or a plan says can run as code, and no text makes reading panic.

use emit::{File, emit, read};
use graph::{Dtype, Graph, Op, OpId, Source, Tensor, TensorId};
use program::{GroupingId, Instr, LeafId, RankId};
use proptest::prelude::*;

use crate::common::{Builder, graph, program, roundtrip, single, text};

const MLP: &str = include_str!("mlp.graph");

fn tensor(name: &str, source: Source) -> Tensor {
    Tensor { name: name.to_owned(), dtype: Dtype::F32, shape: vec![2], source }
}

/// A graph whose every string is this one.
fn saying(word: &str) -> Graph {
    let op = |target: &str, output: u32| Op {
        target: target.to_owned(),
        args: vec![
            graph::Arg::Tensor(TensorId(0)),
            graph::Arg::Tensor(TensorId(1)),
            graph::Arg::Str(word.to_owned()),
        ],
        kwargs: vec![(word.to_owned(), graph::Arg::Float(f64::NEG_INFINITY))],
        outputs: vec![Some(TensorId(output))],
        module: format!("{word}.{word}"),
        line: word.to_owned(),
        no_grad: false,
        spans: vec![],
        order: vec![],
    };
    Graph {
        model: word.to_owned(),
        modules: vec![(word.to_owned(), word.to_owned()), (format!("{word}.{word}"), word.to_owned())],
        tensors: vec![
            tensor(word, Source::Input { position: 0, grad: false }),
            tensor(&format!("{word}2"), Source::Param { names: vec![word.to_owned()], frozen: false }),
            tensor(&format!("{word}3"), Source::Op { op: OpId(0), output: 0 }),
            tensor(&format!("{word}4"), Source::Op { op: OpId(1), output: 0 }),
        ],
        ops: vec![op(word, 2), op("aten.add.Tensor", 3)],
        outputs: vec![Some(TensorId(3))],
        ..Graph::default()
    }
}

/// The lines of a file that are code, strings emptied and comments left out.
fn code(text: &str) -> String {
    let mut found = String::new();
    for line in text.lines() {
        let (mut quoted, mut escaped) = (false, false);
        for c in line.chars() {
            match c {
                _ if escaped => escaped = false,
                '\\' if quoted => escaped = true,
                '"' => quoted = !quoted,
                '#' if !quoted => break,
                _ if !quoted => found.push(c),
                _ => {}
            }
        }
        found.push('\n');
    }
    found
}

#[test]
fn hostile_names() {
    let words = [
        "x\"]; import os",
        "a\n import os",
        "\"\"\"\nimport os\n",
        "\\",
        "\\\"",
        "é",
        "import",
        "",
        ".",
        "..",
        "@1",
        "a@1",
        "p",
        "k",
        "run",
        "torch.x",
        "__import__",
        "0",
        "00",
        "\u{202e}os",
        "a\r\nb",
        "\0",
        "x y#",
        "lambda",
        "forward",
        "backward",
        "step",
        "last",
        "range",
        "reversed",
        "Reversed",
        "load_library",
        "aten.__class__.default",
        "__init__.x.y",
        "coding: utf-7",
        "coding=utf_7",
        "F",
        "_",
        "__1",
        "ops.call",
    ];
    for word in words {
        let graph = saying(word);
        let mut program = single(&graph);
        program.plan = word.to_owned();
        let files = roundtrip(&graph, &program);
        let plain = code(&files[0].text);
        let imports =
            |line: &&str| line.split(|c: char| !c.is_alphanumeric() && c != '_').any(|w| w == "import");
        assert_eq!(plain.lines().filter(imports).count(), 3, "{word:?}: {plain}");
        assert!(!plain.contains(';'), "{word:?}: {plain}");
        let mut cookie =
            files[0].text.lines().take(2).filter(|l| l.contains("coding:") || l.contains("coding="));
        assert_eq!(cookie.next(), None, "{word:?}");
        assert!(files[0].text.chars().all(|c| c == '\n' || !c.is_control()), "{word:?}");
    }
}

#[test]
fn hostile_names_print() {
    let graph = saying("x\"]; import os");
    insta::assert_snapshot!(text(&emit(&graph, &single(&graph)).unwrap()));
}

fn files() -> (Graph, Vec<File>) {
    let graph = graph(MLP);
    let files = emit(&graph, &single(&graph)).unwrap();
    (graph, files)
}

/// One edit and what it is refused with.
fn refusal((graph, mut files): (Graph, Vec<File>), file: usize, from: &str, to: &str) -> String {
    assert!(files[file].text.contains(from), "{from}");
    files[file].text = files[file].text.replacen(from, to, 1);
    let error = read(&graph, &files).expect_err("it is refused");
    format!("{from:?} -> {to:?}\n{error}\n")
}

#[test]
fn refusals() {
    let json = [
        ("\"format\": 8", "\"format\": 1"),
        ("\"shardwright\": \"0", "\"shardwright\": \"9"),
        ("\"digest\": \"", "\"digest\": \"0"),
        ("\"world\": 1", "\"world\": 4294967295"),
        ("\"world\": 1", "\"world\": \"one\""),
        ("\"world\": 1,", ""),
        ("{\"tensor\": 2, \"number\": 0,", "{\"tensor\": 2222, \"number\": 0,"),
        ("rank_0.py", "rank_1.py"),
        ("\"format\"", "format"),
        ("\"ranks\": [0]", "\"ranks\": []"),
        ("\"ranks\": [0]", "\"ranks\": [1]"),
        ("\"ranks\": [0]", "\"ranks\": {\"from\": -1, \"by\": []}"),
        ("\"ranks\": [0]", "\"ranks\": {\"from\": 0, \"by\": [[4294967295, 0]]}"),
        ("\"ranks\": [0]", "\"ranks\": {\"from\": 0, \"by\": [[4294967295, 1], [4294967295, 0], [9, 0]]}"),
        ("\"groups\": []", "\"groups\": [{\"from\": 0, \"by\": [], \"of\": [[4294967295, 1]]}]"),
        ("\"regions\": [", "\"regions\": [[[0, 1, [[4294967295, 1]]]],"),
        ("\"regions\": [", "\"regions\": [[[0, 1, [[1, 1]]], [0]],"),
        ("\"regions\": [", "\"regions\": [{\"of\": [0]},"),
        ("\"regions\": [", "\"regions\": [{\"of\": [9]},"),
        ("\"regions\": [", "\"regions\": [{\"of\": [1, 2]},"),
        ("\"regions\": [", "\"regions\": [{\"of\": [1], \"by\": [[2, 1]]},"),
        ("\"constants\": []", "\"constants\": [1]"),
        ("\"constants\": []", "\"constants\": [[1, 2]]"),
    ];
    let code = [
        ("import torch\n", "import os\n"),
        ("# graph", "# \rimport os # graph"),
        ("def forward", "def torch(x):\n    return x\n\n\ndef forward"),
        ("def forward", "class Forward"),
        ("run.call(", "run.call(print, "),
        ("run.call(", "run.exec("),
        ("return ", "return x, "),
        (" = F.linear", " = __import__(\"os\").system"),
        (" = F.linear", " = torch.ops.load_library"),
        (" = F.linear", " = torch.ops.aten.__class__.mro"),
        (" = F.linear", " = torch.load"),
        (" = F.linear", " = ops.__loader__"),
        (" = F.linear(x", " = F.linear(y"),
        (" = F.linear(x", " = F.linear(x, x for x in"),
        (", p.", ", p.nothing."),
        ("def forward", "x = 1\n\n\ndef forward"),
        ("def forward", "@hook\ndef forward"),
        ("    return", "    while True:\n        pass\n    return"),
        ("    return", "   return"),
        ("def forward(run, p, rank, ", "def forward(run, p, rank, extra, "),
        ("    return", "    yield\n    return"),
        ("    return", "    if last:\n        pass\n    return"),
    ];
    let json = json.iter().map(|(from, to)| refusal(files(), 1, from, to));
    let code = code.iter().map(|(from, to)| refusal(files(), 0, from, to));
    insta::assert_snapshot!(json.chain(code).collect::<Vec<_>>().join("\n"));
}

/// What helps where a line of the program says `edited`.
fn help_for(line: &str, edited: &str) -> String {
    let (graph, mut files) = files();
    assert!(files[0].text.contains(line), "{line}: {}", files[0].text);
    files[0].text = files[0].text.replacen(line, edited, 1);
    read(&graph, &files).expect_err(edited).fix.expect("each refusal says what to do")
}

#[test]
fn an_operator_in_another_spelling_is_told_its_own() {
    let help = |edited: &str| help_for("F.gelu(up)", edited);
    assert_eq!(help("up.gelu()"), "write `F.gelu(up)`");
    assert_eq!(help("torch.gelu(up)"), "write `F.gelu(up)`");
    assert_eq!(help("up.neg()"), "write `-up`");
    assert_eq!(help("torch.neg(up)"), "write `-up`");
    assert_eq!(help("up.add(up)"), "write `up + up`");
    assert_eq!(help("up.pow(2)"), "write `up ** 2`");
    assert_eq!(help("up.softmax(1)"), "write `F.softmax(up, 1)`");
    assert!(help("up.neg_()").starts_with("see docs/"), "{}", help("up.neg_()"));
}

#[test]
fn what_a_call_does_not_save_is_neither_forgotten_nor_offloaded() {
    for mark in ["forget", "offload"] {
        let (graph, mut files) = files();
        let text = &mut files[0].text;
        let call = text.find("run.call(").unwrap();
        let end = call + text[call..].find(")\n").unwrap();
        text.insert_str(end, ", recompute=True");
        assert!(read(&graph, &files).is_ok());
        files[0].text.insert_str(end, &format!(", {mark}=True"));
        let error = read(&graph, &files).expect_err("it is refused");
        assert!(error.to_string().contains("saves nothing"), "{error}");
    }
}

/// What is made of numbers alone is made where the rank computes, and the text must say so.
#[test]
fn refused_devices() {
    let made = || {
        let graph = graph(include_str!("gpt.graph"));
        let files = emit(&graph, &single(&graph)).unwrap();
        (graph, files)
    };
    let missing = "a tensor is made without `device=rank.device` as the last argument";
    let edits = [
        (0, ", device=rank.device)", ")", missing),
        (0, "dtype=torch.int64, device=rank.device", "device=rank.device, dtype=torch.int64", missing),
        (0, "device=rank.device", "device=rank.other", missing),
        (0, "device=rank.device", "device=\"cpu\"", missing),
        (0, "F.gelu(c_fc", "F.gelu(c_fc, device=rank.device", "the device is given to an operator"),
        (0, "def gpt(p, rank, ", "def gpt(p, ", "`gpt` takes 3 arguments, not 4"),
        (
            1,
            "\"holes\": [], \"constants\": []",
            "\"holes\": [\"device\"], \"constants\": [1]",
            "`rank.device` is where a rank computes",
        ),
    ];
    for (file, from, to, said) in edits {
        let found = refusal(made(), file, from, to);
        assert!(found.contains(said), "{found}");
    }
}

/// What makes a tensor of numbers alone prints and reads back, by a row of the table or without.
#[test]
fn what_is_made_of_numbers_reads_back() {
    let ops = [
        "aten.eye.default(4, dtype=f64)",
        "aten.linspace.default(0, 1.5, 4, dtype=f64)",
        "aten.hann_window.periodic(4, False, dtype=f64)",
        "aten.empty.memory_format([4], dtype=f64)",
        "aten.fft_fftfreq.default(4, 0.5, dtype=f64)",
        "aten.tril_indices.default(2, 2, -1, dtype=f64)",
        "aten.range.step(0, 3, 1, dtype=f64)",
    ];
    let mut made = String::from("model \"Made\"\ninput %x f64[4] 0\n");
    for (at, op) in ops.iter().enumerate() {
        made += &format!("op %o{at} f64[4] = {op} in \"\" at \"m.py:{at}\"\n");
    }
    made += "output %o0\n";
    let graph = graph(&made);
    let files = roundtrip(&graph, &single(&graph));
    assert_eq!(files[0].text.matches("device=rank.device)").count(), ops.len(), "{}", files[0].text);
}

/// A model that is trained, as one call.
fn trained() -> (Graph, Vec<File>) {
    let graph = graph(MLP);
    let mut b = Builder::new(&graph);
    let call = b.call(0..u32::try_from(graph.ops.len()).unwrap(), &["mse_loss"], |_| {});
    b.outputs();
    let seed = b.gradient("mse_loss");
    b.seeds(&[seed]);
    b.grad(call, &[seed], &[]);
    b.backward(Instr::ReduceGradients { group: GroupingId(0), leaves: vec![LeafId(0)] });
    let mut made = program(&graph, 1);
    made.groupings = vec![vec![vec![RankId(0)]]];
    made.roles.push(b.role(0..1));
    let files = emit(&graph, &made).unwrap();
    (graph, files)
}

#[test]
fn refused_timetables() {
    let edits = [
        ("    if last:\n        run.", "    run."),
        (
            "    run.grad(mlp, g_mse_loss)\n    if last:\n",
            "    if last:\n        run.grad(mlp, g_mse_loss)\n",
        ),
        ("if last:", "if g_mse_loss:"),
        ("if last:", "if not last:"),
        ("rank, last, g_mse_loss", "rank, g_mse_loss"),
        ("yield forward, b", "forward(b)"),
        ("yield forward, b", "yield forward, b - 1"),
        ("yield forward, b", "yield backward, b"),
        ("b, scale, b", "b, 2.0 * scale, b"),
        ("batches - 1", "batches - 2"),
        ("range(batches)", "range(-1)"),
        ("range(batches)", "range(1, 2)"),
        ("step(batches, scale)", "step(batches, scale, more)"),
        ("for b in", "for c in"),
        ("    for b in", "    batches = 3\n    for b in"),
    ];
    let found = edits.iter().map(|(from, to)| refusal(trained(), 0, from, to));
    insta::assert_snapshot!(found.collect::<Vec<_>>().join("\n"));
}

#[test]
fn functions_that_grow_without_end_are_refused() {
    let (graph, mut files) = files();
    let mut bomb = String::from("def f0(x):\n    y = x + x\n    return y\n\n\n");
    for level in 1..64 {
        let below = level - 1;
        bomb += &format!("def f{level}(x):\n    y = f{below}(x)\n    z = f{below}(y)\n    return z\n\n\n");
    }
    let forward = "def forward(run, p, rank, x, y):\n    z = run.call(f63, x)\n    return z\n";
    let at = files[0].text.find("def ").unwrap();
    files[0].text.truncate(at);
    files[0].text += &(bomb + forward);
    assert_eq!(read(&graph, &files).unwrap_err().code, "SW0608");
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, failure_persistence: None, ..ProptestConfig::default() })]

    /// Any edit is read or refused, and never panics.
    #[test]
    fn edits_never_panic(
        file in 0..2_usize,
        at in any::<prop::sample::Index>(),
        length in 0..12_usize,
        new in "(\\PC|[\\[\\](){}:=.,*\"\\\\\\n]|    |-9223372036854775808|None|p|k|run\\.call|\\*\\*){0,4}",
    ) {
        let (graph, mut files) = files();
        let text = &files[file].text;
        let starts: Vec<usize> = text.char_indices().map(|(at, _)| at).collect();
        let first = at.index(starts.len());
        let last = (first + length).min(starts.len() - 1);
        let text = format!("{}{new}{}", &text[..starts[first]], &text[starts[last]..]);
        files[file].text = text;
        let _ = read(&graph, &files);
    }

    #[test]
    fn strings_survive(model in "\\PC*", plan in any::<String>()) {
        let (graph, _) = files();
        let mut program = single(&graph);
        program.model = model;
        program.plan = plan;
        let again = read(&graph, &emit(&graph, &program).unwrap()).unwrap();
        prop_assert_eq!((again.model, again.plan), (program.model, program.plan));
    }
}

/// A layer so many modules deep, after another one.
fn deep(depth: usize) -> Graph {
    let path = vec!["0"; depth].join(".");
    let mut text = format!("model \"Deep\"\nmodule \"1\" \"Linear\"\nmodule \"{path}\" \"Linear\"\n");
    for module in (1..depth).rev() {
        text += &format!("module \"{}\" \"Sequential\"\n", vec!["0"; module].join("."));
    }
    text += "input %x f64[4,4] 0\n";
    text += &format!("param %w f64[4,4] \"{path}.weight\"\nparam %v f64[4,4] \"1.weight\"\n");
    text += &format!("op %a f64[4,4] = aten.linear.default(%x, %w) in \"{path}\" at \"m.py:1\"\n");
    text += "op %b f64[4,4] = aten.linear.default(%a, %v) in \"1\" at \"m.py:2\"\noutput %b\n";
    graph(&text)
}

#[test]
fn modules_may_be_as_deep_as_they_like() {
    for depth in [60, 200, 1000] {
        let graph = deep(depth);
        let files = roundtrip(&graph, &single(&graph));
        let path = format!("p{}.weight", "[0]".repeat(depth));
        assert!(files[0].text.contains(&path), "{}", files[0].text);
    }
}

#[test]
fn what_is_deep_is_refused_and_chains_are_not() {
    let chains = [".x", "[0]", "[\"x\"]", "[0].x"];
    let nested =
        [("(", ")"), ("[", "]"), ("f(", ")"), ("-", ""), ("x[", "]"), ("1 + (", ")"), ("x.y[z[", "]]")];
    let code_of = |value: &str| {
        let (graph, mut files) = files();
        let at = files[0].text.find("    return").unwrap();
        files[0].text.insert_str(at, &format!("    q = {value} + x\n"));
        read(&graph, &files).expect_err("it is refused").code
    };
    for link in chains {
        assert_eq!(code_of(&format!("p{}", link.repeat(200_000))), "SW0606", "{link}");
    }
    for (open, close) in nested {
        assert_eq!(code_of(&format!("{}x{}", open.repeat(50_000), close.repeat(50_000))), "SW0605", "{open}");
    }
    for call in ["()", ".x()", "[0]()", "[0].x(1)[2]"] {
        assert_eq!(code_of(&format!("p{}", call.repeat(50_000))), "SW0605", "{call}");
    }
}

#[test]
fn turns_of_a_loop_have_chains_of_any_length() {
    let (graph, mut files) = files();
    let at = files[0].text.find("def forward").unwrap();
    let at = at + files[0].text[at..].find("    return").unwrap();
    let chain = "[0]".repeat(100_000);
    let iterations = format!("    for n in range(2):\n        q = p{chain}[n].weight + x\n");
    files[0].text.insert_str(at, &iterations);
    assert_eq!(read(&graph, &files).expect_err("it is refused").code, "SW0606");
}
