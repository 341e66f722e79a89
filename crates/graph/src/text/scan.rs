//! One line of text, read from left to right.

use diag::{Error, Result};

#[derive(Clone, Copy)]
pub(super) struct Line<'a> {
    pub(super) number: usize,
    rest: &'a str,
}

impl<'a> Line<'a> {
    pub(super) fn new(number: usize, text: &'a str) -> Self {
        Self { number, rest: text.trim_start_matches(BLANK) }
    }

    pub(super) fn is_empty(&self) -> bool {
        self.rest.is_empty()
    }

    pub(super) fn peek(&self) -> Option<char> {
        self.rest.chars().next()
    }

    pub(super) fn eat(&mut self, mark: &str) -> bool {
        let is_next = self.rest.starts_with(mark);
        if is_next {
            self.advance(mark.len());
        }
        is_next
    }

    pub(super) fn eat_word(&mut self, word: &str) -> bool {
        let mut ahead = *self;
        let is_next = ahead.word() == Some(word);
        if is_next {
            *self = ahead;
        }
        is_next
    }

    pub(super) fn word(&mut self) -> Option<&'a str> {
        self.take(name_length(self.rest))
    }

    /// `%name`, without the mark.
    pub(super) fn tensor(&mut self) -> Option<&'a str> {
        let length = name_length(self.rest.strip_prefix('%')?);
        if length == 0 {
            return None;
        }
        self.take(length + 1).map(|text| &text[1..])
    }

    /// A word that may also hold a leading minus and signed exponents.
    pub(super) fn number(&mut self) -> Option<&'a str> {
        let mut before = ' ';
        let end = self.rest.find(|c| {
            let sign = match before {
                ' ' => c == '-',
                'e' | 'E' => matches!(c, '+' | '-'),
                _ => false,
            };
            before = c;
            !sign && !is_name(c)
        });
        self.take(end.unwrap_or(self.rest.len()))
    }

    pub(super) fn string(&mut self) -> Result<String> {
        if !self.eat_quote() {
            return Err(self.expected("a quoted string"));
        }
        let mut text = String::new();
        loop {
            let end = self.rest.find(|c: char| matches!(c, '"' | '\\') || c < ' ');
            let Some((plain, rest)) = end.map(|end| self.rest.split_at(end)) else {
                return Err(self.refuse("SW0201", "a quoted string does not end on its line"));
            };
            text.push_str(plain);
            self.rest = rest;
            match self.peek() {
                Some('"') => {
                    self.advance(1);
                    return Ok(text);
                }
                Some('\\') => text.push(self.escape()?),
                _ => {
                    let what = "a quoted string holds a control character";
                    return Err(self.refuse("SW0201", what).fix("write it as `\\uXXXX`"));
                }
            }
        }
    }

    pub(super) fn end(&self) -> Result<()> {
        if self.is_empty() { Ok(()) } else { Err(self.expected("the end of the line")) }
    }

    pub(super) fn refuse(&self, code: &'static str, what: impl Into<String>) -> Error {
        Error::new(code, what).at(format!("line {}", self.number))
    }

    pub(super) fn expected(&self, what: &str) -> Error {
        self.refuse("SW0201", format!("expected {what}, found {}", self.shown()))
    }

    fn shown(&self) -> String {
        const MOST: usize = 40;
        let Some(first) = self.peek() else { return "the end of the line".to_owned() };
        let stop = |c: char| c.is_whitespace() || "()[],=\"%".contains(c);
        let rest = self.rest[first.len_utf8()..].chars().take_while(|c| !stop(*c));
        let token = std::iter::once(first).chain(rest).take(MOST);
        let plain = token.map(|c| if c.is_control() { '\u{fffd}' } else { c });
        format!("`{}`", plain.collect::<String>())
    }

    fn eat_quote(&mut self) -> bool {
        let rest = self.rest.strip_prefix('"');
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn escape(&mut self) -> Result<char> {
        let bad = self.refuse("SW0201", "a quoted string holds a bad escape");
        let bad = bad.fix("write `\\\\` for a backslash, and other characters as JSON does");
        let mut chars = self.rest[1..].chars();
        let escaped = match chars.next() {
            Some(c @ ('"' | '\\' | '/')) => Some(c),
            Some('n') => Some('\n'),
            Some('r') => Some('\r'),
            Some('t') => Some('\t'),
            Some('b') => Some('\u{8}'),
            Some('f') => Some('\u{c}'),
            Some('u') => unicode(&mut chars),
            _ => None,
        };
        self.rest = chars.as_str();
        escaped.ok_or(bad)
    }

    fn take(&mut self, length: usize) -> Option<&'a str> {
        let taken = &self.rest[..length];
        self.advance(length);
        (length > 0).then_some(taken)
    }

    fn advance(&mut self, length: usize) {
        self.rest = self.rest[length..].trim_start_matches(BLANK);
    }
}

const BLANK: [char; 2] = [' ', '\t'];

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | '.')
}

fn name_length(text: &str) -> usize {
    text.find(|c| !is_name(c)).unwrap_or(text.len())
}

/// What follows `\u`: one UTF-16 unit, or a pair of surrogates.
fn unicode(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let high = unit(chars)?;
    if !(0xd800..0xdc00).contains(&high) {
        return char::from_u32(high);
    }
    if chars.next()? != '\\' || chars.next()? != 'u' {
        return None;
    }
    let low = unit(chars)?.checked_sub(0xdc00).filter(|low| *low < 0x400)?;
    char::from_u32(0x1_0000 + ((high - 0xd800) << 10) + low)
}

fn unit(chars: &mut std::str::Chars<'_>) -> Option<u32> {
    (0..4).try_fold(0, |value, _| Some(value * 16 + chars.next()?.to_digit(16)?))
}
