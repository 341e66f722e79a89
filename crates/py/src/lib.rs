//! The Python module `shardwright._core`: the whole compiler on one screen. Nothing is decided here.

mod cost_py;
mod discovery_py;
mod errors;
mod graph_py;
mod guard;
mod memory_py;
mod model;
mod order_py;
mod padding_py;
mod plan_py;
mod program_py;
mod reference_py;
mod report_py;
mod rule_py;
mod search_py;
mod spmd_py;
mod step_py;
mod svg_py;

use mimalloc::MiMalloc;
use pyo3::prelude::*;

/// A search makes and drops millions of small lists.
#[global_allocator]
static ALLOCATOR: MiMalloc = MiMalloc;

#[pymodule]
mod _core {
    #[pymodule_export]
    use super::cost_py::Cost;
    #[pymodule_export]
    use super::discovery_py::{Discovery, places_of};
    #[pymodule_export]
    use super::graph_py::{Graph, Operator, reached_from};
    #[pymodule_export]
    use super::memory_py::Memory;
    #[pymodule_export]
    use super::order_py::{FoundOrder, blocks_of_shape, search_order, shape_names};
    #[pymodule_export]
    use super::padding_py::prove_filled;
    #[pymodule_export]
    use super::plan_py::{
        _fail, Draft, Part, Plan, micro_batch_weight, plan_devices, plan_examples, plan_names,
    };
    #[pymodule_export]
    use super::program_py::{Compiled, compile, operators_table, read_program, verify};
    #[pymodule_export]
    use super::reference_py::compare_numbers;
    #[pymodule_export]
    use super::report_py::{plan_homes, plan_rows, profiled_step, report_page, rule_coverage};
    #[pymodule_export]
    use super::rule_py::check_rule;
    #[pymodule_export]
    use super::search_py::{
        Found, cluster_devices, cluster_examples, cluster_of_gpus, cluster_origin, gpus, search_plan,
    };
    #[pymodule_export]
    use super::spmd_py::{DecisionTables, decision_tables};
    #[pymodule_export]
    use super::step_py::{Simulated, communications, simulate_seconds, simulate_step};
    #[pymodule_export]
    use super::svg_py::{compared_svg, sharding_svg, timeline_svg};

    #[pymodule_init]
    fn init(module: &pyo3::Bound<'_, pyo3::types::PyModule>) -> pyo3::PyResult<()> {
        use pyo3::types::PyModuleMethods;
        crate::guard::watch_panics();
        module.add("COPIES_IN_FLIGHT", program::COPIES_IN_FLIGHT)
    }
}
