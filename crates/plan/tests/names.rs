//! Names of plans as values: they parse, print and are edited, and no two names mean the same plan by chance.

use std::path::{Path, PathBuf};

use plan::PlanName;
use plan::sets::{self, ALL, Argument, NUMBER, Set, SetTerm, auto};
use proptest::prelude::*;

fn name(text: &str) -> PlanName {
    text.parse().unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn set(text: &str) -> &'static Set {
    ALL.iter().copied().find(|set| set.name == text).expect("a set")
}

fn is_lawful(text: &str) -> bool {
    let Ok(read) = text.parse::<PlanName>() else { return false };
    let printed = read.to_string();
    assert_eq!(name(&printed), read, "{text}");
    assert_eq!(name(&printed).to_string(), printed, "{text}");
    true
}

/// What may stand behind a set's name.
fn arguments(set: &'static Set) -> Vec<Argument> {
    let words = set.besides.iter().map(|(word, _)| *word).filter(|word| !["", NUMBER].contains(word));
    let has_number = format!("{}:2", set.name).parse::<PlanName>().is_ok();
    let numbers = if has_number { vec![1, 2, 7, plan::MOST] } else { vec![] };
    let numbers = numbers.into_iter().map(Argument::Number);
    std::iter::once(Argument::None).chain(numbers).chain(words.map(Argument::Word)).collect()
}

fn any_term() -> impl Strategy<Value = SetTerm> {
    let all: Vec<SetTerm> =
        ALL.iter().flat_map(|set| arguments(set).into_iter().map(|it| SetTerm::new(set, it))).collect();
    prop::sample::select(all)
}

proptest! {
    #[test]
    fn what_prints_parses(terms in prop::collection::vec(any_term(), 0..6)) {
        let read = PlanName::new(terms);
        prop_assert_eq!(name(&read.to_string()), read);
    }

    #[test]
    fn spaces_do_not_matter(terms in prop::collection::vec(any_term(), 1..6), space in "[ \t]{1,3}") {
        let read = PlanName::new(terms);
        prop_assert_eq!(name(&read.to_string().replace(' ', &space)), read);
    }

    #[test]
    fn any_text_is_a_name_or_refused(text in "[a-z0-9:x -]{0,24}") {
        is_lawful(&text);
    }

    #[test]
    fn edits_keep_the_rest(terms in prop::collection::vec(any_term(), 1..6), one in any_term()) {
        let read = PlanName::new(terms.clone());
        let with = read.with(one);
        prop_assert!(with.has(one.set()));
        prop_assert_eq!(&with.terms()[..terms.len()], &terms[..]);
        let without = with.without(one.set());
        let rest: Vec<SetTerm> = terms.into_iter().filter(|term| term.set() != one.set()).collect();
        prop_assert_eq!(without, PlanName::new(rest));
    }
}

/// Every name that any test says.
#[test]
fn names_in_tests_are_canonical() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let files = ["tests/python", "crates"].map(|folder| sources(&root.join(folder))).concat();
    let (mut all, mut canonical) = (0, 0);
    for file in files {
        let text = std::fs::read_to_string(&file).expect("it reads");
        for piece in text.split('"').filter(|piece| begins_with_a_set(piece) && is_lawful(piece)) {
            all += 1;
            canonical += usize::from(name(piece).to_string() == piece);
        }
    }
    assert!(canonical > 900 && canonical * 20 > all * 19, "{canonical} of {all}");
}

/// A refusal lists all names, which takes long for every text that there is.
fn begins_with_a_set(piece: &str) -> bool {
    let word = piece.split([':', ' ']).next().unwrap_or_default();
    ALL.iter().any(|set| set.name == word)
}

/// The tests in a folder.
fn sources(folder: &Path) -> Vec<PathBuf> {
    let mut files: Vec<PathBuf> = vec![];
    let mut entries: Vec<PathBuf> =
        std::fs::read_dir(folder).expect("a folder").map(|entry| entry.expect("it reads").path()).collect();
    entries.sort();
    for path in entries {
        if path.is_dir() {
            files.extend(sources(&path));
        } else if path.extension().is_some_and(|ext| ext == "rs" || ext == "py") {
            files.push(path);
        }
    }
    files
}

#[test]
fn questions() {
    let read = name("stages:2 x data:2 x 1f1b x coshard x recompute:selective");
    let axes: Vec<String> = read.axes().map(ToString::to_string).collect();
    assert_eq!(axes, ["stages:2", "data:2", "coshard"]);
    assert_eq!(read.schedule(), Some(plan::Schedule::OneFOneB));
    assert_eq!(name("data:2 x recompute").schedule(), None);
    assert_eq!(name("stages:2 x 1f1b x gpipe").schedule(), Some(plan::Schedule::Gpipe));
    assert!(read.has(set("recompute")) && !read.has(set("offload")));
    assert_eq!(read.devices(), Some(4));
    assert_eq!(read.terms()[1].number(), Some(2));
}

#[test]
fn edits() {
    let plain = name("stages:2 x megatron:4 x 1f1b");
    let recompute = *auto::recompute().last().expect("some");
    assert_eq!(plain.with(recompute).to_string(), "stages:2 x megatron:4 x 1f1b x recompute");
    assert_eq!(
        plain.with_set_instead(set("megatron"), set("expert")).to_string(),
        "stages:2 x expert:4 x 1f1b"
    );
    let two = SetTerm::new(set("interleaved"), Argument::Number(2));
    assert_eq!(plain.instead_of(&auto::schedule(), two).to_string(), "stages:2 x megatron:4 x interleaved:2");
    assert_eq!(name("data x recompute:selective x recompute").without(set("recompute")), name("data"));
    assert_eq!(name("recompute").without(set("recompute")), name("replicate"));
}

#[test]
fn a_set_takes_no_other_argument() {
    for (set, argument) in [
        ("recompute", Argument::Number(2)),
        ("recompute", Argument::Word("some")),
        ("tokens", Argument::Word(NUMBER)),
        ("data", Argument::Word("two")),
        ("data", Argument::Number(0)),
    ] {
        let set = self::set(set);
        assert!(
            std::panic::catch_unwind(|| SetTerm::new(set, argument)).is_err(),
            "{} {argument:?}",
            set.name
        );
    }
}

/// What the field calls them.
#[test]
fn aliases() {
    for (alias, expect) in [
        ("ddp", "data"),
        ("dp:2", "data:2"),
        ("fsdp", "zero3"),
        ("tp:4", "megatron:4"),
        ("cp:2", "sequence:2"),
        ("ep:8", "expert:8"),
        ("pp:2", "stages:2"),
        ("pp:2 x dp:2 x tp:2 x 1f1b", "stages:2 x data:2 x megatron:2 x 1f1b"),
        ("dp:2xfsdp:4 x recompute", "data:2 x zero3:4 x recompute"),
    ] {
        assert_eq!(name(alias).to_string(), expect, "{alias}");
        assert_eq!(name(alias), name(expect));
    }
    for set in ALL {
        for alias in set.aliases {
            let same = ALL.iter().filter(|it| it.name == *alias || it.aliases.contains(alias)).count();
            assert_eq!(same, 1, "{alias} is of one set");
        }
    }
}

#[test]
fn an_alias_makes_the_same_plan() {
    let graph: graph::Graph = include_str!("attention.graph").parse().expect("it parses");
    let analysis = rules::Analysis::new(&graph);
    for (alias, canonical) in
        [("dp:2 x tp:2", "data:2 x megatron:2"), ("fsdp", "zero3"), ("cp", "sequence"), ("ddp", "data")]
    {
        let plan = |name| sets::named(name, &graph, &analysis, 4).expect("a plan");
        assert_eq!(plan(alias), plan(canonical));
        assert_eq!(plan(alias).name, canonical);
    }
}

#[test]
fn names_of_others_that_are_refused() {
    let error = |text: &str| text.parse::<PlanName>().expect_err("it is refused");
    for text in ["sp", "tp:4 x sp", "SP:2"] {
        let error = error(text);
        assert_eq!(error.code, "SW0311");
        let fix = error.fix.expect("a fix");
        assert!(fix.starts_with("write `megatron-sp` in the place of `megatron`"), "{fix}");
    }
    for (text, meant) in [("FSDP:2", "zero3"), ("DDP", "data"), ("TP", "megatron"), ("PP:2", "stages")] {
        let fix = error(text).fix.expect("a fix");
        assert!(fix.starts_with(&format!("did you mean `{meant}`? Else ")), "{fix}");
    }
    assert_eq!(error("tp:two").what, "`two` is not a size of `tp` in the plan `tp:two`");
    assert_eq!(error("dp:2 tp:2").fix.as_deref(), Some("write `dp:2 x tp:2`"));
}

#[test]
fn examples_show_every_set() {
    let all: Vec<PlanName> = sets::examples().map(name).collect();
    for set in ALL {
        assert!(all.iter().any(|name| name.has(set)), "{}", set.name);
    }
    assert!(sets::examples().zip(&all).all(|(text, name)| text == name.to_string()));
}

#[test]
fn plans_that_save_memory() {
    let names = |text: &str| {
        let all = name(text).with_less_memory();
        all.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    };
    assert_eq!(
        names("data"),
        "data x recompute, data x offload:activations, data x offload:state, data x offload:parameters, zero1, zero3"
    );
    assert_eq!(
        names("zero1 x recompute"),
        "zero1 x recompute x offload:activations, zero1 x recompute x offload:state, \
         zero1 x recompute x offload:parameters, zero3 x recompute"
    );
    assert_eq!(
        names("data:2 x zero2:2 x megatron"),
        "data:2 x zero2:2 x megatron x recompute, data:2 x zero2:2 x megatron x offload:activations, \
         data:2 x zero2:2 x megatron x offload:state, data:2 x zero2:2 x megatron x offload:parameters, data:2 x zero3:2 x megatron"
    );
    assert_eq!(
        names("megatron x offload:state"),
        "megatron x offload:state x recompute, megatron x offload:state x offload:activations, \
         megatron x offload:state x offload:parameters"
    );
    assert_eq!(names("zero3 x recompute:selective x offload"), "");
    assert_eq!(
        names("stages:2 x gpipe x recompute"),
        "stages:2 x gpipe x recompute x offload:activations, stages:2 x gpipe x recompute x offload:state, \
         stages:2 x gpipe x recompute x offload:parameters, stages:2 x 1f1b x recompute"
    );
}
