use check::Masters;
use compiler::{Setting, estimate};
use graph::{Graph, repeats, shorter};
use plan::sets;
use program::Inputs;
use rules::Analysis;
use std::time::Instant;

fn main() {
    let mut args = std::env::args().skip(1);
    let graph: Graph = std::fs::read_to_string(args.next().unwrap()).unwrap().parse().unwrap();
    let cluster = cluster::named(&args.next().unwrap()).unwrap();
    let batches: u32 = args.next().unwrap().parse().unwrap();
    let devices = cluster.devices();
    let t = Instant::now();
    let runs = repeats(&graph, 4);
    println!("{runs:?} of {} ops, {:.3}s", graph.ops.len(), t.elapsed().as_secs_f64());
    let run = runs.iter().copied().max_by_key(|r| r.times * r.period).unwrap();
    let keep: Vec<usize> = vec![2, 3, 4, 6];
    let models: Vec<(usize, Graph, Analysis)> = keep
        .iter()
        .map(|n| {
            let g = shorter(&graph, run, run.times - n).expect("shorter");
            let a = Analysis::of(&g);
            (*n, g, a)
        })
        .collect();
    let whole = (run.times, graph.clone(), Analysis::of(&graph));
    let masters = Masters::new();
    for name in args {
        let of = |(n, g, a): &(usize, Graph, Analysis)| {
            let t = Instant::now();
            let model = sets::Model::new(g, a);
            let plan = sets::named_of(&name.parse().unwrap(), &model, devices).unwrap();
            let boundary = lower::loss(g, Inputs::Global);
            let setting = Setting {
                cluster: &cluster,
                batches,
                optimizer: "adamw",
                masters: &masters,
                compiled: false,
            };
            let e = estimate((g, a), &plan, &boundary, &setting).unwrap();
            let memory = e.memory.iter().map(|m| m.total()).max().unwrap();
            (*n, e.simulation.seconds, memory, t.elapsed().as_secs_f64())
        };
        let few: Vec<_> = models.iter().map(of).collect();
        let all = of(&whole);
        print!("{name}: whole {:.6} {} in {:.2}s;", all.1, all.2, all.3);
        for pair in few.windows(2) {
            let (a, b) = (pair[0], pair[1]);
            let k = (b.0 - a.0) as f64;
            let left = (all.0 - b.0) as f64;
            let s = b.1 + left * (b.1 - a.1) / k;
            let m = b.2 as f64 + left * (b.2 as f64 - a.2 as f64) / k;
            print!(
                " {}-{}: {:+.4}% mem {:+.3}% ({:.3}s)",
                a.0,
                b.0,
                100.0 * (s / all.1 - 1.0),
                100.0 * (m / all.2 as f64 - 1.0),
                a.3 + b.3
            );
        }
        println!();
    }
}
