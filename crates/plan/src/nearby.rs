//! What somebody may have meant.

/// The known words that differ least from this one, if they differ in few letters; the nearest first.
pub fn nearby<'w>(word: &str, known: impl IntoIterator<Item = &'w str>) -> Vec<&'w str> {
    const MOST: usize = 3;
    let mut words: Vec<(usize, &str)> = known
        .into_iter()
        .map(|other| (distance(&word.to_lowercase(), &other.to_lowercase()), other))
        .filter(|(distance, other)| *distance <= 1 + word.len().min(other.len()) / 4)
        .collect();
    words.sort_unstable();
    words.dedup();
    words.into_iter().map(|(_, other)| other).take(MOST).collect()
}

/// How many letters have to be put in, taken away, changed, or exchanged with their neighbours.
fn distance(a: &str, b: &str) -> usize {
    let (a, b): (Vec<char>, Vec<char>) = (a.chars().collect(), b.chars().collect());
    let mut rows = vec![vec![0; b.len() + 1]; a.len() + 1];
    for i in 0..=a.len() {
        for j in 0..=b.len() {
            rows[i][j] = if i == 0 || j == 0 {
                i + j
            } else {
                let changed = rows[i - 1][j - 1] + usize::from(a[i - 1] != b[j - 1]);
                let swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
                let swap = if swapped { rows[i - 2][j - 2] + 1 } else { usize::MAX };
                changed.min(swap).min(rows[i - 1][j] + 1).min(rows[i][j - 1] + 1)
            };
        }
    }
    rows[a.len()][b.len()]
}

#[cfg(test)]
mod tests {
    use super::nearby;

    #[test]
    fn few_letters_make_a_neighbour() {
        let known = ["data", "megatron", "coshard", "replicate"];
        for (word, expect) in [
            ("megatorn", "megatron"),
            ("Megatron", "megatron"),
            ("dat", "data"),
            ("co-shard", "coshard"),
            ("replciate", "replicate"),
            ("zero", ""),
            ("", ""),
        ] {
            assert_eq!(nearby(word, known).join(" "), expect, "{word}");
        }
    }
}
