//! A cluster as the text of a file, which reads back to it. Numbers have six digits.

use std::fmt::Write;

use crate::{Cluster, Collective, Curve, Device, Direction, Link, Node, Origin, catalog};

impl Cluster {
    /// Its file. Each line of `says` is a comment at its head.
    pub fn text(&self, says: &[String]) -> String {
        let mut text = String::new();
        says.iter().for_each(|line| line_of(&mut text, &format!("# {line}")));
        line_of(&mut text, &format!("name = {}", quoted(&self.name)));
        if let Some(Origin { device, torch, threads }) = &self.origin {
            line_of(&mut text, "\n[profile]");
            line_of(&mut text, &format!("device = {}\ntorch = {}", quoted(device), quoted(torch)));
            line_of(&mut text, &format!("threads = {threads}"));
        }
        if self.nodes.len() > 1 {
            link(&mut text, "network", &self.network);
        }
        for (node, count) in runs(&self.nodes, Node::eq) {
            line_of(&mut text, "\n[[nodes]]");
            if count > 1 {
                line_of(&mut text, &format!("count = {count}"));
            }
            let devices = runs(&node.devices, usize::eq);
            let devices = devices.map(|(kind, count)| quoted(&format!("{}:{count}", self.kinds[*kind].name)));
            line_of(&mut text, &format!("devices = [{}]", devices.collect::<Vec<_>>().join(", ")));
            link(&mut text, "nodes.link", &node.link);
        }
        self.kinds.iter().for_each(|kind| device(&mut text, kind));
        text
    }
}

fn link(text: &mut String, name: &str, link: &Link) {
    line_of(text, &format!("\n[{name}]"));
    value(text, "bandwidth", link.bandwidth / 1e9, "GB/s");
    value(text, "latency", link.latency / 1e-6, "us");
    value(text, "start", link.start / 1e-6, "us");
    line_of(text, &format!("reached = {}", digits(link.reached)));
    for (name, is) in [("shared", link.shared), ("sums", link.sums)] {
        if is {
            line_of(text, &format!("{name} = true"));
        }
    }
    for it in &link.measured {
        line_of(text, &format!("\n[[{name}.collectives]]"));
        line_of(text, &format!("kind = {}", quoted(it.collective.map_or("message", Collective::name))));
        line_of(text, &format!("devices = {}", it.devices));
        curve(text, "bytes", &it.curve);
    }
}

fn device(text: &mut String, device: &Device) {
    let name = key(&device.name);
    line_of(text, &format!("\n[devices.{name}]"));
    // What kernels reach is of a generation of GPUs, of which the catalog has one.
    let is_like = |other: &str| catalog::device(other).is_some_and(|it| it.curves == device.curves);
    let like = device.curves.best().and_then(|_| match is_like(&device.name) {
        true => Some(&device.name[..]),
        false => catalog::devices().find(|other| is_like(other)),
    });
    match like {
        Some(like) => line_of(text, &format!("like = {}", quoted(like))),
        None => {
            line_of(text, &format!("compute_reached = {}", digits(device.reached.0)));
            line_of(text, &format!("memory_reached = {}", digits(device.reached.1)));
        }
    }
    value(text, "memory", device.memory as f64 / 1e9, "GB");
    value(text, "bandwidth", device.bandwidth / 1e9, "GB/s");
    // Tables of TOML have no order.
    let mut peak: Vec<_> = device.peak.iter().map(|(dtype, rate)| (dtype.short(), *rate)).collect();
    peak.sort_by_key(|(dtype, _)| *dtype);
    let peak = peak.into_iter().map(|(dtype, rate)| format!("{dtype} = \"{} TFLOP/s\"", digits(rate / 1e12)));
    line_of(text, &format!("peak = {{ {} }}", peak.collect::<Vec<_>>().join(", ")));
    value(text, "overhead", device.overhead / 1e-6, "us");
    value(text, "host", device.host / 1e9, "GB/s");
    value(text, "host_memory", device.host_memory as f64 / 1e9, "GB");
    value(text, "host_bandwidth", device.host_bandwidth / 1e9, "GB/s");
    line_of(text, &format!("\n[devices.{name}.runtime]"));
    let runtime = device.runtime;
    let seconds =
        [("step", runtime.step), ("call", runtime.call), ("wake", runtime.wake), ("apart", runtime.apart)];
    let launch = runtime.launch.map(|seconds| ("launch", seconds));
    seconds.into_iter().chain(launch).for_each(|(name, it)| value(text, name, it / 1e-6, "us"));
    line_of(text, &format!("hidden = {:?}", runtime.hidden));
    for it in &device.measured {
        line_of(text, &format!("\n[[devices.{name}.operators]]"));
        let pass = if it.direction == Direction::Forward { "forward" } else { "backward" };
        line_of(text, &format!("kind = {}\ndtype = {}", quoted(&it.kind), quoted(it.dtype.short())));
        line_of(text, &format!("pass = {}", quoted(pass)));
        curve(text, if it.by_operations { "operations" } else { "bytes" }, &it.curve);
    }
}

fn curve(text: &mut String, sizes: &str, curve: &Curve) {
    let list = |print: &dyn Fn(&(f64, f64)) -> String| {
        curve.points().iter().map(print).collect::<Vec<_>>().join(", ")
    };
    line_of(text, &format!("{sizes} = [{}]", list(&|(size, _)| format!("{size:?}"))));
    line_of(text, &format!("seconds = [{}]", list(&|(_, seconds)| format!("{seconds:.5e}"))));
}

fn value(text: &mut String, name: &str, number: f64, unit: &str) {
    line_of(text, &format!("{name} = \"{} {unit}\"", digits(number)));
}

/// Six that count, without zeros at the end.
fn digits(number: f64) -> String {
    let rounded: f64 = format!("{number:.5e}").parse().unwrap_or(number);
    let text = format!("{rounded}");
    if text.contains('.') || text.parse::<i64>().is_err() { text } else { format!("{text}.0") }
}

fn line_of(text: &mut String, line: &str) {
    // Writing into a `String` does not fail.
    let _ = writeln!(text, "{line}");
}

/// A key of TOML.
fn key(name: &str) -> String {
    let is_bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    if !name.is_empty() && name.chars().all(is_bare) { name.to_owned() } else { quoted(name) }
}

fn quoted(text: &str) -> String {
    let escaped = text.chars().map(|c| match c {
        '"' | '\\' => format!("\\{c}"),
        c if c.is_control() => format!("\\u{:04x}", u32::from(c)),
        c => c.to_string(),
    });
    format!("\"{}\"", escaped.collect::<String>())
}

/// What follows itself, and how often.
fn runs<T>(all: &[T], is_same: impl Fn(&T, &T) -> bool) -> impl Iterator<Item = (&T, usize)> {
    all.chunk_by(is_same).map(|run| (&run[0], run.len()))
}

#[cfg(test)]
mod tests {
    use collective::Collective;
    use graph::Dtype;

    use crate::{Cluster, Contention, OpCost, Slower, catalog, named, read};

    fn check(cluster: &Cluster) {
        let text = cluster.text(&["measured".into()]);
        let parsed = read(&text, "file").unwrap_or_else(|error| panic!("{error}\n{text}"));
        assert_eq!(parsed.text(&["measured".into()]), text);
        assert_eq!(
            (parsed.devices(), &parsed.name, &parsed.origin),
            (cluster.devices(), &cluster.name, &cluster.origin)
        );
        let close = |a: f64, b: f64| assert!((a - b).abs() <= 1e-4 * b.abs(), "{a} {b}\n{text}");
        let all: Vec<u32> = (0..cluster.devices()).collect();
        for bytes in [1e3, 1e6, 1e9] {
            for collective in Collective::ALL {
                let seconds = |it: &Cluster| it.collective(collective, &all, Contention(2), bytes);
                close(seconds(&parsed), seconds(cluster));
            }
            let (first, last) = (all[0], all[all.len() - 1]);
            let seconds = |it: &Cluster| it.message(first, last, Contention(1), bytes);
            close(seconds(&parsed), seconds(cluster));
        }
        for at in all.iter().copied() {
            let (here, there) = (parsed.device(at), cluster.device(at));
            let work = OpCost { operations: 1e11, bytes: 1e7 };
            close(here.seconds(work, Dtype::Bf16), there.seconds(work, Dtype::Bf16));
            assert_eq!(
                (here.curves, here.runtime.launch.is_some()),
                (there.curves, there.runtime.launch.is_some())
            );
            close(here.memory as f64, there.memory as f64);
            close(here.host_bandwidth, there.host_bandwidth);
        }
    }

    #[test]
    fn what_prints_reads_back() {
        for name in catalog::devices() {
            check(&named(&format!("{name}:2x2")).expect("a cluster"));
        }
        for (name, _) in catalog::examples() {
            check(&named(&name).expect("a cluster"));
        }
    }

    #[test]
    fn so_does_what_was_measured() {
        let cluster = read(
            "name = \"two \\\"here\\\"\"\n[profile]\ndevice = \"AMD\"\ntorch = \"2.15\"\nthreads = 1\n[[nodes]]\ndevices = \"here:2\"\n\
             [nodes.link]\nbandwidth = \"2 GB/s\"\nlatency = \"20 us\"\nstart = \"0 us\"\nreached = 1.0\n\
             [[nodes.link.collectives]]\nkind = \"all_reduce\"\ndevices = 2\nbytes = [1024.0, 1048576.0]\nseconds = [1e-4, 2e-3]\n\
             [[nodes.link.collectives]]\nkind = \"message\"\ndevices = 2\nbytes = [1024.0]\nseconds = [1e-4]\n\
             [devices.here]\nmemory = \"8 GB\"\nbandwidth = \"8 GB/s\"\npeak = { f32 = \"40 GFLOP/s\", bf16 = \"1 GFLOP/s\" }\n\
             [[devices.here.operators]]\nkind = \"contraction\"\ndtype = \"f32\"\npass = \"backward\"\noperations = [1000.0]\nseconds = [2e-5]\n\
             [devices.here.runtime]\nstep = \"900 us\"\ncall = \"60 us\"\nwake = \"30 us\"\nhidden = 0.4\n",
            "here.toml",
        );
        let cluster = cluster.expect("a cluster");
        check(&cluster);
        let slower = Slower { kinds: vec![3.0], inside: 2.0, network: 1.0 };
        let measured = cluster.slower(&slower);
        check(&measured);
        let seconds = |it: &Cluster| it.collective(Collective::AllReduce, &[0, 1], Contention(1), 1e5);
        assert!((seconds(&measured) / seconds(&cluster) - 2.0).abs() < 1e-9);
        let seconds = |it: &Cluster| it.device(0).seconds(OpCost { operations: 1e9, bytes: 0.0 }, Dtype::F32);
        assert!((seconds(&measured) / seconds(&cluster) - 3.0).abs() < 1e-9);
    }
}
