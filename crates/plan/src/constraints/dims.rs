//! The dims that a constraint names, as loops of operators.

use graph::{Graph, OpId};
use rules::{Analysis, Kind};

use crate::classes::Classes;
use crate::dim_names::DimNames;
use crate::model_dims;

/// What words mean for operators of a model.
pub(super) struct Dims<'g> {
    graph: &'g Graph,
    analysis: &'g Analysis,
    names: DimNames,
    classes: Classes,
}

impl<'g> Dims<'g> {
    pub(super) fn new(graph: &'g Graph, analysis: &'g Analysis) -> Self {
        let names = DimNames::new(graph, analysis);
        Self { graph, analysis, names, classes: Classes::new(graph, analysis) }
    }

    /// The loops of an operator that a word means and that can be divided: what its rule calls so, a dim of the model by a
    /// tensor that has it, or what the dim is, such as `batch`.
    pub(super) fn loops(&self, op: OpId, word: &str) -> Vec<usize> {
        let loops = &self.analysis.op(op).loops;
        let classes = model_dims::classes(word, self.graph, self.analysis, &self.classes);
        let is_meant = |index: usize| {
            let name = &loops[index].name;
            let of_model = || {
                let class = self.classes.of_loop(op, index);
                classes.as_ref().is_some_and(|wanted| wanted.contains(&class))
            };
            let called = name == word || name.split('.').next() == Some(word);
            called || self.names.of_loop(op, index) == Some(word) || of_model()
        };
        let is_open = |index: &usize| loops[*index].kind != Kind::Whole && loops[*index].size > 1;
        (0..loops.len()).filter(is_open).filter(|index| is_meant(*index)).collect()
    }

    /// What these operators can be divided along, for messages.
    pub(super) fn known(&self, ops: &[OpId]) -> String {
        let mut words: Vec<String> = vec![];
        for op in ops {
            for (index, it) in self.analysis.op(*op).loops.iter().enumerate() {
                let word = self.names.of_loop(*op, index).unwrap_or(&it.name);
                if it.kind != Kind::Whole && it.size > 1 && !words.iter().any(|known| known == word) {
                    words.push(word.to_owned());
                }
            }
        }
        words.sort();
        words.truncate(8);
        words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(", ")
    }
}
