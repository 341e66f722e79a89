//! A model to be asked about.

use check::Masters;
use cluster::Cluster;
use graph::Graph;
use program::{Boundary, Inputs};
use rules::Analysis;
use search::{Question, Stop};

pub struct Model {
    pub graph: Graph,
    pub analysis: Analysis,
    pub boundary: Boundary,
    pub masters: Masters,
}

impl Model {
    pub fn new(text: &str) -> Self {
        let graph: Graph = text.parse().expect("it parses");
        let boundary = lower::loss(&graph, Inputs::Global);
        Self { analysis: Analysis::new(&graph), boundary, masters: Masters::new(), graph }
    }

    pub fn gpt() -> Self {
        Self::new(include_str!("../../../../tests/python/golden/gpt.graph"))
    }

    pub fn question<'q>(&'q self, cluster: &'q Cluster, devices: u32, batches: u32) -> Question<'q> {
        Question {
            graph: &self.graph,
            analysis: &self.analysis,
            boundary: &self.boundary,
            masters: &self.masters,
            cluster,
            devices,
            batches,
            optimizer: "adamw",
            memory: None,
            constraints: None,
            stop: Stop::default(),
            threads: 1,
        }
    }
}
