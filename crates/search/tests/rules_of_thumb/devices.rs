//! More devices, and the same devices in other words.

use super::{chosen, gpt, llama, mixtral, nodes, read};

/// Devices that help nobody can compute the same as others, so more of them never make a step longer.
#[test]
fn more_devices_never_make_a_step_longer() {
    for (model, gigabits) in [(gpt(), 400), (gpt(), 3), (llama(), 400), (mixtral(), 25)] {
        let seconds = [1, 2].map(|count| {
            let cluster = nodes(count, "h100:4", gigabits);
            chosen(&model.question(&cluster, 4 * count, 1)).seconds()
        });
        assert!(seconds[1] <= 1.01 * seconds[0], "{} with {gigabits} Gbit/s: {seconds:?}", model.graph.model);
    }
}

/// Twice the devices with twice the micro-batches have as much to do each, and a message more between nodes.
/// Of Llama that is an all-reduce of 3.8 GB over 4 * 50 GB/s: 40 ms beside 1.2 s, so a step may be a tenth longer.
#[test]
fn twice_the_devices_with_twice_the_batch_are_nearly_as_quick() {
    let model = llama();
    let seconds = [1, 2].map(|count| {
        let cluster = nodes(count, "h100:4", 400);
        chosen(&model.question(&cluster, 4 * count, 2 * count)).seconds()
    });
    assert!(seconds[1] <= 1.1 * seconds[0], "{seconds:?}");
}

/// The same nodes one by one, in other units and under another name.
#[test]
fn another_way_to_write_a_cluster_chooses_the_same() {
    let words = "[network]\nbandwidth = \"50 GB/s\"\nlatency = \"0.014 ms\"\n";
    let node = "[[nodes]]\ndevices = [\"h100:1\", \"h100:3\"]\n";
    let (one, other) = (nodes(2, "h100:4", 400), read(&format!("name = \"ours\"\n{words}{node}{node}")));
    for model in [gpt(), llama(), mixtral()] {
        let (one, other) = (chosen(&model.question(&one, 8, 2)), chosen(&model.question(&other, 8, 2)));
        assert_eq!(one.plan, other.plan);
        assert!((one.seconds() / other.seconds() - 1.0).abs() < 1e-9, "{}", one.plan.name);
    }
}
