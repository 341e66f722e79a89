//! A step of a program on a cluster: how long it takes, and what of that is work on the model.

use check::Masters;
use cluster::Cluster;
use diag::{Error, Result};
use graph::Graph;
use plan::Plan;
use rules::Analysis;
use simulate::{Scene, Simulation, manifest, simulate, trace};

use crate::memory::{state_of, with_optimizer};
use crate::{Compiled, Memory, prove_with, work};

/// What is simulated besides the program.
#[derive(Clone, Debug)]
pub struct Setting<'s> {
    pub cluster: &'s Cluster,
    /// Micro-batches of the step, each as large as the graph's inputs.
    pub batches: u32,
    pub optimizer: &'s str,
    pub masters: &'s Masters,
}

pub struct Step {
    pub simulation: Simulation,
    /// Of each rank.
    pub memory: Vec<Memory>,
    /// Operations of the model in a step.
    pub operations: f64,
    /// What these are of all that the devices could compute in that time, in the types that the model computes in.
    pub utilisation: f64,
    /// In JSON: what each role communicates.
    pub manifest: String,
    /// In the format of Chrome's traces.
    pub trace: String,
}

/// Runs a step of a compiled plan.
pub fn step(
    graph: &Graph,
    analysis: &Analysis,
    plan: &Plan,
    compiled: &Compiled,
    setting: &Setting<'_>,
) -> Result<Step> {
    if setting.batches == 0 {
        return Err(Error::new("SW0912", "a step has at least one micro-batch")
            .why("it was to be simulated with none")
            .fix("give --batches 1, or more"));
    }
    let memory = with_optimizer(&compiled.proof.memory, setting.optimizer)?;
    let tensors = state_of(setting.optimizer)?.0;
    // Parameters are read and written, gradients read, and so is the state, and written.
    let updated: Vec<u64> = memory.iter().map(|rank| rank.trained.1 * (3 + 2 * tensors)).collect();
    let program = &compiled.program;
    let courses = prove_with(graph, program, setting.masters)?;
    let scene = Scene {
        program,
        courses: &courses,
        cluster: setting.cluster,
        batches: setting.batches,
        updated: &updated,
    };
    let simulation = simulate(&scene)?;
    let rewritten = program.rewritten(graph)?.graph;
    let operations = work(graph, analysis, plan).model * f64::from(setting.batches);
    let could = peak(graph, setting.cluster, program.world) * simulation.seconds;
    Ok(Step {
        manifest: format!("{:#}", manifest(&scene, &rewritten, &simulation)),
        trace: trace(&scene, &rewritten, &simulation),
        utilisation: if could > 0.0 { operations / could } else { 0.0 },
        simulation,
        memory,
        operations,
    })
}

/// Operations a second of the devices that a program has, in the type of which the model's parameters have most bytes.
fn peak(graph: &Graph, cluster: &Cluster, world: u32) -> f64 {
    let mut bytes: Vec<(graph::Dtype, u64)> = vec![];
    for tensor in graph.tensors.iter().filter(|tensor| tensor.dtype.is_float()) {
        let size = tensor.shape.iter().map(|size| size.unsigned_abs()).product::<u64>();
        match bytes.iter_mut().find(|(dtype, _)| *dtype == tensor.dtype) {
            Some((_, all)) => *all += size,
            None => bytes.push((tensor.dtype, size)),
        }
    }
    let most = bytes.iter().max_by_key(|(_, all)| *all).map_or(graph::Dtype::F32, |(dtype, _)| *dtype);
    (0..world).map(|rank| cluster.device(rank).peak_of(most)).sum()
}
