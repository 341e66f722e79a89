//! The commands that make the pages of other plans.

use super::Candidate;

/// How the page of another plan is made.
#[derive(Clone, Debug, Default)]
pub struct OtherPages {
    /// The command without its plan, micro-batches and files.
    pub words: Vec<String>,
    /// Whether the batch is cut into the micro-batches; else each is as large as the example.
    pub is_cut: bool,
    /// So many of the first plans are kept as `row:1` and so on.
    pub kept: usize,
}

/// Of the plan at a place among those that were compared. None of one that was found and is not kept: it has no name.
pub(super) fn command(others: &OtherPages, candidate: &Candidate, at: usize) -> Option<String> {
    // Names of plans have no comma; those that were found do. What `auto` is depends on the search.
    let is_found = candidate.plan.contains(", ") || candidate.plan == "auto";
    let plan = match (is_found, at < others.kept) {
        (false, _) => candidate.plan.clone(),
        (true, true) => format!("row:{}", at + 1),
        (true, false) => return None,
    };
    let flag = if others.is_cut { "--micro-batches" } else { "--batches" };
    let number = candidate.micro_batches.to_string();
    let words = others.words.iter().map(String::as_str).chain(["--plan", &plan, flag, &number]);
    Some(words.map(quoted).collect::<Vec<_>>().join(" "))
}

/// As a shell reads it.
fn quoted(word: &str) -> String {
    let is_plain = |it: char| it.is_ascii_alphanumeric() || "@%+=:,./_-".contains(it);
    if !word.is_empty() && word.chars().all(is_plain) {
        return word.to_owned();
    }
    format!("'{}'", word.replace('\'', "'\"'\"'"))
}

#[cfg(test)]
mod tests {
    use super::{Candidate, OtherPages, command, quoted};

    #[test]
    fn a_plan_is_named_as_commands_take_it() {
        let words = ["shardwright", "report", "my gpt.graph"].map(str::to_owned).to_vec();
        let others = OtherPages { words, is_cut: true, kept: 2 };
        let made = |plan: &str, at: usize| {
            let candidate = Candidate { plan: plan.into(), micro_batches: 8, ..Candidate::default() };
            command(&others, &candidate, at)
        };
        let begins = "shardwright report 'my gpt.graph' --plan";
        assert_eq!(made("data", 5), Some(format!("{begins} data --micro-batches 8")));
        assert_eq!(made("stages:2 x data", 5), Some(format!("{begins} 'stages:2 x data' --micro-batches 8")));
        assert_eq!(made("found, with a comma", 1), Some(format!("{begins} row:2 --micro-batches 8")));
        assert_eq!(made("auto", 0), Some(format!("{begins} row:1 --micro-batches 8")));
        assert_eq!(made("found, with a comma", 2), None);
    }

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(["a", "a b", "", "it's"].map(quoted), ["a", "'a b'", "''", "'it'\"'\"'s'"]);
    }
}
