//! Writes a source file again with all of its mutants in it, each behind a switch.
//!
//! A condition is made true or false where the other does not follow: `a && b` as a whole false, `a` true, `b`
//! true. That leaves nothing to find for `==` as `!=`, `&&` as `||` or a `!` that is left out. Bounds are moved by
//! one, arithmetic is another, statements and arms are left out, functions return something simple at once, and an
//! `Err(_)` becomes `Ok(())`. Nothing is written twice, so what is nested does not multiply.

use std::collections::BTreeSet;

use proc_macro2::TokenStream;
use quote::{ToTokens, quote};
use syn::spanned::Spanned;
use syn::visit_mut::{self, VisitMut};
use syn::{BinOp, Block, Expr, ImplItemFn, ItemFn, Lit, Pat, ReturnType, Signature, Stmt, UnOp, parse_quote};

#[derive(Clone, Debug)]
pub struct Mutant {
    pub number: u32,
    pub file: String,
    pub line: usize,
    pub function: String,
    /// What is there, and what is in its place.
    pub change: String,
    /// Whether it plainly makes the check accept more.
    pub opens: bool,
}

impl Mutant {
    /// What it is called where it is listed: lines of a file move.
    pub fn name(&self) -> String {
        format!("{} | {} | {}", self.file, self.function, self.change)
    }
}

/// The text of a file with mutants, which are added to the list. Those of `broken` do not compile.
pub fn plant(file: &str, text: &str, mutants: &mut Vec<Mutant>, broken: &BTreeSet<u32>) -> String {
    let mut source = syn::parse_file(text).expect("it parses");
    let context = Context::default();
    Planter { file, mutants, broken, path: vec![], context }.visit_file_mut(&mut source);
    prettyplease::unparse(&source)
}

/// Types whose functions only make words, or only show something.
const WORDS: [&str; 6] = ["String", "Fault", "Error", "fmt::Result", "&'staticstr", "&str"];
const SHOWING: [&str; 3] = ["Display", "Debug", "From"];
/// Methods that take a condition.
const ASKING: [&str; 11] = [
    "all",
    "any",
    "filter",
    "find",
    "is_none_or",
    "is_some_and",
    "partition",
    "position",
    "retain",
    "skip_while",
    "take_while",
];
/// What a branch that refuses something has in it.
const REFUSING: [&str; 6] = ["Err (", "refuse", "Fault ::", "faults", "return None", "Verdict ::"];

#[derive(Clone, Copy, Default)]
struct Context {
    /// The function returns `Result<(), _>`.
    can_be_ok: bool,
    /// What follows if the condition holds refuses something.
    guards: bool,
    /// The condition may be a reference to one.
    may_refer: bool,
}

struct At {
    line: usize,
    text: String,
}

struct Planter<'p> {
    file: &'p str,
    mutants: &'p mut Vec<Mutant>,
    broken: &'p BTreeSet<u32>,
    path: Vec<String>,
    context: Context,
}

impl Planter<'_> {
    /// A new mutant: the expression that says whether it runs, unless it does not compile.
    fn mutant(&mut self, at: &At, to: &str, opens: bool) -> Option<TokenStream> {
        let number = self.mutants.len() as u32 + 1;
        let (file, function) = (self.file.to_string(), self.path.join("::"));
        let mut change = format!("{} => {to}", at.text);
        let same = |m: &&Mutant| m.file == file && m.function == function && m.change.starts_with(&change);
        let before = self.mutants.iter().filter(same).count();
        if before > 0 {
            change += &format!(" #{}", before + 1);
        }
        self.mutants.push(Mutant { number, file, line: at.line, function, change, opens });
        (!self.broken.contains(&number)).then(|| quote!(::switch::on(#number)))
    }

    /// What says a condition, made true and false as asked.
    fn condition(&mut self, expr: &mut Expr, can_be_true: bool, can_be_false: bool) {
        let at = at(expr);
        match expr {
            Expr::Paren(inner) => self.condition(&mut inner.expr, can_be_true, can_be_false),
            Expr::Unary(not) if matches!(not.op, UnOp::Not(_)) => {
                let guards = std::mem::take(&mut self.context.guards);
                self.context.may_refer = true;
                self.condition(&mut not.expr, can_be_false, can_be_true);
                self.context.guards = guards;
            }
            Expr::Binary(both) if matches!(both.op, BinOp::And(_) | BinOp::Or(_)) => {
                let is_and = matches!(both.op, BinOp::And(_));
                self.condition(&mut both.left, is_and, !is_and);
                self.condition(&mut both.right, is_and, !is_and);
                let has_let = has_let(expr);
                self.force(expr, &at, can_be_true && !is_and, can_be_false && is_and && !has_let);
            }
            Expr::Let(bound) => self.visit_expr_mut(&mut bound.expr),
            Expr::Lit(_) => {}
            Expr::Block(block) if block.block.stmts.len() > 1 => {
                let last = block.block.stmts.pop();
                self.visit_block_mut(&mut block.block);
                block.block.stmts.extend(last);
                if let Some(Stmt::Expr(last, None)) = block.block.stmts.last_mut() {
                    self.condition(last, can_be_true, can_be_false);
                }
            }
            _ => {
                self.context.may_refer &= matches!(expr, Expr::Path(_));
                if !self.comparison(expr, &at) {
                    visit_mut::visit_expr_mut(self, expr);
                }
                self.force(expr, &at, can_be_true, can_be_false);
            }
        }
    }

    fn force(&mut self, expr: &mut Expr, at: &At, can_be_true: bool, can_be_false: bool) {
        let guards = self.context.guards;
        if std::mem::take(&mut self.context.may_refer) && matches!(expr, Expr::Path(_)) {
            *expr = parse_quote!(#expr.clone());
        }
        if can_be_true && let Some(on) = self.mutant(at, "true", false) {
            *expr = parse_quote!((#on || (#expr)));
        }
        if can_be_false && let Some(on) = self.mutant(at, "false", guards) {
            *expr = parse_quote!((!#on && (#expr)));
        }
    }

    /// The condition of an `if` or a `while`, which may bind names.
    fn guard(&mut self, condition: &mut Expr, can_be_true: bool) {
        let at = at(condition);
        let has_let = has_let(condition);
        self.condition(condition, can_be_true, !has_let);
        if has_let && let Some(on) = self.mutant(&at, "false", self.context.guards) {
            let first = leftmost(condition);
            let old = std::mem::replace(first, Expr::Verbatim(TokenStream::new()));
            *first = Expr::Binary(syn::ExprBinary {
                attrs: vec![],
                left: Box::new(parse_quote!(!#on)),
                op: BinOp::And(Default::default()),
                right: Box::new(old),
            });
        }
    }

    /// Operands, and a bound moved by one. `false` if it is no comparison.
    fn comparison(&mut self, expr: &mut Expr, at: &At) -> bool {
        let Expr::Binary(binary) = expr else { return false };
        let moved: BinOp = match binary.op {
            BinOp::Eq(_) | BinOp::Ne(_) => {
                visit_mut::visit_expr_binary_mut(self, binary);
                return true;
            }
            BinOp::Lt(_) => parse_quote!(<=),
            BinOp::Le(_) => parse_quote!(<),
            BinOp::Gt(_) => parse_quote!(>=),
            BinOp::Ge(_) => parse_quote!(>),
            _ => return false,
        };
        visit_mut::visit_expr_binary_mut(self, binary);
        if let Some(on) = self.mutant(at, &moved.to_token_stream().to_string(), false) {
            let syn::ExprBinary { left, op, right, .. } = &binary;
            *expr = parse_quote!((match (&(#left), &(#right)) {
                (__l, __r) => if #on { *__l #moved *__r } else { *__l #op *__r }
            }));
        }
        true
    }

    fn arithmetic(&mut self, expr: &mut Expr) {
        let at = at(expr);
        let Expr::Binary(binary) = expr else { return };
        visit_mut::visit_expr_binary_mut(self, binary);
        let other: BinOp = match binary.op {
            BinOp::Add(_) => parse_quote!(-),
            BinOp::Sub(_) | BinOp::Mul(_) => parse_quote!(+),
            BinOp::Div(_) => parse_quote!(*),
            BinOp::Rem(_) => parse_quote!(/),
            _ => return,
        };
        if let Some(on) = self.mutant(&at, &other.to_token_stream().to_string(), false) {
            let syn::ExprBinary { left, op, right, .. } = &binary;
            *expr = parse_quote!(({
                let (__l, __r) = (#left, #right);
                if #on { __l #other __r } else { __l #op __r }
            }));
        }
    }

    fn literal(&mut self, expr: &mut Expr) {
        let at = at(expr);
        let Expr::Lit(literal) = &expr else { return };
        match &literal.lit {
            Lit::Bool(known) => {
                let (known, other) = (known.value, !known.value);
                if let Some(on) = self.mutant(&at, &other.to_string(), false) {
                    *expr = parse_quote!((#on != #known));
                }
            }
            Lit::Int(known) => {
                let Ok(value) = known.base10_parse::<u64>() else { return };
                let other = if value == 1 { 0 } else { value + 1 };
                let other = syn::LitInt::new(&format!("{other}{}", known.suffix()), known.span());
                if let Some(on) = self.mutant(&at, &other.to_string(), false) {
                    *expr = parse_quote!((if #on { #other } else { #known }));
                }
            }
            _ => {}
        }
    }

    /// The greater in place of the less.
    fn extreme(&mut self, expr: &mut Expr, at: &At) {
        let Expr::MethodCall(call) = expr else { return };
        let other = match &call.method.to_string()[..] {
            "min" if call.args.len() == 1 => quote!(max),
            "max" if call.args.len() == 1 => quote!(min),
            _ => return,
        };
        if let Some(on) = self.mutant(at, &other.to_string(), false) {
            let (receiver, method, argument) = (&call.receiver, &call.method, &call.args[0]);
            *expr = parse_quote!(({
                let (__l, __r) = (#receiver, #argument);
                if #on { __l.#other(__r) } else { __l.#method(__r) }
            }));
        }
    }

    /// A function, and what it returns at once in its mutants.
    fn function(&mut self, signature: &Signature, block: &mut Block) {
        let returns = match &signature.output {
            ReturnType::Default => String::new(),
            ReturnType::Type(_, of) => of.to_token_stream().to_string().replace(' ', ""),
        };
        if signature.constness.is_some() || WORDS.contains(&&returns[..]) {
            return;
        }
        self.path.push(signature.ident.to_string());
        let outer = std::mem::take(&mut self.context);
        self.context.can_be_ok = returns.starts_with("Result<(),");
        let at = At { line: signature.ident.span().start().line, text: "the body".into() };
        let is_condition = matches!(&block.stmts[..], [Stmt::Expr(Expr::Binary(_) | Expr::Unary(_), None)]);
        self.visit_block_mut(block);
        let values = if is_condition { &[] } else { simple(&returns) };
        for value in values {
            if let Some(on) = self.mutant(&at, if value.is_empty() { "nothing" } else { value }, opens(value))
            {
                let value: TokenStream = value.parse().expect("an expression");
                block.stmts.insert(0, parse_quote!(if #on { return #value; }));
            }
        }
        self.context = outer;
        self.path.pop();
    }
}

/// What a function of this type can return at once.
fn simple(returns: &str) -> &'static [&'static str] {
    let begins = |with: &str| returns.starts_with(with);
    match returns {
        "" => &[""],
        "bool" => &["true", "false"],
        "u8" | "u32" | "u64" | "usize" | "i64" | "ShareId" | "ListId" => &["0", "1"],
        "Verdict" => &["Verdict::Complete"],
        _ if begins("Result<(),") => &["Ok(())"],
        _ if begins("Result<bool,") => &["Ok(true)", "Ok(false)"],
        _ if begins("Result<ShareId,") => &["Ok(0)", "Ok(1)"],
        _ if begins("Result<Option<") => &["Ok(None)"],
        _ if begins("Result<Vec<") => &["Ok(vec![])"],
        _ if begins("Option<") => &["None"],
        _ if begins("Vec<") => &["vec![]"],
        _ if ["BTreeSet<", "BTreeMap<", "Map<"].iter().any(|with| begins(with)) => &["Default::default()"],
        _ => &[],
    }
}

/// Whether a function that returns this has nothing to say against anything.
fn opens(value: &str) -> bool {
    ["", "true", "Verdict::Complete", "None"].contains(&value) || value.starts_with("Ok(")
}

fn at(tokens: &impl ToTokens) -> At {
    let span = tokens.span();
    let text = span.source_text().unwrap_or_else(|| tokens.to_token_stream().to_string());
    let mut text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = text.char_indices().nth(90) {
        text.truncate(end);
        text += "...";
    }
    At { line: span.start().line, text }
}

fn has_let(expr: &Expr) -> bool {
    match expr {
        Expr::Let(_) => true,
        Expr::Binary(both) if matches!(both.op, BinOp::And(_)) => has_let(&both.left) || has_let(&both.right),
        _ => false,
    }
}

fn leftmost(expr: &mut Expr) -> &mut Expr {
    if matches!(expr, Expr::Binary(both) if matches!(both.op, BinOp::And(_))) {
        let Expr::Binary(both) = expr else { unreachable!("it is binary") };
        return leftmost(&mut both.left);
    }
    expr
}

fn is_assignment(op: &BinOp) -> bool {
    op.to_token_stream().to_string().ends_with('=')
        && !matches!(op, BinOp::Eq(_) | BinOp::Ne(_) | BinOp::Le(_) | BinOp::Ge(_))
}

/// Whether an arm is for whatever no other one takes.
fn takes_all(arm: &syn::Arm) -> bool {
    let any = match &arm.pat {
        Pat::Wild(_) => true,
        Pat::Ident(name) => name.ident.to_string().starts_with(char::is_lowercase),
        _ => false,
    };
    any && arm.guard.is_none()
}

fn refuses(tokens: &impl ToTokens) -> bool {
    let text = tokens.to_token_stream().to_string();
    REFUSING.iter().any(|word| text.contains(word))
}

impl VisitMut for Planter<'_> {
    fn visit_expr_mut(&mut self, expr: &mut Expr) {
        let at = at(expr);
        match expr {
            Expr::Binary(binary) if is_assignment(&binary.op) => self.visit_expr_mut(&mut binary.right),
            Expr::Binary(binary) => match binary.op {
                BinOp::Add(_) | BinOp::Sub(_) | BinOp::Mul(_) | BinOp::Div(_) | BinOp::Rem(_) => {
                    self.arithmetic(expr)
                }
                BinOp::And(_)
                | BinOp::Or(_)
                | BinOp::Eq(_)
                | BinOp::Ne(_)
                | BinOp::Lt(_)
                | BinOp::Le(_)
                | BinOp::Gt(_)
                | BinOp::Ge(_) => {
                    let guards = std::mem::take(&mut self.context.guards);
                    self.condition(expr, true, true);
                    self.context.guards = guards;
                }
                _ => visit_mut::visit_expr_mut(self, expr),
            },
            Expr::Unary(unary) if matches!(unary.op, UnOp::Not(_)) => self.condition(expr, true, true),
            Expr::Lit(_) => self.literal(expr),
            Expr::If(choice) => {
                let outer = std::mem::replace(&mut self.context.guards, refuses(&choice.then_branch));
                self.guard(&mut choice.cond, true);
                self.context.guards = outer;
                self.visit_block_mut(&mut choice.then_branch);
                if let Some((_, other)) = &mut choice.else_branch {
                    self.visit_expr_mut(other);
                }
            }
            Expr::While(repeat) => {
                self.guard(&mut repeat.cond, false);
                self.visit_block_mut(&mut repeat.body);
            }
            Expr::Closure(closure) => {
                let outer = std::mem::take(&mut self.context);
                self.visit_expr_mut(&mut closure.body);
                self.context = outer;
            }
            Expr::Match(choice) => {
                self.visit_expr_mut(&mut choice.expr);
                let last = choice.arms.len() - 1;
                let takes_all = takes_all(&choice.arms[last]);
                for (index, arm) in choice.arms.iter_mut().enumerate() {
                    self.arm(arm, takes_all && index < last);
                }
            }
            Expr::MethodCall(call) => {
                let name = call.method.to_string();
                match call.args.last_mut() {
                    Some(Expr::Closure(closure)) if ASKING.contains(&&name[..]) => {
                        self.visit_expr_mut(&mut call.receiver);
                        let outer = std::mem::take(&mut self.context);
                        self.condition(&mut closure.body, true, true);
                        self.context = outer;
                    }
                    _ if name == "then" || name == "then_some" => {
                        self.context.may_refer = true;
                        self.condition(&mut call.receiver, true, true);
                        call.args.iter_mut().for_each(|argument| self.visit_expr_mut(argument));
                    }
                    _ => visit_mut::visit_expr_method_call_mut(self, call),
                }
                self.extreme(expr, &at);
            }
            Expr::Repeat(repeat) => self.visit_expr_mut(&mut repeat.expr),
            Expr::Const(_) | Expr::Macro(_) => {}
            _ => visit_mut::visit_expr_mut(self, expr),
        }
    }

    fn visit_block_mut(&mut self, block: &mut Block) {
        for stmt in &mut block.stmts {
            let at = at(stmt);
            self.visit_stmt_mut(stmt);
            let Stmt::Expr(expr, Some(_)) = stmt else { continue };
            let whole = match expr {
                Expr::Call(_) | Expr::MethodCall(_) | Expr::Try(_) | Expr::Assign(_) => true,
                Expr::Binary(binary) => is_assignment(&binary.op),
                _ => false,
            };
            let opens = matches!(expr, Expr::Try(_)) || refuses(expr);
            if whole && let Some(on) = self.mutant(&at, "nothing", opens) {
                *stmt = parse_quote!(if !#on { #expr; });
            }
        }
    }

    fn visit_item_fn_mut(&mut self, item: &mut ItemFn) {
        self.function(&item.sig, &mut item.block);
    }

    fn visit_impl_item_fn_mut(&mut self, item: &mut ImplItemFn) {
        self.function(&item.sig, &mut item.block);
    }

    fn visit_item_impl_mut(&mut self, item: &mut syn::ItemImpl) {
        let shows = |path: &syn::Path| {
            path.segments.last().is_some_and(|last| SHOWING.iter().any(|name| last.ident == name))
        };
        if item.trait_.as_ref().is_some_and(|(_, path, _)| shows(path)) {
            return;
        }
        let of = item.self_ty.to_token_stream().to_string();
        self.path.push(of.split([' ', '<']).next().unwrap_or_default().to_string());
        visit_mut::visit_item_impl_mut(self, item);
        self.path.pop();
    }

    fn visit_item_mod_mut(&mut self, _: &mut syn::ItemMod) {}
    fn visit_item_macro_mut(&mut self, _: &mut syn::ItemMacro) {}
    fn visit_item_const_mut(&mut self, _: &mut syn::ItemConst) {}
    fn visit_item_static_mut(&mut self, _: &mut syn::ItemStatic) {}
    fn visit_item_enum_mut(&mut self, _: &mut syn::ItemEnum) {}
    fn visit_impl_item_const_mut(&mut self, _: &mut syn::ImplItemConst) {}
    fn visit_pat_mut(&mut self, _: &mut Pat) {}
    fn visit_type_mut(&mut self, _: &mut syn::Type) {}
    fn visit_path_mut(&mut self, _: &mut syn::Path) {}
    fn visit_attribute_mut(&mut self, _: &mut syn::Attribute) {}
}

impl Planter<'_> {
    /// An arm of a `match`, left out where others take what it took.
    fn arm(&mut self, arm: &mut syn::Arm, spare: bool) {
        let pattern = at(&arm.pat);
        let body = at(&arm.body);
        let outer = std::mem::replace(&mut self.context.guards, refuses(&arm.body));
        if let Some((_, guard)) = &mut arm.guard {
            self.condition(guard, true, !spare);
        }
        self.context.guards = outer;
        self.visit_expr_mut(&mut arm.body);
        if spare && let Some(on) = self.mutant(&pattern, "no arm", refuses(&arm.body)) {
            let guard = match arm.guard.take() {
                Some((_, guard)) => parse_quote!(!#on && #guard),
                None => parse_quote!(!#on),
            };
            arm.guard = Some((Default::default(), Box::new(guard)));
        }
        let is_error =
            matches!(&*arm.body, Expr::Call(call) if call.func.to_token_stream().to_string() == "Err");
        if is_error
            && self.context.can_be_ok
            && let Some(on) = self.mutant(&body, "Ok(())", true)
        {
            let expr = &arm.body;
            arm.body = parse_quote!(if #on { Ok(()) } else { #expr });
        }
    }
}
