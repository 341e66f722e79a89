//! What is decided of an operator, in the words of the model's dims.

use std::fmt;

use graph::OpId;
use plan::dim_names::DimNames;
use plan::{On, Plan};
use rules::Analysis;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Decided {
    /// What it is divided along, outermost first, and into how many parts.
    pub ways: Vec<(String, u32)>,
    pub devices: Vec<u32>,
    pub block: u32,
}

impl Decided {
    pub(crate) fn new(analysis: &Analysis, names: &DimNames, plan: &Plan, op: OpId) -> Self {
        let mut ways: Vec<(String, u32)> = vec![];
        for split in plan.op(op).splits.iter().filter(|split| split.parts > 1) {
            let word = match split.on {
                On::Loop(index) => names
                    .of_loop(op, index)
                    .map_or_else(|| analysis.op(op).loops[index].name.clone(), String::from),
                On::Copies => "copies".to_owned(),
                On::Value => "partial sums".to_owned(),
                On::Exchange { .. } => "experts by exchange".to_owned(),
            };
            match ways.last_mut() {
                Some((last, parts)) if *last == word => *parts *= split.parts,
                _ => ways.push((word, split.parts)),
            }
        }
        Self { ways, devices: plan.op(op).devices.to_vec(), block: plan.block(op) }
    }

    /// What it is divided along; of what is whole, on how many devices.
    pub(crate) fn in_words(&self) -> String {
        let devices: std::collections::BTreeSet<u32> = self.devices.iter().copied().collect();
        match devices.len() {
            many if self.ways.is_empty() && many > 1 => format!("whole on each of {many}"),
            _ => self.to_string(),
        }
    }

    /// `0..16`, `0 2 4 6`, or how many where that is long.
    pub fn placed(&self) -> String {
        const MOST: usize = 8;
        match self.devices[..] {
            [first, .., last] if self.devices.windows(2).all(|two| two[1] == two[0] + 1) => {
                format!("{first}..{}", last + 1)
            }
            ref few if few.len() <= MOST => few.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
            ref many => {
                let (least, most) = (many.iter().min().unwrap_or(&0), many.iter().max().unwrap_or(&0));
                format!("{} of {least}..{}", many.len(), most + 1)
            }
        }
    }
}

impl fmt::Display for Decided {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ways: Vec<String> = self.ways.iter().map(|(word, parts)| format!("{word} {parts}")).collect();
        f.write_str(if ways.is_empty() { "whole" } else { "" })?;
        f.write_str(&ways.join(" x "))
    }
}
