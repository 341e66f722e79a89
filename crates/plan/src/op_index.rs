//! A graph's operators by the module that they are in, and by what they make: a line of a plan file finds those
//! that it names without a look at all others.

use std::cell::OnceCell;
use std::collections::BTreeMap;

use graph::{Graph, OpId};

use crate::glob::{enclosing, glob};

pub(crate) struct OpIndex<'g> {
    pub(crate) graph: &'g Graph,
    root: Module<'g>,
    /// By the name of a result, made when it is first asked for.
    makers: OnceCell<BTreeMap<&'g str, Vec<OpId>>>,
}

/// A module with what is inside of it, by the next word of the path.
#[derive(Default)]
struct Module<'g> {
    path: &'g str,
    ops: Vec<OpId>,
    inner: BTreeMap<&'g str, Module<'g>>,
}

impl<'g> OpIndex<'g> {
    pub(crate) fn new(graph: &'g Graph) -> Self {
        let mut root = Module::default();
        for op in graph.op_ids() {
            let path = &graph.op(op).module[..];
            let mut module = &mut root;
            for (word, path) in path.split('.').zip(enclosing(path)) {
                module = module.inner.entry(word).or_default();
                module.path = path;
            }
            module.ops.push(op);
        }
        Self { graph, root, makers: OnceCell::new() }
    }

    /// The operators of each module whose path is as a pattern says.
    pub(crate) fn in_modules(&self, pattern: &str) -> Vec<&[OpId]> {
        let mut fitting = vec![];
        if pattern.contains('*') {
            self.root.visit(&mut |module| {
                let fits = !module.ops.is_empty() && glob(pattern, module.path);
                fitting.extend(fits.then_some(&module.ops[..]));
                true
            });
        } else {
            let words: Vec<&str> = pattern.split('.').collect();
            self.root.at(&words, &mut |module| fitting.push(&module.ops[..]));
        }
        fitting
    }

    /// The operators of each outermost module whose path is as a pattern says, with all that is deeper inside of it.
    pub(crate) fn below(&self, pattern: &str) -> Vec<Vec<OpId>> {
        let mut outermost = vec![];
        if pattern.contains('*') {
            self.root.visit(&mut |module| {
                let fits = glob(pattern, module.path);
                outermost.extend(fits.then_some(module));
                !fits
            });
        } else {
            let words: Vec<&str> = pattern.split('.').collect();
            self.root.at(&words, &mut |module| outermost.push(module));
        }
        outermost.into_iter().map(Module::all).collect()
    }

    /// The operators that make a result of this name.
    pub(crate) fn makers(&self, name: &str) -> &[OpId] {
        let makers = self.makers.get_or_init(|| {
            let mut makers: BTreeMap<&str, Vec<OpId>> = BTreeMap::new();
            for op in self.graph.op_ids() {
                for made in self.graph.op(op).outputs.iter().flatten() {
                    makers.entry(&self.graph.tensor(*made).name).or_default().push(op);
                }
            }
            makers
        });
        makers.get(name).map_or(&[], |ops| &ops[..])
    }
}

impl<'g> Module<'g> {
    /// All modules inside of this one; what is inside of them only if they are asked for.
    fn visit<'m>(&'m self, see: &mut dyn FnMut(&'m Module<'g>) -> bool) {
        for module in self.inner.values() {
            if see(module) {
                module.visit(see);
            }
        }
    }

    /// The modules whose path from here is as these words say, none of which has a `*`.
    fn at<'m>(&'m self, words: &[&str], see: &mut dyn FnMut(&'m Module<'g>)) {
        let [word, rest @ ..] = words else { return see(self) };
        if word.contains(['?', '{']) {
            let fits = |name: &str| name == *word || glob(word, name);
            self.inner.iter().filter(|(name, _)| fits(name)).for_each(|(_, module)| module.at(rest, see));
        } else if let Some(module) = self.inner.get::<str>(word) {
            module.at(rest, see);
        }
    }

    /// Its own operators and those of all modules inside of it, in the graph's order.
    fn all(&self) -> Vec<OpId> {
        let mut ops = self.ops.clone();
        self.visit(&mut |module| {
            ops.extend(&module.ops);
            true
        });
        ops.sort_unstable();
        ops
    }
}
