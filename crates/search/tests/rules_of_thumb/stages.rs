//! What is in several stages, and what in none.

use super::{chosen, gpt, has_stages, llama, mixtral, never, nodes, offloads, recomputes};
use crate::model::Model;

/// Where parameters fit on each device, stages save nothing that is needed.
/// Two stages wait for (2 - 1) of 4 micro-batches, a fifth of the step, or for less in other orders.
/// Data parallelism waits for 2 * 1.9 GB of Llama's parameters and gradients: 9 ms at 450 GB/s, of 0.6 s.
#[test]
fn no_pipeline_where_a_model_fits_on_a_device_with_room() {
    let model = llama();
    for (cluster, devices) in [(nodes(1, "h100:4", 400), 4), (nodes(2, "h100:4", 400), 8)] {
        let question = model.question(&cluster, devices, 4);
        let laughable = format!("stages:2 x zero1:{} x 1f1b", devices / 2);
        never(&question, &has_stages, &laughable);
    }
}

/// With one micro-batch the second stage begins when the first has ended: two devices are as quick as one.
#[test]
fn no_pipeline_for_one_micro_batch() {
    for model in [gpt(), mixtral()] {
        let cluster = nodes(1, "h100:4", 400);
        never(&model.question(&cluster, 4, 1), &has_stages, "stages:2 x data:2 x 1f1b");
    }
}

/// There is nobody to share with, and nothing to save: 2 TB are more than a step needs.
#[test]
fn one_device_has_one_block_of_whole_operators() {
    for model in [Model::gpt(), gpt(), llama(), mixtral()] {
        for batches in [1, 4] {
            let cluster = nodes(1, "h100:1", 400);
            let mut question = model.question(&cluster, 1, batches);
            question.memory = Some(2_000_000_000_000);
            let plan = chosen(&question).plan;
            assert!(!has_stages(&plan) && plan.ops.iter().all(|op| op.splits.is_empty()), "{}", plan.name);
            assert!(
                !recomputes(&plan) && !offloads(&plan) && plan.param_shardings.is_empty(),
                "{}",
                plan.name
            );
        }
    }
}
