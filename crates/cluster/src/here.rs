//! The cluster of the GPUs on which this runs: by its name, or described from what their driver says.

use diag::Result;

use crate::cards::{Driver, device, known, left};
use crate::{catalog, link};

const GIGA: f64 = 1e9;
const TERA: f64 = 1e12;
const MICRO: f64 = 1e-6;

/// The cluster of the GPUs on which this runs.
#[derive(Debug, PartialEq)]
pub struct Here {
    pub name: String,
    /// Of its file, where a name says too little.
    pub text: Option<String>,
    /// Bytes of each device, where it has less than the name says.
    pub memory: Option<u64>,
}

/// GPUs of one kind on `nodes` of `local` each.
pub fn here(driver: &Driver, local: u32, nodes: u32) -> Result<Here> {
    let Some(name) = known(driver) else {
        let text = described(driver, local, nodes);
        crate::read(&text, &driver.name)?;
        return Ok(Here { name: driver.name.clone(), text: Some(text), memory: None });
    };
    let dgx = format!("dgx-{name}:{local}x{nodes}");
    let is_dgx = nodes > 1 && catalog::named(&dgx).is_ok();
    let memory = device(name).map(|card| (card.memory, left(driver.memory)));
    // Drivers of one card differ a little.
    let memory = memory.filter(|(usual, here)| (*here as f64) < 0.97 * *usual as f64).map(|(_, here)| here);
    Ok(Here { name: if is_dgx { dgx } else { format!("{name}:{local}x{nodes}") }, text: None, memory })
}

/// The file of a GPU that the catalog does not have, from what its driver says.
fn described(driver: &Driver, local: u32, nodes: u32) -> String {
    let per_clock = |rate: f64| {
        rate * f64::from(driver.multiprocessors.max(1)) * driver.clock.unwrap_or(1.5 * GIGA) / TERA
    };
    let (double, single, half, bf16) = rates(driver.capability);
    let narrow = format!("f16 = \"{:.1} TFLOP/s\"", per_clock(half));
    let also = if bf16 { format!(", bf16 = \"{:.1} TFLOP/s\"", per_clock(half)) } else { String::new() };
    // Of such as are sold a multiprocessor has some 10 to 30 GB/s.
    let bandwidth = driver.bandwidth.unwrap_or(15.0 * GIGA * f64::from(driver.multiprocessors.max(1)));
    // GeForce cards have no access to each other's memory.
    let is_alone = driver.name.to_uppercase().split([' ', '-']).any(|word| word == "GEFORCE");
    let link = if is_alone { link::over_host(link::BUS) } else { link::pcie() };
    format!(
        "name = {name:?}\n\n[network]\nbandwidth = \"100 Gbit/s\"\nlatency = \"14 us\"\nshared = true\n\n\
         [[nodes]]\ncount = {nodes}\ndevices = \"here:{local}\"\n\
         link = {{ bandwidth = \"{link} GB/s\", latency = \"{latency} us\", shared = true }}\n\n\
         [devices.here]\nmemory = \"{memory:.3} GB\"\nbandwidth = \"{bandwidth:.1} GB/s\"\n\
         peak = {{ f64 = \"{double:.2} TFLOP/s\", f32 = \"{single:.1} TFLOP/s\", {narrow}{also} }}\n",
        name = driver.name,
        link = link.bandwidth / GIGA,
        latency = link.latency / MICRO,
        memory = left(driver.memory).max(1_000_000) as f64 / GIGA,
        bandwidth = bandwidth / GIGA,
        double = per_clock(double),
        single = per_clock(single),
    )
}

/// Operations of a multiprocessor a clock: double, single, half, and whether bf16 is as quick as half.
fn rates(capability: (u32, u32)) -> (f64, f64, f64, bool) {
    match capability {
        (..=6, _) => (4.0, 256.0, 256.0, false),
        (7, 0) => (64.0, 128.0, 1024.0, false),
        (7, _) => (4.0, 128.0, 1024.0, false),
        (8, 0) => (128.0, 128.0, 2048.0, true),
        (8, _) => (4.0, 256.0, 1024.0, true),
        (9, _) => (256.0, 256.0, 4096.0, true),
        (10 | 11, _) => (4.0, 256.0, 8192.0, true),
        _ => (4.0, 256.0, 1024.0, true),
    }
}
