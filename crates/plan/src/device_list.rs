//! The devices that a line names: `0..4`, or `0 2 5`.

use diag::{Error, Result};

use crate::MOST;
use crate::select::clip;

pub(crate) fn devices_text(devices: &[u32]) -> String {
    let run = devices.windows(2).all(|w| w[1] == w[0] + 1);
    match (devices, run) {
        ([first, .., last], true) => format!("{first}..{}", last + 1),
        _ => devices.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
    }
}

/// Sub-operators over all devices in order: as many neighbours on a device as needed.
pub(crate) fn spread(count: usize, devices: u32) -> Vec<u32> {
    let (count, devices) = (count as u64, u64::from(devices));
    let place = |i: u64| if count <= devices { i } else { i * devices / count };
    (0..count).map(|i| u32::try_from(place(i)).unwrap_or(u32::MAX)).collect()
}

pub(crate) fn device_list(text: &str) -> Result<Vec<u32>> {
    let bad = |word: &str| {
        Error::new("SW0301", format!("`{}` is not a device", clip(word)))
            .fix("write `on 0 1 2 3` or `on 0..4`")
    };
    let mut devices = vec![];
    for word in text.split_whitespace() {
        match word.split_once("..") {
            Some((a, b)) => {
                let (a, b): (u32, u32) =
                    (a.parse().map_err(|_| bad(word))?, b.parse().map_err(|_| bad(word))?);
                if b.saturating_sub(a) > MOST {
                    return Err(bad(word));
                }
                devices.extend(a..b);
            }
            None => devices.push(word.parse().map_err(|_| bad(word))?),
        }
    }
    Ok(devices)
}
