//! Random blocks of random models in any order: what is lowered is never refused by the check.

use graph::{Graph, OpId};
use plan::random::Random;
use plan::{Draft, Plan, Schedule};
use program::Inputs;
use rules::Analysis;
use schedule::{Pass, ShapeLoop, Task};

/// Weights, buffers, ways past several operators, and values without a gradient; some buffers are updated.
fn model(random: &mut Random) -> Graph {
    let (count, buffers) = (8 + random.below(12), random.below(4));
    let (mut head, mut ops) =
        (String::from("shardwright-graph 1\nmodel \"Random\"\ninput %x f64[4,4] 0\n"), String::new());
    let mut made = vec!["x".to_owned()];
    for at in 0..buffers {
        head += &format!("buffer %b{at} f64[4,4] \"b{at}\"\n");
    }
    for at in 0..count {
        // Mostly of the last few, sometimes of any.
        let far = if random.below(3) == 0 { made.len() } else { made.len().min(3) };
        let [from, other] = [0; 2].map(|_| made[made.len() - 1 - random.below(far)].clone());
        let call = match random.below(7) {
            0..3 => {
                head += &format!("param %w{at} f64[4,4] \"w{at}\"\n");
                format!("linear.default(%{from}, %w{at})")
            }
            3 if buffers > 0 => format!("mul.Tensor(%{from}, %b{})", random.below(buffers)),
            4 => format!("mul.Tensor(%{from}, %{other})"),
            5 => format!("relu.default(%{from})"),
            _ => format!("add.Tensor(%{from}, %{other})"),
        };
        ops += &format!("op %t{at} f64[4,4] = aten.{call} in \"\" at \"m.py:{at}\"\n");
        made.push(format!("t{at}"));
    }
    let mut ends = String::new();
    for at in 0..random.below(buffers + 1) {
        let from = made[1 + random.below(count)].clone();
        ops += &format!("op %d{at} f64[4,4] = aten.detach.default(%{from}) in \"\" at \"m.py:d\"\n");
        ops +=
            &format!("op %u{at} f64[4,4] = aten.add.Tensor(%b{at}, %d{at}) in \"\" at \"m.py:u\" nograd\n");
        ends += &format!("update \"b{at}\" %u{at}\n");
    }
    ops +=
        &format!("op %loss f64[] = aten.sum.default(%t{}) in \"\" at \"m.py:l\"\noutput %loss\n", count - 1);
    format!("{head}{ops}{ends}").parse().unwrap_or_else(|error| panic!("{error}\n{head}{ops}{ends}"))
}

/// Blocks of operators that follow each other, several on a device, in an order that may have no name.
fn plan(graph: &Graph, analysis: &Analysis, random: &mut Random) -> diag::Result<Plan> {
    let blocks = 2 + random.below(5);
    let devices = 1 + u32::try_from(random.below(blocks.min(3))).unwrap_or(0);
    let mut draft = Draft::new(graph, analysis, "blocks", devices);
    let mut begins: Vec<usize> = (1..blocks).map(|_| 1 + random.below(graph.ops.len() - 1)).collect();
    begins.extend([0, graph.ops.len()]);
    begins.sort_unstable();
    begins.dedup();
    let mut of_devices = vec![vec![]; devices as usize];
    for (block, ends) in begins.windows(2).enumerate() {
        let device = if block < devices as usize { block } else { random.below(devices as usize) };
        of_devices[device].push(block);
        let ops: Vec<OpId> = (ends[0]..ends[1]).map(OpId::new).collect();
        for op in &ops {
            draft.set(*op, vec![]);
            draft.place(*op, [u32::try_from(device).unwrap_or(0)])?;
        }
        draft.block(&ops);
        if random.below(4) == 0 {
            draft.recompute(ops);
        }
    }
    let (schedule, own) = Schedule::NAMES[random.below(Schedule::NAMES.len())];
    draft.schedule(schedule);
    if !schedule.goes_on() && random.below(2) == 0 {
        for (device, own) in (0..).zip(&of_devices) {
            draft.timetable(device, timetable(own, schedule.splits_backward(), random));
        }
    }
    assert_eq!(schedule.name(), own);
    draft.finish()
}

/// Backwards after forwards, both in any order, for micro-batches that are apart.
fn timetable(blocks: &[usize], halves: bool, random: &mut Random) -> Vec<ShapeLoop> {
    let ahead = i32::try_from(random.below(3)).unwrap_or(0);
    let mut tasks = vec![];
    let passes: &[&[Pass]] = if halves {
        &[&[Pass::Forward], &[Pass::Inputs], &[Pass::Weights]]
    } else {
        &[&[Pass::Forward], &[Pass::Backward]]
    };
    for pass in passes.iter().copied().flatten() {
        let mut own = blocks.to_vec();
        if *pass != Pass::Forward {
            own.reverse();
        }
        // One of them is somewhere else.
        if own.len() > 1 && random.below(3) == 0 {
            let (from, to) = (random.below(own.len()), random.below(own.len()));
            own.swap(from, to);
        }
        let at = if *pass == Pass::Forward { ahead } else { 0 };
        tasks.extend(own.into_iter().map(|block| Task { block, pass: *pass, at }));
    }
    vec![ShapeLoop { every: 1, iterations: None, tasks }]
}

#[test]
fn no_program_is_refused_by_the_check() {
    let (mut proved, mut ordered, mut refused) = (0, 0, 0);
    for seed in 0..1500 {
        let mut random = Random::new(seed);
        let graph = model(&mut random);
        let analysis = Analysis::new(&graph);
        let plan = match plan(&graph, &analysis, &mut random) {
            Ok(plan) => plan,
            Err(error) => panic!("seed {seed}: {error}"),
        };
        let boundary = lower::loss(&graph, Inputs::Global);
        match compiler::compile(&graph, &analysis, &plan, &boundary) {
            Ok(_) => {
                proved += 1;
                ordered += usize::from(!plan.timetables.is_empty());
            }
            Err(error) => {
                assert!(
                    error.code.starts_with("SW04"),
                    "seed {seed}: {error}\n{}",
                    plan::text::print(&plan, &graph, &analysis)
                );
                refused += 1;
            }
        }
    }
    assert!(proved > 600 && ordered > 100 && refused > 50, "{proved}, {ordered}, {refused}");
}

/// Two blocks of a device read what another one makes, and neither what the other makes.
const BESIDE: &str = "shardwright-graph 1
model \"Beside\"
input %x f64[4,4] 0
param %w0 f64[4,4] \"w0\"
param %w1 f64[4,4] \"w1\"
param %w2 f64[4,4] \"w2\"
op %t0 f64[4,4] = aten.linear.default(%x, %w0) in \"\" at \"m.py:0\"
op %t1 f64[4,4] = aten.linear.default(%t0, %w1) in \"\" at \"m.py:1\"
op %t2 f64[4,4] = aten.linear.default(%t0, %w2) in \"\" at \"m.py:2\"
op %t3 f64[4,4] = aten.add.Tensor(%t1, %t2) in \"\" at \"m.py:3\"
op %loss f64[] = aten.sum.default(%t3) in \"\" at \"m.py:4\"
output %loss
";

fn beside(order: &str) -> Result<(), String> {
    let graph: Graph = BESIDE.parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    let text = format!(
        "shardwright-plan 1\ndevices 2\nop %t0: single on 0\nop %t1: single on 1\nop %t2: single on 1\n\
         op %t3: single on 0\nop %loss: single on 0\nblock %t0\nblock %t1\nblock %t2\nblock %t3 %loss\n{order}\n"
    );
    let plan = plan::text::parse(&text, &graph, &analysis, None).map_err(|error| error.to_string())?;
    let boundary = lower::loss(&graph, Inputs::Global);
    let made = compiler::compile(&graph, &analysis, &plan, &boundary);
    made.map(|_| ()).map_err(|error| format!("{}: {}", error.code, error.what))
}

#[test]
fn what_a_device_keeps_for_another_block_comes_first() {
    for order in
        ["schedule 1f1b", "schedule gpipe", "schedule zb-h1", "schedule interleaved", "schedule zb-v"]
    {
        assert_eq!(beside(order), Ok(()), "{order}");
    }
    let first = "schedule 1f1b\ntimetable 0: F0+1 F3 B3 B0";
    assert_eq!(beside(&format!("{first}\ntimetable 1: F1+1 F2+1 B2 B1")), Ok(()));
    let refused = |tasks: &str| beside(&format!("{first}\ntimetable 1: {tasks}")).expect_err("it is refused");
    assert_eq!(refused("F2+1 F1+1 B2 B1"), "SW0422: the timetable of device 1 runs `F2` before `F1`");
    assert_eq!(refused("F1+1 F2+1 B1 B2"), "SW0422: the timetable of device 1 runs `B1` before `B2`");
}
