mod model;
use model::Model;
#[test]
fn explore() {
    let model = Model::gpt();
    for (name, devices, batches) in [("cpu:4", 4, 4), ("ethernet-25g:2x2", 4, 4), ("ethernet-25g:2x2", 4, 16), ("dgx-h100:8x1", 8, 8)] {
        let cluster = cluster::named(name).unwrap();
        let question = model.question(&cluster, devices, batches);
        let start = std::time::Instant::now();
        let found = search::compare(&question, None, &mut |_| {}).unwrap();
        println!("== {name} {batches} {:?} {:?}", start.elapsed(), found.stages);
        for row in found.rows.iter().take(14) {
            println!("{:40} {:.6} {:?} {}", row.plan.name, row.seconds() * 1e3, row.piped.map(|s| s * 1e3), row.fits());
        }
    }
}
