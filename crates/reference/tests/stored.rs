//! Programs as they are written, with what is wrong in them.

use std::path::Path;

use graph::Graph;
use reference::Verdict;

fn verdict(folder: &str) -> Verdict {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/programs").join(folder);
    let (mut model, mut files) = (String::new(), vec![]);
    for entry in std::fs::read_dir(&folder).expect("a folder") {
        let path = entry.expect("a file").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let text = std::fs::read_to_string(&path).expect("a text");
        if name == "graph.txt" { model = text } else { files.push(emit::File { name, text }) }
    }
    let graph: Graph = model.parse().expect("it parses");
    let program = emit::read(&graph, &files).expect("it is read");
    reference::compare(&graph, &program, 7, 1).expect("it is of this model")
}

/// Each rank has the greatest of its partial sums, which are then added as if they were parts of the greatest.
#[test]
fn maxima_of_parts_are_not_added() {
    let Verdict::Different(found) = verdict("maxima_added") else { panic!("not seen to be different") };
    assert_eq!((&found.what[..], &found.tensor[..]), ("the output", "mean"));
}
