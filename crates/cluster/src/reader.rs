//! The text of a cluster's file: values with their units, and what is refused at its line and column.

use std::ops::Range;

use diag::{Error, Result};
use graph::Dtype;
use serde::Deserialize;
use toml::Spanned;

use crate::quantity::Unit;

#[derive(Deserialize)]
#[serde(untagged)]
pub(crate) enum Written {
    Integer(i64),
    Float(f64),
    Text(String),
}

pub(crate) struct ClusterReader<'t> {
    pub(crate) text: &'t str,
    pub(crate) file: &'t str,
}

impl ClusterReader<'_> {
    pub(crate) fn number(&self, written: &Spanned<Written>, unit: Unit) -> Result<f64> {
        let (text, read) = match written.get_ref() {
            Written::Text(text) => (text.clone(), unit.read(text)),
            Written::Integer(number) => (number.to_string(), bare(*number as f64, unit)),
            Written::Float(number) => (number.to_string(), bare(*number, unit)),
        };
        let refuse =
            |why: &str| self.refuse(written.span(), &format!("{text:?} is not a valid value here"), why);
        let value = read.map_err(|why| refuse(&why))?;
        let least = if unit == Unit::Seconds { value >= 0.0 } else { value > 0.0 };
        match unit {
            _ if !least => Err(refuse("it is above zero")),
            Unit::Share if value > 1.0 => Err(refuse("it is at most 1")),
            Unit::Seconds if value > 10.0 => Err(refuse("it is at most 10 seconds")),
            Unit::Bytes if !(1e3..=1e18).contains(&value) => Err(refuse("no device has so many bytes")),
            Unit::BytesPerSecond if !(1e3..=1e18).contains(&value) => {
                Err(refuse("nothing moves so many bytes"))
            }
            _ => Ok(value),
        }
    }

    pub(crate) fn dtype(&self, name: &str, span: Range<usize>) -> Result<Dtype> {
        Dtype::parse(name).ok_or_else(|| {
            let known = Dtype::ALL.map(|row| row.1).join(", ");
            self.refuse(span, &format!("there is no dtype {name:?}"), &format!("it is one of {known}"))
        })
    }

    /// A refusal at the line and column of a place in the text.
    pub(crate) fn refuse(&self, span: Range<usize>, what: &str, why: &str) -> Error {
        let before = &self.text[..span.start.min(self.text.len())];
        let line = before.matches('\n').count() + 1;
        let column = before.rsplit('\n').next().unwrap_or("").chars().count() + 1;
        Error::new("SW0902", format!("the cluster cannot be read: {what}"))
            .at(format!("{}:{line}:{column}", self.file))
            .why(why)
            .fix("docs/reference/clusters.md shows a whole file")
    }
}

/// Without a unit only what has none.
fn bare(number: f64, unit: Unit) -> std::result::Result<f64, String> {
    match unit {
        Unit::Share => Ok(number),
        _ => Err(format!("it has no unit: it is {}", unit.expected())),
    }
}
