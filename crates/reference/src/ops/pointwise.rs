//! Element by element: sums, products, comparisons and choices are exact, other functions are tables.

use std::cmp::Ordering;

use crate::number::{Num, hash};
use crate::ops::elements::{add, div, each, exp, log, mul, rsqrt, scaled, sqrt, sub, sum, table};
use crate::ops::{Made, OpArg, OpCall, kind};
use crate::tape::{ElementKind, T, Tape};

impl OpCall<'_, '_> {
    pub(super) fn pointwise(&mut self) -> Made<Option<Vec<T>>> {
        let output = match self.name {
            "add" | "sub" | "rsub" => self.added()?,
            "mul" | "multiply" => self.two(mul)?,
            "div" | "divide" | "true_divide" if self.text(9, "rounding_mode").is_none() => {
                let made = self.two(div)?;
                T { kind: ElementKind::Float, ..made }
            }
            "div" | "floor_divide" => self.rounded()?,
            "remainder" => self.remainder()?,
            "neg" | "negative" => self.one(|tape, x| scaled(tape, x, Num::int(-1)))?,
            "square" => self.one(|tape, x| mul(tape, x, x))?,
            "reciprocal" => self.one(|tape, x| {
                let one = tape.constant(Num::ONE);
                div(tape, one, x)
            })?,
            "exp" => self.one(exp)?,
            "log" => self.one(log)?,
            "rsqrt" => self.one(rsqrt)?,
            "sqrt" => self.one(sqrt)?,
            "pow" => return self.power(),
            "relu" => self.one(|tape, x| {
                let zero = tape.constant(Num::ZERO);
                chosen(tape, x, zero, Ordering::Greater)
            })?,
            "abs" => self.one(|tape, x| {
                let sign = if tape.value(x).compare(Num::ZERO).is_lt() { Num::int(-1) } else { Num::ONE };
                scaled(tape, x, sign)
            })?,
            "maximum" | "fmax" => self.two(|tape, a, b| chosen(tape, a, b, Ordering::Greater))?,
            "minimum" | "fmin" => self.two(|tape, a, b| chosen(tape, a, b, Ordering::Less))?,
            "max" if self.target == "aten.max.other" => {
                self.two(|tape, a, b| chosen(tape, a, b, Ordering::Greater))?
            }
            "min" if self.target == "aten.min.other" => {
                self.two(|tape, a, b| chosen(tape, a, b, Ordering::Less))?
            }
            "clamp" | "clamp_min" | "clamp_max" | "clip" => self.clamped()?,
            "eq" => self.compared(Ordering::is_eq)?,
            "ne" => self.compared(Ordering::is_ne)?,
            "lt" => self.compared(Ordering::is_lt)?,
            "le" => self.compared(Ordering::is_le)?,
            "gt" => self.compared(Ordering::is_gt)?,
            "ge" => self.compared(Ordering::is_ge)?,
            "logical_and" => self.decided(|a, b| a && b)?,
            "logical_or" => self.decided(|a, b| a || b)?,
            "logical_xor" => self.decided(|a, b| a != b)?,
            "logical_not" => self.tested(|x| !x.is_true())?,
            "bitwise_not" => return self.inverted(),
            "bitwise_and" | "__and__" if self.is_bool() => self.decided(|a, b| a && b)?,
            "bitwise_or" | "__or__" if self.is_bool() => self.decided(|a, b| a || b)?,
            "bitwise_xor" | "__xor__" if self.is_bool() => self.decided(|a, b| a != b)?,
            "isinf" => self.tested(|x| x == Num::INF || x == Num::NEG_INF)?,
            "isneginf" => self.tested(|x| x == Num::NEG_INF)?,
            "isposinf" => self.tested(|x| x == Num::INF)?,
            "isnan" => self.tested(|x| x == Num::NAN)?,
            "isfinite" => self.tested(|x| !x.is_special())?,
            "where" => self.selected()?,
            "masked_fill" => self.filled()?,
            "lerp" => self.between()?,
            "addcmul" | "addcdiv" => self.added_product()?,
            "clone" | "contiguous" | "alias" | "lift_fresh_copy" | "positive" | "real" => {
                self.tensor(0, "self")?
            }
            "detach" | "detach_copy" => self.cut_off()?,
            "to" | "_to_copy" | "type_as" => self.cast()?,
            "zeros_like" | "zero" => self.all_of(Num::ZERO)?,
            "ones_like" => self.all_of(Num::ONE)?,
            "full_like" | "fill" => return self.all_equal(),
            "written" => self.written()?,
            "dropout" | "native_dropout" => return Ok(None),
            name if FLAT.contains(&name) => self.opaque(false)?,
            name if TABLES.contains(&name) => self.opaque(true)?,
            _ => return Ok(None),
        };
        Ok(Some(vec![output]))
    }

    fn one(&mut self, mut f: impl FnMut(&mut Tape, u32) -> u32) -> Made<T> {
        let x = self.tensor(0, "self")?;
        each(self.tape, std::slice::from_ref(&x), x.kind, |tape, at| f(tape, at[0]))
    }

    fn two(&mut self, mut f: impl FnMut(&mut Tape, u32, u32) -> u32) -> Made<T> {
        let (a, b) = self.pair()?;
        let kind = joined(&a, &b);
        each(self.tape, &[a, b], kind, |tape, at| f(tape, at[0], at[1]))
    }

    fn pair(&mut self) -> Made<(T, T)> {
        Ok((self.operand(0, "self")?, self.operand(1, "other")?))
    }

    fn added(&mut self) -> Made<T> {
        let by = self.number(2, "alpha").unwrap_or(Num::ONE);
        let name = self.name;
        self.two(|tape, a, b| match name {
            "rsub" => {
                let a = scaled(tape, a, by);
                sub(tape, b, a)
            }
            _ => {
                let b = if by == Num::ONE { b } else { scaled(tape, b, by) };
                if name == "add" { add(tape, a, b) } else { sub(tape, a, b) }
            }
        })
    }

    /// Whole numbers, where they are small, as Python divides them; other quotients are a table.
    fn rounded(&mut self) -> Made<T> {
        let mode = self.text(9, "rounding_mode").unwrap_or("floor").to_owned();
        let (a, b) = self.pair()?;
        let kind = joined(&a, &b);
        each(self.tape, &[a, b], kind, |tape, at| {
            let (x, y) = (tape.value(at[0]), tape.value(at[1]));
            let value = match whole(x, y) {
                Some((x, y)) if mode == "floor" => {
                    Num::int(x.div_euclid(y) - i64::from(y < 0 && x.rem_euclid(y) != 0))
                }
                Some((x, y)) => Num::int(x / y),
                None => opaque_of(&[x, y], &[31, mode.len() as u64]),
            };
            tape.constant(value)
        })
    }

    fn remainder(&mut self) -> Made<T> {
        let (a, b) = self.pair()?;
        let kind = joined(&a, &b);
        each(self.tape, &[a, b], kind, |tape, at| {
            let (x, y) = (tape.value(at[0]), tape.value(at[1]));
            match whole(x, y) {
                Some((x, y)) => {
                    let rest = x.rem_euclid(y);
                    tape.constant(Num::int(if y < 0 && rest != 0 { rest + y } else { rest }))
                }
                None => {
                    let iterations = opaque_of(&[x, y], &[32]);
                    let value = x.minus(iterations.times(y));
                    tape.node(value, [(at[0], Num::ONE), (at[1], iterations.negated())])
                }
            }
        })
    }

    fn power(&mut self) -> Made<Option<Vec<T>>> {
        let exponent = match self.arg(1, "exponent") {
            Some(OpArg::Int(value)) => *value as f64,
            Some(OpArg::Float(value)) => *value,
            _ => return Ok(Some(vec![self.opaque(true)?])),
        };
        if exponent == 0.5 {
            return Ok(Some(vec![self.one(sqrt)?]));
        }
        if exponent == -0.5 {
            return Ok(Some(vec![self.one(rsqrt)?]));
        }
        if exponent.fract() != 0.0
            || exponent.abs() > 64.0
            || !matches!(self.arg(0, "self"), Some(OpArg::Tensor(_)))
        {
            return Ok(Some(vec![self.opaque(true)?]));
        }
        let (times, inverted) = (exponent.abs() as u64, exponent < 0.0);
        let made = self.one(|tape, x| {
            let given = if inverted { tape.value(x).inverse() } else { tape.value(x) };
            let slope = given.power(if inverted { times + 1 } else { times.saturating_sub(1) });
            tape.node(given.power(times), [(x, slope.times(Num::int(exponent as i64)))])
        })?;
        Ok(Some(vec![made]))
    }

    fn clamped(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let most = if self.name == "clamp_max" { (1, "max") } else { (2, "max") };
        let mut clamped = x;
        for ((at, name), wanted) in [((1, "min"), Ordering::Greater), (most, Ordering::Less)] {
            let is_there = !matches!(self.arg(at, name), None | Some(OpArg::None));
            let is_asked = match self.name {
                "clamp_min" => wanted == Ordering::Greater,
                "clamp_max" => wanted == Ordering::Less,
                _ => true,
            };
            if is_there && is_asked {
                let bound = self.operand(at, name)?;
                let kind = joined(&clamped, &bound);
                clamped =
                    each(self.tape, &[clamped, bound], kind, |tape, at| chosen(tape, at[0], at[1], wanted))?;
            }
        }
        Ok(clamped)
    }

    fn compared(&mut self, holds: fn(Ordering) -> bool) -> Made<T> {
        let (a, b) = self.pair()?;
        each(self.tape, &[a, b], ElementKind::Bool, |tape, at| {
            let (x, y) = (tape.value(at[0]), tape.value(at[1]));
            tape.constant(Num::of_bool(holds(x.compare(y))))
        })
    }

    fn decided(&mut self, holds: fn(bool, bool) -> bool) -> Made<T> {
        let (a, b) = self.pair()?;
        each(self.tape, &[a, b], ElementKind::Bool, |tape, at| {
            let (x, y) = (tape.value(at[0]), tape.value(at[1]));
            tape.constant(Num::of_bool(holds(x.is_true(), y.is_true())))
        })
    }

    fn tested(&mut self, holds: fn(Num) -> bool) -> Made<T> {
        let x = self.tensor(0, "self")?;
        each(self.tape, &[x], ElementKind::Bool, |tape, at| {
            let x = tape.value(at[0]);
            tape.constant(Num::of_bool(holds(x)))
        })
    }

    fn inverted(&mut self) -> Made<Option<Vec<T>>> {
        let made = if self.is_bool() {
            self.tested(|x| !x.is_true())?
        } else {
            self.one(|tape, x| {
                let value = Num::int(-1).minus(tape.value(x));
                tape.constant(value)
            })?
        };
        Ok(Some(vec![made]))
    }

    fn is_bool(&self) -> bool {
        let tensors =
            self.args.iter().filter_map(|arg| if let OpArg::Tensor(x) = arg { Some(x.kind) } else { None });
        tensors.into_iter().all(|kind| kind == ElementKind::Bool)
    }

    fn selected(&mut self) -> Made<T> {
        let condition = self.tensor(0, "condition")?;
        let (a, b) = (self.operand(1, "self")?, self.operand(2, "other")?);
        let kind = joined(&a, &b);
        each(self.tape, &[condition, a, b], kind, |tape, at| either(tape, at[0], at[1], at[2]))
    }

    fn filled(&mut self) -> Made<T> {
        let (x, mask, value) = (self.tensor(0, "self")?, self.tensor(1, "mask")?, self.operand(2, "value")?);
        let kind = x.kind;
        each(self.tape, &[x, mask, value], kind, |tape, at| either(tape, at[1], at[2], at[0]))
    }

    fn between(&mut self) -> Made<T> {
        let (a, b, by) = (self.tensor(0, "self")?, self.tensor(1, "end")?, self.operand(2, "weight")?);
        each(self.tape, &[a, b, by], ElementKind::Float, |tape, at| {
            let far = sub(tape, at[1], at[0]);
            let step = mul(tape, far, at[2]);
            add(tape, at[0], step)
        })
    }

    fn added_product(&mut self) -> Made<T> {
        let all = [self.tensor(0, "self")?, self.tensor(1, "tensor1")?, self.tensor(2, "tensor2")?];
        let by = self.number(3, "value").unwrap_or(Num::ONE);
        let product = if self.name == "addcmul" { mul } else { div };
        each(self.tape, &all, ElementKind::Float, |tape, at| {
            let step = product(tape, at[1], at[2]);
            let step = scaled(tape, step, by);
            add(tape, at[0], step)
        })
    }

    fn cut_off(&mut self) -> Made<T> {
        self.one(|tape, x| {
            let value = tape.value(x);
            tape.constant(value)
        })
    }

    /// A float that becomes another keeps its value: what is compared is not how numbers are rounded.
    fn cast(&mut self) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let dtype = self.args.iter().skip(1).chain(self.kwargs.iter().map(|(_, arg)| arg));
        let asked = dtype.into_iter().find_map(|arg| match arg {
            OpArg::Dtype(dtype) => Some(kind(*dtype)),
            OpArg::Tensor(like) => Some(like.kind),
            _ => None,
        });
        let asked = asked.unwrap_or(x.kind);
        match (x.kind, asked) {
            (_, ElementKind::Bool) => self.tested(Num::is_true),
            (ElementKind::Float, ElementKind::Int) => each(self.tape, &[x], ElementKind::Int, |tape, at| {
                let given = tape.value(at[0]);
                let is_whole = !given.is_special() && given.signed().abs() < 1 << 40;
                let value = if is_whole || given.is_special() { given } else { table(given, &[41]) };
                tape.constant(value)
            }),
            _ => Ok(T { kind: asked, ..x }),
        }
    }

    fn all_of(&mut self, value: Num) -> Made<T> {
        let x = self.tensor(0, "self")?;
        let kind = self.kind_of(9, "dtype").unwrap_or(x.kind);
        let at = (0..x.numel()).map(|_| self.tape.constant(value)).collect();
        Ok(T::new(kind, x.shape, at))
    }

    fn all_equal(&mut self) -> Made<Option<Vec<T>>> {
        let (x, value) = (self.tensor(0, "self")?, self.operand(1, "fill_value")?);
        let kind = self.kind_of(9, "dtype").unwrap_or(x.kind);
        let made = each(self.tape, &[x, value], kind, |_, at| at[1])?;
        Ok(Some(vec![made]))
    }

    /// The second operand's value where the first one is: `shardwright.written`.
    fn written(&mut self) -> Made<T> {
        self.opaque(true)
    }

    /// A table of the operands' elements, with a table for each derivative.
    fn opaque(&mut self, slopes: bool) -> Made<T> {
        let which = self.signature();
        let mut all = vec![];
        self.args.iter().for_each(|arg| {
            if let OpArg::Tensor(x) = arg {
                all.push(x.clone());
            }
        });
        let kind =
            if slopes { ElementKind::Float } else { all.first().map_or(ElementKind::Float, |x| x.kind) };
        let name = self.target.to_owned();
        *self.env.opaque.entry(name).or_default() += 1;
        each(self.tape, &all, kind, |tape, at| {
            let given: Vec<Num> = at.iter().map(|at| tape.value(*at)).collect();
            let value = opaque_of(&given, &[which]);
            if !slopes {
                return tape.constant(value);
            }
            let slope = |place: usize| opaque_of(&given, &[which, 1 + place as u64]);
            let edges: Vec<(u32, Num)> =
                at.iter().enumerate().map(|(place, at)| (*at, slope(place))).collect();
            tape.node(value, edges)
        })
    }
}

pub(super) fn opaque_of(given: &[Num], which: &[u64]) -> Num {
    if given.contains(&Num::NAN) {
        return Num::NAN;
    }
    let mut words = vec![hash(which)];
    words.extend(given.iter().map(|x| x.bits()));
    Num::table(&words)
}

fn joined(a: &T, b: &T) -> ElementKind {
    match (a.kind, b.kind) {
        (ElementKind::Float, _) | (_, ElementKind::Float) => ElementKind::Float,
        (ElementKind::Bool, ElementKind::Bool) => ElementKind::Bool,
        _ => ElementKind::Int,
    }
}

/// Both as small whole numbers, of which the second is not zero.
fn whole(x: Num, y: Num) -> Option<(i64, i64)> {
    let small = |x: Num| (!x.is_special() && x.signed().abs() < 1 << 40).then(|| x.signed());
    Some((small(x)?, small(y).filter(|y| *y != 0)?))
}

/// The greater or the lesser of two; of equals, half of the gradient goes to each.
fn chosen(tape: &mut Tape, a: u32, b: u32, wanted: Ordering) -> u32 {
    let order = tape.value(a).compare(tape.value(b));
    if order.is_eq() {
        let half = Num::int(2).inverse();
        let value = tape.value(a);
        return tape.node(value, [(a, half), (b, half)]);
    }
    let from = if order == wanted { a } else { b };
    sum(tape, &[from])
}

fn either(tape: &Tape, condition: u32, a: u32, b: u32) -> u32 {
    if tape.value(condition).is_true() { a } else { b }
}

/// Functions of an element with a derivative.
#[rustfmt::skip]
const TABLES: &[&str] = &[
    "acos", "acosh", "asin", "asinh", "atan", "atan2", "atanh", "celu", "copysign", "cos", "cosh", "deg2rad",
    "digamma", "elu", "erf", "erfc", "erfinv", "exp2", "expm1", "float_power", "fmod", "frac", "gelu", "hardshrink",
    "hardsigmoid", "hardswish", "hardtanh", "hypot", "i0", "leaky_relu", "lgamma", "log10", "log1p", "log2",
    "log_sigmoid", "logaddexp", "logaddexp2", "logit", "mish", "nan_to_num", "polygamma", "rad2deg",
    "relu6", "selu", "sigmoid", "silu", "sin", "sinc", "sinh", "softplus", "softshrink", "special_entr",
    "special_erfcx", "special_i0e", "special_i1", "special_log_ndtr", "special_ndtr", "special_xlog1py",
    "special_xlogy", "tan", "tanh", "threshold", "xlogy",
];

/// Those without one.
#[rustfmt::skip]
const FLAT: &[&str] = &[
    "ceil", "floor", "heaviside", "isclose", "round", "sgn", "sign", "signbit", "trunc", "nextafter",
    "bitwise_and", "bitwise_or", "bitwise_xor", "__and__", "__or__", "__xor__", "__lshift__", "__rshift__",
    "bitwise_left_shift", "bitwise_right_shift", "gcd", "lcm",
];
