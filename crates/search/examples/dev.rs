use std::time::Instant;
fn main() {
    let a: Vec<String> = std::env::args().collect();
    let graph: graph::Graph = std::fs::read_to_string(&a[1]).unwrap().parse().unwrap();
    let cluster = cluster::named(&a[2]).unwrap();
    let devices: u32 = a[3].parse().unwrap();
    let analysis = rules::Analysis::of(&graph);
    let boundary = lower::loss(&graph, program::Inputs::Global);
    let masters = check::Masters::new();
    let q = search::Question {
        graph: &graph,
        analysis: &analysis,
        boundary: &boundary,
        masters: &masters,
        cluster: &cluster,
        devices,
        batches: a[4].parse().unwrap(),
        optimizer: "adamw",
        memory: a.get(5).map(|m| (m.parse::<f64>().unwrap() * 1e9) as u64),
    };
    let t = Instant::now();
    let found = search::inside::find(&q).unwrap();
    println!(
        "{:?} bound {} floor {} decisions {} choices {} sums {:e} plans {}",
        t.elapsed(),
        found.bound,
        search::bound(&q).unwrap(),
        found.decisions,
        found.choices,
        found.sums,
        found.plans.len()
    );
    if let Ok(n) = std::env::var("EXPLAIN") {
        let op = graph.op_ids().find(|o| graph.op(*o).module.ends_with(&n)).unwrap();
        let e = search::inside::explain(&q, &found.plans.last().unwrap().claim, op, 10).unwrap().unwrap();
        println!("{} ops", e.ops.len());
        let l = 80e9;
        for w in &e.ways {
            println!("{:<40} +{:.6} {:?} {:?}", w.name, w.more, w.totals, w.wins_if(&e.ways[0], l));
        }
    }
    let setting =
        compiler::Setting { cluster: &cluster, batches: q.batches, optimizer: "adamw", masters: &masters };
    let named: Vec<plan::Plan> =
        a[6..].iter().map(|n| plan::sets::named(n, &graph, &analysis, devices).unwrap()).collect();
    for (i, p) in found
        .plans
        .iter()
        .map(|c| {
            println!("{:?}", c.claim);
            &c.plan
        })
        .chain(&named)
        .enumerate()
    {
        let t = Instant::now();
        match compiler::estimate((&graph, &analysis), p, &boundary, &setting) {
            Ok(e) => {
                let l = &e.simulation.ranks[0];
                println!(
                    "{} step {} mem {:.2} GB {:?} f {:.4} b {:.4} a {:.4} c {:.4} exp {:.4} idle {:.4} upd {:.4} comm {:.4}",
                    p.name,
                    e.simulation.seconds,
                    e.memory.iter().map(|m| m.total()).max().unwrap() as f64 / 1e9,
                    t.elapsed(),
                    l.forward,
                    l.backward,
                    l.again,
                    l.copies,
                    l.exposed,
                    l.idle,
                    l.update,
                    l.communication
                )
            }
            Err(e) => println!("{} {e:?}", p.name),
        }
        std::fs::write(format!("/tmp/in/plan{i}.txt"), plan::print_folded(p, &graph, &analysis)).unwrap();
    }
}
