//! What optimizers hold of each parameter between steps.

use check::Memory;
use diag::{Error, Result};

/// How many tensors like a parameter the state of each of PyTorch's optimizers has, with its usual options.
const STATE: [(&str, u64); 13] = [
    ("adadelta", 2),
    ("adagrad", 1),
    ("adam", 2),
    ("adamax", 2),
    ("adamw", 2),
    ("asgd", 1),
    ("nadam", 2),
    ("none", 0),
    ("radam", 2),
    ("rmsprop", 1),
    ("rprop", 2),
    ("sgd", 0),
    ("sgd-momentum", 1),
];

/// What each rank has, with the state of an optimizer.
pub fn with_optimizer(memory: &[Memory], name: &str) -> Result<Vec<Memory>> {
    let Some((_, tensors)) = STATE.iter().find(|(known, _)| *known == name) else {
        let known: Vec<&str> = STATE.iter().map(|(name, _)| *name).collect();
        return Err(Error::new("SW0430", format!("the optimizer {name:?} is unknown"))
            .why("what it holds of each parameter is a part of what a rank has in memory")
            .fix(format!("give the one that is most like it of {}", known.join(", "))));
    };
    Ok(memory.iter().map(|rank| rank.clone().stepped(*tensors)).collect())
}
