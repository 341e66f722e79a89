//! Layers that are alike are written as a loop, and read back as if they were written out.

use emit::{File, emit, read};
use graph::Graph;
use program::{Collective, Gathered, GroupingId, How, Instr, LeafId, Of, Program, RankId};
use proptest::prelude::*;
use rules::Reduction;

use crate::common::{Builder, graph, program, stable};

/// A row of layers; those in `skips` are added up at the end.
fn layers(count: usize, skips: &[usize]) -> Graph {
    let mut text = String::from("model \"Net\"\n");
    for layer in 0..count {
        text += &format!("module \"h.{layer}\" \"Linear\"\n");
    }
    text += "input %x f64[8,8] 0\n";
    for layer in 0..count {
        text += &format!("param %w{layer} f64[8,8] \"h.{layer}.weight\"\n");
    }
    let mut before = "x".to_owned();
    for layer in 0..count {
        text += &format!(
            "op %h{layer} f64[8,8] = aten.linear.default(%{before}, %w{layer}) in \"h.{layer}\" at \"net.py:7\"\n"
        );
        before = format!("h{layer}");
    }
    for (at, layer) in skips.iter().enumerate() {
        text +=
            &format!("op %s{at} f64[8,8] = aten.add.Tensor(%{before}, %h{layer}) in \"\" at \"net.py:9\"\n");
        before = format!("s{at}");
    }
    text += &format!("op %loss f64[] = aten.sum.default(%{before}) in \"\" at \"net.py:10\"\noutput %loss\n");
    graph(&text)
}

/// Every layer a call, whose result is summed; backward the same.
fn summed(graph: &Graph, count: usize) -> Program {
    let mut b = Builder::new(graph);
    let sum = |from, to| {
        Instr::Collective(Collective {
            how: How::AllReduce(Reduction::Sum),
            group: GroupingId(0),
            from: vec![from],
            to: vec![to],
            overlaps: false,
        })
    };
    let mut calls = vec![];
    for layer in 0..count {
        let name = format!("h{layer}");
        let at = u32::try_from(layer).unwrap();
        calls.push(b.call(at..at + 1, &[&name], |_| {}));
        let (from, to) = (b.named(&name), b.buf(b.id(&name)));
        b.forward(sum(from, to));
    }
    let at = u32::try_from(count).unwrap();
    let last = b.call(at..u32::try_from(graph.ops.len()).unwrap(), &["loss"], |_| {});
    b.outputs();
    let seed = b.gradient("loss");
    b.seeds(&[seed]);
    let mut gradient = b.gradient(&format!("h{}", count - 1));
    b.grad(last, &[seed], &[gradient]);
    for layer in (0..count).rev() {
        let made: Vec<_> = if layer == 0 { vec![] } else { vec![b.gradient(&format!("h{}", layer - 1))] };
        b.grad(calls[layer], &[gradient], &made);
        b.backward(Instr::ReduceGradients { group: GroupingId(0), leaves: vec![LeafId::new(layer)] });
        if let Some(made) = made.first() {
            gradient = b.gradient(&format!("h{}", layer - 1));
            b.backward(sum(*made, gradient));
        }
    }
    let mut made = program(graph, 2);
    made.groupings = vec![vec![vec![RankId(0), RankId(1)]]];
    made.roles.push(b.role(0..2));
    made
}

fn files(count: usize) -> (Graph, Vec<File>) {
    let graph = layers(count, &[]);
    let files = stable(&graph, &summed(&graph, count));
    (graph, files)
}

#[test]
fn layers_are_a_loop() {
    insta::assert_snapshot!(files(8).1[0].text);
    let lines = |count| files(count).1[0].text.lines().count();
    assert_eq!(lines(8), lines(40));
}

#[test]
fn two_layers_are_a_loop_too() {
    let text = &files(3).1[0].text;
    let loops: Vec<&str> = text.lines().filter(|line| line.trim_start().starts_with("for n in")).collect();
    assert_eq!(loops, ["    for n in range(1, 3):", "    for n in reversed(range(1, 3)):"], "{text}");
}

/// Layers with what is added and activated between them in one call.
fn between(count: usize) -> (Graph, Program) {
    between_of(count, false)
}

/// Of which that call also reads a value of before them all, or not.
fn between_of(count: usize, is_masked: bool) -> (Graph, Program) {
    let mut text = String::from("model \"Net\"\n");
    for layer in 0..count {
        text += &format!(
            "module \"h.{layer}\" \"Layer\"\nmodule \"h.{layer}.up\" \"Linear\"\nmodule \"h.{layer}.down\" \"Linear\"\n"
        );
    }
    text += "input %x f64[8,8] 0\n";
    for layer in 0..count {
        text += &format!(
            "param %u{layer} f64[8,8] \"h.{layer}.up.weight\"\nparam %d{layer} f64[8,8] \"h.{layer}.down.weight\"\n"
        );
    }
    if is_masked {
        text += "op %m f64[8,8] = aten.neg.default(%x) in \"\" at \"net.py:1\"\n";
    }
    text += "op %e f64[8,8] = aten.mul.Tensor(%x, 2) in \"\" at \"net.py:1\"\n\
             op %r0 f64[8,8] = aten.relu.default(%e) in \"h.0\" at \"net.py:2\"\n";
    for layer in 0..count {
        let from = layer.checked_sub(1).map_or("e".to_owned(), |before| format!("s{before}"));
        text += &format!(
            "op %a{layer} f64[8,8] = aten.linear.default(%r{layer}, %u{layer}) in \"h.{layer}.up\" at \"net.py:3\"\n\
             op %b{layer} f64[8,8] = aten.linear.default(%a{layer}, %d{layer}) in \"h.{layer}.down\" at \"net.py:4\"\n\
             op %s{layer} f64[8,8] = aten.add.Tensor(%{from}, %b{layer}) in \"h.{layer}\" at \"net.py:5\"\n"
        );
        if layer + 1 < count {
            let activated = if is_masked {
                format!("aten.mul.Tensor(%s{layer}, %m)")
            } else {
                format!("aten.relu.default(%s{layer})")
            };
            text += &format!("op %r{0} f64[8,8] = {activated} in \"h.{0}\" at \"net.py:2\"\n", layer + 1);
        }
    }
    text += &format!(
        "op %loss f64[] = aten.sum.default(%s{}) in \"\" at \"net.py:6\"\noutput %loss\n",
        count - 1
    );
    let graph = graph(&text);
    let mut b = Builder::new(&graph);
    let mut next = 0;
    let mut call = |b: &mut Builder<'_>, length: u32, outputs: &[&str]| {
        b.call(next..next + length, outputs, |_| {});
        next += length;
    };
    if is_masked {
        call(&mut b, 3, &["m", "e", "r0"]);
    } else {
        call(&mut b, 2, &["e", "r0"]);
    }
    for layer in 0..count {
        for name in ["a", "b"] {
            let name = format!("{name}{layer}");
            call(&mut b, 1, &[&name]);
            let (from, to) = (b.named(&name), b.buf(b.id(&name)));
            let how = How::AllReduce(Reduction::Sum);
            let (from, to) = (vec![from], vec![to]);
            b.forward(Instr::Collective(Collective { how, group: GroupingId(0), from, to, overlaps: false }));
        }
        if layer + 1 < count {
            call(&mut b, 2, &[&format!("s{layer}"), &format!("r{}", layer + 1)]);
        }
    }
    call(&mut b, 2, &["loss"]);
    b.outputs();
    let role = b.role(0..2);
    let mut made = program(&graph, 2);
    made.groupings = vec![vec![vec![RankId(0), RankId(1)]]];
    made.roles.push(role);
    (graph, made)
}

#[test]
fn what_stands_between_layers_is_below_a_condition_in_their_loop() {
    for count in [2, 3, 7] {
        let (graph, made) = between(count);
        let text = stable(&graph, &made).remove(0).text;
        let first = format!("    for n in range({count}):\n        up_part = run.call(up, p.h[n].up, ");
        let condition = format!("        if n < {}:\n            # h\n", count - 1);
        assert!(text.contains(&first) && text.contains(&condition), "{text}");
        assert_eq!(text.matches("run.all_reduce(").count(), 2, "{text}");
    }
    insta::assert_snapshot!(stable(&between(2).0, &between(2).1)[0].text);
}

#[test]
fn what_would_be_kept_through_the_last_layer_is_in_no_loop() {
    let text = |count| {
        let (graph, made) = between_of(count, true);
        stable(&graph, &made).remove(0).text
    };
    assert!(!text(2).contains("for n in"), "{}", text(2));
    let peeled = text(4);
    assert!(peeled.contains("for n in range(3):") && !peeled.contains("if n <"), "{peeled}");
}

#[test]
fn a_call_with_all_of_a_layer_and_a_part_of_the_next_is_given_both() {
    let (graph, _) = between(2);
    let mut b = Builder::new(&graph);
    b.call(0..1, &["e"], |_| {});
    b.call(1..7, &["s0", "a1"], |_| {});
    b.call(7..10, &["loss"], |_| {});
    b.outputs();
    let mut made = program(&graph, 1);
    made.roles.push(b.role(0..1));
    let text = stable(&graph, &made).remove(0).text;
    for line in ["def net_h(p, e):", "= layer(p.h[0], e)", ", p.h[1].up.weight)", "run.call(net_h, p, e)"] {
        assert!(text.contains(line), "{line}: {text}");
    }
}

#[test]
fn refused_conditions_in_loops() {
    let edits = [
        ("if n < 2:", "if n < 3:"),
        ("if n < 2:", "if n < 1:"),
        ("if n < 2:", "if n > 0:"),
        ("if n < 2:", "if n:"),
        ("if n < 2:", "if n + 1:"),
        ("if n < 2:", "if m < 2:"),
        ("if n < 2:", "if x < 2:"),
        ("if n < 2:", "if n <= 2:"),
    ];
    let (graph, made) = between(3);
    for (from, to) in edits {
        let mut files = stable(&graph, &made);
        assert!(files[0].text.contains(from), "{from}: {}", files[0].text);
        files[0].text = files[0].text.replacen(from, to, 1);
        if let Ok(read) = read(&graph, &files) {
            assert_ne!(emit::canonical(&read), emit::canonical(&made), "{to}");
        }
    }
    let mut files = stable(&graph, &made);
    files[0].text =
        files[0].text.replacen("    loss = run.call(", "    if 0 < 1:\n        loss = run.call(", 1);
    assert!(read(&graph, &files).is_err(), "outside of a loop");
}

/// All of a graph in one call.
fn one_call(graph: &Graph) -> Program {
    let mut b = Builder::new(graph);
    b.call(0..u32::try_from(graph.ops.len()).unwrap(), &["loss"], |_| {});
    b.outputs();
    let mut made = program(graph, 1);
    made.roles.push(b.role(0..1));
    made
}

#[test]
fn layers_inside_of_a_function_are_a_loop() {
    for count in 2..6 {
        let graph = layers(count, &[]);
        let text = stable(&graph, &one_call(&graph)).remove(0).text;
        let looped = format!(
            "def h(p, x):\n    \"\"\"h: net.py\"\"\"\n    for n in range({count}):\n        x = F.linear(x, \
             p[n].weight)  # :7\n    loss = x.sum()  # :10\n    return loss\n"
        );
        assert!(text.contains(&looped), "{text}");
    }
}

/// Two layers, given in the words of graphs.
fn two(first: &str, second: &str) -> String {
    let text = format!(
        "model \"Net\"\nmodule \"h.0\" \"Linear\"\nmodule \"h.1\" \"Linear\"\ninput %x f64[8,8] 0\n\
         param %w0 f64[8,8] \"h.0.weight\"\nparam %w1 f64[8,8] \"h.1.weight\"\n{first}\n{second}\n\
         op %loss f64[] = aten.sum.default(%b1) in \"\" at \"net.py:10\"\noutput %loss\n"
    );
    let graph = graph(&text);
    stable(&graph, &one_call(&graph)).remove(0).text
}

/// So many messages that gather one layer each, after all layers were called.
fn gathering(count: usize) -> (String, String) {
    let graph = layers(count, &[]);
    let mut b = Builder::new(&graph);
    for copy in 0..count {
        b.forward(Instr::Gather { group: GroupingId(0), copies: vec![copy] });
    }
    b.call(0..u32::try_from(graph.ops.len()).unwrap(), &["loss"], |_| {});
    b.outputs();
    let mut made = program(&graph, 2);
    made.groupings = vec![vec![vec![RankId(0), RankId(1)]]];
    let mut role = b.role(0..2);
    for copy in 0..count {
        let region = role.table.shards[copy].region.clone();
        role.table.copies.push(Gathered { shard: copy, region, factor: 0, parts: 2 });
        role.table.leaves[copy].0 = Of::Copy(copy);
    }
    made.roles.push(role);
    let text = stable(&graph, &made).remove(0).text;
    let forward = text[text.find("def forward").unwrap()..].to_owned();
    (text, forward)
}

#[test]
fn messages_of_one_line_are_a_loop_from_four_on() {
    for count in [2, 3] {
        let (text, forward) = gathering(count);
        assert!(!forward.contains("for n in"), "{text}");
        assert_eq!(forward.matches("run.gather(").count(), count, "{text}");
    }
    for count in [4, 7] {
        let looped = format!("    for n in range({count}):\n        run.gather(0, [p.h[n]])\n");
        let (text, forward) = gathering(count);
        assert!(forward.contains(&looped), "{text}");
    }
}

#[test]
fn what_differs_in_more_than_the_layer_is_no_loop() {
    let layer = |at: usize, from: &str, by: &str| {
        format!(
            "op %a{at} f64[8,8] = aten.linear.default(%{from}, %w{at}) in \"h.{at}\" at \"net.py:7\"\n\
             op %b{at} f64[8,8] = {by} in \"h.{at}\" at \"net.py:8\""
        )
    };
    let looped = |first: &str, second: &str| {
        two(&layer(0, "x", first), &layer(1, "b0", second)).contains("for n in range(2):")
    };
    assert!(looped("aten.mul.Tensor(%a0, 2)", "aten.mul.Tensor(%a1, 2)"));
    assert!(!looped("aten.mul.Tensor(%a0, 2)", "aten.mul.Tensor(%a1, 3)"));
    assert!(!looped("aten.mul.Tensor(%a0, 2)", "aten.add.Tensor(%a1, 2)"));
    assert!(!looped("aten.add.Tensor(%a0, %x)", "aten.add.Tensor(%a1, %a0)"));
}

#[test]
fn refused_loops_of_operators() {
    let edits = [
        ("range(3)", "range(2)"),
        ("range(3)", "range(4)"),
        ("range(3)", "range(9223372036854775807)"),
        ("in range(3)", "in (1, 2, 3)"),
        ("for n in", "for p in"),
        ("for n in", "for x in"),
        ("p[n].weight", "p[m].weight"),
        ("        x = F.linear", "        range = F.linear"),
        ("        x = F.linear", "        n = F.linear"),
        ("    loss = x.sum()", "    x = x.sum()"),
        ("    loss = x.sum()", "    loss = n.sum()"),
        ("  # :7\n", "\n        return x\n"),
    ];
    let graph = layers(3, &[]);
    let found = edits.iter().map(|(from, to)| {
        let mut files = stable(&graph, &one_call(&graph));
        assert!(files[0].text.contains(from), "{from}: {}", files[0].text);
        files[0].text = files[0].text.replacen(from, to, 1);
        let found = read(&graph, &files).and_then(|program| check_same(&graph, &program));
        format!("{from:?} -> {to:?}\n{}\n", found.map_or_else(|error| error.to_string(), |()| "read".into()))
    });
    insta::assert_snapshot!(found.collect::<Vec<_>>().join("\n"));
}

/// What is read is another program, which the check would refuse.
fn check_same(graph: &Graph, read: &Program) -> diag::Result<()> {
    let same = emit::canonical(read) == emit::canonical(&one_call(graph));
    if same { Ok(()) } else { Err(diag::Error::new("SW0000", "another program")) }
}

#[test]
fn a_value_of_an_early_turn_that_is_read_later_is_no_name_of_the_loop() {
    let graph = layers(12, &[3, 9]);
    let mut b = Builder::new(&graph);
    for layer in 0..12_u32 {
        let name = format!("h{layer}");
        b.call(layer..layer + 1, &[&name], |_| {});
        let (from, to) = (b.named(&name), b.buf(b.id(&name)));
        let how = How::AllReduce(Reduction::Sum);
        b.forward(Instr::Collective(Collective {
            how,
            group: GroupingId(0),
            from: vec![from],
            to: vec![to],
            overlaps: false,
        }));
    }
    b.call(12..u32::try_from(graph.ops.len()).unwrap(), &["loss"], |_| {});
    b.outputs();
    let mut made = program(&graph, 1);
    made.groupings = vec![vec![vec![RankId(0)]]];
    made.roles.push(b.role(0..1));
    stable(&graph, &made);
}

#[test]
fn refused_loops() {
    let edits = [
        ("range(1, 8)", "range(1, 7)"),
        ("range(1, 8)", "range(1, 80)"),
        ("range(1, 8)", "range(1, 9223372036854775807)"),
        ("range(1, 8)", "range(1, 8, 2)"),
        ("range(1, 8)", "enumerate(8)"),
        ("in range(1, 8)", "in (1, 2, 3)"),
        ("for n in range(1", "for x in range(1"),
        ("for n in range(1", "for run in range(1"),
        ("h[n].weight", "h[m].weight"),
        ("h[n].weight", "h[n / 1].weight"),
        ("        z_part = run", "        n = run"),
        ("at=n)", "at=n + 1)"),
        ("at=n)", "at=0)"),
        ("at=n)", "at=n - 2)"),
        (", at=n)", ")"),
        ("run.call(linear, p.h[0], x, at=0)", "run.call(linear, p.h[0], x, at=3)"),
        ("run.grad(linear, g_x, at=n)", "run.grad(linear, g_x, at=n + 1)"),
        ("run.grad(linear, g_x, at=0)", "run.grad(linear, g_x)"),
        ("run.grad(linear, g_x, at=0)", "run.grad(net_loss, g_x, at=0)"),
        ("run.grad(net_loss, g_loss)", "run.grad(net, g_loss)"),
        ("run.grad(net_loss, g_loss)", "run.grad(0, g_loss)"),
        ("run.grad(net_loss, g_loss)", "run.grad(g_loss)"),
        ("run.grad(net_loss, g_loss)", "run.grad(net_loss, g_loss, at=\"x\")"),
    ];
    let found = edits.iter().map(|(from, to)| {
        let (graph, mut files) = files(8);
        assert!(files[0].text.contains(from), "{from}: {}", files[0].text);
        files[0].text = files[0].text.replacen(from, to, 1);
        let found = read(&graph, &files).map(|_| ());
        format!("{from:?} -> {to:?}\n{}\n", found.map_or_else(|error| error.to_string(), |()| "read".into()))
    });
    insta::assert_snapshot!(found.collect::<Vec<_>>().join("\n"));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, failure_persistence: None, ..ProptestConfig::default() })]

    /// Whatever is read later of whichever layer, the text is the program.
    #[test]
    fn what_is_rolled_reads_back(count in 1..14_usize, skips in prop::collection::vec(0..14_usize, 0..4)) {
        let skips: Vec<usize> = skips.into_iter().filter(|skip| *skip < count).collect();
        let graph = layers(count, &skips);
        let mut b = Builder::new(&graph);
        for op in 0..u32::try_from(graph.ops.len()).unwrap() {
            let name = graph.tensor(graph.op(graph::OpId(op)).outputs[0].unwrap()).name.clone();
            b.call(op..op + 1, &[&name], |_| {});
        }
        b.outputs();
        let mut made = program(&graph, 1);
        made.roles.push(b.role(0..1));
        for made in [made, one_call(&graph)] {
            let files = emit(&graph, &made).unwrap();
            prop_assert_eq!(emit::canonical(&read(&graph, &files).unwrap()), emit::canonical(&made));
        }
    }
}
