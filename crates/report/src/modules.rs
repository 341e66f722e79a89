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
        self.inner.iter().any(|inner| inner.name.parse::<u64>().is_ok() || inner.has_layers())
    }

    /// All operators in it.
    pub(crate) fn ops(&self) -> Vec<OpId> {
        let inner = self.inner.iter().flat_map(Module::ops);
        self.own.iter().copied().chain(inner).collect()
    }
}
