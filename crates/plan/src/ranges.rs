//! Paths one after another that differ in one number only are one pattern: `h.{2-5}.mlp`.

/// Patterns for paths, in their order, and how many of them each means.
pub(crate) fn ranges(paths: &[&str]) -> Vec<(String, usize)> {
    let mut patterns = vec![];
    let mut rest = paths;
    while let [first, ..] = rest {
        let (pattern, count) = longest(first, rest);
        patterns.push((pattern, count));
        rest = &rest[count..];
    }
    patterns
}

/// The longest run that goes on from its first path, along whichever of its numbers that is.
fn longest(first: &str, paths: &[&str]) -> (String, usize) {
    let words: Vec<&str> = first.split('.').collect();
    let along = |(at, word): (usize, &&str)| {
        let start: usize = word.parse().ok()?;
        let with = |number: &str| {
            let mut words = words.clone();
            words[at] = number;
            words.join(".")
        };
        let is_next = |(step, path): &(usize, &&str)| **path == with(&(start + step).to_string());
        let count = paths.iter().enumerate().take_while(is_next).count();
        Some((with(&format!("{{{start}-{}}}", (start + count).saturating_sub(1))), count))
    };
    let runs = words.iter().enumerate().filter_map(along).filter(|(_, count)| *count > 1);
    runs.max_by_key(|(_, count)| *count).unwrap_or_else(|| (first.to_owned(), 1))
}

#[cfg(test)]
mod tests {
    use super::ranges;

    #[test]
    fn runs_of_layers_are_patterns() {
        let ranges_of = |paths: &[&str]| {
            let patterns = ranges(paths);
            patterns.into_iter().map(|(pattern, count)| format!("{pattern} {count}")).collect::<Vec<_>>()
        };
        assert_eq!(ranges_of(&["h.0.mlp", "h.1.mlp", "h.2.mlp", "h.4.mlp"]), ["h.{0-2}.mlp 3", "h.4.mlp 1"]);
        assert_eq!(
            ranges_of(&["a.0.b.0", "a.0.b.1", "a.1.b.0", "a.1.b.1"]),
            ["a.0.b.{0-1} 2", "a.1.b.{0-1} 2"]
        );
        assert_eq!(ranges_of(&["x", "x", "y.9", "y.10"]), ["x 1", "x 1", "y.{9-10} 2"]);
        assert!(ranges(&[]).is_empty());
    }
}
