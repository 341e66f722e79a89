//! In which form each value and each operator is, where a sequence is in slices.

use diag::{Error, Result};
use graph::{Arg, Graph, OpId, Source, TensorId};

use super::Slices;
use crate::algebra::{Kind, Reduction};
use crate::classes::Classes;
use crate::factors::{Analysis, Carried};

/// How an operator is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum How {
    /// At once, with this slice.
    Whole(usize),
    /// With each slice its part along a loop.
    Sliced(usize),
    /// The same, and the parts are added up.
    Summed(usize),
    /// Attention of each slice over all slices up to it.
    Causal,
}

/// How a value is there.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Whole {
        /// The slice that makes it.
        since: usize,
        /// The operator that needs all tokens, if it is not there from the start.
        late: Option<OpId>,
        /// Whether it is computed of an input, or of what is trained.
        live: bool,
    },
    /// Along this factor, counted over all dims.
    Slices(usize),
}

pub(super) struct Forms<'a> {
    pub graph: &'a Graph,
    pub analysis: &'a Analysis,
    pub slices: &'a Slices,
    classes: Classes,
    class: usize,
    of: Vec<Form>,
    /// For each operator.
    pub how: Vec<How>,
}

const ATTENTION: &str = "aten.scaled_dot_product_attention.default";

impl<'a> Forms<'a> {
    pub fn new(graph: &'a Graph, analysis: &'a Analysis, slices: &'a Slices) -> Result<Self> {
        let classes = Classes::new(graph, analysis);
        let class = slices.class(graph, analysis, &classes)?;
        let source = |id: TensorId| {
            let tensor = graph.tensor(id);
            let live = tensor.wants_grad() || matches!(tensor.source, Source::Input { .. });
            Form::Whole { since: 0, late: None, live }
        };
        let initial = graph.tensor_ids().map(source).collect();
        let mut forms = Self { graph, analysis, slices, classes, class, of: initial, how: vec![] };
        for op in graph.op_ids() {
            let how = forms.decide(op);
            forms.note(op, how)?;
            forms.how.push(how);
        }
        if forms.how.iter().all(|how| matches!(how, How::Whole(_))) {
            let what = format!("nothing of {} is computed token by token", graph.model);
            return Err(Error::new("SW0331", what).why(WHY).fix(FIX));
        }
        Ok(forms)
    }

    /// The factor along which a value is in slices.
    pub fn cut_along(&self, tensor: TensorId) -> Option<usize> {
        match self.of[tensor.index()] {
            Form::Slices(factor) => Some(factor),
            Form::Whole { .. } => None,
        }
    }

    fn decide(&self, op: OpId) -> How {
        let (inputs, dims) = (self.graph.op(op).inputs(), self.analysis.op(op));
        let last = self.slices.count() - 1;
        let since = |id: &TensorId| match self.of[id.index()] {
            Form::Whole { since, .. } => since,
            Form::Slices(_) => last,
        };
        let whole = How::Whole(inputs.iter().map(since).max().unwrap_or(0));
        if !self.is_live(op) {
            return whole;
        }
        if self.is_causal(op) {
            return How::Causal;
        }
        let in_class = |index: &usize| self.classes.of_loop(op, *index) == self.class;
        let loops: Vec<usize> = (0..dims.loops.len()).filter(in_class).collect();
        let fits = |index: usize| {
            inputs.iter().zip(&dims.inputs).all(|(id, carried)| self.fits(*id, carried, index))
        };
        match loops[..] {
            [index] if fits(index) && !self.is_placed(op, index) => match dims.loops[index].kind {
                Kind::Map => How::Sliced(index),
                Kind::Reduce(Reduction::Sum) => How::Summed(index),
                _ => whole,
            },
            _ => whole,
        }
    }

    /// Whether a part along a loop has to be told where its queries are, for which the model has no operator.
    fn is_placed(&self, op: OpId, index: usize) -> bool {
        let dim = self.analysis.op(op).loops[index].dim;
        let rule = self.analysis.rules[op.index()].as_ref();
        self.graph.op(op).target == ATTENTION && rule.is_some_and(|rule| rule.dim(dim).contiguous)
    }

    /// Whether an operand that is in slices is so along a loop.
    fn fits(&self, id: TensorId, carried: &Carried, index: usize) -> bool {
        self.cut_along(id).is_none_or(|factor| carried[factor] == Some(index))
    }

    /// Whether all that is attended to are the same tokens, and none of them a later one.
    fn is_causal(&self, op: OpId) -> bool {
        let (it, dims) = (self.graph.op(op), self.analysis.op(op));
        let causal = it.target == ATTENTION && it.arg(5, "is_causal") == Some(&Arg::Bool(true));
        let inputs = it.inputs();
        let [q, k, v] = inputs[..] else { return false };
        let Some(rule) = self.analysis.rules[op.index()].as_ref().filter(|_| causal) else { return false };
        let tokens = |name: &str| {
            let dim = rule.find(name)?;
            let mut loops = (0..dims.loops.len()).filter(|index| dims.loops[*index].dim == dim);
            loops
                .next()
                .filter(|index| loops.next().is_none() && self.classes.of_loop(op, *index) == self.class)
        };
        let (Some(queries), Some(keys)) = (tokens("l"), tokens("s")) else { return false };
        [(q, queries), (k, keys), (v, keys)]
            .iter()
            .zip(&dims.inputs)
            .all(|((id, index), carried)| carried.contains(&Some(*index)) && self.fits(*id, carried, *index))
    }

    /// Says how what an operator makes is there; refuses what slices would have to read of later ones.
    fn note(&mut self, op: OpId, how: How) -> Result<()> {
        let it = self.graph.op(op);
        let late = it.inputs().into_iter().find_map(|id| match self.of[id.index()] {
            Form::Whole { late, .. } => late,
            Form::Slices(_) => None,
        });
        let sliced = it.inputs().iter().any(|id| self.cut_along(*id).is_some());
        let whole = |since: usize, late: Option<OpId>| Form::Whole { since, late, live: self.is_live(op) };
        let last = self.slices.count() - 1;
        let form = match (how, late) {
            (How::Whole(since), _) => Some(whole(since, late.or(sliced.then_some(op)))),
            (_, Some(late)) => return Err(self.looks_ahead(late, op)),
            (How::Summed(_), _) => Some(whole(last, Some(op))),
            (How::Sliced(_) | How::Causal, _) => None,
        };
        let index = match how {
            How::Sliced(index) => Some(index),
            _ => None,
        };
        for (number, id) in it.outputs.iter().enumerate().filter_map(|(number, id)| Some((number, (*id)?))) {
            let carried = &self.analysis.op(op).outputs[number];
            let along = |wanted: &Option<usize>| match index {
                Some(index) => *wanted == Some(index),
                None => wanted.is_some_and(|index| self.classes.of_loop(op, index) == self.class),
            };
            let factor = || carried.iter().position(along).expect("a dim that is mapped is made");
            self.of[id.index()] = form.unwrap_or_else(|| Form::Slices(factor()));
        }
        Ok(())
    }

    fn is_live(&self, op: OpId) -> bool {
        let live = |id: &TensorId| !matches!(self.of[id.index()], Form::Whole { live: false, .. });
        self.graph.op(op).inputs().iter().any(live)
    }

    fn looks_ahead(&self, late: OpId, reader: OpId) -> Error {
        let (it, reads) = (self.graph.op(late), self.graph.op(reader));
        let why = match &it.target[..] {
            ATTENTION if it.inputs().len() > 3 => "it is given a mask, and `is_causal` is not set",
            ATTENTION => "its tokens attend to later ones: `is_causal` is not set",
            _ => "it needs all tokens before it has a result",
        };
        Error::new("SW0331", format!("{} looks ahead", title(self.graph, late)))
            .at(it.line.clone())
            .why(format!(
                "{why}, and {} at {} reads that for every token",
                title(self.graph, reader),
                reads.line
            ))
            .fix(FIX)
    }
}

const WHY: &str = "slices need operators along the sequence";
pub(super) const FIX: &str = "leave `tokens` out: micro-batches fill a pipeline for any model";

pub(super) fn title(graph: &Graph, op: OpId) -> String {
    let it = graph.op(op);
    if it.module.is_empty() { it.target.clone() } else { format!("{} of {}", it.target, it.module) }
}
