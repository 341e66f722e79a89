//! How long a proof takes: `cargo test -p shardwright-check --release -- --ignored --nocapture`.

use std::fmt::Write;

use crate::support::{self, graph, program};

/// `layers` times eight operators, split by the batch over all ranks.
fn deep(layers: usize, ranks: usize) -> (String, String) {
    let mut graph = format!("input %x0 f64[{ranks},4,8] 0\n");
    let mut ops = vec![];
    let (mut leaves, mut names) = (String::new(), vec![]);
    for i in 0..layers {
        let next = i + 1;
        for (name, shape, local) in [
            (format!("g{i}"), "[8]", ":"),
            (format!("w{i}"), "[16,8]", ":,:"),
            (format!("v{i}"), "[8,16]", ":,:"),
        ] {
            writeln!(graph, "param %{name} f64{shape} \"{name}\"").unwrap();
            writeln!(leaves, "shard {name} %{name} {local}").unwrap();
            names.push(name);
        }
        let lines = [
            format!("n{i} f64[R,4,8] = aten.mul.Tensor(x{i}, g{i})"),
            format!("h{i} f64[R,4,16] = aten.linear.default(n{i}, w{i})"),
            format!("a{i} f64[R,4,16] = aten.relu.default(h{i})"),
            format!("b{i} f64[R,4,16] = aten.tanh.default(a{i})"),
            format!("m{i} f64[R,4,16] = aten.mul.Tensor(b{i}, a{i})"),
            format!("y{i} f64[R,4,8] = aten.linear.default(m{i}, v{i})"),
            format!("z{i} f64[R,4,8] = aten.relu.default(y{i})"),
            format!("x{next} f64[R,4,8] = aten.add.Tensor(x{i}, z{i})"),
        ];
        for line in lines {
            let (left, right) = line.split_once(" = ").unwrap();
            let right = right.replace("(", "(%").replace(", ", ", %");
            let left = left.replace('R', &ranks.to_string());
            writeln!(graph, "op %{left} = {right} in \"\" at \"m.py:{i}\"").unwrap();
            ops.push(format!("{} = {}", left.split(' ').next().unwrap(), right.replace('%', "")));
        }
    }
    writeln!(graph, "op %s f64[] = aten.sum.default(%x{layers}) in \"\" at \"\"\noutput %s").unwrap();
    ops.push(format!("s = aten.sum.default(x{layers})"));
    let all: Vec<String> = (0..ranks).map(|rank| rank.to_string()).collect();
    let rows: Vec<String> = (0..ranks).map(|rank| format!("{rank}..{},:,:", rank + 1)).collect();
    let (all, names) = (all.join(","), names.join(", "));
    let program = format!(
        "group {all}\nranks {all}\n{leaves}input x0 %x0 {}\ncall 0 x0, {names} -> s : {}\n\
         all_reduce g0 sum s -> t\noutput t\nseed ds\ngrad 0 ds ->\nreduce_gradients g0 {names}\n",
        rows.join(" | "),
        ops.join(" ; ")
    );
    (graph, program)
}

#[test]
fn many_layers_on_a_few_ranks() {
    let (text, code) = deep(4, 3);
    let proof = support::proof(&graph(&text), &code);
    assert_eq!((proof.operators, proof.local_operators), (33, 99));
}

#[test]
#[ignore = "measures time"]
#[expect(clippy::print_stderr, reason = "a measurement")]
fn many_ranks() {
    let (text, code) = deep(150, 512);
    let graph = graph(&text);
    let program = program(&graph, &code);
    let start = std::time::Instant::now();
    let proof = check::check(&graph, &program).unwrap();
    eprintln!("{} local operators in {:?}", proof.local_operators, start.elapsed());
}
