//! What goes over the network.

use cluster::named as cluster_named;

use super::{chosen, differ_between_nodes, gpt, llama, mixtral, never, nodes};

/// Of a layer of Llama, values of 16 * 4,096 tokens are 16 * 4,096 * 4,096 * 2 bytes, half a GB.
/// Tensor parallelism moves as much four times in forward and four times in backward, and is waited for.
/// Data parallelism moves the gradients of 218 million parameters once, 0.4 GB, while backward goes on.
#[test]
fn no_tensor_parallelism_between_nodes_where_data_parallelism_fits() {
    for model in [gpt(), llama()] {
        for cluster in [nodes(2, "h100:4", 400), nodes(2, "a100:4", 200)] {
            let question = model.question(&cluster, 8, 1);
            never(&question, &|plan| differ_between_nodes(&question, plan, &|_| true), "megatron:8");
        }
    }
}

/// A node has 25 Gbit/s, 3 GB a second. Half a GB for each of eight moves of a layer are 1.3 s.
/// On one node of four A100, forward and backward of a layer take 0.15 s: even computing all of it twice is quicker.
#[test]
fn no_tensor_parallelism_over_ethernet_where_memory_is_short_either() {
    let cluster = cluster_named("ethernet-25g:4x2").expect("known");
    for (model, batches) in [(gpt(), 1), (llama(), 1)] {
        let question = model.question(&cluster, 8, batches);
        never(&question, &|plan| differ_between_nodes(&question, plan, &|_| true), "megatron:8");
    }
}

/// Two experts for each of 16 * 4,096 tokens are 16 * 4,096 * 2 * 4,096 * 2 bytes, 1 GB, of which half is for the other node.
/// It goes there and back, in forward and in backward: at 3 GB a second 0.3 s for a layer, or half of that each way.
/// Four A100 compute a layer in 0.2 s, so both nodes take longer together than one alone.
#[test]
fn experts_stay_inside_of_nodes_where_the_network_is_slow() {
    let (model, cluster) = (mixtral(), cluster_named("ethernet-25g:4x2").expect("known"));
    let question = model.question(&cluster, 8, 1);
    let are_experts = |name: &str| name.contains("experts");
    never(&question, &|plan| differ_between_nodes(&question, plan, &are_experts), "expert:8");
}

/// A plan takes no longer where links are quicker, so the best one of the slow links is there to be chosen.
/// The search evaluates the few plans that promise most, so it may miss that one by a twentieth.
#[test]
fn twice_the_links_never_make_a_step_longer() {
    for (model, devices) in [(gpt(), "h100:4"), (gpt(), "a100-40g:4"), (llama(), "h100:4")] {
        let mut last = f64::INFINITY;
        for gigabits in [25, 50, 100, 200, 400] {
            let cluster = nodes(2, devices, gigabits);
            let first = chosen(&model.question(&cluster, 8, 1));
            let who = format!("{} on {devices}, {gigabits} Gbit/s", model.graph.model);
            assert!(first.seconds() <= 1.05 * last, "{who}: {} after {last}", first.seconds());
            last = last.min(first.seconds());
        }
    }
}
