//! The subset of Python in which programs are written: syntax, reading, printing.
//!
//! It knows nothing of programs: only modules of plain functions with assignments, calls,
//! operators, subscripts and literals, conditions and loops.

mod chain;
pub(crate) mod lexer;
pub(crate) mod parser;
pub(crate) mod print;

use std::borrow::Cow;

pub(crate) use chain::Object;

/// An expression. Tuples and lists are one thing: the printer chooses the brackets.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Expr<'a> {
    Name(&'a str),
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Str(Cow<'a, str>),
    List(Vec<Expr<'a>>),
    /// A list in square brackets, whatever it holds. Never read.
    Rows(Vec<Expr<'a>>),
    Attr(Object<'a>, &'a str),
    Index(Object<'a>, Vec<Expr<'a>>),
    /// `start:stop:step`, inside a subscript.
    Slice(Box<[Option<Expr<'a>>; 3]>),
    Call(Box<Call<'a>>),
    /// `-x` or `~x`.
    Unary(char, Box<Expr<'a>>),
    Binary(&'static str, Box<(Expr<'a>, Expr<'a>)>),
    /// `{0}`, `{1:t}`, `{*2}`, `{dtype}`: in templates only.
    Place(Place<'a>),
    /// `*5`: further positional arguments, that many in all. In templates only.
    Rest(usize),
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Call<'a> {
    pub(crate) function: Expr<'a>,
    pub(crate) args: Vec<Expr<'a>>,
    /// In templates, the name `**` stands for further keyword arguments.
    pub(crate) kwargs: Vec<(&'a str, Expr<'a>)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Place<'a> {
    /// A position or the name of a keyword argument.
    pub(crate) key: &'a str,
    pub(crate) kind: char,
    pub(crate) splat: bool,
}

/// A statement, with the line where it was read or the comment that it is printed with.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Stmt<'a> {
    pub(crate) line: u32,
    pub(crate) comment: Option<String>,
    /// What of the model it is about: lines that are alike are about the same of each layer. It is not printed.
    pub(crate) about: Option<String>,
    pub(crate) kind: StmtKind<'a>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) enum StmtKind<'a> {
    /// `unpack` says that the value is a sequence, also if there is one target.
    Assign {
        targets: Vec<&'a str>,
        unpack: bool,
        value: Expr<'a>,
    },
    Expr(Expr<'a>),
    Return(Vec<Expr<'a>>),
    NoGrad(Vec<Stmt<'a>>),
    If(Expr<'a>, Vec<Stmt<'a>>),
    For {
        target: &'a str,
        values: Expr<'a>,
        body: Vec<Stmt<'a>>,
    },
    Yield(Vec<Expr<'a>>),
    /// A line with nothing but a comment.
    Comment,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Function<'a> {
    pub(crate) line: u32,
    pub(crate) name: &'a str,
    pub(crate) params: Vec<&'a str>,
    pub(crate) doc: Vec<String>,
    pub(crate) body: Vec<Stmt<'a>>,
}

impl<'a> Expr<'a> {
    pub(crate) fn attr(self, name: &'a str) -> Self {
        Expr::Attr(Object::new(self), name)
    }

    pub(crate) fn index(self, subscripts: Vec<Expr<'a>>) -> Self {
        Expr::Index(Object::new(self), subscripts)
    }

    pub(crate) fn call(self, args: Vec<Expr<'a>>) -> Self {
        self.call_with(args, vec![])
    }

    pub(crate) fn call_with(self, args: Vec<Expr<'a>>, kwargs: Vec<(&'a str, Expr<'a>)>) -> Self {
        Expr::Call(Box::new(Call { function: self, args, kwargs }))
    }

    /// The name at which a chain of attributes and subscripts begins.
    pub(crate) fn root(&self) -> Option<&'a str> {
        match self.links().0 {
            Expr::Name(name) => Some(name),
            _ => None,
        }
    }

    /// `a.b.c` as text, if it is nothing but names.
    pub(crate) fn dotted(&self) -> Option<Cow<'a, str>> {
        let (Expr::Name(first), links) = self.links() else { return None };
        let mut text = Cow::Borrowed(*first);
        for link in links {
            let Expr::Attr(_, name) = link else { return None };
            let text = text.to_mut();
            text.push('.');
            text.push_str(name);
        }
        Some(text)
    }
}

impl<'a> Stmt<'a> {
    pub(crate) fn new(kind: StmtKind<'a>) -> Self {
        Self { line: 0, comment: None, about: None, kind }
    }

    pub(crate) fn comment(text: impl Into<String>) -> Self {
        Self { comment: Some(text.into()), ..Self::new(StmtKind::Comment) }
    }

    #[must_use]
    pub(crate) fn with(mut self, comment: Option<String>) -> Self {
        self.comment = comment;
        self
    }

    #[must_use]
    pub(crate) fn about(mut self, about: Option<String>) -> Self {
        self.about = about;
        self
    }
}

/// Words that Python keeps for itself.
pub(crate) const KEYWORDS: [&str; 35] = [
    "False", "None", "True", "and", "as", "assert", "async", "await", "break", "class", "continue", "def",
    "del", "elif", "else", "except", "finally", "for", "from", "global", "if", "import", "in", "is",
    "lambda", "nonlocal", "not", "or", "pass", "raise", "return", "try", "while", "with", "yield",
];

/// A name that Python reads as a name. ASCII only: Python folds other letters together.
pub(crate) fn is_identifier(text: &str) -> bool {
    let mut bytes = text.bytes();
    bytes.next().is_some_and(|b| b.is_ascii_alphabetic() || b == b'_')
        && bytes.all(|b| b.is_ascii_alphanumeric() || b == b'_')
        && !KEYWORDS.contains(&text)
}

/// How tightly an operator binds, loosest first; all but `**` group to the left.
pub(crate) fn precedence(operator: &str) -> u8 {
    match operator {
        "==" | "!=" | "<" | "<=" | ">" | ">=" => 1,
        "|" => 2,
        "&" => 4,
        "+" | "-" => 6,
        "*" | "/" | "//" | "%" | "@" => 7,
        _ => 9,
    }
}

/// The operators, longest first so that reading takes as much as it can.
pub(crate) const OPERATORS: [&str; 16] =
    ["**", "//", "==", "!=", "<=", ">=", "<", ">", "|", "&", "+", "-", "*", "/", "%", "@"];

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::parser::template;
    use super::print::flat;
    use super::*;

    const NAMES: [&str; 4] = ["x", "y", "p", "torch"];

    fn expr() -> impl Strategy<Value = Expr<'static>> {
        let leaf = prop_oneof![
            prop::sample::select(&NAMES[..]).prop_map(Expr::Name),
            Just(Expr::None),
            any::<bool>().prop_map(Expr::Bool),
            any::<i64>().prop_map(Expr::Int),
            any::<f64>().prop_filter("it equals itself", |v| !v.is_nan()).prop_map(Expr::Float),
            any::<String>().prop_map(|text| Expr::Str(Cow::Owned(text))),
        ];
        leaf.prop_recursive(5, 40, 4, |inner| {
            let part = prop::option::of(inner.clone());
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Expr::List),
                inner.clone().prop_map(|e| e.attr("weight")),
                (inner.clone(), inner.clone()).prop_map(|(e, i)| e.index(vec![i])),
                (inner.clone(), part.clone(), part.clone(), part)
                    .prop_map(|(e, a, b, c)| e.index(vec![Expr::Slice(Box::new([a, b, c]))])),
                (inner.clone(), prop::collection::vec(inner.clone(), 0..3), inner.clone())
                    .prop_map(|(f, args, value)| f.call_with(args, vec![("dim", value)])),
                inner.clone().prop_map(|e| Expr::Unary('~', Box::new(e))),
                (prop::sample::select(&OPERATORS[..]), inner.clone(), inner)
                    .prop_map(|(operator, a, b)| Expr::Binary(operator, Box::new((a, b)))),
            ]
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn what_prints_parses(expr in expr()) {
            let mut text = String::new();
            flat(&mut text, &expr);
            prop_assert_eq!(template(&text).map_err(|e| e.to_string()), Ok(expr), "{}", text);
        }
    }

    #[test]
    fn precedence_is_python_s() {
        let check = |text: &str| {
            let mut again = String::new();
            flat(&mut again, &template(text).unwrap());
            assert_eq!(again, text);
        };
        ["-x ** -2", "(-x) ** 2", "(-2) ** x", "2 ** x ** y", "(2 ** x) ** y", "x - (y - 1)", "x + y * 2"]
            .into_iter()
            .for_each(check);
        ["x[:, 2:4]", "x[0:, ::2]", "(x + y).sum()", "~x & y | p", "x @ y < 1", "f(x, dim=(1,))", "-(2).bit"]
            .into_iter()
            .for_each(check);
    }
}
