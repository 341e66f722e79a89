//! Models with fewer layers.

use std::fmt::Write;

use graph::{Graph, Repeats, repeats, shorter};

/// So many layers, each of which reads a mask and what the layer before made; `last` is what follows them.
fn deep(layers: usize, last: &str) -> Graph {
    let mut text = String::from(
        "shardwright-graph 1\nmodel \"Deep\"\nin_spec \"\"\nout_spec \"\"\ninput %x f64[4,8] 0\ninput %mask f64[4,8] 1\n\
         param %e f64[8,8] \"embed\"\nop %h f64[4,8] = aten.mm.default(%x, %e) in \"embed\" at \"m.py:1\"\n",
    );
    let mut before = String::from("h");
    for at in 0..layers {
        write!(
            text,
            "param %w{at} f64[8,8] \"h.{at}.w\"\nbuffer %b{at} f64[8] \"h.{at}.b\"\n\
             op %a{at} f64[4,8] = aten.mul.Tensor(%{before}, %mask) in \"h.{at}\" at \"m.py:2\"\n\
             op %m{at} f64[4,8] = aten.mm.default(%a{at}, %w{at}) in \"h.{at}\" at \"m.py:3\"\n\
             op %r{at} f64[4,8] = aten.add.Tensor(%{before}, %m{at}) in \"h.{at}\" at \"m.py:4\"\n\
             op %u{at} f64[8] = aten.mul.Tensor(%b{at}, 0.5) in \"h.{at}\" at \"m.py:5\"\n"
        )
        .expect("a text takes all");
        before = format!("r{at}");
    }
    text += &last.replace("%last", &format!("%{before}"));
    for at in 0..layers {
        writeln!(text, "update \"h.{at}.b\" %u{at}").expect("a text takes all");
    }
    text.parse().expect("it parses")
}

const SUM: &str = "op %s f64[] = aten.sum.default(%last) in \"\" at \"m.py:6\"\noutput %s\n";

#[test]
fn layers_are_found_by_what_they_do() {
    let model = deep(6, SUM);
    // The first layer reads what is no layer's, so the run begins a little later.
    let [run] = repeats(&model, 3)[..] else { panic!("one run") };
    assert_eq!((run.period, run.times), (4, 5));
    assert_eq!(repeats(&model, 7), []);
    assert_eq!(repeats(&deep(1, SUM), 2), []);
}

#[test]
fn a_model_has_fewer_layers_and_is_one() {
    let model = deep(6, SUM);
    let run = repeats(&model, 3)[0];
    for less in 0..=3 {
        let found = shorter(&model, run, less).expect("it is shorter");
        assert_eq!(found.ops.len(), model.ops.len() - 4 * less);
        assert_eq!(found.updates.len(), 6 - less);
        assert_eq!(found.to_string().parse::<Graph>().expect("it parses"), found);
        let left = Repeats { times: run.times - less, ..run };
        assert_eq!(repeats(&found, 2), [left]);
        // All that its layers hold, and nothing of the others.
        assert_eq!(found.tensors.len(), model.tensors.len() - 6 * less);
    }
    assert_eq!(shorter(&model, run, 0).as_ref(), Some(&model));
}

#[test]
fn what_reads_a_layer_from_afar_keeps_it() {
    let skip = "op %s f64[4,8] = aten.add.Tensor(%last, %r2) in \"\" at \"m.py:6\"\noutput %s\n";
    let model = deep(6, skip);
    let run = repeats(&model, 3)[0];
    assert_eq!(shorter(&model, run, 3), None);
    let given = deep(6, "output %last\noutput %r2\n");
    assert_eq!(shorter(&given, repeats(&given, 3)[0], 3), None);
}
