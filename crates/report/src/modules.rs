//! The model's operators as a tree of its modules.

use graph::{Graph, OpId};

#[derive(Debug, Default)]
pub(crate) struct Module {
    /// The last word of its path.
    pub(crate) name: String,
    /// Operators of the module itself.
    pub(crate) own: Vec<OpId>,
    /// In the order of their first operators.
    pub(crate) inner: Vec<Module>,
}

impl Module {
    pub(crate) fn from_graph(graph: &Graph) -> Self {
        let mut root = Self::default();
        for op in graph.op_ids() {
            let mut at = &mut root;
            for word in graph.op(op).module.split('.').filter(|word| !word.is_empty()) {
                let known = at.inner.iter().position(|inner| inner.name == word);
                let place = known.unwrap_or_else(|| {
                    at.inner.push(Self { name: word.to_owned(), ..Self::default() });
                    at.inner.len() - 1
                });
                at = &mut at.inner[place];
            }
            at.own.push(op);
        }
        root
    }

    /// Whether some of its modules are layers: their names are numbers.
    pub(crate) fn has_layers(&self) -> bool {
        self.inner.iter().any(|inner| layer(&inner.name).is_some() || inner.has_layers())
    }

    /// All operators in it.
    pub(crate) fn ops(&self) -> Vec<OpId> {
        let inner = self.inner.iter().flat_map(Module::ops);
        self.own.iter().copied().chain(inner).collect()
    }
}

/// The number of a layer, and the mark of a call that is not its first: of `3@1` they are 3 and `@1`.
pub(crate) fn layer(word: &str) -> Option<(u64, &str)> {
    let (number, mark) = word.split_at(word.find('@').unwrap_or(word.len()));
    Some((number.parse().ok()?, mark))
}

/// `h.3.attn` is one of `h.*.attn`.
pub(crate) fn pattern_of(path: &str) -> String {
    let word = |word: &str| layer(word).map_or_else(|| word.to_owned(), |(_, mark)| format!("*{mark}"));
    path.split('.').map(word).collect::<Vec<_>>().join(".")
}

#[cfg(test)]
mod tests {
    use super::pattern_of;

    #[test]
    fn layers_of_each_call_have_a_pattern() {
        assert_eq!(pattern_of("h.3.attn"), "h.*.attn");
        assert_eq!(pattern_of("trunk.blocks.3@1.row"), "trunk.blocks.*@1.row");
        assert_eq!(pattern_of("trunk@1.x3"), "trunk@1.x3");
    }
}
