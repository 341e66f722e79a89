//! `docs/reference/emitted-program.md` says of the instructions what their table says.

use std::collections::HashSet;
use std::fmt::Write;

use program::Kind;

const BEGIN: &str =
    "<!-- instructions: `UPDATE=1 cargo test -p shardwright-program table::` writes them -->\n";
const END: &str = "<!-- end of instructions -->\n";

#[test]
fn the_documentation_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/emitted-program.md");
    let page = std::fs::read_to_string(path).expect("the page is there");
    let (before, rest) = page.split_once(BEGIN).expect("the page has the instructions");
    let (table, after) = rest.split_once(END).expect("the instructions end");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, format!("{before}{BEGIN}{}{END}{after}", instructions()))
            .expect("it is written");
        return;
    }
    assert!(
        table == instructions(),
        "docs/reference/emitted-program.md is stale: UPDATE=1 cargo test -p shardwright-program table::"
    );
}

fn instructions() -> String {
    let mut table = String::from("\n| instruction | meaning |\n| --- | --- |\n");
    for kind in Kind::ALL {
        let forms: Vec<String> = kind.forms().iter().map(|form| format!("`{form}`")).collect();
        writeln!(table, "| {} | {} |", forms.join(", "), kind.text()).expect("a string takes it");
    }
    table.push('\n');
    table
}

#[test]
fn every_method_is_of_one_kind() {
    let mut seen = HashSet::new();
    for kind in Kind::ALL {
        assert!(seen.insert(kind.name()), "{} is of two kinds", kind.name());
        for form in kind.forms() {
            let (method, _) = form.split_once('(').unwrap_or((&form, ""));
            let is_method = !method.contains(['.', ' ']);
            assert!(!is_method || Kind::of_method(method) == Some(*kind), "{form}");
        }
    }
    assert_eq!(Kind::of_method("add"), None);
}

#[test]
fn keywords_are_those_with_a_value() {
    assert!(Kind::Keep.has_keyword("keep", "offload"));
    assert!(!Kind::Keep.has_keyword("keep", "number"));
    assert!(Kind::Fetch.has_keyword("fetch", "keep"));
    assert!(Kind::Grad.has_keyword("grad_inputs", "again"));
    assert!(!Kind::Grad.has_keyword("grad_weights", "again"));
    assert!(Kind::AllToAll.has_keyword("all_to_all", "send_sizes"));
    assert!(!Kind::AllGather.has_keyword("all_gather", "async_op"));
}

#[test]
fn a_blank_instruction_is_of_its_kind() {
    let by_fields = Kind::ALL.iter().filter_map(|kind| Some((kind, kind.blank()?)));
    let count = by_fields.inspect(|(kind, blank)| assert_eq!(blank.kind(), **kind)).count();
    assert!(count > 10, "{count} are written field by field");
}
