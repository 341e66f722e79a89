//! Spreads print and parse.

use plan::random::Random;
use proptest::prelude::*;
use rules::Reduction;
use sharding::{Axis, Names, Sharding, route};

use crate::common;

/// `b s (h d)` on eight devices: `dp` of two, `tp` of four.
fn names() -> Names {
    let dim = |names: &[&str]| names.iter().map(ToString::to_string).collect::<Vec<String>>();
    let dims = vec![dim(&["b"]), dim(&[]), dim(&["s"]), dim(&["h", "d"])];
    let axes = vec![("dp".into(), Axis::new(2, 4)), ("tp".into(), Axis::new(4, 1))];
    Names { dims, axes, base: 0 }
}

const SIZES: [i64; 4] = [8, 14, 4, 16];

fn parse(text: &str) -> Sharding {
    names().parse(text, &SIZES).unwrap_or_else(|| panic!("{text}"))
}

#[test]
fn spreads_print_what_they_were_read_from() {
    for text in [
        "b 1 s (h d)",
        "b/dp 1 s (h/tp d)",
        "b/dp/tp 1 s (h d)",
        "b/tp/dp 1 s (h d), partial over 2:0",
        "b/dp 1 s/tp{4,3,4,3} (h d)",
        "b 1 s/tp{2x3,2x4} (h d), partial over dp",
        "b 1 s (h/2:2 d/2:1), max partial over dp",
        "b/dp 1 s (h/2:2 d), copied nowhere, from device 3",
        "b/dp 1 s (h d), copied over 2:8 tp",
        "b 1 s (h/tp d), from device 8",
        "b 1 s (h/tp d), copied nowhere",
    ] {
        assert_eq!(names().print(&parse(text)), text);
    }
}

#[test]
fn what_is_no_spread_is_not_read() {
    for text in [
        "",
        "b s h d e",
        "b 1 s (h)",
        "c 1 s (h d)",
        "b/xp 1 s (h d)",
        "b/dp/dp 1 s (h d)",
        "b/16:1 1 s (h d)",
        "b/0:1 1 s (h d)",
        "b 1 s/tp{4,4,4,4} (h d)",
        "b 1 s/tp{14} (h d)",
        "b 1 s (h d), over there",
        "b 1 s (h d), from device x",
        "b/4294967295:4294967295 1 s (h d)",
        "b 1 s (h d), partial over 4294967295:1 4294967295:9",
    ] {
        assert_eq!(names().parse(text, &SIZES), None, "{text}");
    }
}

#[test]
fn common_routes_are_the_known_ones() {
    for (from, to, expected) in [
        ("b/dp 1 s (h/tp d)", "b/dp 1 s (h/tp d)", ""),
        ("b/dp 1 s (h d), partial over tp", "b/dp 1 s (h d)", "AllReduce"),
        ("b/dp 1 s (h d), partial over tp", "b/dp 1 s (h/tp d)", "ReduceScatter"),
        ("b/dp 1 s (h/tp d)", "b/dp/tp 1 s (h d)", "AllToAll"),
        ("b/dp 1 s (h/tp d)", "b 1 s (h d)", "AllGather AllGather"),
        ("b/dp/tp 1 s (h d)", "b 1 s (h d)", "AllGather"),
        ("b 1 s (h d)", "b/dp 1 s (h/tp d)", "Slice"),
        ("b/dp/tp 1 s (h d)", "b/tp/dp 1 s (h d)", "Permute"),
        ("b/dp/tp 1 s (h d)", "b/tp 1 s (h d)", "Permute AllGather"),
        ("b/dp 1 s (h d), partial over tp", "b/dp 1 s (h d), from device 8", "ReduceScatter Send AllGather"),
        ("b 1 s (h/tp d), copied nowhere", "b 1 s (h/tp d), copied nowhere, from device 4", "Send"),
        ("b/dp 1 s (h d)", "b 1 s (h d), copied nowhere, from device 5", "AllGather Send"),
        ("b/2:0 1 s (h d), partial over dp", "b 1 s (h d)", "AllGather AllReduce"),
    ] {
        let hops = route(&parse(from), &parse(to), 4).unwrap();
        let kinds: Vec<String> = hops.iter().map(|h| format!("{:?}", h.kind)).collect();
        let named = |kind: &String| {
            let detailed = kind.trim_start_matches("Collective(");
            detailed.split([' ', '(']).next().unwrap_or_default().to_string()
        };
        let kinds: Vec<String> = kinds.iter().map(named).collect();
        assert_eq!(kinds.join(" "), expected, "{from} to {to}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2048))]

    #[test]
    fn what_prints_parses(seed: u64) {
        let mut random = Random::new(seed);
        let (sizes, on) = (common::sizes(&mut random), common::mesh(&mut random, 24));
        let sharding = common::sharding(&mut random, &sizes, &on, Reduction::Any);
        let named = common::mesh(&mut random, 24);
        let own = random.below(2) == 0;
        let axes = common::split(&mut random, if own { on.axes() } else { named.axes() });
        let axes = axes.iter().enumerate().map(|(i, axis)| (format!("a{i}"), *axis)).collect();
        let all: Vec<String> = (0..sizes.len()).map(|f| format!("f{f}")).collect();
        let dims = if random.below(2) == 0 { vec![all] } else { all.into_iter().map(|f| vec![f]).collect() };
        let names = Names { dims, axes, base: named.base() };
        let text = names.print(&sharding);
        prop_assert_eq!(names.parse(&text, &sizes), Some(sharding), "{}", text);
    }
}
