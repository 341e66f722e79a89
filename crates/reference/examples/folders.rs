#![allow(clippy::print_stdout)]
fn main() {
    for folder in std::env::args().skip(1) {
        let mut files = vec![];
        let mut model = String::new();
        for entry in std::fs::read_dir(&folder).unwrap() {
            let entry = entry.unwrap();
            let name = entry.file_name().into_string().unwrap();
            let text = std::fs::read_to_string(entry.path()).unwrap();
            if name == "graph.txt" { model = text } else { files.push(emit::File { name, text }) }
        }
        files.sort_by(|a, b| a.name.cmp(&b.name));
        let graph: graph::Graph = model.parse().unwrap();
        let program = match emit::read(&graph, &files) { Ok(p) => p, Err(e) => { println!("{folder}: {e}"); continue } };
        let t = std::time::Instant::now();
        match reference::compare(&graph, &program, 7, 3) {
            Ok(reference::Verdict::Equal(r)) => println!("equal {folder}: {} elements, {} undefined, rewritings {} in {:?}; tables {:?}", r.elements, r.undefined, r.rewritings_agree, t.elapsed(), r.opaque),
            Ok(reference::Verdict::Different(d)) => println!("DIFFERENT {folder}: {d}"),
            Ok(reference::Verdict::Unknown(d)) => println!("UNKNOWN {folder}: {d}"),
            Err(e) => println!("ERR {folder}: {e}"),
        }
    }
}
