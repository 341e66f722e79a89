//! What is done where memory is short, and only there.

use search::{Constraints, Question};

use super::{chosen, gathers_again, gpt, llama, mixtral, never, nodes, offloads, read, recomputes};

/// Recompute is one more forward: of forward and backward, which is twice as long, a third is added to the step.
/// It saves bytes that nobody asks for.
#[test]
fn nothing_is_recomputed_where_everything_fits() {
    let cluster = nodes(1, "h100:4", 400);
    for (model, batches) in [(gpt(), 1), (gpt(), 4), (llama(), 1), (mixtral(), 1)] {
        never(&model.question(&cluster, 4, batches), &recomputes, "zero1:4 x recompute");
    }
}

/// ZeRO-3 gathers parameters twice for each micro-batch, ZeRO-1 once a step.
/// Of Llama these are 8 gathers of 3.8 GB instead of one, 8 ms each at 450 GB/s, and what they save is not asked for.
#[test]
fn parameters_are_not_gathered_for_each_pass_where_they_fit() {
    let cluster = nodes(1, "h100:4", 400);
    for model in [gpt(), llama()] {
        never(&model.question(&cluster, 4, 4), &gathers_again, "zero3:4");
    }
}

/// A layer of Llama keeps 13 GB of 16 sequences, 3 GB on each of four devices: at 5 GB/s 0.6 s there and 0.6 s back.
/// To compute it again are 16 * 4,096 * 2 * 218M operations and attention: 15 ms of four H100.
#[test]
fn nothing_is_offloaded_where_recomputation_is_quicker() {
    let cluster = read(
        "[[nodes]]\ndevices = \"d:4\"\nlink = { bandwidth = \"450 GB/s\", latency = \"5 us\" }\n[devices.d]\nlike = \"h100\"\nhost = \"5 GB/s\"\n",
    );
    let model = llama();
    let question = Question { memory: Some(30_000_000_000), ..model.question(&cluster, 4, 1) };
    let first = chosen(&question);
    assert!(recomputes(&first.plan), "{} fits without", first.plan.name);
    never(&question, &offloads, "zero1:4 x offload:activations");
}

/// Where layers are on the host, what they take is less than computing them again: else that would have been taken.
#[test]
fn what_is_offloaded_is_quicker_than_without() {
    let cluster = cluster::named("dgx-v100:4x2").expect("known");
    let model = llama();
    let question = Question { memory: Some(17_000_000_000), ..model.question(&cluster, 8, 1) };
    let free = chosen(&question);
    assert!(offloads(&free.plan), "{}", free.plan.name);
    let text = "shardwright-constraints 1\nforbid offload\n";
    let constraints = Constraints::read(text, "mine", question.graph, question.analysis, &cluster, 8);
    let constraints = constraints.expect("they read");
    let without = chosen(&Question { constraints: Some(&constraints), ..question });
    assert!(!offloads(&without.plan) && free.seconds() < without.seconds(), "{}", without.plan.name);
}

/// What fits into less memory fits into more, so the best plan of the small memory is there to be chosen.
#[test]
fn more_memory_never_makes_a_step_longer() {
    let cluster = nodes(2, "h100:4", 400);
    for (model, gigabytes) in [(gpt(), 1.5), (llama(), 15.0)] {
        let mut last = f64::INFINITY;
        for times in [1.0, 1.25, 1.5, 2.0, 3.0, 4.0] {
            let question = model.question(&cluster, 8, 1);
            let memory = Some((gigabytes * times * 1e9) as u64);
            let first = chosen(&Question { memory, ..question });
            let who = format!("{} in {memory:?} bytes", model.graph.model);
            assert!(first.seconds() <= 1.01 * last, "{who}: {} after {last}", first.seconds());
            last = last.min(first.seconds());
        }
    }
}
