//! The graph's text form: printer and parser. What prints parses, to the same bytes.
//!
//! Lines are independent of each other but for names: a tensor is defined above the lines that
//! read it. Blank lines and lines that start with `#` are ignored. `model`, `in_spec` and
//! `out_spec` may be left out, and are then empty.
//!
//! Arguments are `%tensor`, `3`, `-1.5e-05`, `inf`, `nan`, `True`, `None`, `"JSON string"`, `f64`
//! (a dtype) and `[lists, of, them]`; keyword arguments `name=value` follow the positional ones.
//! Names (of tensors, targets and keywords) are one or more of `A-Z a-z 0-9 _ .`.
//!
//! | code | refuses |
//! | --- | --- |
//! | `SW0201` | a line that does not follow the grammar |
//! | `SW0202` | a tensor that no line defines |
//! | `SW0203` | a name that is taken |
//! | `SW0204` | an unknown dtype |
//! | `SW0205` | a missing header or another version |
//! | `SW0206` | a tensor that is read above its definition |
//! | `SW0207` | an update of an unknown buffer or parameter |
//! | `SW0208` | a negative size, or more bytes than 63 bits can count |
//! | `SW0209` | a number that 64 bits cannot hold |

mod parse;
mod print;
mod scan;

pub use parse::parse;
pub use print::print;

use crate::Graph;

const FORMAT: &str = "shardwright-graph";
const VERSION: &str = "1";

impl std::str::FromStr for Graph {
    type Err = diag::Error;

    fn from_str(text: &str) -> diag::Result<Graph> {
        parse(text)
    }
}

impl Graph {
    /// A hex digest of the printed text: stable across runs and machines, not cryptographic.
    pub fn digest(&self) -> String {
        format!("{:032x}", fnv1a_128(print(self).as_bytes()))
    }
}

fn fnv1a_128(bytes: &[u8]) -> u128 {
    const BASIS: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    bytes.iter().fold(BASIS, |hash, byte| (hash ^ u128::from(*byte)).wrapping_mul(PRIME))
}

#[cfg(test)]
mod tests {
    #[test]
    fn fnv1a_128_matches_the_published_vectors() {
        let hex = |text: &str| format!("{:032x}", super::fnv1a_128(text.as_bytes()));
        assert_eq!(hex(""), "6c62272e07bb014262b821756295c58d");
        assert_eq!(hex("a"), "d228cb696f1a8caf78912b704e4a8964");
        assert_eq!(hex("foobar"), "343e1662793c64bf6f0d3597ba446f18");
    }
}
