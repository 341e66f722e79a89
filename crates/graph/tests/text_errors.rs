//! The whole message of every refusal, as `text_errors.txt` lists them.

use graph::text::parse;

const HEAD: &str = "shardwright-graph 1
input %x f64[2] 0
param %p f64[2] \"w\"
buffer %b f64[2] \"m\"
";

#[test]
fn every_refusal_has_its_message() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/text_errors.txt");
    let listed = std::fs::read_to_string(path).unwrap();
    let blocks: Vec<String> = listed.trim_end().split("\n\n").map(answered).collect();
    let found = blocks.join("\n\n") + "\n";
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, found).unwrap();
    } else {
        assert_eq!(found, listed);
    }
}

/// A block's comments and input, and the message that the input gets.
fn answered(block: &str) -> String {
    let given: Vec<&str> = block.lines().filter(|line| line.starts_with(['#', '>'])).collect();
    let mut input = String::new();
    for line in given.iter().filter_map(|line| line.strip_prefix('>')) {
        let below = line.strip_prefix('>');
        if below.is_none() && input.is_empty() {
            input.push_str(HEAD);
        }
        let text = below.unwrap_or(line);
        input.push_str(text.strip_prefix(' ').unwrap_or(text));
        input.push('\n');
    }
    let message = match parse(&input) {
        _ if input.is_empty() => return given.join("\n"),
        Ok(_) => "no refusal".to_owned(),
        Err(error) => error.to_string(),
    };
    format!("{}\n{message}", given.join("\n"))
}

#[test]
fn lists_nest_only_so_deep() {
    let nested = |depth| {
        let (open, close) = ("[".repeat(depth), "]".repeat(depth));
        parse(&format!("{HEAD}op _ = f({open}{close}) in \"\" at \"\""))
    };
    assert!(nested(32).is_ok());
    assert_eq!(
        nested(100_000).unwrap_err().to_string(),
        "error[SW0201]: an argument holds lists more than 32 deep\n  at: line 5"
    );
}
