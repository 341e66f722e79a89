//! Reads what was measured, as a cluster's file has it.

use diag::Result;
use serde::Deserialize;
use toml::Spanned;

use crate::quantity::Unit;
use crate::reader::{ClusterReader, Written};
use crate::{Collective, Curve, Direction, Messages, Operators, Runtime};

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenOperators {
    kind: String,
    dtype: Spanned<String>,
    pass: Spanned<String>,
    operations: Option<Vec<f64>>,
    bytes: Option<Vec<f64>>,
    seconds: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenMessages {
    kind: Spanned<String>,
    devices: u32,
    bytes: Vec<f64>,
    seconds: Vec<f64>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WrittenRuntime {
    step: Spanned<Written>,
    call: Spanned<Written>,
    wake: Spanned<Written>,
    apart: Option<Spanned<Written>>,
    hidden: Spanned<f64>,
    launch: Option<Spanned<Written>>,
}

/// What a message from one device to another is called.
const MESSAGE: &str = "message";

impl ClusterReader<'_> {
    pub(crate) fn operators(&self, written: &Spanned<WrittenOperators>) -> Result<Operators> {
        let (span, it) = (written.span(), written.get_ref());
        let direction = match &it.pass.get_ref()[..] {
            "forward" => Direction::Forward,
            "backward" => Direction::Backward,
            other => {
                let what = format!("there is no pass {other:?}");
                return Err(self.refuse(it.pass.span(), &what, "it is forward or backward"));
            }
        };
        let (sizes, by_operations) = match (&it.operations, &it.bytes) {
            (Some(sizes), None) => (sizes, true),
            (None, Some(sizes)) => (sizes, false),
            _ => {
                let what = format!("the sizes of {:?} have no kind", it.kind);
                return Err(self.refuse(span, &what, "give either `operations` or `bytes`"));
            }
        };
        Ok(Operators {
            kind: it.kind.clone(),
            dtype: self.dtype(it.dtype.get_ref(), it.dtype.span())?,
            direction,
            by_operations,
            curve: self.curve(written, sizes, &it.seconds)?,
        })
    }

    pub(crate) fn messages(&self, written: &Spanned<WrittenMessages>) -> Result<Messages> {
        let it = written.get_ref();
        let name = it.kind.get_ref();
        let known = Collective::ALL.into_iter().find(|known| known.name() == name);
        if known.is_none() && name != MESSAGE {
            let names = Collective::ALL.map(Collective::name).join(", ");
            let why = format!("it is one of {names}, {MESSAGE}");
            return Err(self.refuse(it.kind.span(), &format!("there is no collective {name:?}"), &why));
        }
        Ok(Messages {
            collective: known,
            devices: it.devices,
            curve: self.curve(written, &it.bytes, &it.seconds)?,
        })
    }

    pub(crate) fn runtime(&self, it: &WrittenRuntime) -> Result<Runtime> {
        let seconds = |written| self.number(written, Unit::Seconds);
        let hidden = *it.hidden.get_ref();
        if !(0.0..=1.0).contains(&hidden) {
            let what = format!("{hidden} is not a valid value here");
            return Err(self.refuse(it.hidden.span(), &what, "it is a share: from 0 to 1"));
        }
        let (step, call, wake) = (seconds(&it.step)?, seconds(&it.call)?, seconds(&it.wake)?);
        // Not in files of profiles that did not measure it.
        let apart = it.apart.as_ref().map_or(Ok(0.0), seconds)?;
        let launch = it.launch.as_ref().map(seconds).transpose()?;
        Ok(Runtime { step, call, wake, apart, hidden, launch })
    }

    fn curve<T>(&self, written: &Spanned<T>, sizes: &[f64], seconds: &[f64]) -> Result<Curve> {
        let points = sizes.iter().copied().zip(seconds.iter().copied()).collect();
        let curve = Curve::new(points).filter(|_| sizes.len() == seconds.len());
        let why = "each size has its seconds, sizes rise, and all are above zero";
        curve.ok_or_else(|| {
            self.refuse(written.span(), "the measurements are not a list of sizes with their seconds", why)
        })
    }
}
