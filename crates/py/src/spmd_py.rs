//! Decisions of a search inside of a block, as Python sees them.

use std::collections::HashMap;
use std::rc::Rc;

use program::Inputs;
use pyo3::prelude::*;
use search::spmd;

use crate::graph_py::Graph;
use crate::guard::{Evidence, guarded};
use crate::search_py::{Asked, cluster_of};

/// Tables over variables: how many values each has, the variables of each table with its place among those that are
/// different, these tables, and the least sum with how long it took to make and to solve them.
#[pyclass(frozen, get_all, module = "shardwright._core")]
pub(crate) struct DecisionTables {
    sizes: Vec<usize>,
    terms: Vec<(Vec<usize>, usize)>,
    tables: Vec<Vec<f64>>,
    least: Option<f64>,
    seconds: (f64, f64),
}

/// The decisions of a search for plans of one block that compute nothing again, in all that devices work and wait.
#[pyfunction]
#[pyo3(signature = (graph, devices, cluster, text = None, *, batches = 1, optimizer = "adamw", byte = 0.0))]
#[expect(clippy::too_many_arguments, reason = "they are named in Python")]
pub(crate) fn decision_tables(
    py: Python<'_>,
    graph: &Graph,
    devices: u32,
    cluster: &str,
    text: Option<&str>,
    batches: u32,
    optimizer: &str,
    byte: f64,
) -> PyResult<DecisionTables> {
    let model = &graph.model;
    guarded(Evidence::from_model(model), || {
        let cluster = cluster_of(cluster, text)?;
        let (optimizer, inputs) = (optimizer.into(), Inputs::Global);
        let asked = Asked {
            cluster,
            devices,
            batches,
            optimizer,
            memory: None,
            inputs,
            constraints: None,
            threads: 1,
        };
        py.detach(|| asked.with_question(model, |question| Ok(tables_of(spmd::tables(question, byte)?))))
    })
}

fn tables_of(decisions: spmd::Tables) -> DecisionTables {
    let mut known: HashMap<*const f64, usize> = HashMap::new();
    let (mut terms, mut tables) = (vec![], vec![]);
    for term in &decisions.problem.terms {
        let at = *known.entry(Rc::as_ptr(&term.costs).cast()).or_insert_with(|| {
            tables.push(term.costs.to_vec());
            tables.len() - 1
        });
        terms.push((term.scope.clone(), at));
    }
    DecisionTables {
        sizes: decisions.problem.sizes,
        terms,
        tables,
        least: decisions.least.map(|least| least.cost),
        seconds: decisions.seconds,
    }
}
