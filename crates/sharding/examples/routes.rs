//! How long a route takes to find, on 8 and on 8,192 devices, the median of 201: `cargo run --release -p shardwright-sharding
//! --example routes`.
#![allow(clippy::print_stdout)]

use std::time::{Duration, Instant};

use rules::Reduction;
use sharding::{Axis, Cut, Mesh, Sharding, route};

/// Which axes divide `b`, `s` and `h`, and which hold partial results: 0 is `dp`, 1 `tp`, 2 `ep`.
struct Ends(&'static str, [&'static [usize]; 4], [&'static [usize]; 4]);

const CASES: &[Ends] = &[
    Ends("nothing", [&[0], &[], &[], &[]], [&[0], &[], &[], &[]]),
    Ends("all-reduce", [&[0], &[], &[], &[1]], [&[0], &[], &[], &[]]),
    Ends("reduce-scatter", [&[0], &[], &[], &[1]], [&[0], &[1], &[], &[]]),
    Ends("all-to-all", [&[0], &[1], &[], &[]], [&[0], &[], &[1], &[]]),
    Ends("two all-gathers", [&[0], &[], &[1], &[]], [&[], &[], &[], &[]]),
    Ends("all-reduce and all-gather", [&[0], &[], &[], &[1]], [&[], &[], &[], &[]]),
    Ends("transposed", [&[0], &[1], &[2], &[]], [&[2], &[0], &[1], &[]]),
    Ends("partial everywhere", [&[], &[], &[], &[0, 1, 2]], [&[0], &[2], &[1], &[]]),
];

fn main() {
    println!("{:28} {:>8} {:>10} hops", "", "devices", "time");
    for Ends(name, from, to) in CASES {
        for mesh in [[2, 2, 2], [16, 16, 32]] {
            let (from, to) = (sharding(mesh, from), sharding(mesh, to));
            let hops = route(&from, &to, 2).expect("a route");
            let mut times: Vec<Duration> = (0..201).map(|_| timed(&from, &to)).collect();
            times.sort_unstable();
            let time = times[100];
            let kinds: Vec<String> = hops.iter().map(|h| format!("{:?}", h.kind)).collect();
            println!("{name:28} {:>8} {time:>10.1?} {}", mesh.iter().product::<u32>(), kinds.join(", "));
        }
    }
}

fn timed(from: &Sharding, to: &Sharding) -> Duration {
    let start = Instant::now();
    std::hint::black_box(route(std::hint::black_box(from), to, 2));
    start.elapsed()
}

fn sharding(mesh: [u32; 3], roles: &[&[usize]; 4]) -> Sharding {
    let axes = [Axis::new(mesh[0], mesh[1] * mesh[2]), Axis::new(mesh[1], mesh[2]), Axis::new(mesh[2], 1)];
    let named = |role: usize| roles[role].iter().map(|&a| axes[a]).collect::<Vec<Axis>>();
    let cuts = (0..3).map(|f| Cut::nested(16384, named(f))).collect();
    let copies: Vec<Axis> =
        (0..3).filter(|a| !roles.iter().any(|r| r.contains(a))).map(|a| axes[a]).collect();
    let on = Mesh::all(mesh.iter().product());
    Sharding::new(on.base(), cuts, &named(3), &copies, Reduction::Sum).expect("a spread")
}
