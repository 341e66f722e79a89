//! The same cluster with quicker parts, and with slower ones.
//!
//! What a step would take on quicker ones says what holds it back. Slower ones are what was measured.

use crate::{Cluster, Device, Link, Runtime};

/// What is made quicker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Faster {
    /// Links inside of nodes, and the network between them.
    Links,
    /// What devices compute, and read and write of their memory.
    Devices,
    /// What the host does to start operators.
    Hosts,
}

/// How many times as long as the cluster says something took where it was measured; one where it was not.
#[derive(Clone, Debug, PartialEq)]
pub struct Slower {
    /// What devices of each kind compute.
    pub kinds: Vec<f64>,
    /// Messages inside of nodes.
    pub inside: f64,
    /// Messages between nodes.
    pub network: f64,
}

impl Cluster {
    /// As it was measured. Without a network of its own that of a single node is its link.
    #[must_use]
    pub fn slower(&self, by: &Slower) -> Self {
        let mut cluster = self.clone();
        cluster.nodes.iter_mut().for_each(|node| speed_up_link(&mut node.link, 1.0 / by.inside));
        speed_up_link(&mut cluster.network, 1.0 / if self.nodes.len() > 1 { by.network } else { by.inside });
        for (kind, slower) in cluster.kinds.iter_mut().zip(&by.kinds) {
            speed_up_device(kind, 1.0 / slower);
            kind.overhead *= slower;
        }
        cluster
    }

    /// So many times as fast in one of its parts.
    #[must_use]
    pub fn faster(&self, part: Faster, times: f64) -> Self {
        let mut cluster = self.clone();
        match part {
            Faster::Links => {
                cluster.nodes.iter_mut().for_each(|node| speed_up_link(&mut node.link, times));
                speed_up_link(&mut cluster.network, times);
            }
            Faster::Devices => cluster.kinds.iter_mut().for_each(|kind| speed_up_device(kind, times)),
            Faster::Hosts => cluster.kinds.iter_mut().for_each(|kind| speed_up_host(kind, times)),
        }
        cluster
    }
}

fn speed_up_link(link: &mut Link, times: f64) {
    link.bandwidth *= times;
    link.latency /= times;
    link.start /= times;
    link.measured.iter_mut().for_each(|it| it.curve.speed_up(times));
}

fn speed_up_device(device: &mut Device, times: f64) {
    device.bandwidth *= times;
    device.peak.iter_mut().for_each(|(_, peak)| *peak *= times);
    device.measured.iter_mut().for_each(|it| it.curve.speed_up(times));
}

fn speed_up_host(device: &mut Device, times: f64) {
    device.overhead /= times;
    let Runtime { step, call, wake, apart, launch, .. } = &mut device.runtime;
    [step, call, wake, apart].into_iter().chain(launch.as_mut()).for_each(|seconds| *seconds /= times);
}

#[cfg(test)]
mod tests {
    use collective::Collective;
    use graph::Dtype;

    use super::Faster;
    use crate::{Cluster, Contention, OpCost, named};

    /// Seconds of a collective, of a large operator, and of a small one.
    fn takes(cluster: &Cluster) -> [f64; 3] {
        let work = |operations: f64| OpCost { operations, bytes: operations / 1e3 };
        let device = cluster.device(0);
        [
            cluster.collective(Collective::AllReduce, &[0, 1, 2, 3], Contention(1), 1e8),
            device.seconds(work(1e15), Dtype::F32),
            device.seconds(work(1.0), Dtype::F32),
        ]
    }

    #[test]
    fn each_part_takes_half_of_its_own() {
        let cluster = named("h200:4").expect("a cluster");
        let [sends, computes, starts] = takes(&cluster);
        let close = |seconds: [f64; 3], wanted: [f64; 3]| {
            for (seconds, wanted) in seconds.into_iter().zip(wanted) {
                assert!((seconds / wanted - 1.0).abs() < 1e-3, "{seconds} {wanted}");
            }
        };
        close(takes(&cluster.faster(Faster::Links, 2.0)), [sends / 2.0, computes, starts]);
        close(takes(&cluster.faster(Faster::Devices, 2.0)), [sends, computes / 2.0, starts]);
        close(takes(&cluster.faster(Faster::Hosts, 2.0)), [sends, computes, starts / 2.0]);
    }
}
