//! Blocks as text: what prints parses, and what is wrong is said with its place.

use orders::{SHAPES, named, parse, print};

#[test]
fn what_prints_parses() {
    for (name, _) in SHAPES {
        for devices in [2, 5] {
            let mut problem = named(name, devices, None).unwrap();
            assert_eq!(parse(&print(&problem)).unwrap(), problem);
            problem.room[1] = None;
            assert_eq!(parse(&print(&problem)).unwrap(), problem);
        }
    }
}

#[test]
fn blocks_may_wait_for_what_stands_further_below() {
    let text = "# two\nshardwright-blocks 1\ndevices 3 # of them\nmemory 2\nmemory 5 on 1..3\n\
                block b on 0: time 2, after a a\nblock a on 2 0..2: memory +0, time 7\n";
    let problem = parse(text).unwrap();
    assert_eq!(problem.room, [Some(2), Some(5), Some(5)]);
    assert_eq!((&problem.blocks[0].after, &problem.blocks[1].devices), (&vec![1], &vec![0, 1, 2]));
}

/// A file with these lines behind its first ones is refused.
fn check(lines: &str, code: &str, place: &str, what: &str) {
    let error = parse(&format!("shardwright-blocks 1\ndevices 2\n{lines}")).unwrap_err();
    assert_eq!((error.code, error.place.as_deref().unwrap_or("")), (code, place), "{error}");
    assert!(error.what.contains(what), "{error}");
    assert!(error.fix.is_some(), "{error}");
}

#[test]
fn what_cannot_be_read_is_said_with_line_and_column() {
    for (lines, place, what) in [
        ("block", "line 3, column 6", "has no name"),
        ("blok a on 0: time 1", "line 3, column 1", "no line begins with `blok` here"),
        ("devices 3", "line 3, column 1", "no line begins with `devices` here"),
        ("block a at 0: time 1", "line 3, column 9", "`at` is not `on`"),
        ("block a on 2: time 1", "line 3, column 12", "`2` is not one of the 2 devices"),
        ("block a on 1..1: time 1", "line 3, column 12", "`1..1` is not one of the 2 devices"),
        ("block a on 0..x: time 1", "line 3, column 12", "`0..x` is not one of the 2 devices"),
        ("block a on : time 1", "line 3, column 12", "no device is named"),
        ("block a on 0 time 1", "line 3, column 14", "`time` is not one of the 2 devices"),
        ("block a on 0", "line 3, column 13", "`:` is missing"),
        ("block a on 0:", "line 3, column 14", "a block has no ``"),
        ("block a on 0: memory 1", "line 3, column 7", "block `a` has no time"),
        ("block a on 0: time 0", "line 3, column 20", "`0` is no time"),
        ("block a on 0: time 1.5", "line 3, column 20", "`1.5` is no time"),
        ("block a on 0: time 99999999999999999999", "line 3, column 20", "is no time"),
        ("block a on 0: tíme 1", "line 3, column 15", "a block has no `t\\u{ed}me`"),
        ("  block a on 0: time 1, ätz 3", "line 3, column 25", "a block has no"),
        ("block a on 0: time 1 2", "line 3, column 22", "`2` does not belong here"),
        ("block a on 0: time 1, after", "line 3, column 28", "names no block"),
        ("block a on 0: time 1, after b", "line 3, column 29", "there is no block `b`"),
        ("block a on 0: time 1\nblock a on 1: time 1", "line 4, column 7", "there are two blocks `a`"),
        ("memory -1", "line 3, column 8", "`-1` is no memory"),
        ("memory 1 of 1", "line 3, column 10", "`of` is not `on`"),
    ] {
        check(lines, "SW0370", place, what);
    }
    for text in ["", "\n# nothing\n", "shardwright-blocks 2\n", "shardwright-plan 1\n"] {
        assert_eq!(parse(text).unwrap_err().code, "SW0370");
    }
    let error = parse("shardwright-blocks 1\nblock a on 0: time 1\n").unwrap_err();
    assert_eq!(error.place.as_deref(), Some("line 2, column 1"));
}

#[test]
fn what_has_no_order_is_refused() {
    check("", "SW0371", "", "there are no blocks");
    check(
        "block a on 0: time 1, after c\nblock b on 1: time 1, after a\nblock c on 0: time 1, after b\nblock d on 0: time 1, after c",
        "SW0371",
        "",
        "in a cycle: `a`, `c`, `b`",
    );
    check("block a on 0: time 1, after a", "SW0371", "", "in a cycle: `a`");
    check("memory 4\nblock a on 0..2: time 1, memory 2", "SW0371", "", "device 0 keeps 2 more after each");
    check(
        "block a on 0: time 1000000\nblock b on 0: time 1000000",
        "SW0371",
        "",
        "all blocks together take 2000000",
    );
}
