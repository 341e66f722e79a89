//! What is worth looking at where `megatron` may divide a model: sets that divide it otherwise.

use super::{Model, batch, expert, image, megatron, sequence};

/// All that is ever looked at instead.
pub const SETS: [&str; 6] = [
    megatron::WITH_SEQUENCE.name,
    expert::SET.name,
    sequence::SEQUENCE.name,
    sequence::ZIGZAG.name,
    sequence::ULYSSES.name,
    image::SET.name,
];

/// `expert` where there are experts; `megatron` with its sequence divided where there is attention; where the batch does not go round on so many devices, what divides a sequence, or
/// images.
pub fn of_megatron(model: &Model<'_>, devices: u32) -> Vec<&'static str> {
    let [with_sequence, expert, along_sequences @ .., image] = SETS;
    let mut found = vec![];
    if model.graph.op_ids().any(|op| expert::experts(model, op).is_some()) {
        found.push(expert);
    }
    let is_attention = |op| sequence::is_attention(model.graph.op(op));
    if model.graph.op_ids().any(is_attention) {
        found.push(with_sequence);
    }
    if batch::batch(model) < i64::from(devices) {
        if model.graph.op_ids().any(is_attention) {
            found.extend(along_sequences);
        }
        if image::has_rows(model) {
            found.push(image);
        }
    }
    found
}
