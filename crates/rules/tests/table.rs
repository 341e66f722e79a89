//! `docs/reference/operators.md` is what the families say.

use std::collections::HashSet;

use rules::families::{ALL, family_of, table};

#[test]
fn the_documentation_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/operators.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, table()).expect("docs/reference/operators.md can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == table(),
        "docs/reference/operators.md is stale: UPDATE=1 cargo test -p shardwright-rules --test table"
    );
}

#[test]
fn every_target_has_one_family() {
    let mut seen = HashSet::new();
    for family in ALL {
        for target in family.targets {
            assert!(seen.insert(target), "{target} is listed twice");
            assert_eq!(family_of(target).map(|found| found.name), Some(family.name));
        }
    }
}
