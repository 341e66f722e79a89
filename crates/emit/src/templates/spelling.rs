//! How an operator is written here that somebody wrote in another way.

use super::{Applied, matching, read_anywhere, table};
use crate::python::Expr;
use crate::python::print::flat;

/// The Python of the operator that `x.neg()`, `torch.neg(x)` or `F.neg(x)` means: `-x`.
pub(crate) fn known(expr: &Expr<'_>) -> Option<String> {
    let Expr::Call(call) = expr else { return None };
    let Expr::Attr(object, name) = &call.function else { return None };
    let of_module = matches!(object.root(), Some("torch" | "F"));
    let receiver = (!of_module).then(|| (**object).clone());
    let args: Vec<Expr<'_>> = receiver.into_iter().chain(call.args.iter().cloned()).collect();
    table().rows.iter().filter(|template| template.target.split('.').nth(1) == Some(name)).find_map(
        |template| {
            let kwargs = call.kwargs.iter().map(|(key, value)| ((*key).into(), value.clone())).collect();
            let applied = Applied { target: template.target.as_str().into(), args: args.clone(), kwargs };
            let written = matching::fill(template, &applied)?;
            let same = read_anywhere(&written).as_ref() == Some(&applied);
            let mut text = String::new();
            flat(&mut text, &written);
            same.then_some(text)
        },
    )
}
