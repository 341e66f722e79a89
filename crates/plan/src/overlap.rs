//! Messages of a backward that run while gradients of parameters are computed.
//!
//! ```text
//! overlap 16MiB                        # messages of at least so many bytes
//! overlap never
//! ```

use diag::{Error, Result};

use crate::Plan;
use crate::select::clip;

/// Bytes from which a message overlaps, where a plan says nothing. Two halves of a backward take the host longer than one:
/// predicted for eight H100, a step loses by that with messages of 8 MiB, and gains with 16.
pub const OVERLAP: u64 = 16 << 20;

const NEVER: &str = "never";
const UNITS: [(&str, u64); 4] = [("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10), ("", 1)];

pub(crate) fn read(word: &str) -> Result<u64> {
    if word == NEVER {
        return Ok(u64::MAX);
    }
    let bytes_in =
        |(name, unit): &(&str, u64)| word.strip_suffix(name)?.trim().parse::<u64>().ok()?.checked_mul(*unit);
    UNITS.iter().find_map(bytes_in).ok_or_else(|| {
        Error::new("SW0301", format!("`{}` is not a message size", clip(word)))
            .fix("write a size, such as `overlap 16MiB`, or `overlap never`")
    })
}

pub(crate) fn print(plan: &Plan) -> String {
    match plan.overlap {
        OVERLAP => String::new(),
        u64::MAX => format!("overlap {NEVER}\n"),
        bytes => format!("overlap {}\n", size(bytes)),
    }
}

/// In the largest unit of which it is a multiple.
fn size(bytes: u64) -> String {
    let fits = |(_, unit): &&(&str, u64)| bytes > 0 && bytes % *unit == 0;
    let (name, unit) = UNITS.iter().find(fits).copied().unwrap_or(("", 1));
    format!("{}{name}", bytes / unit)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_they_are_printed() {
        for (text, bytes) in [("0", 0), ("5", 5), ("3KiB", 3 << 10), ("32MiB", 32 << 20), ("1GiB", 1 << 30)] {
            assert_eq!((read(text).unwrap(), &size(bytes)[..]), (bytes, text));
        }
        for text in ["", "MiB", "-1", "1.5MiB", "2 parsecs", "99999999999999GiB", "always"] {
            assert_eq!(read(text).unwrap_err().code, "SW0301", "{text}");
        }
    }
}
