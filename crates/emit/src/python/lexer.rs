//! Text to tokens. Lines inside brackets join; comments and empty lines vanish.

use std::borrow::Cow;

use diag::{Error, Result};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum TokenKind {
    Name,
    Int,
    Float,
    /// With its quotes.
    Str,
    Mark,
    Newline,
    Indent,
    Dedent,
    End,
}

#[derive(Clone, Copy, Debug)]
pub(crate) struct Token<'a> {
    pub(crate) kind: TokenKind,
    pub(crate) text: &'a str,
    pub(crate) line: u32,
}

/// What is not in the subset.
pub(crate) fn refuse(file: &str, line: u32, what: impl Into<String>) -> Error {
    Error::new("SW0605", what)
        .at(format!("{file}:{line}"))
        .why("an emitted program is plain assignments and calls, and what is proved is what is read")
        .fix("see docs/reference/emitted-program.md for what may stand there, or compile again")
}

pub(crate) fn tokens<'a>(file: &str, text: &'a str) -> Result<Vec<Token<'a>>> {
    let mut lexer = Lexer {
        file,
        text,
        at: 0,
        line: 1,
        depth: 0,
        indents: vec![0],
        found: Vec::with_capacity(text.len() / 4),
    };
    lexer.refuse_control()?;
    lexer.run()?;
    Ok(lexer.found)
}

struct Lexer<'a, 'f> {
    file: &'f str,
    text: &'a str,
    at: usize,
    line: u32,
    /// Open brackets.
    depth: u32,
    indents: Vec<usize>,
    found: Vec<Token<'a>>,
}

impl<'a> Lexer<'a, '_> {
    fn run(&mut self) -> Result<()> {
        self.begin_line()?;
        while let Some(byte) = self.peek(0) {
            match byte {
                b' ' => self.at += 1,
                b'#' => self.skip_comment(),
                b'\n' => self.end_line()?,
                b'"' => self.string()?,
                b'0'..=b'9' => self.number(),
                b'a'..=b'z' | b'A'..=b'Z' | b'_' => self.name(),
                _ => self.mark()?,
            }
        }
        if self.depth > 0 {
            return Err(refuse(self.file, self.line, "a bracket is not closed"));
        }
        if self.found.last().is_some_and(|t| t.kind != TokenKind::Newline) {
            self.push(TokenKind::Newline, self.at);
        }
        for _ in 1..self.indents.len() {
            self.push(TokenKind::Dedent, self.at);
        }
        self.push(TokenKind::End, self.at);
        Ok(())
    }

    /// Python ends a line, and so a comment, at a carriage return too.
    fn refuse_control(&self) -> Result<()> {
        let Some(at) = self.text.find(|c: char| c.is_control() && c != '\n') else { return Ok(()) };
        let line = self.text[..at].matches('\n').count() + 1;
        let what = "a control character stands in the text";
        Err(refuse(self.file, u32::try_from(line).unwrap_or(u32::MAX), what))
    }

    fn peek(&self, ahead: usize) -> Option<u8> {
        self.text.as_bytes().get(self.at + ahead).copied()
    }

    fn push(&mut self, kind: TokenKind, start: usize) {
        self.found.push(Token { kind, text: &self.text[start..self.at], line: self.line });
    }

    /// Measures the indentation; empty lines and lines of comment do not count.
    fn begin_line(&mut self) -> Result<()> {
        loop {
            let start = self.at;
            while self.peek(0) == Some(b' ') {
                self.at += 1;
            }
            let width = self.at - start;
            match self.peek(0) {
                Some(b'#') => self.skip_comment(),
                Some(b'\n') => {}
                Some(_) => return self.indent(width),
                None => return Ok(()),
            }
            if self.peek(0) == Some(b'\n') {
                self.at += 1;
                self.line += 1;
            }
        }
    }

    fn indent(&mut self, width: usize) -> Result<()> {
        if width > *self.indents.last().unwrap_or(&0) {
            self.indents.push(width);
            self.push(TokenKind::Indent, self.at);
            return Ok(());
        }
        while width < *self.indents.last().unwrap_or(&0) {
            self.indents.pop();
            self.push(TokenKind::Dedent, self.at);
        }
        if width == *self.indents.last().unwrap_or(&0) {
            return Ok(());
        }
        Err(refuse(self.file, self.line, "the indentation fits no line above"))
    }

    fn end_line(&mut self) -> Result<()> {
        self.at += 1;
        if self.depth > 0 {
            self.line += 1;
            return Ok(());
        }
        if self.found.last().is_some_and(|t| t.kind != TokenKind::Newline) {
            self.push(TokenKind::Newline, self.at - 1);
        }
        self.line += 1;
        self.begin_line()
    }

    fn skip_comment(&mut self) {
        let rest = &self.text.as_bytes()[self.at..];
        self.at += rest.iter().position(|b| *b == b'\n').unwrap_or(rest.len());
    }

    fn name(&mut self) {
        let start = self.at;
        while self.peek(0).is_some_and(|b| b.is_ascii_alphanumeric() || b == b'_') {
            self.at += 1;
        }
        self.push(TokenKind::Name, start);
    }

    fn number(&mut self) {
        let start = self.at;
        let mut kind = TokenKind::Int;
        while let Some(byte) = self.peek(0) {
            let exponent = matches!(byte, b'e' | b'E');
            if exponent && matches!(self.peek(1), Some(b'+' | b'-')) {
                self.at += 1;
            }
            if exponent || byte == b'.' {
                kind = TokenKind::Float;
            } else if !byte.is_ascii_digit() {
                break;
            }
            self.at += 1;
        }
        self.push(kind, start);
    }

    fn string(&mut self) -> Result<()> {
        let start = self.at;
        let long = self.text[self.at..].starts_with("\"\"\"");
        let quotes = if long { 3 } else { 1 };
        self.at += quotes;
        let line = self.line;
        loop {
            match self.peek(0) {
                Some(b'\\') => self.at += 1,
                Some(b'"') if !long || self.text[self.at..].starts_with("\"\"\"") => break,
                Some(b'\n') if long => self.line += 1,
                Some(b'\n') | None => return Err(refuse(self.file, line, "a string does not end")),
                _ => {}
            }
            if !self.text.is_char_boundary(self.at + 1) || self.at >= self.text.len() {
                self.at += self.text[self.at..].chars().next().map_or(1, char::len_utf8);
            } else {
                self.at += 1;
            }
        }
        self.at += quotes;
        self.push(TokenKind::Str, start);
        Ok(())
    }

    fn mark(&mut self) -> Result<()> {
        const MARKS: [&str; 30] = [
            "**", "//", "==", "!=", "<=", ">=", "(", ")", "[", "]", "{", "}", ",", ":", ".", "=", "+", "-",
            "*", "/", "%", "@", "~", "<", ">", "&", "|", "(", ")", ",",
        ];
        let rest = &self.text[self.at..];
        let Some(mark) = MARKS.iter().find(|mark| rest.starts_with(**mark)) else {
            let odd = rest.chars().next().unwrap_or(' ').escape_debug();
            return Err(refuse(self.file, self.line, format!("the character `{odd}` does not belong here")));
        };
        match mark.as_bytes()[0] {
            b'(' | b'[' | b'{' => self.depth += 1,
            b')' | b']' | b'}' => self.depth = self.depth.saturating_sub(1),
            _ => {}
        }
        let start = self.at;
        self.at += mark.len();
        self.push(TokenKind::Mark, start);
        Ok(())
    }
}

/// The value of a string token.
pub(crate) fn unescape(token: &str) -> Option<Cow<'_, str>> {
    let quotes = if token.starts_with("\"\"\"") && token.len() >= 6 { 3 } else { 1 };
    let inner = &token[quotes..token.len() - quotes];
    if !inner.contains('\\') {
        return Some(Cow::Borrowed(inner));
    }
    let mut text = String::with_capacity(inner.len());
    let mut chars = inner.chars();
    while let Some(c) = chars.next() {
        text.push(if c == '\\' { escape(&mut chars)? } else { c });
    }
    Some(Cow::Owned(text))
}

fn escape(chars: &mut std::str::Chars<'_>) -> Option<char> {
    let digits = match chars.next()? {
        '\\' => return Some('\\'),
        '"' => return Some('"'),
        'n' => return Some('\n'),
        't' => return Some('\t'),
        'x' => 2,
        'u' => 4,
        'U' => 8,
        _ => return None,
    };
    let text = chars.as_str().get(..digits).filter(|t| t.bytes().all(|b| b.is_ascii_hexdigit()))?;
    *chars = chars.as_str()[digits..].chars();
    char::from_u32(u32::from_str_radix(text, 16).ok()?)
}
