//! Tokens to functions, statements and expressions.

use diag::Result;

use super::lexer::{Token, TokenKind, refuse, tokens, unescape};
use super::{Expr, Function, KEYWORDS, OPERATORS, Place, Stmt, StmtKind, precedence};

/// Deeper expressions are refused, so that neither reading nor dropping them exhausts the stack. Names and subscripts that
/// follow each other are not deep: a path goes through as many modules as a model has inside of each other.
const MAX_DEPTH: u32 = 48;
const MAX_CHAIN: u32 = 1000;

/// The only imports that a program has, in this order.
pub(crate) const IMPORTS: [&str; 3] =
    ["import torch", "import torch.nn.functional as F", "from shardwright.runtime import ops"];

/// Reads a module: imports, then functions.
pub(crate) fn module<'a>(file: &str, text: &'a str) -> Result<Vec<Function<'a>>> {
    let mut parser = Parser { file, tokens: tokens(file, text)?, at: 0, depth: 0, template: false };
    let mut functions = vec![];
    while parser.peek().kind != TokenKind::End {
        match parser.peek().text {
            "import" | "from" if functions.is_empty() => parser.import()?,
            _ => functions.push(parser.function()?),
        }
    }
    Ok(functions)
}

/// Reads one expression of a template, in which `{0}` and `*` may stand.
pub(crate) fn template(text: &str) -> Result<Expr<'_>> {
    let mut parser =
        Parser { file: "template", tokens: tokens("template", text)?, at: 0, depth: 0, template: true };
    let expr = parser.expr()?;
    parser.expect_kind(TokenKind::Newline, "the end")?;
    Ok(expr)
}

/// Positional and keyword arguments.
type PyArguments<'a> = (Vec<Expr<'a>>, Vec<(&'a str, Expr<'a>)>);

struct Parser<'a, 'f> {
    file: &'f str,
    tokens: Vec<Token<'a>>,
    at: usize,
    depth: u32,
    template: bool,
}

impl<'a> Parser<'a, '_> {
    fn import(&mut self) -> Result<()> {
        let start = self.peek();
        let mut words = String::new();
        while self.peek().kind != TokenKind::Newline {
            let token = self.next();
            let glued = token.text == "." || words.ends_with('.') || words.is_empty();
            words.push_str(if glued { "" } else { " " });
            words.push_str(token.text);
        }
        self.next();
        if IMPORTS.contains(&words.as_str()) {
            return Ok(());
        }
        Err(refuse(self.file, start.line, format!("`{}` is imported", words.escape_debug())))
    }

    fn function(&mut self) -> Result<Function<'a>> {
        let line = self.peek().line;
        self.expect("def")?;
        let name = self.name()?;
        self.expect("(")?;
        let mut params = vec![];
        while !self.eat(")") {
            params.push(self.name()?);
            if !self.eat(",") && self.peek().text != ")" {
                return Err(self.unexpected("`,` or `)`"));
            }
        }
        self.expect(":")?;
        let doc = self.block_start()?;
        let body = self.block()?;
        Ok(Function { line, name, params, doc, body })
    }

    fn block_start(&mut self) -> Result<Vec<String>> {
        self.expect_kind(TokenKind::Newline, "the end of the line")?;
        self.expect_kind(TokenKind::Indent, "an indented line")?;
        if self.peek().kind != TokenKind::Str {
            return Ok(vec![]);
        }
        let text = unescape(self.next().text).unwrap_or_default();
        self.expect_kind(TokenKind::Newline, "the end of the line")?;
        if self.peek().kind == TokenKind::Dedent {
            return Err(self.unexpected("a statement"));
        }
        Ok(text.lines().map(str::to_owned).collect())
    }

    /// The statements up to the end of the indentation.
    fn block(&mut self) -> Result<Vec<Stmt<'a>>> {
        let mut stmts = vec![];
        while self.peek().kind != TokenKind::Dedent {
            self.statement(&mut stmts)?;
        }
        self.next();
        Ok(stmts)
    }

    fn statement(&mut self, stmts: &mut Vec<Stmt<'a>>) -> Result<()> {
        let Token { line, text, kind } = self.peek();
        if kind == TokenKind::Name && matches!(text, "with" | "if" | "for") {
            return self.compound(stmts);
        }
        let kind = if self.eat("pass") {
            self.expect_kind(TokenKind::Newline, "the end of the line")?;
            return Ok(());
        } else if self.eat("return") {
            let bare = self.peek().kind == TokenKind::Newline;
            StmtKind::Return(if bare { vec![] } else { self.results()? })
        } else if self.eat("yield") {
            StmtKind::Yield(self.results()?)
        } else {
            self.assignment()?
        };
        self.expect_kind(TokenKind::Newline, "the end of the line")?;
        stmts.push(Stmt { line, comment: None, about: None, kind });
        Ok(())
    }

    /// A statement with statements below it.
    fn compound(&mut self, stmts: &mut Vec<Stmt<'a>>) -> Result<()> {
        let line = self.peek().line;
        let kind = match self.next().text {
            "if" => {
                let condition = self.expr()?;
                StmtKind::If(condition, self.below()?)
            }
            "for" => {
                let target = self.name()?;
                self.expect("in")?;
                let values = self.expr()?;
                StmtKind::For { target, values, body: self.below()? }
            }
            _ => {
                for part in ["torch", ".", "no_grad", "(", ")"] {
                    self.expect(part)?;
                }
                StmtKind::NoGrad(self.below()?)
            }
        };
        stmts.push(Stmt { line, comment: None, about: None, kind });
        Ok(())
    }

    /// A colon, and the statements that are indented below it.
    fn below(&mut self) -> Result<Vec<Stmt<'a>>> {
        self.expect(":")?;
        self.nested(|parser| {
            parser.expect_kind(TokenKind::Newline, "the end of the line")?;
            parser.expect_kind(TokenKind::Indent, "an indented line")?;
            parser.block()
        })
    }

    /// What a function returns: `x`, `x, y`, or `(x, y)`, which is the same.
    fn results(&mut self) -> Result<Vec<Expr<'a>>> {
        let parenthesis = self.peek().text == "(";
        let (mut all, trailing) = self.exprs()?;
        let wrapped = parenthesis && all.len() == 1 && !trailing;
        match all.pop() {
            Some(Expr::List(items)) if wrapped => Ok(items),
            last => {
                all.extend(last);
                Ok(all)
            }
        }
    }

    /// Expressions with commas between; says whether a comma follows the last one.
    fn exprs(&mut self) -> Result<(Vec<Expr<'a>>, bool)> {
        let mut all = vec![self.expr()?];
        while self.eat(",") {
            if matches!(self.peek().text, "=" | "\n" | "") {
                return Ok((all, true));
            }
            all.push(self.expr()?);
        }
        Ok((all, false))
    }

    fn assignment(&mut self) -> Result<StmtKind<'a>> {
        let (mut left, trailing) = self.exprs()?;
        if !self.eat("=") {
            if left.len() > 1 || trailing {
                return Err(self.unexpected("`=`"));
            }
            return Ok(StmtKind::Expr(left.swap_remove(0)));
        }
        let mut unpack = trailing || left.len() > 1;
        if let [Expr::List(items)] = left.as_mut_slice() {
            left = std::mem::take(items);
            unpack = true;
        }
        let mut targets = Vec::with_capacity(left.len());
        for target in left {
            let Expr::Name(name) = target else {
                return Err(self.refuse("something other than a name is assigned to"));
            };
            targets.push(name);
        }
        Ok(StmtKind::Assign { targets, unpack, value: self.expr()? })
    }

    fn expr(&mut self) -> Result<Expr<'a>> {
        self.nested(|parser| parser.binary(0))
    }

    fn binary(&mut self, above: u8) -> Result<Expr<'a>> {
        let mut left = self.unary()?;
        for _ in 0..MAX_CHAIN {
            let token = self.peek();
            let candidate =
                OPERATORS.iter().find(|o| **o == token.text).filter(|_| token.kind == TokenKind::Mark);
            let Some(operator) = candidate.filter(|o| precedence(o) > above) else { return Ok(left) };
            self.next();
            let tight = precedence(operator);
            let right = self.nested(|parser| parser.binary(tight))?;
            left = Expr::Binary(operator, Box::new((left, right)));
            if tight == 1 && OPERATORS[2..8].contains(&self.peek().text) {
                return Err(self.unexpected("one comparison only"));
            }
        }
        Err(self.refuse(format!("an expression has more than {MAX_CHAIN} operators")))
    }

    fn unary(&mut self) -> Result<Expr<'a>> {
        let token = self.peek();
        if token.kind != TokenKind::Mark || !matches!(token.text, "-" | "~") {
            return self.power();
        }
        self.next();
        let digits = self.peek();
        if token.text == "-" && digits.kind == TokenKind::Int && digits.text == "9223372036854775808" {
            self.next();
            return Ok(Expr::Int(i64::MIN));
        }
        let operand = self.nested(Self::unary)?;
        Ok(match (token.text, operand) {
            ("-", Expr::Int(value)) if value != i64::MIN => Expr::Int(-value),
            ("-", Expr::Float(value)) => Expr::Float(-value),
            ("-", operand) => Expr::Unary('-', Box::new(operand)),
            (_, operand) => Expr::Unary('~', Box::new(operand)),
        })
    }

    /// `**` binds tighter than a sign on its left and looser than one on its right.
    fn power(&mut self) -> Result<Expr<'a>> {
        let base = self.postfix()?;
        if self.peek().kind != TokenKind::Mark || !self.eat("**") {
            return Ok(base);
        }
        if self.template && self.peek().text == ")" {
            return Err(self.unexpected("an operand"));
        }
        let power = self.nested(Self::unary)?;
        Ok(Expr::Binary("**", Box::new((base, power))))
    }

    fn postfix(&mut self) -> Result<Expr<'a>> {
        let mut expr = self.atom()?;
        let outer = self.depth;
        loop {
            let token = self.peek();
            if token.kind != TokenKind::Mark || !matches!(token.text, "." | "(" | "[") {
                self.depth = outer;
                return Ok(expr);
            }
            self.next();
            expr = match token.text {
                "." => expr.attr(self.attribute()?),
                "[" => expr.index(self.subscripts()?),
                _ => {
                    self.depth += 1;
                    if self.depth > MAX_DEPTH {
                        return Err(self.too_deep());
                    }
                    let (args, kwargs) = self.arguments()?;
                    fold_float(expr.call_with(args, kwargs))
                }
            };
        }
    }

    fn attribute(&mut self) -> Result<&'a str> {
        self.name()
    }

    fn subscripts(&mut self) -> Result<Vec<Expr<'a>>> {
        let mut all = vec![];
        loop {
            all.push(self.subscript()?);
            if self.eat("]") {
                return Ok(all);
            }
            self.expect(",")?;
        }
    }

    fn subscript(&mut self) -> Result<Expr<'a>> {
        let mut parts = [None, None, None];
        for part in 0..3 {
            if !matches!(self.peek().text, ":" | "," | "]") {
                parts[part] = Some(self.expr()?);
            }
            if part == 2 || !self.eat(":") {
                if part > 0 {
                    break;
                }
                return parts[0].take().ok_or_else(|| self.unexpected("a subscript"));
            }
        }
        Ok(Expr::Slice(Box::new(parts)))
    }

    fn arguments(&mut self) -> Result<PyArguments<'a>> {
        let (mut args, mut kwargs): (Vec<_>, Vec<(&str, Expr<'a>)>) = (vec![], vec![]);
        while !self.eat(")") {
            if self.template && self.peek().kind == TokenKind::Mark && matches!(self.peek().text, "*" | "**")
            {
                self.rest(&mut args, &mut kwargs)?;
            } else if self.tokens.get(self.at + 1).is_some_and(|t| t.text == "=" && t.kind == TokenKind::Mark)
            {
                let name = self.name()?;
                self.expect("=")?;
                if kwargs.iter().any(|(other, _)| *other == name) {
                    return Err(self.refuse(format!("the argument `{name}` is given twice")));
                }
                kwargs.push((name, self.expr()?));
            } else if kwargs.is_empty() {
                args.push(self.expr()?);
            } else {
                return Err(self.refuse("a positional argument follows a keyword argument"));
            }
            if !self.eat(",") && self.peek().text != ")" {
                return Err(self.unexpected("`,` or `)`"));
            }
        }
        Ok((args, kwargs))
    }

    fn rest(&mut self, args: &mut Vec<Expr<'a>>, kwargs: &mut Vec<(&'a str, Expr<'a>)>) -> Result<()> {
        if self.eat("**") {
            kwargs.push(("**", Expr::None));
            return Ok(());
        }
        self.next();
        let most = self.expect_kind(TokenKind::Int, "the most arguments")?.text.parse().unwrap_or(0);
        args.push(Expr::Rest(most));
        Ok(())
    }

    fn atom(&mut self) -> Result<Expr<'a>> {
        let token = self.next();
        match (token.kind, token.text) {
            (TokenKind::Name, "None") => Ok(Expr::None),
            (TokenKind::Name, "True") => Ok(Expr::Bool(true)),
            (TokenKind::Name, "False") => Ok(Expr::Bool(false)),
            (TokenKind::Name, word) if !KEYWORDS.contains(&word) => Ok(Expr::Name(word)),
            (TokenKind::Int, text) => self.int(text),
            (TokenKind::Float, text) => self.float(text),
            (TokenKind::Str, text) => match unescape(text) {
                Some(text) => Ok(Expr::Str(text)),
                None => Err(self.refuse("a string holds an escape that is not read")),
            },
            (TokenKind::Mark, "(") => self.parenthesis(),
            (TokenKind::Mark, "[") => Ok(Expr::List(self.items("]")?.0)),
            (TokenKind::Mark, "{") if self.template => self.place(),
            _ => {
                self.at -= 1;
                Err(self.unexpected("an expression"))
            }
        }
    }

    fn int(&self, text: &str) -> Result<Expr<'a>> {
        let plain = text == "0" || !text.starts_with('0');
        let value = text.parse().ok().filter(|_| plain);
        value.map(Expr::Int).ok_or_else(|| self.refuse(format!("`{text}` is not a number of 64 bits")))
    }

    fn float(&self, text: &str) -> Result<Expr<'a>> {
        let value = text.parse().ok().filter(|v: &f64| v.is_finite());
        value.map(Expr::Float).ok_or_else(|| self.refuse(format!("`{text}` is not a number")))
    }

    fn parenthesis(&mut self) -> Result<Expr<'a>> {
        let (mut items, comma) = self.items(")")?;
        if items.len() == 1 && !comma {
            return Ok(items.swap_remove(0));
        }
        Ok(Expr::List(items))
    }

    fn items(&mut self, close: &str) -> Result<(Vec<Expr<'a>>, bool)> {
        let (mut items, mut comma) = (vec![], false);
        while !self.eat(close) {
            items.push(self.expr()?);
            comma = self.eat(",");
            if !comma && self.peek().text != close {
                return Err(self.unexpected(&format!("`,` or `{close}`")));
            }
        }
        Ok((items, comma))
    }

    fn place(&mut self) -> Result<Expr<'a>> {
        let splat = self.eat("*");
        let key = self.next().text;
        let kind = if self.eat(":") { self.next().text.chars().next().unwrap_or('a') } else { 'a' };
        self.expect("}")?;
        Ok(Expr::Place(Place { key, kind, splat }))
    }

    fn name(&mut self) -> Result<&'a str> {
        let token = self.peek();
        if token.kind != TokenKind::Name || KEYWORDS.contains(&token.text) {
            return Err(self.unexpected("a name"));
        }
        Ok(self.next().text)
    }

    fn peek(&self) -> Token<'a> {
        self.tokens[self.at.min(self.tokens.len() - 1)]
    }

    fn next(&mut self) -> Token<'a> {
        let token = self.peek();
        self.at += 1;
        token
    }

    fn eat(&mut self, text: &str) -> bool {
        let is_next =
            self.peek().text == text && matches!(self.peek().kind, TokenKind::Mark | TokenKind::Name);
        self.at += usize::from(is_next);
        is_next
    }

    fn expect(&mut self, text: &str) -> Result<()> {
        if self.eat(text) { Ok(()) } else { Err(self.unexpected(&format!("`{text}`"))) }
    }

    fn expect_kind(&mut self, kind: TokenKind, what: &str) -> Result<Token<'a>> {
        if self.peek().kind == kind { Ok(self.next()) } else { Err(self.unexpected(what)) }
    }

    fn nested<T>(&mut self, read: impl FnOnce(&mut Self) -> Result<T>) -> Result<T> {
        if self.depth >= MAX_DEPTH {
            return Err(self.too_deep());
        }
        self.depth += 1;
        let result = read(self);
        self.depth -= 1;
        result
    }

    fn too_deep(&self) -> diag::Error {
        self.refuse(format!("an expression is more than {MAX_DEPTH} deep"))
    }

    fn refuse(&self, what: impl Into<String>) -> diag::Error {
        refuse(self.file, self.peek().line, what)
    }

    fn unexpected(&self, wanted: &str) -> diag::Error {
        let token = self.peek();
        let actual: String = match token.kind {
            TokenKind::Newline => "the end of the line".to_owned(),
            TokenKind::End => "the end of the file".to_owned(),
            TokenKind::Indent => "more indentation".to_owned(),
            TokenKind::Dedent => "less indentation".to_owned(),
            _ => format!("`{}`", token.text.chars().take(40).collect::<String>().escape_debug()),
        };
        self.refuse(format!("expected {wanted}, found {actual}"))
    }
}

/// `float("inf")` is how Python writes a number that has no literal.
fn fold_float(call: Expr<'_>) -> Expr<'_> {
    if let Expr::Call(inner) = &call {
        if inner.function == Expr::Name("float") && inner.kwargs.is_empty() {
            let value = match inner.args.as_slice() {
                [Expr::Str(text)] => match text.as_ref() {
                    "inf" => Some(f64::INFINITY),
                    "-inf" => Some(f64::NEG_INFINITY),
                    "nan" => Some(f64::NAN),
                    _ => None,
                },
                _ => None,
            };
            return value.map_or(call, Expr::Float);
        }
    }
    call
}
