//! Tasks as words: `F0` is the forward of block 0, `B1+2` the backward of block 1 two micro-batches further, `I` and `W`
//! are the two halves of a backward.

use std::fmt;
use std::str::FromStr;

use crate::shape::{Pass, Task};

impl Pass {
    const WORDS: [(Pass, char); 4] =
        [(Pass::Forward, 'F'), (Pass::Backward, 'B'), (Pass::Inputs, 'I'), (Pass::Weights, 'W')];

    pub fn letter(self) -> char {
        Self::WORDS.iter().find(|row| row.0 == self).expect("every pass has a letter").1
    }
}

impl fmt::Display for Task {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}{}", self.pass.letter(), self.block)?;
        if self.at == 0 { Ok(()) } else { write!(f, "{:+}", self.at) }
    }
}

impl FromStr for Task {
    type Err = ();

    fn from_str(word: &str) -> Result<Self, ()> {
        let mut chars = word.chars();
        let letter = chars.next().ok_or(())?;
        let pass = Pass::WORDS.iter().find(|row| row.1 == letter).ok_or(())?.0;
        let rest = chars.as_str();
        let (block, at) = rest.split_at(rest.find(['+', '-']).unwrap_or(rest.len()));
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        if !digits(block) || !(at.is_empty() || digits(&at[1..])) {
            return Err(());
        }
        let at = if at.is_empty() { 0 } else { at.parse().map_err(drop)? };
        Ok(Task { block: block.parse().map_err(drop)?, pass, at })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_prints_parses() {
        for word in ["F0", "B12", "I3+2", "W0-11"] {
            assert_eq!(word.parse::<Task>().unwrap().to_string(), word);
        }
        for word in ["", "F", "G0", "F+1", "F0+", "F0+-1", "F0 1", "f0", "F-1", "F99999999999999999999999"] {
            assert!(word.parse::<Task>().is_err(), "{word}");
        }
    }
}
