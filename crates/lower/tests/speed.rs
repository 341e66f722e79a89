use std::time::Instant;
#[test]
fn speed() {
    let Ok(text) = std::fs::read_to_string("/tmp/llama.graph") else { return };
    let t = Instant::now();
    let graph: graph::Graph = text.parse().unwrap();
    println!("parse {:?}", t.elapsed());
    let t = Instant::now();
    let analysis = rules::Analysis::of(&graph);
    println!("analysis {:?}", t.elapsed());
    for (d, name) in [(8, "data:2 x megatron:4"), (64, "data:8 x megatron:8"), (512, "data:64 x megatron:8")] {
        let t = Instant::now();
        let plan = plan::sets::named(name, &graph, &analysis, d).unwrap();
        println!("{d} plan {:?}", t.elapsed());
        let t = Instant::now();
        let l = lower::lower(&graph, &analysis, &plan, &lower::Outputs::Loss).unwrap();
        println!("{d} lower {:?} roles {}", t.elapsed(), l.program.roles.len());
    }
}
