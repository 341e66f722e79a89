//! What operators read and write: found from the plan's splits, and beside that from every part by itself.

use graph::{Graph, OpId};
use plan::{On, OpPlan, Plan, random, sets, value_operands};
use rules::{Analysis, Interval, Kind, OpDims, Reduction, Region};
use sharding::{Input, Placed, Shard, Sharding};

const MODELS: [&str; 3] = [
    include_str!("../../check/tests/programs/mlp.graph"),
    include_str!("../../check/tests/programs/layer.graph"),
    include_str!("../../emit/tests/gpt.graph"),
];

fn read(model: &str) -> Graph {
    let rest = model.trim_start_matches("shardwright-graph 1\n");
    format!("shardwright-graph 1\n{rest}").parse().unwrap()
}

/// The shards that every part has of an operand, counted one by one.
fn expected(
    dims: &OpDims,
    plan: &OpPlan,
    carried: &[Option<usize>],
    sizes: &[i64],
    is_partial: &dyn Fn(On) -> bool,
    given: &dyn Fn(On) -> bool,
) -> (Vec<Shard>, u32) {
    let mut shards = vec![];
    let count = plan.splits.iter().filter(|s| is_partial(s.on) && given(s.on)).map(|s| s.parts).product();
    for (index, &device) in (0..).zip(plan.devices.iter()) {
        let digits = plan.digits(index);
        if plan.splits.iter().zip(&digits).any(|(s, &d)| !given(s.on) && d > 0) {
            continue;
        }
        let at = plan.intervals(&dims.whole(), &digits);
        let interval = |(&size, l): (&i64, &Option<usize>)| l.map_or(Interval::whole(size), |l| at[l]);
        let region = Region(sizes.iter().zip(carried).map(interval).collect());
        let partial = plan.splits.iter().zip(&digits).filter(|(s, _)| is_partial(s.on) && given(s.on));
        let share = partial.fold(0, |share, (split, digit)| share * split.parts + digit);
        shards.push(Shard { device, region, share });
    }
    shards.sort();
    shards.dedup();
    (shards, count)
}

/// Compares all operands of an operator; says how many there were.
fn compare(graph: &Graph, analysis: &Analysis, plan: &Plan, op: OpId) -> Option<usize> {
    let (dims, own) = (analysis.op(op), plan.op(op));
    let placed = Placed::new(dims, &own.splits, &own.devices)?;
    let is_reduced = |on: On| matches!(on, On::Loop(l) if matches!(dims.loops[l].kind, Kind::Reduce(_)));
    let same =
        |found: Option<Sharding>, sizes: &[i64], (shards, shares): (Vec<Shard>, u32), how: Reduction| {
            let wanted = Sharding::from_shards(sizes, &shards, shares, how);
            assert_eq!(found, wanted, "{own:?}");
            assert!(found.is_none_or(|found| found.shards() == shards));
        };
    let mut count = 0;
    for (output, tensor) in graph.op(op).outputs.iter().enumerate() {
        let Some(tensor) = *tensor else { continue };
        let how = own.splits.iter().find_map(|s| match s.on {
            On::Loop(l) => match dims.loops[l].kind {
                Kind::Reduce(how) => Some(how),
                _ => None,
            },
            _ => None,
        });
        let sizes = analysis.flat(tensor);
        let is_partial = |on: On| is_reduced(on) || on == On::Value;
        let wanted = expected(dims, own, &dims.outputs[output], &sizes, &is_partial, &|_| true);
        same(placed.written(output, &sizes), &sizes, wanted, how.unwrap_or(Reduction::Sum));
        count += 1;
    }
    for (input, tensor) in graph.op(op).inputs().into_iter().enumerate() {
        let rule = analysis.rules[op.index()].as_ref();
        let once = rule.is_some_and(|r| r.inputs[input].once);
        let linear = value_operands(graph, analysis, op).is_some_and(|all| all.contains(&input));
        let (sizes, carried) = (analysis.flat(tensor), &dims.inputs[input]);
        let read = placed.read(Input { carried, once, linear }, &sizes);
        let given = |on: On| !once || !is_reduced(on) && on != On::Value;
        let of = |is_partial: &dyn Fn(On) -> bool| expected(dims, own, carried, &sizes, is_partial, &given);
        let value = of(&|on| linear && on == On::Value);
        let gradient = of(&|on| match on {
            On::Loop(l) => !carried.contains(&Some(l)),
            On::Exchange { .. } => unreachable!("what exchanges rows is rewritten"),
            On::Value => !linear,
            On::Copies => false,
        });
        same(read.clone().map(|r| r.value), &sizes, value, Reduction::Sum);
        same(read.map(|r| r.gradient), &sizes, gradient, Reduction::Sum);
        count += 2;
    }
    Some(count)
}

#[test]
fn operands_of_named_plans_are_spreads() {
    for model in MODELS {
        let graph = read(model);
        let analysis = Analysis::new(&graph);
        for name in
            ["replicate", "data:4", "megatron:4", "data:2 x megatron:2", "megatron:2 x coshard:2 x data:2"]
        {
            let devices = plan::sets::devices_of(name).unwrap().unwrap_or(4);
            let Ok(plan) = sets::named(name, &graph, &analysis, devices) else { continue };
            for op in graph.op_ids() {
                assert!(compare(&graph, &analysis, &plan, op).is_some(), "{name}: {:?}", plan.op(op));
            }
        }
    }
}

#[test]
fn operands_of_random_plans_are_spreads_where_devices_are_a_row() {
    let mut count = 0;
    for model in MODELS {
        let graph = read(model);
        let analysis = Analysis::new(&graph);
        for seed in 0..200 {
            let plan = random::plan(&graph, &analysis, 6, seed);
            count += graph.op_ids().filter_map(|op| compare(&graph, &analysis, &plan, op)).sum::<usize>();
        }
    }
    assert!(count > 2000, "{count} operands were compared");
}
