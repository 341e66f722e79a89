//! Paths of modules, and patterns for them: `h.*.mlp`, `h.?.mlp`, `h.{2-5}.mlp`.

/// The modules around a path, outermost first, and itself.
pub(crate) fn enclosing(path: &str) -> impl Iterator<Item = &str> {
    path.match_indices('.').map(|(at, _)| at).chain([path.len()]).map(|end| &path[..end])
}

/// Whether a text is as a pattern says, where `*` is any text, `?` is one without a dot, such as a number in a path, and
/// `{2-5}` one of these numbers.
pub fn glob(pattern: &str, text: &str) -> bool {
    if !pattern.contains(['?', '{']) {
        return fits(pattern, text);
    }
    if pattern.contains('*') {
        return fits_signs(pattern, text);
    }
    // Most differ in an early word: none of the rest is looked at.
    let same = |(word, text): (&str, &str)| word == text || fits_signs(word, text);
    pattern.split('.').count() == text.split('.').count() && pattern.split('.').zip(text.split('.')).all(same)
}

enum Sign {
    Byte(u8),
    Any,
    Word,
    Number(u32, u32),
}

fn signs(pattern: &str) -> Vec<Sign> {
    let mut signs = vec![];
    let mut rest = pattern.as_bytes();
    while let [first, behind @ ..] = rest {
        let (sign, left) = numbers(rest).unwrap_or(match first {
            b'*' => (Sign::Any, behind),
            b'?' => (Sign::Word, behind),
            byte => (Sign::Byte(*byte), behind),
        });
        signs.push(sign);
        rest = left;
    }
    signs
}

/// The sign `{2-5}`, if a pattern begins with one, and what is behind it.
fn numbers(pattern: &[u8]) -> Option<(Sign, &[u8])> {
    let end = pattern.iter().position(|byte| *byte == b'}')?;
    let (from, to) = std::str::from_utf8(pattern[..end].strip_prefix(b"{")?).ok()?.split_once('-')?;
    Some((Sign::Number(from.parse().ok()?, to.parse().ok()?), &pattern[end + 1..]))
}

/// Follows all ends of the text that the pattern so far can have.
fn fits_signs(pattern: &str, text: &str) -> bool {
    let text = text.as_bytes();
    let mut ends = vec![false; text.len() + 1];
    ends[0] = true;
    for sign in signs(pattern) {
        let mut next = vec![false; text.len() + 1];
        next[0] = matches!(sign, Sign::Any) && ends[0];
        for (at, read) in text.iter().enumerate() {
            match sign {
                Sign::Any => next[at + 1] = ends[at + 1] || next[at],
                Sign::Word => next[at + 1] = *read != b'.' && (ends[at] || next[at]),
                Sign::Byte(byte) => next[at + 1] = ends[at] && *read == byte,
                Sign::Number(from, to) if ends[at] => {
                    if let Some((number, end)) = number(text, at) {
                        next[end] |= (from..=to).contains(&number);
                    }
                }
                Sign::Number(..) => {}
            }
        }
        ends = next;
    }
    ends[text.len()]
}

/// The number that begins at a place, if one does, and where it ends.
fn number(text: &[u8], at: usize) -> Option<(u32, usize)> {
    if at > 0 && text[at - 1].is_ascii_digit() {
        return None;
    }
    let end = at + text[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    Some((std::str::from_utf8(&text[at..end]).ok()?.parse().ok()?, end))
}

fn fits(pattern: &str, text: &str) -> bool {
    let mut pieces = pattern.split('*');
    let first = pieces.next().unwrap_or_default();
    let Some(mut rest) = text.strip_prefix(first) else { return false };
    let pieces: Vec<&str> = pieces.collect();
    let Some((last, middle)) = pieces.split_last() else { return rest.is_empty() };
    for piece in middle {
        match rest.find(piece) {
            Some(at) => rest = &rest[at + piece.len()..],
            None => return false,
        }
    }
    rest.len() >= last.len() && rest.ends_with(last)
}

#[cfg(test)]
mod tests {
    use super::glob;

    #[test]
    fn a_star_is_any_text_and_a_question_mark_none_with_a_dot() {
        let fits = ["h.0.mlp", "h.12.mlp", "h.0.mlp.up", "h.mlp"];
        let matched = |pattern: &str| fits.map(|text| glob(pattern, text));
        assert_eq!(matched("h.*mlp"), [true, true, false, true]);
        assert_eq!(matched("h.*"), [true; 4]);
        assert_eq!(matched("h.?"), [false, false, false, true]);
        assert_eq!(matched("h.?.mlp"), [true, true, false, false]);
        assert_eq!(matched("?.*.?"), [true, true, true, false]);
        assert_eq!(matched("*.?.up"), [false, false, true, false]);
        assert!(glob("?", "x") && !glob("?", "") && glob("*?*", "x") && !glob("x?", "x"));
    }

    #[test]
    fn numbers_in_braces_are_one_of_these() {
        let matched = |pattern: &str| [0, 3, 9, 10, 31].map(|layer| glob(pattern, &format!("h.{layer}.mlp")));
        assert_eq!(matched("h.{3-10}.mlp"), [false, true, true, true, false]);
        assert_eq!(matched("*.{3-10}.*"), matched("h.{3-10}.mlp"));
        assert_eq!(matched("h.{3-10}*"), matched("h.{3-10}.mlp"));
        assert_eq!(matched("h.{10-3}.mlp"), [false; 5]);
        assert_eq!(matched("?.{0-99}.?"), [true; 5]);
        assert_eq!(matched("h.{1-3}?mlp"), [false; 5]);
        assert!(!glob("h.1{0-9}", "h.12") && glob("{0-9}x{0-9}", "1x2") && glob("{a-b}", "{a-b}"));
        assert!(!glob("{0-9}", "") && !glob("{0-9}", "99999999999999999999"));
    }

    #[test]
    fn many_signs_take_no_longer() {
        assert!(!glob(&"?*".repeat(200), &"a".repeat(150)));
        assert!(glob(&"?*".repeat(100), &"a".repeat(150)));
    }
}
