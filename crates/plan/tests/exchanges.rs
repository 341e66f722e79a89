//! Experts whose parts exchange rows: which plans do, and what becomes of it for other shapes and more devices.

use graph::Graph;
use plan::{Plan, Side, repeat, sets, text, transfer};
use rules::Analysis;

/// A mixture of four experts, two for each token.
fn model(tokens: u32) -> (Graph, Analysis) {
    let text = format!(
        "shardwright-graph 1\nmodel \"M\"\nin_spec \"\"\nout_spec \"\"\n\
         input %x f64[{tokens},8] 0\ninput %i i64[{tokens},2] 1\ninput %p f64[{tokens},2] 2\n\
         param %u f64[4,6,8] \"up\"\nparam %d f64[4,8,6] \"down\"\n\
         op %n f64[{tokens},8] = aten.relu.default(%x) in \"\" at \"m:1\"\n\
         op %y f64[{tokens},8] = shardwright.experts.default(%n, %i, %p, %u, %d, \"relu\", False, False, False) in \"\" at \"m:2\"\n\
         op %q f64[{tokens},8] = aten.mul.Tensor(%y, %y) in \"\" at \"m:3\"\n\
         op %s f64[] = aten.sum.default(%q) in \"\" at \"m:4\"\n\
         output %s\n"
    );
    let graph: Graph = text.parse().expect("it parses");
    let analysis = Analysis::new(&graph);
    (graph, analysis)
}

/// How the mixture is divided.
fn of_mixture(plan: &Plan, (graph, analysis): &(Graph, Analysis)) -> String {
    let printed = text::print(plan, graph, analysis);
    let line = printed.lines().find_map(|line| line.strip_prefix("op %y: ")).expect("a line");
    line.split(" on ").next().unwrap_or_default().into()
}

fn named(name: &str, devices: u32, tokens: u32) -> String {
    let model = model(tokens);
    of_mixture(&sets::named(name, &model.0, &model.1, devices).expect("a plan"), &model)
}

#[test]
fn rows_are_exchanged_where_tokens_have_fewer_experts_than_there_are_devices() {
    for (name, devices, tokens, expect) in [
        ("expert", 2, 12, "split e 2"),
        ("expert", 3, 12, "exchange t 3"),
        ("expert", 4, 12, "exchange t 4"),
        ("expert", 4, 3, "split e 4"),
        ("data:2 x expert:3", 6, 12, "split t 2, exchange t 3"),
        ("data:2 x expert:3", 6, 4, "split t 2, split e 3"),
        ("expert:3 x data:2", 6, 12, "split e 3, split t 2"),
        ("zero3:2 x expert:4", 8, 12, "split t 2, exchange t 4"),
    ] {
        assert_eq!(named(name, devices, tokens), expect, "{name} of {tokens} tokens on {devices}");
    }
}

#[test]
fn a_plan_prints_as_it_is_read() {
    let model = model(12);
    let plan = sets::named("data:2 x expert:3", &model.0, &model.1, 6).expect("a plan");
    for printed in [text::print(&plan, &model.0, &model.1), plan::print_folded(&plan, &model.0, &model.1)] {
        let read = text::parse(&printed, &model.0, &model.1, None).expect("it is read");
        assert_eq!(read, plan);
    }
}

#[test]
fn other_shapes_exchange_as_far_as_they_can() {
    let from = model(12);
    let plan = sets::named("expert", &from.0, &from.1, 4).expect("a plan");
    for (tokens, expect) in [(8, "exchange t 4"), (3, "exchange t 2, replicate 2"), (1, "replicate 4")] {
        let to = model(tokens);
        let side = |it| -> Side<'_> {
            let (graph, analysis): &(Graph, Analysis) = it;
            Side { graph, analysis }
        };
        let found = transfer(&plan, side(&from), side(&to)).plan;
        found.validate(&to.0, &to.1).expect("a legal plan");
        assert_eq!(of_mixture(&found, &to), expect, "{tokens}");
    }
}

#[test]
fn units_exchange_among_themselves() {
    let model = model(12);
    let unit = sets::named("expert", &model.0, &model.1, 3).expect("a plan");
    let all = repeat(&unit, &model.0, &model.1, 2).expect("a plan");
    assert_eq!(of_mixture(&all, &model), "split t 2, exchange t 3");
}
