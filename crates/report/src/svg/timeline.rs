//! Who does what when: a line for devices that do the same, computation above communication, as in the page.
//! Below is their memory.

use super::held::{MemoryBand, held, legend_of, top_of};
use super::palette::*;
use super::picture::{Anchor, EDGE, Font, PLAIN, Picture, QUIET, WIDTH, cut, ticks, width_of};
use crate::page::words::time;
use crate::page::{PART, SLICE, Sort, Subject, Track, Tracks, tracks};

const LEFT: f64 = 130.0;
/// Without memory and with it.
const LINE_HIGH: (f64, f64) = (42.0, 64.0);
const COMPUTE: (f64, f64) = (4.0, 20.0);
const TALK: (f64, f64) = (26.0, 9.0);
/// So many lines are drawn.
const LINES: usize = 64;
/// Slices that are narrower are drawn with those beside them.
const NARROW: f64 = 1.5;

const SORTS: [&str; 7] = Sort::NAMES;
/// Of each sort of slices; waiting is the ground.
const SORT_COLOURS: [Colour; SORTS.len()] =
    [FORWARD, BACKWARD, WEIGHTS, RECOMPUTED, COPIES, WAITS, OPTIMIZER];

pub fn timeline(subject: &Subject<'_>) -> String {
    let tracks = tracks(subject);
    let seconds = subject.step.estimate.simulation.seconds;
    let batches = match subject.batches {
        1 => "1 micro-batch".to_owned(),
        many => format!("{many} micro-batches"),
    };
    let title = format!("{} under {}", subject.graph.model, subject.plan.name);
    let about = format!(
        "a step of {batches} takes {} on {}, {} devices",
        time(seconds),
        subject.cluster.name,
        subject.plan.devices
    );
    let mut drawing = Drawing::new(subject, &tracks, Picture::new(&title, &about));
    drawing.axis(tracks.len().min(LINES));
    (0..tracks.len().min(LINES)).for_each(|at| drawing.line(at));
    if tracks.len() > LINES {
        let more = format!("… and {} lines more", tracks.len() - LINES);
        drawing.picture.text([EDGE, drawing.picture.y + 14.0], &more, QUIET);
        drawing.picture.y += 20.0;
    }
    drawing.finish()
}

struct Drawing<'d> {
    tracks: &'d Tracks,
    /// Of each track its memory, how many bytes are as high as it is drawn, and how high a line is with it.
    held: Vec<Option<MemoryBand>>,
    top: u64,
    line_high: f64,
    picture: Picture,
    /// Ticks of the clock, and pixels of one.
    whole: f64,
    scale: f64,
    batches: u32,
    /// Which sorts occurred; and whether anything was communicated, and waited for.
    used: [bool; SORTS.len()],
    talks: (bool, bool),
    seconds: f64,
}

/// What is drawn as one: from, to, the sort.
type DrawnSlice = (f64, f64, usize);

impl<'d> Drawing<'d> {
    fn new(subject: &Subject<'_>, tracks: &'d Tracks, picture: Picture) -> Self {
        let seconds = subject.step.estimate.simulation.seconds;
        let whole = (seconds * subject.ticks_per_second()).max(1.0);
        let (used, talks) = ([false; SORTS.len()], (false, false));
        let scale = (WIDTH - LEFT - EDGE) / whole;
        let held = held(subject, tracks);
        let line_high = if held.iter().any(Option::is_some) { LINE_HIGH.1 } else { LINE_HIGH.0 };
        Self {
            tracks,
            top: top_of(&held),
            held,
            line_high,
            picture,
            whole,
            scale,
            batches: subject.batches,
            used,
            talks,
            seconds,
        }
    }

    fn x(&self, ticks: f64) -> f64 {
        LEFT + ticks * self.scale
    }

    fn axis(&mut self, lines: usize) {
        let (top, high) = (self.picture.y + 14.0, lines as f64 * self.line_high);
        for at in ticks(0.0, self.seconds, 7.0) {
            let x = self.x(at / self.seconds.max(1e-12) * self.whole);
            self.picture.line(&[[x, top - 4.0], [x, top + high]], LINE, 1.0, None);
            if x + 40.0 < WIDTH {
                self.picture.text([x + 3.0, top - 4.0], &time(at), Font { size: 11.0, ..QUIET });
            }
        }
        self.picture.y = top;
    }

    fn line(&mut self, at: usize) {
        let (track, y) = (&self.tracks[at], self.picture.y);
        let name = if track.ranks.len() == 1 { "device" } else { "devices" };
        let label = format!("{name} {}", track.said());
        self.picture.text([EDGE, y + COMPUTE.0 + 14.0], &cut(&label, LEFT - EDGE - 6.0, 12.0), PLAIN);
        self.picture.area([LEFT, y + COMPUTE.0, WIDTH - LEFT - EDGE, COMPUTE.1], TRACK);
        for run in self.runs(track) {
            self.used[run.2] = true;
            let wide = (run.1 - run.0).max(0.4);
            self.picture.area([run.0, y + COMPUTE.0, wide, COMPUTE.1], SORT_COLOURS[run.2]);
        }
        self.batch_numbers(track, y);
        self.communication(track, y);
        if let Some(held) = &self.held[at] {
            held.draw(&mut self.picture, y, [LEFT, WIDTH - EDGE], self.top);
        }
        self.picture.y += self.line_high;
        let end = self.picture.y - 1.0;
        self.picture.line(&[[EDGE, end], [WIDTH - EDGE, end]], LINE, 1.0, None);
    }

    /// What is computed; narrow slices of one sort beside each other are one.
    fn runs(&self, track: &Track) -> Vec<DrawnSlice> {
        let mut runs: Vec<DrawnSlice> = vec![];
        for task in &track.tasks {
            for slice in self.tracks.patterns.slices.all[task[3] as usize].chunks_exact(SLICE) {
                let start = task[2] + slice[0];
                let run = (self.x(start as f64), self.x((start + slice[1]) as f64), slice[2] as usize);
                if run.2 == Sort::Waits as usize {
                    continue;
                }
                match runs.last_mut() {
                    Some(last) if last.2 == run.2 && run.0 - last.1 < 0.5 => last.1 = run.1,
                    // A narrow one between wide ones would be a hair.
                    Some(last)
                        if run.1 - run.0 < NARROW && run.0 - last.1 < 0.5 && last.1 - last.0 < NARROW =>
                    {
                        last.1 = run.1;
                    }
                    _ => runs.push(run),
                }
            }
        }
        runs
    }

    fn batch_numbers(&mut self, track: &Track, y: f64) {
        if self.batches == 1 {
            return;
        }
        for task in track.tasks.iter().filter(|task| task[0] >= 0) {
            let slices = &self.tracks.patterns.slices.all[task[3] as usize];
            if !slices.chunks_exact(SLICE).any(|it| it[2] <= Sort::Weights as i64) {
                continue;
            }
            let (start, end) = widest(slices, (0.5 / self.scale) as i64);
            let (from, to) = (self.x((task[2] + start) as f64), self.x((task[2] + end) as f64));
            let number = (task[1] + 1).to_string();
            if width_of(&number, 11.0) + 4.0 < to - from {
                let font = Font { size: 11.0, anchor: Anchor::Middle, ..PLAIN };
                self.picture.text([f64::midpoint(from, to), y + COMPUTE.0 + 14.0], &number, font);
            }
        }
    }

    fn communication(&mut self, track: &Track, y: f64) {
        let mut shown: Vec<(f64, f64, f64)> = vec![];
        for task in &track.tasks {
            for part in self.tracks.patterns.parts.all[task[4] as usize].chunks_exact(PART) {
                let start = (task[2] + part[1]) as f64;
                let (from, to) = (self.x(start), self.x(start + part[2] as f64));
                let waits = (part[3] as f64 * self.scale).min(to - from);
                match shown.last_mut() {
                    Some(last) if from - last.1 < 0.3 && last.1 - last.0 < NARROW => {
                        *last = (last.0, to.max(last.1), last.2 + waits);
                    }
                    _ => shown.push((from, to, waits)),
                }
            }
        }
        for (from, to, waits) in shown {
            self.talks.0 = true;
            self.picture.area([from, y + TALK.0, (to - from).max(0.4), TALK.1], COMMUNICATION);
            if waits > 0.05 {
                self.talks.1 = true;
                let wide = waits.min((to - from).max(0.4));
                self.picture.area([to - wide, y + TALK.0 + TALK.1 - 4.0, wide, 4.0], EXPOSED);
            }
        }
    }

    fn finish(mut self) -> String {
        let sorts = SORTS.iter().zip(SORT_COLOURS).zip(self.used).filter(|(_, used)| *used);
        let mut entries: Vec<(Colour, String)> =
            sorts.map(|((name, colour), _)| (colour, (*name).to_owned())).collect();
        if self.talks.0 {
            entries.push((COMMUNICATION, "communication".to_owned()));
        }
        if self.talks.1 {
            entries.push((EXPOSED, "communication that is waited for".to_owned()));
        }
        entries.push((TRACK, "idle".to_owned()));
        if self.held.iter().any(Option::is_some) {
            entries.push(legend_of(self.top));
        }
        self.picture.legend(&entries);
        self.picture.finish()
    }
}

/// From where to where a task computes for longest without a pause of more than so many ticks.
fn widest(slices: &[i64], pause: i64) -> (i64, i64) {
    let (mut widest, mut run) = ((0, 0), (0, 0));
    for slice in slices.chunks_exact(SLICE).filter(|it| it[2] != Sort::Waits as i64) {
        let (start, end) = (slice[0], slice[0] + slice[1]);
        run = if start - run.1 <= pause { (run.0, end) } else { (start, end) };
        widest = if run.1 - run.0 > widest.1 - widest.0 { run } else { widest };
    }
    widest
}

#[cfg(test)]
mod tests {
    use super::{Sort, widest};

    #[test]
    fn a_number_stands_where_a_task_computes_for_longest() {
        let slice = |start: i64, long: i64, sort: Sort| [start, long, sort as i64, 0];
        let slices = [
            slice(0, 4, Sort::Forward),
            slice(4, 20, Sort::Waits),
            slice(24, 3, Sort::Forward),
            slice(28, 5, Sort::Forward),
        ];
        assert_eq!(widest(&slices.concat(), 1), (24, 33));
        assert_eq!(widest(&slices.concat(), 0), (28, 33));
        assert_eq!(widest(&[], 0), (0, 0));
    }
}
