//! GPUs are known by the words of their names, and what is not known is described.

use cluster::{Cluster, Collective, Contention, Driver, here, known, named, read};
use graph::Dtype;

fn driver(name: &str, memory: u64) -> Driver {
    Driver {
        name: name.into(),
        memory,
        multiprocessors: 132,
        capability: (9, 0),
        clock: None,
        bandwidth: None,
    }
}

#[test]
fn each_card_is_a_device_of_the_catalog() {
    for name in cluster::devices() {
        let cluster = named(&format!("{name}:8x2")).unwrap_or_else(|error| panic!("{name}: {error}"));
        assert_eq!(cluster.devices(), 16);
        assert!(cluster.device(0).memory > 0);
    }
}

#[test]
fn several_nodes_of_what_is_sold_as_dgx_have_its_network() {
    let of = |name: &str, nodes| here(&driver(name, 1 << 40), 8, nodes).expect("described").name;
    assert_eq!(of("NVIDIA H100 80GB HBM3", 8), "dgx-h100:8x8");
    assert_eq!(of("NVIDIA H100 80GB HBM3", 1), "h100:8x1");
    assert_eq!(of("NVIDIA H100 PCIe", 8), "h100-pcie:8x8");
    let (dgx, plain) = (named("dgx-h100:8x8").expect("known"), named("h100:8x8").expect("known"));
    assert!(dgx.network.bandwidth > 3.9 * plain.network.bandwidth && !dgx.network.shared);
}

#[test]
fn a_model_may_have_less_than_a_gpu_has() {
    let of = |memory| here(&driver("NVIDIA H100 80GB HBM3", memory), 8, 1).expect("described").memory;
    // As drivers of whole cards say, and of one that gives less.
    assert_eq!((of(85_520_809_984), of(84_929_347_584)), (None, None));
    assert_eq!(of(60_000_000_000), Some(55_800_000_000));
    let memory = |name: &str| named(name).expect("known").device(0).memory;
    assert!(memory("l4:1") < 22_000_000_000 && memory("h100:1") == 80_000_000_000);
}

#[test]
fn a_part_of_a_gpu_is_described_from_what_its_driver_says() {
    let slice = Driver { multiprocessors: 60, ..driver("NVIDIA H100 80GB HBM3 MIG 3g.40gb", 42_000_000_000) };
    assert_eq!(known(&slice), None);
    let found = here(&slice, 2, 1).expect("described");
    let text = found.text.expect("a file");
    let cluster = read(&text, "here").expect("valid");
    // But for the driver's own, and what lies between tensors.
    assert_eq!((cluster.devices(), cluster.device(0).memory), (2, 38_700_000_000));
    let whole = named("h100:1").expect("known");
    let rate = |cluster: &cluster::Cluster| cluster.device(0).peak_of(Dtype::Bf16);
    assert!((0.3..0.6).contains(&(rate(&cluster) / rate(&whole))), "{}", rate(&cluster));
}

#[test]
fn what_cards_send_without_access_to_each_other_crosses_the_bus_twice() {
    let all: Vec<u32> = (0..8).collect();
    let seconds = |cluster: &Cluster, members: usize| {
        cluster.collective(Collective::AllReduce, &all[..members], Contention(1), 1e9)
    };
    let (peers, name) = (named("l40s:8").expect("known"), |name: &str| named(&format!("{name}:8")));
    for (card, times) in [("a10", 2.0), ("a10g", 2.0), ("l4", 2.0), ("t4", 2.0 * 25.0 / 12.0)] {
        let cluster = name(card).expect("known");
        for members in [2, 4, 8] {
            let found = seconds(&cluster, members) / seconds(&peers, members);
            assert!((found / times - 1.0).abs() < 0.01, "{members} of {card}: {found}");
        }
        let found = cluster.message(0, 1, Contention(1), 1e9) / peers.message(0, 1, Contention(1), 1e9);
        assert!((found / times - 1.0).abs() < 0.01, "{card}: {found}");
    }
    // Of cards that the catalog does not have, GeForce ones have none.
    let described =
        |name: &str| here(&driver(name, 24 << 30), 8, 1).expect("described").text.expect("a file");
    let of = |name: &str| seconds(&read(&described(name), "here").expect("valid"), 2);
    let usual = of("NVIDIA L20");
    assert!((of("NVIDIA GeForce RTX 4090") / usual - 2.0).abs() < 0.01, "{usual}");
}

#[test]
fn bfloat16_is_computed_as_float32_where_a_card_has_none() {
    for (name, has) in [("v100", false), ("t4", false), ("a100", true), ("h100", true)] {
        let cluster = named(&format!("{name}:1")).expect("known");
        let rate = |dtype| cluster.device(0).peak_of(dtype);
        let expected = if has { rate(Dtype::F16) } else { rate(Dtype::F32) };
        assert_eq!(rate(Dtype::Bf16).to_bits(), expected.to_bits(), "{name}");
        assert!(rate(Dtype::F16) > 4.0 * rate(Dtype::F32), "{name}");
    }
}

#[test]
fn names_that_a_driver_makes_up_do_no_harm() {
    for name in ["", "\"]\n[x", "NVIDIA \u{1F600}", "é\\"] {
        let found = here(&driver(name, 0), 1, 1).expect("described");
        assert!(read(&found.text.expect("a file"), "here").is_ok());
    }
}
