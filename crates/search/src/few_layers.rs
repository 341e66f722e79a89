//! What a plan takes, told from the same model with fewer of its layers.
//!
//! In a plan of one block each further layer takes as long as the one before it, and as much memory. So the model with
//! three layers of each run, and with one more of one run, tell what all of them take. The time for that does not depend
//! on how many there are. Where messages pile up, what is told is less time than the whole takes, and more memory: a few
//! layers hold at most what many do. It is no claim: what is chosen is lowered and simulated whole.

use graph::{Graph, Repeats, repeats, shorter};
use plan::{PlanName, sets};
use rules::Analysis;

use crate::{Evaluated, Question, candidate};

/// Runs of fewer layers stay as they are.
const MANY: usize = 6;
/// So many layers of a run are left.
const FEW: usize = 3;
/// Where the shorter models have more than this share of the operators, nothing is gained.
const SHARE: f64 = 0.5;

/// The model with fewer layers, and with one more of each run.
pub(crate) struct FewLayers {
    base: ShortModel,
    /// For each run, with a layer more; and how many layers more than the least there are in all.
    more: Vec<(ShortModel, f64)>,
}

struct ShortModel {
    graph: Graph,
    analysis: Analysis,
}

/// Seconds of a step, and bytes of the device that has least room.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extrapolated {
    pub(crate) seconds: f64,
    pub(crate) memory: f64,
    pub(crate) there: f64,
}

impl FewLayers {
    /// None where a model has no layers that are alike, or not many.
    pub(crate) fn from_graph(graph: &Graph) -> Option<Self> {
        let runs = repeats(graph, MANY);
        let with = |more: Option<usize>| {
            let few = |run: usize| if more == Some(run) { FEW + 1 } else { FEW };
            let left = |run: usize| runs[run].times - few(run);
            // From the last to the first: so those before stay where they are.
            let shorten = |graph: Graph, run: usize| shorter(&graph, runs[run], left(run));
            (0..runs.len()).rev().try_fold(graph.clone(), shorten)
        };
        if runs.is_empty() || Self::share(graph, &runs) > SHARE {
            return None;
        }
        let base = ShortModel::new(with(None)?);
        let more = |run: usize| Some((ShortModel::new(with(Some(run))?), (runs[run].times - FEW) as f64));
        Some(Self { base, more: (0..runs.len()).map(more).collect::<Option<_>>()? })
    }

    /// Operators of the shorter models, by those of the whole.
    fn share(graph: &Graph, runs: &[Repeats]) -> f64 {
        let left: usize = runs.iter().map(|run| (run.times - FEW) * run.period).sum();
        let least = graph.ops.len() - left;
        let layer: usize = runs.iter().map(|run| run.period).sum();
        ((runs.len() + 1) * least + layer) as f64 / graph.ops.len() as f64
    }

    /// What the plan of a name takes; nothing if it is none for one of the models.
    pub(crate) fn extrapolated(&self, question: &Question<'_>, name: &PlanName) -> Option<Extrapolated> {
        let base = self.base.evaluated(question, name)?;
        let (_, memory, there) = base.memory;
        let first = Extrapolated { seconds: base.seconds(), memory: memory as f64, there: there as f64 };
        self.more.iter().try_fold(first, |sum, (model, layers)| {
            let more = model.evaluated(question, name)?;
            Some(Extrapolated {
                seconds: sum.seconds + layers * (more.seconds() - base.seconds()),
                memory: sum.memory + layers * (more.memory.1 as f64 - memory as f64),
                ..sum
            })
        })
    }
}

impl ShortModel {
    fn new(graph: Graph) -> Self {
        let analysis = Analysis::new(&graph);
        Self { graph, analysis }
    }

    fn evaluated(&self, question: &Question<'_>, name: &PlanName) -> Option<Evaluated> {
        let model = sets::Model::new(&self.graph, &self.analysis);
        let plan = sets::named_of(name, &model, question.devices).ok()?;
        let shorter =
            Question { graph: &self.graph, analysis: &self.analysis, constraints: None, ..*question };
        candidate(&shorter, plan).ok()
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::fmt::Write;

    use check::Masters;
    use program::Inputs;

    use super::*;

    /// So many layers of two products each, of so many rows.
    pub(crate) fn deep(layers: usize, rows: usize) -> Graph {
        let mut text = String::from(
            "shardwright-graph 1\nmodel \"Deep\"\nin_spec \"\"\nout_spec \"\"\nmodule \"\" \"Deep\"\n",
        );
        for at in 0..layers {
            writeln!(text, "module \"h.{at}\" \"Layer\"").expect("a text takes all");
        }
        write!(
            text,
            "input %x f32[{rows},256] 0\nparam %e f32[256,256] \"embed\"\n\
             op %h f32[{rows},256] = aten.mm.default(%x, %e) in \"\" at \"m.py:1\"\n"
        )
        .expect("a text takes all");
        let mut before = String::from("h");
        for at in 0..layers {
            write!(
                text,
                "param %u{at} f32[256,1024] \"h.{at}.up\"\nparam %d{at} f32[1024,256] \"h.{at}.down\"\n\
                 op %a{at} f32[{rows},1024] = aten.mm.default(%{before}, %u{at}) in \"h.{at}\" at \"m.py:2\"\n\
                 op %g{at} f32[{rows},1024] = aten.tanh.default(%a{at}) in \"h.{at}\" at \"m.py:3\"\n\
                 op %m{at} f32[{rows},256] = aten.mm.default(%g{at}, %d{at}) in \"h.{at}\" at \"m.py:4\"\n\
                 op %r{at} f32[{rows},256] = aten.add.Tensor(%{before}, %m{at}) in \"h.{at}\" at \"m.py:5\"\n"
            )
            .expect("a text takes all");
            before = format!("r{at}");
        }
        writeln!(text, "op %s f32[] = aten.sum.default(%{before}) in \"\" at \"m.py:6\"\noutput %s")
            .expect("a text takes all");
        text.parse().expect("it parses")
    }

    /// For some plans the seconds and bytes that are told, by those of the whole.
    fn ratios(rows: usize) -> Vec<(f64, f64)> {
        let graph = deep(40, rows);
        let few = FewLayers::from_graph(&graph).expect("it has many layers");
        assert!(few.base.graph.ops.len() * 4 < graph.ops.len());
        let (analysis, boundary) = (Analysis::new(&graph), lower::loss(&graph, Inputs::Global));
        let (cluster, masters) = (cluster::named("dgx-a100:4x1").expect("known"), Masters::new());
        let question = Question::of_tests(&graph, &analysis, &boundary, &masters, &cluster);
        let ratio = |name: &str| {
            let name: PlanName = name.parse().expect("a name");
            let short = few.extrapolated(&question, &name).expect("it is a plan of all of them");
            let plan = sets::named_of(&name, &sets::Model::new(&graph, &analysis), 4).expect("a plan");
            let whole = candidate(&question, plan).expect("it is lowered");
            (short.seconds / whole.seconds(), short.memory / whole.memory.1 as f64)
        };
        ["data:2 x megatron:2", "zero1:4", "zero3:4 x recompute", "zero3:2 x megatron:2"].map(ratio).to_vec()
    }

    #[test]
    fn few_layers_tell_what_all_take() {
        for (seconds, memory) in ratios(1 << 16) {
            assert!((seconds - 1.0).abs() < 0.01 && (memory - 1.0).abs() < 0.01, "{seconds} {memory}");
        }
    }

    /// Where messages take longer than what is computed meanwhile, that shows with more layers only.
    #[test]
    fn where_messages_pile_up_they_tell_less() {
        let ratios = ratios(64);
        assert!(ratios.iter().all(|(seconds, _)| (0.9..1.01).contains(seconds)), "{ratios:?}");
        assert!(ratios.iter().any(|(seconds, _)| *seconds < 0.99), "{ratios:?}");
    }

    #[test]
    fn a_model_of_few_layers_stays_as_it_is() {
        assert!(FewLayers::from_graph(&deep(4, 64)).is_none());
    }
}
