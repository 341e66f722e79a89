//! Plans beside each other: step time against memory, and those that no other beats in both.

use super::palette::*;
use super::picture::{Anchor, EDGE, Font, PLAIN, Picture, QUIET, WIDTH};
use crate::page::words::{bytes, time};
use crate::page::{Candidate, Compared};

const LEFT: f64 = 90.0;
const HIGH: f64 = 380.0;
/// A bound that is so many times below all plans is only named.
const FAR: f64 = 20.0;
/// So many of the frontier are named.
const NAMED: usize = 14;

/// What was compared.
#[derive(Clone, Copy, Debug)]
pub struct ComparedTitle<'t> {
    pub model: &'t str,
    pub cluster: &'t str,
    pub devices: u32,
}

pub fn compared(title: ComparedTitle<'_>, comparison: &Compared) -> String {
    let ComparedTitle { model, cluster, devices } = title;
    let about = format!("{} plans that were simulated, on {devices} devices", comparison.candidates.len());
    let mut picture = Picture::new(&format!("Plans of {model} on {cluster}"), &about);
    let frontier = frontier(&comparison.candidates);
    let axes = Axes::new(comparison, picture.y + 6.0);
    let is_near = axes.as_ref().is_some_and(|axes| axes.is_near);
    if let Some(axes) = axes {
        axes.draw(&mut picture, comparison);
        draw_plans(&mut picture, &axes, &comparison.candidates, &frontier);
        picture.y = axes.bottom + 40.0;
    }
    names(&mut picture, &frontier);
    let entries = [
        (DIMS[0], "on the frontier: none is quicker with less memory"),
        (tint(DIMS[0], 0.45), "other plans"),
        (EXPOSED, "does not fit"),
        (GOOD, "lower bound"),
    ];
    let is_shown = |(colour, _): &&(Colour, &str)| match *colour {
        EXPOSED => comparison.candidates.iter().any(|it| !it.fits),
        GOOD => is_near,
        _ => true,
    };
    let entries: Vec<(Colour, String)> =
        entries.iter().filter(is_shown).map(|(colour, word)| (*colour, (*word).to_owned())).collect();
    picture.legend(&entries);
    picture.finish()
}

/// Plans that fit and that no other beats in time and memory, the quickest first.
fn frontier(candidates: &[Candidate]) -> Vec<&Candidate> {
    let mut sorted: Vec<&Candidate> = candidates.iter().filter(|it| it.fits).collect();
    sorted.sort_by(|a, b| a.seconds.total_cmp(&b.seconds).then(a.memory.0.cmp(&b.memory.0)));
    let mut frontier: Vec<&Candidate> = vec![];
    for candidate in sorted {
        if frontier.last().is_none_or(|last| candidate.memory.0 < last.memory.0) {
            frontier.push(candidate);
        }
    }
    frontier
}

/// Plans differ by orders of magnitude in time, so that axis is logarithmic.
struct Axes {
    times: (f64, f64),
    /// Whether the lower bound is on the axis: one that is far away would press all plans to the side.
    is_near: bool,
    most: f64,
    top: f64,
    bottom: f64,
}

impl Axes {
    fn new(comparison: &Compared, top: f64) -> Option<Self> {
        let times = || comparison.candidates.iter().map(|it| it.seconds).filter(|it| *it > 0.0);
        let longest = times().reduce(f64::max)?;
        let quickest = times().fold(f64::INFINITY, f64::min);
        let is_near = comparison.bound > 0.0 && quickest / comparison.bound < FAR;
        let quickest = if is_near { quickest.min(comparison.bound) } else { quickest };
        let needed = comparison.candidates.iter().map(|it| it.memory.0).max()? as f64;
        let there = comparison.candidates.iter().map(|it| it.memory.1).max()? as f64;
        let times = (quickest.ln() - 0.05, (longest.ln() + 0.05).max(quickest.ln() + 0.3));
        // What needs far more than there is would press all others to the ground.
        Some(Self {
            times,
            is_near,
            most: (needed * 1.08).min(there * 4.0).max(1.0),
            top,
            bottom: top + HIGH,
        })
    }

    fn x(&self, seconds: f64) -> f64 {
        let part = (seconds.ln() - self.times.0) / (self.times.1 - self.times.0);
        LEFT + part * (WIDTH - LEFT - EDGE)
    }

    fn y(&self, memory: f64) -> f64 {
        self.bottom - memory.min(self.most) / self.most * HIGH
    }

    fn draw(&self, picture: &mut Picture, comparison: &Compared) {
        let (left, right) = (LEFT, WIDTH - EDGE);
        let quiet = |anchor| Font { size: 11.0, anchor, ..QUIET };
        let step = 2f64.powf((self.most / 6.0).log2().ceil());
        for at in (0..).map(|at| f64::from(at) * step).take_while(|at| *at <= self.most) {
            let y = self.y(at);
            picture.line(&[[left, y], [right, y]], LINE, 1.0, None);
            picture.text([left - 8.0, y + 4.0], &bytes(at), quiet(Anchor::End));
        }
        for at in log_ticks(self.times.0.exp(), self.times.1.exp()) {
            let x = self.x(at);
            picture.line(&[[x, self.top], [x, self.bottom]], LINE, 1.0, None);
            picture.text([x, self.bottom + 16.0], &time(at), quiet(Anchor::Middle));
        }
        let middle = f64::midpoint(left, right);
        picture.text([middle, self.bottom + 33.0], "step time", quiet(Anchor::Middle));
        picture.text([EDGE, self.top - 4.0], "memory of the fullest device", quiet(Anchor::Start));
        let there = comparison.candidates.iter().map(|it| it.memory.1).max().unwrap_or(0) as f64;
        if there < self.most {
            let y = self.y(there);
            picture.line(&[[left, y], [right, y]], EXPOSED, 1.5, Some(6.0));
            let said = format!("a device has {}", bytes(there));
            picture.text([right, y - 5.0], &said, Font { colour: EXPOSED, ..quiet(Anchor::End) });
        }
        if self.is_near {
            let x = self.x(comparison.bound);
            picture.line(&[[x, self.top], [x, self.bottom]], GOOD, 2.0, None);
        } else if comparison.bound > 0.0 {
            let said = format!("← lower bound {}", time(comparison.bound));
            picture.text([right, self.top - 4.0], &said, Font { colour: GOOD, ..quiet(Anchor::End) });
        }
    }
}

fn draw_plans(picture: &mut Picture, axes: &Axes, all: &[Candidate], frontier: &[&Candidate]) {
    let place = |it: &Candidate| [axes.x(it.seconds), axes.y(it.memory.0 as f64)];
    for candidate in all.iter().filter(|it| it.seconds > 0.0) {
        let colour = if candidate.fits { tint(DIMS[0], 0.45) } else { EXPOSED };
        picture.circle(place(candidate), 4.5, colour);
    }
    let mut steps: Vec<[f64; 2]> = vec![];
    for [x, y] in frontier.iter().map(|it| place(it)) {
        if let Some([_, before]) = steps.last().copied() {
            steps.push([x, before]);
        }
        steps.push([x, y]);
    }
    picture.line(&steps, DIMS[0], 1.5, Some(4.0));
    for (number, candidate) in frontier.iter().enumerate() {
        let [x, y] = place(candidate);
        picture.circle([x, y], 8.0, DIMS[0]);
        if number < NAMED {
            let font = Font { size: 10.0, colour: WHITE, is_bold: true, anchor: Anchor::Middle };
            picture.text([x, y + 3.5], &(number + 1).to_string(), font);
        }
    }
}

/// Names stand below: beside the points they would hide each other.
fn names(picture: &mut Picture, frontier: &[&Candidate]) {
    for (number, candidate) in frontier.iter().take(NAMED).enumerate() {
        picture.y += 18.0;
        let y = picture.y;
        picture.text([EDGE + 16.0, y], &(number + 1).to_string(), Font { anchor: Anchor::End, ..QUIET });
        picture.text([EDGE + 26.0, y], &candidate.plan, Font { is_bold: true, ..PLAIN });
        let said = format!(
            "{}, {}, {} micro-batch{}",
            time(candidate.seconds),
            bytes(candidate.memory.0 as f64),
            candidate.micro_batches,
            if candidate.micro_batches == 1 { "" } else { "es" }
        );
        picture.text([WIDTH - EDGE, y], &said, Font { anchor: Anchor::End, ..QUIET });
    }
    picture.y += 10.0;
}

/// 1, 2 and 5 of each power of ten.
fn log_ticks(from: f64, to: f64) -> Vec<f64> {
    let first = from.log10().floor() as i32;
    let powers = (first..).map(|power| 10f64.powi(power)).take_while(|power| *power <= to);
    powers
        .flat_map(|power| [1.0, 2.0, 5.0].map(|by| by * power))
        .filter(|at| (from..=to).contains(at))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::{Candidate, frontier, log_ticks};

    fn candidate(seconds: f64, memory: u64, fits: bool) -> Candidate {
        Candidate { seconds, memory: (memory, 100), fits, ..Candidate::default() }
    }

    #[test]
    fn none_on_the_frontier_is_beaten() {
        let all = [(3.0, 10, true), (1.0, 50, true), (2.0, 60, true), (0.5, 200, false), (4.0, 10, true)];
        let all = all.map(|(seconds, memory, fits)| candidate(seconds, memory, fits));
        let seconds: Vec<f64> = frontier(&all).iter().map(|it| it.seconds).collect();
        assert_eq!(seconds, [1.0, 3.0]);
    }

    #[test]
    fn ticks_of_a_logarithm_are_round() {
        assert_eq!(log_ticks(0.9, 12.0), [1.0, 2.0, 5.0, 10.0]);
    }
}
