//! What is worth looking at where `megatron` may divide a model: sets that divide it otherwise.

use super::{Model, data, expert, sequence};

/// `expert` where there are experts; where the batch does not go round on so many devices, what divides a sequence.
pub fn of_megatron(model: &Model<'_>, devices: u32) -> Vec<&'static str> {
    let mut found = vec![];
    if model.graph.op_ids().any(|op| expert::experts(model, op).is_some()) {
        found.push(expert::SET.name);
    }
    let batch = data::batch(model);
    let is_attention = |op| sequence::is_attention(model.graph.op(op));
    if batch < i64::from(devices) && model.graph.op_ids().any(is_attention) {
        found.extend([sequence::SEQUENCE.name, sequence::ZIGZAG.name, sequence::ULYSSES.name]);
    }
    found
}
