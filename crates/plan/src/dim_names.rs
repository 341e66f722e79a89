//! What the dims of a model are: the batch, the heads, the vocabulary. Found from the graph, for
//! people who read a plan; nothing is decided by it.

use graph::{Graph, OpId, Source, TensorId};
use rules::{Analysis, Kind, Reduction, families};

use crate::classes::Classes;
use crate::sets::Model;

/// For each class of factors a word, where it is known what it is.
pub struct DimNames {
    classes: Classes,
    words: Vec<Option<&'static str>>,
}

impl DimNames {
    pub fn new(graph: &Graph, analysis: &Analysis) -> DimNames {
        let model = Model::new(graph, analysis);
        let mut words = vec![None; model.classes.all.len()];
        name_by_inputs(&model, &mut words);
        name_by_operators(&model, &mut words);
        name_by_contractions(&model, &mut words);
        DimNames { classes: model.classes, words }
    }

    pub fn of_loop(&self, op: OpId, index: usize) -> Option<&'static str> {
        self.words[self.classes.of_loop(op, index)]
    }

    /// The class of a factor of a tensor.
    pub(crate) fn of_factor(&self, tensor: TensorId, factor: usize) -> usize {
        self.classes.of_factor(tensor, factor)
    }

    pub(crate) fn word(&self, class: usize) -> Option<&'static str> {
        self.words[class]
    }
}

/// What the dims of the inputs are: `batch i.0 t.0, sequence i.1 t.1`.
pub(crate) fn of_inputs(graph: &Graph, analysis: &Analysis, names: &DimNames) -> String {
    let mut dims: Vec<(usize, Vec<String>)> = vec![];
    for id in graph.tensor_ids() {
        let tensor = graph.tensor(id);
        if !matches!(tensor.source, Source::Input { .. }) {
            continue;
        }
        let mut factor = 0;
        for (dim, factors) in analysis.factors[id.index()].iter().enumerate() {
            for number in 0..factors.len() {
                let many = if factors.len() > 1 { format!(".{number}") } else { String::new() };
                let (class, handle) = (names.of_factor(id, factor), format!("{}.{dim}{many}", tensor.name));
                match dims.iter_mut().find(|(known, _)| *known == class) {
                    Some((_, handles)) => handles.push(handle),
                    None => dims.push((class, vec![handle])),
                }
                factor += 1;
            }
        }
    }
    let said = |(class, handles): (usize, Vec<String>)| {
        let word = names.word(class).map_or(String::new(), |word| format!("{word} "));
        format!("{word}{}", handles.join(" "))
    };
    dims.into_iter().map(said).collect::<Vec<_>>().join(", ")
}

type Words = [Option<&'static str>];

fn name_by_inputs(model: &Model<'_>, words: &mut Words) {
    for class in crate::sets::batch_classes(model) {
        words[class].get_or_insert("batch");
    }
    for id in model.graph.tensor_ids() {
        let tensor = model.graph.tensor(id);
        let tokens = matches!(tensor.source, Source::Input { .. }) && !tensor.dtype.is_float();
        if tokens && tensor.shape.len() == 2 && tensor.shape[1] > 1 {
            let factors = &model.analysis.factors[id.index()];
            if let [_] = factors[1][..] {
                words[model.classes.of_factor(id, factors[0].len())].get_or_insert("sequence");
            }
        }
    }
}

/// What operators call their dims says what they are.
fn name_by_operators(model: &Model<'_>, words: &mut Words) {
    for op in model.graph.op_ids() {
        let dims = families::nature_of(&model.graph.op(op).target).dims;
        for (index, it) in model.analysis.op(op).loops.iter().enumerate() {
            let called = |(dim, _): &&(&str, &str)| it.name.split('.').next() == Some(*dim);
            let Some((_, word)) = dims.iter().find(called) else { continue };
            words[model.classes.of_loop(op, index)].get_or_insert(word);
        }
    }
}

/// A dim that one contraction makes and another sums is an inner one, all others are the width.
fn name_by_contractions(model: &Model<'_>, words: &mut Words) {
    let contracts = |op: OpId| families::nature_of(&model.graph.op(op).target).contracts;
    for (class, word) in words.iter_mut().enumerate().filter(|(_, word)| word.is_none()) {
        let loops = &model.classes.all[class].loops;
        let kind = |&(op, index): &(OpId, usize)| model.analysis.op(op).loops[index].kind;
        let has_loop = |wanted: fn(Kind) -> bool| loops.iter().any(|l| contracts(l.0) && wanted(kind(l)));
        let summed = has_loop(|kind| matches!(kind, Kind::Reduce(Reduction::Sum) | Kind::Own));
        if summed {
            *word = Some(if has_loop(|kind| kind == Kind::Map) { "inner" } else { "width" });
        }
    }
}
