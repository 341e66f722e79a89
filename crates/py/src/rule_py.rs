//! Rules that users register.

use diag::Error;
use pyo3::prelude::*;
use rules::Rule;
use rules::algebra::{Invalid, check_grammar, refuse_found};
use rules::families::registered::with_sizes;

use crate::guard::{Evidence, guarded};

type Shapes = (Vec<Vec<i64>>, Vec<Vec<i64>>);

/// Refuses a text that is no rule; with shapes, one that does not fit them.
#[pyfunction]
#[expect(clippy::needless_pass_by_value, reason = "what comes from Python is owned")]
pub(crate) fn check_rule(
    name: &str,
    text: &str,
    shapes: Option<Shapes>,
    sizes: Vec<(String, i64)>,
    place: Option<String>,
) -> PyResult<()> {
    let text = with_sizes(text, &sizes);
    let check = || match &shapes {
        None => refuse_found(&text).and_then(|()| check_grammar(&text)),
        Some((inputs, outputs)) => {
            let inputs: Vec<&[i64]> = inputs.iter().map(Vec::as_slice).collect();
            let outputs: Vec<Option<&[i64]>> = outputs.iter().map(|shape| Some(shape.as_slice())).collect();
            Rule::read(&text, &inputs, &outputs).map(|_| ())
        }
    };
    guarded(Evidence::text(&text), || check().map_err(|invalid| refused(name, &text, &place, &invalid)))
}

/// The error of a rule that somebody wrote.
pub(crate) fn refused(name: &str, text: &str, place: &Option<String>, invalid: &Invalid) -> Error {
    let shown = invalid.shown(text).replace('\n', "\n       ");
    let error = invalid.error(&format!("of `{name}`"), shown);
    Error { place: place.clone(), ..error.fix("docs/how-to/custom-operators.md tells how rules are written") }
}
