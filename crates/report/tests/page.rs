//! What a page tells is what `simulate` and `manifest` print.

use std::collections::BTreeMap;
use std::io::Read as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use flate2::read::GzDecoder;
use graph::Graph;
use report::page::html;
use serde_json::{Value, json};

use crate::made::{page, page_of};

fn numbers(value: &Value) -> Vec<i64> {
    value.as_array().expect("a list").iter().map(|it| it.as_i64().expect("a number")).collect()
}

fn list(value: &Value) -> &[Value] {
    value.as_array().expect("a list")
}

/// Seconds of each sort of slices of a track.
fn by_sort(data: &Value, track: usize) -> BTreeMap<String, f64> {
    let timeline = &data["timeline"];
    let mut seconds = BTreeMap::new();
    for task in numbers(&timeline["tasks"][track]).chunks(5) {
        for slice in numbers(&timeline["slices"][task[3] as usize]).chunks(4) {
            let sort = timeline["sorts"][slice[2] as usize].as_str().expect("a name");
            *seconds.entry(sort.to_owned()).or_default() += slice[1] as f64 * 1e-9;
        }
    }
    seconds
}

const PLANS: [(&str, u32); 5] = [
    ("megatron", 1),
    ("zero3", 2),
    ("stages:2 x 1f1b x megatron", 8),
    ("stages:4 x zb-h1", 8),
    ("data x recompute", 1),
];

#[test]
fn long_data_is_packed() {
    let data = json!({ "overview": { "model": "m", "plan": "p" }, "rest": "<b>".repeat(1_000_000) });
    let page = html(&data);
    assert!(page.len() < 500_000, "{}", page.len());
    let (_, behind) =
        page.split_once("<script type=\"application/gzip\" id=\"data\">").expect("it is packed");
    let packed = STANDARD.decode(behind.split_once("</script>").expect("it ends").0).expect("base64");
    let mut json = String::new();
    GzDecoder::new(&packed[..]).read_to_string(&mut json).expect("it is gzip");
    assert!(data == json.parse::<Value>().expect("it is JSON"));
}

#[test]
fn slices_are_the_time_of_each_device() {
    for (plan, batches) in PLANS {
        let (data, step) = page(plan, batches);
        let whole = step.estimate.simulation.seconds;
        for (at, track) in list(&data["tracks"]).iter().enumerate() {
            let sorts = by_sort(&data, at);
            let slices = |sort: &str| sorts.get(sort).copied().unwrap_or(0.0);
            let lane = |part: &str| track["seconds"][part].as_f64().expect("seconds");
            let pairs = [
                (slices("forward"), lane("forward")),
                (slices("backward") + slices("weight gradients"), lane("backward")),
                (slices("recomputed"), lane("again")),
                (slices("optimizer"), lane("update")),
            ];
            for (drawn, known) in pairs {
                assert!((drawn - known).abs() <= 1e-3 * whole, "{plan}: {drawn} {known} {sorts:?}");
            }
            let parts = ["forward", "backward", "again", "copies", "exposed", "idle", "update"];
            assert!((parts.map(lane).iter().sum::<f64>() - whole).abs() < 1e-6 * whole);
        }
    }
}

#[test]
fn communication_is_that_of_the_manifest() {
    for (plan, batches) in PLANS {
        let (data, step) = page(plan, batches);
        let manifest: Value = serde_json::from_str(&step.manifest).expect("JSON");
        let mut listed = BTreeMap::new();
        for role in list(&manifest["roles"]) {
            for it in list(&role["communications"]) {
                let sum = listed.entry(role["rank"].as_u64()).or_insert((0, 0, 0.0));
                *sum = (
                    sum.0 + 1,
                    sum.1 + it["bytes"].as_u64().unwrap_or(0),
                    sum.2 + it["exposed_seconds"].as_f64().unwrap_or(0.0),
                );
            }
        }
        let mut entries = BTreeMap::new();
        for it in list(&data["communication"]["entries"]) {
            let track = &data["tracks"][it["track"].as_u64().expect("a track") as usize];
            let sum = entries.entry(track["rank"].as_u64()).or_insert((0, 0, 0.0));
            let count = it["count"].as_u64().expect("a count");
            *sum = (
                sum.0 + count,
                sum.1 + count * it["bytes"].as_u64().unwrap_or(0),
                sum.2 + it["exposed"].as_f64().unwrap_or(0.0),
            );
        }
        for (rank, (count, bytes, exposed)) in listed {
            let (counted, moved, waited) = entries.get(&rank).copied().unwrap_or_default();
            assert_eq!((counted, moved), (count, bytes), "{plan}, rank {rank:?}");
            assert!((waited - exposed).abs() < 1e-9, "{plan}: {waited} {exposed}");
        }
    }
}

#[test]
fn memory_is_most_where_the_check_says() {
    for (plan, batches) in PLANS {
        let (data, step) = page(plan, batches);
        for memory in list(&data["memory"]["tracks"]) {
            let rank = memory["rank"].as_u64().expect("a rank") as usize;
            let most = step.estimate.memory[rank].total();
            assert_eq!(memory["most"].as_u64(), Some(most));
            assert_eq!(numbers(&memory["peak"]).iter().sum::<i64>() as u64, most);
            let over = numbers(&memory["over"]);
            let highest = over.chunks(10).map(|it| it[1..].iter().sum::<i64>() as u64).max().unwrap_or(0);
            // Inputs of more micro-batches than the check goes through for the peak.
            let inputs = over.chunks(10).map(|it| it[6] as u64).max().unwrap_or(0);
            assert!((most..=most + inputs).contains(&highest), "{plan}, rank {rank}: {highest} {most}");
            assert!(over.chunks(10).map(|it| it[0]).is_sorted());
        }
    }
}

#[test]
fn alike_devices_are_one_row() {
    let tracks = |plan: &str| {
        let (data, _) = page(plan, 4);
        list(&data["tracks"]).iter().map(|track| track["ranks"].to_string()).collect::<Vec<_>>()
    };
    assert_eq!(tracks("data"), ["[[0,3]]"]);
    assert_eq!(tracks("stages:2 x data"), ["[[0,1]]", "[[2,3]]"]);
    assert_eq!(tracks("stages:4 x gpipe"), ["[[0,0]]", "[[1,1]]", "[[2,2]]", "[[3,3]]"]);
}

/// The number of operators below a module is what it says.
fn counted(node: &Value) -> u64 {
    let here: u64 = list(&node["operators"]).iter().map(|it| it["count"].as_u64().expect("a count")).sum();
    let all = here + list(&node["inner"]).iter().map(counted).sum::<u64>();
    assert_eq!(node["number"].as_u64(), Some(all), "{}", node["path"]);
    all
}

#[test]
fn the_tree_has_each_operator_once() {
    let (data, step) = page("megatron", 1);
    let graph: Graph = include_str!("../../../tests/python/golden/gpt.graph").parse().expect("a graph");
    let tree = &data["model"]["tree"];
    assert_eq!(counted(tree), graph.ops.len() as u64);
    assert!((tree["work"].as_f64().expect("a share") - 1.0).abs() < 1e-9);
    let bytes: i64 = graph
        .tensors
        .iter()
        .filter(|it| matches!(it.source, graph::Source::Param { .. }))
        .map(graph::Tensor::bytes)
        .sum();
    assert_eq!(tree["parameters"].as_i64(), Some(bytes));
    let works = step.shares[0].of.iter().map(|it| it.works).sum::<f64>();
    assert!((tree["takes"][0].as_f64().expect("seconds") - works).abs() < 1e-12);
}

#[test]
fn the_matrix_is_what_all_devices_give() {
    let (data, _) = page("data", 1);
    let matrix = &data["communication"]["matrix"];
    let bytes: Vec<f64> = list(&matrix["bytes"]).iter().map(|it| it.as_f64().expect("bytes")).collect();
    // All-reduces of every gradient: three quarters of it twice, from each of four.
    let reduced: u64 = list(&data["communication"]["entries"])
        .iter()
        .map(|it| it["bytes"].as_u64().expect("bytes") * it["count"].as_u64().expect("a count"))
        .sum();
    let given = 4.0 * 2.0 * 0.75 * reduced as f64;
    assert!(reduced > 0 && (bytes.iter().sum::<f64>() - given).abs() < 16.0, "{given} {bytes:?}");
    assert!((0..4).all(|rank| bytes[rank * 5] == 0.0), "nobody sends to itself");
}

#[test]
fn a_page_is_one_file_in_which_no_text_ends_a_script() {
    let (data, _) = page("megatron", 1);
    let page = html(&data);
    assert!(!page.contains("<!--"), "all places are filled");
    assert_eq!(page.matches("</script>").count(), 2);
    assert!(!page.contains("src=") && !page.contains("@import") && !page.contains("href=\"http"));
    assert!(page.contains("Gpt under megatron"), "it has a title");
    let start = page.find("id=\"data\">").expect("data") + 10;
    let end = start + page[start..].find("</script>").expect("an end");
    let read: Value = serde_json::from_str(&page[start..end]).expect("JSON");
    let plan = |of: &Value| of["compare"]["plans"][0]["plan"].clone();
    assert_eq!((&read["names"], plan(&read)), (&data["names"], plan(&data)));
}

#[test]
fn the_critical_path_is_the_whole_step() {
    for (plan, batches) in PLANS {
        let (data, step) = page(plan, batches);
        let path: Vec<Vec<i64>> = list(&data["timeline"]["path"]).iter().map(numbers).collect();
        let (first, last) = (path.first().expect("a path"), path.last().expect("a path"));
        let whole = step.estimate.simulation.seconds * 1e9;
        assert!(first[1] == 0 && (last[2] as f64 - whole).abs() < 2.0, "{plan}: {path:?}");
        assert!(path.windows(2).all(|two| two[0][2] == two[1][1]), "{plan}: one after the other");
    }
}

/// Layers of an MLP of two products.
fn tower(layers: usize) -> String {
    let mut text = String::from("shardwright-graph 1\nmodel \"Tower\"\ninput %x0 f32[64,64] 0\n");
    for layer in 0..layers {
        let next = layer + 1;
        text += &format!(
            "param %u{layer} f32[256,64] \"h.{layer}.up\"\nparam %d{layer} f32[64,256] \"h.{layer}.down\"\n\
             op %h{layer} f32[64,256] = aten.linear.default(%x{layer}, %u{layer}) in \"h.{layer}\" at \"m.py:3\"\n\
             op %g{layer} f32[64,256] = aten.relu.default(%h{layer}) in \"h.{layer}.act\" at \"m.py:4\"\n\
             op %y{layer} f32[64,64] = aten.linear.default(%g{layer}, %d{layer}) in \"h.{layer}\" at \"m.py:5\"\n\
             op %x{next} f32[64,64] = aten.add.Tensor(%x{layer}, %y{layer}) in \"h.{layer}\" at \"m.py:6\"\n"
        );
    }
    text + &format!("op %s f32[] = aten.sum.default(%x{layers}) in \"\" at \"m.py:7\"\noutput %s\n")
}

#[test]
fn a_large_plan_is_a_small_page() {
    let size = |layers: usize, batches: u32| {
        let plan = "stages:16 x 1f1b x data:2 x megatron:4";
        let (data, _) = page_of(&tower(layers), plan, 128, "dgx-h100:8x16", batches);
        assert_eq!(list(&data["tracks"]).len(), 16, "alike devices are one");
        html(&data).len()
    };
    let (few, many) = (size(64, 16), size(64, 64));
    assert!(many < 3_000_000 && many < 2 * few, "{few} {many}");
}
