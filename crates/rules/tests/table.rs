//! `docs/reference/operators.md` is what the families say.

use std::collections::HashSet;

use rules::families::{ALL, Nature, family_of, is_dear, nature_of, table};

#[test]
fn the_documentation_is_up_to_date() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/operators.md");
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, table()).expect("docs/reference/operators.md can be written");
    }
    let found = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        found == table(),
        "docs/reference/operators.md is stale: UPDATE=1 cargo test -p shardwright-rules table::"
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

/// The families of which something is so.
fn families(is: fn(&Nature) -> bool) -> String {
    let names = ALL.iter().filter(|family| is(&family.nature)).map(|family| family.name);
    names.collect::<Vec<_>>().join(" ")
}

#[test]
fn what_families_say_of_themselves() {
    assert_eq!(
        families(|it| it.dear),
        "contraction products experts mixtures rows attention recurrent distances similarity convolution fourier \
         linear_algebra registered"
    );
    assert_eq!(families(|it| it.exchanged == Some(("t", "e"))), "mixtures");
    assert_eq!(families(|it| it.can_wait), "contraction convolution");
    assert_eq!(families(|it| it.takes_all), "convolution");
    assert_eq!(families(|it| it.needs_no_values), "views embedding");
    assert_eq!(families(|it| it.is_view), "views");
    assert_eq!(families(|it| it.rearranges), "views splitting");
    assert_eq!(families(|it| it.keeps_finite), "experts mixtures convolution");
    assert_eq!(families(|it| it.looks_up), "embedding");
    assert_eq!(families(|it| it.has_vocabulary), "embedding losses");
    assert_eq!(families(|it| it.attends), "attention");
    assert_eq!(families(|it| it.convolves), "convolution");
    assert_eq!(families(|it| it.contracts), "contraction");
    assert_eq!(families(|it| it.experts == Some("e")), "experts mixtures");
    assert_eq!(families(|it| it.inner == Some("n")), "mixtures");
    assert_eq!(families(|it| !it.dims.is_empty()), "experts mixtures attention embedding losses convolution");
}

#[test]
fn of_an_operator_without_a_family_nothing_is_so_but_that_it_may_be_dear() {
    assert_eq!(nature_of("mine.operator.default"), &Nature::PLAIN);
    assert!(is_dear("mine.operator.default"));
}
