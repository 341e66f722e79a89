mod model;
use model::Model;
#[test]
fn explore() {
    let file = std::env::var("GRAPH").unwrap();
    let model = Model::new(&std::fs::read_to_string(file).unwrap());
    let name = std::env::var("CLUSTER").unwrap();
    let batches: u32 = std::env::var("BATCHES").unwrap().parse().unwrap();
    let cluster = cluster::named(&name).unwrap();
    let question = model.question(&cluster, cluster.devices(), batches);
    let start = std::time::Instant::now();
    let (rows, told) =
        search::stages::rows(&question, std::env::var("BELOW").unwrap().parse().unwrap(), None, &mut |_| {})
            .unwrap();
    println!("== {name} {batches} {:?} {:?}", start.elapsed(), told);
    for row in rows.iter() {
        println!(
            "{:40} {:.6} {:?} {} {:?}",
            row.plan.name,
            row.seconds() * 1e3,
            row.piped.map(|s| s * 1e3),
            row.fits(),
            row.memory
        );
        let sim = &row.estimate.simulation;
        let mut seen = std::collections::BTreeSet::new();
        for op in model.graph.op_ids() {
            let plan = row.plan.op(op);
            if seen.insert(row.plan.block(op)) {
                let d = plan.devices[0] as usize;
                let lane = &sim.ranks[d];
                println!(
                    "  stage {} devices {}..+{} {:?}",
                    row.plan.block(op),
                    d,
                    plan.devices.len(),
                    lane.parts()
                );
            }
        }
    }
}
