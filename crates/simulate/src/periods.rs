//! A step of many micro-batches, of which few are gone through.
//!
//! In the midst of a step every rank does the same for one micro-batch after another, or for so many at a time: a period.
//! Where ranks stand to each other at the end of a period as they stood at its beginning, the next one takes as long, and
//! so does each that follows. So a shorter step is gone through, and the periods that it lacks are added.

use diag::Result;
use program::{Body, COPIES_IN_FLIGHT, ExchangeId, Pass, Program, RankId};

use crate::engine::Engine;
use crate::rank::{SimulatedRank, Tick, iterations};
use crate::{Lane, Scene, Simulation};

/// So many periods are gone through, for ranks to come to stand to each other as they do ever after.
const ENOUGH: [u32; 3] = [3, 8, 24];
/// A period is of no more micro-batches.
const LONGEST: u32 = 16;
/// Moments that differ by no more than this share of a period are the same.
const SAME: f64 = 1e-9;

/// A step without noting who does what when.
pub(crate) fn run(scene: &Scene<'_>) -> Result<Simulation> {
    for enough in ENOUGH {
        let Some(shorter) = Shorter::new(scene.program, scene.batches, enough) else { break };
        if let Some(simulation) = shorter.run(scene)? {
            return Ok(simulation);
        }
    }
    Engine::new(scene, false).end()
}

/// A step of fewer micro-batches, which is the whole one without some periods.
struct Shorter {
    batches: u32,
    /// Micro-batches of a period.
    period: u32,
    /// Micro-batches before the first period.
    first: u32,
    periods: u32,
    left_out: u32,
}

impl Shorter {
    /// None where it is not much shorter.
    fn new(program: &Program, batches: u32, periods: u32) -> Option<Self> {
        let all: Vec<(&Body, Vec<Tick>)> =
            program.roles.iter().map(|role| (&role.body, iterations(&role.body, batches))).collect();
        let is_period = |period: u32, at: u32| all.iter().all(|(body, all)| repeats(body, all, at, period));
        let middle = batches / 2;
        let period = (1..=LONGEST.min(batches / 4)).find(|period| is_period(*period, middle))?;
        // What is computed for the first micro-batch is not added to anything.
        let first = (1..=middle).rev().take_while(|at| is_period(period, *at)).last()?;
        let last = (middle..batches).take_while(|at| is_period(period, *at)).last()?;
        let left_out = ((last - first) / period + 2).checked_sub(periods)?;
        let shorter = Self { batches: batches - left_out * period, period, first, periods, left_out };
        let is_one = || all.iter().all(|(body, whole)| shorter.is_without(body, whole));
        (shorter.batches <= batches / 2 && is_one()).then_some(shorter)
    }

    /// Whether a rank's turns are those of the whole step without the periods that are left out.
    fn is_without(&self, body: &Body, whole: &[Tick]) -> bool {
        let few = iterations(body, self.batches);
        let (from, to) = (end_of(body, &few, self.first), end_of(body, &few, self.first + self.period));
        let again = (1..=self.left_out).flat_map(|times| later(body, &few[from..to], times * self.period));
        let rest = later(body, &few[to..], self.left_out * self.period);
        few[..to].iter().copied().chain(again).chain(rest).eq(whole.iter().copied())
    }

    /// None where ranks never stand to each other as they stood before.
    fn run(&self, scene: &Scene<'_>) -> Result<Option<Simulation>> {
        let mut engine = Engine::new(&Scene { batches: self.batches, ..*scene }, false);
        let mut moments: Vec<Option<Moment>> = vec![];
        for number in 0..=self.periods {
            let batches = self.first + number * self.period;
            let all_are_there = engine.goes_to(|rank| end_of(rank.body, &rank.iterations, batches));
            moments.push(all_are_there.then(|| Moment::new(&engine, batches)).flatten());
        }
        let Some((one, periods)) = again(&moments) else { return Ok(None) };
        let rest = self.left_out % periods;
        if rest > 0 {
            return Shorter {
                batches: self.batches + rest * self.period,
                periods: self.periods + rest,
                left_out: self.left_out - rest,
                ..*self
            }
            .run(scene);
        }
        let mut step = engine.end()?;
        let times = f64::from(self.left_out / periods);
        step.seconds += times * one.seconds;
        for (lane, spent) in step.ranks.iter_mut().zip(&one.spent) {
            lane.fields().into_iter().zip(spent).for_each(|(all, more)| *all += times * more);
        }
        Ok(Some(step))
    }
}

/// What it takes until all is again as it was, and how many periods that are.
fn again(moments: &[Option<Moment>]) -> Option<(Stretch, u32)> {
    let (last, earlier) = moments.split_last()?;
    let last = last.as_ref()?;
    let stretch_since =
        |(periods, before): (u32, &Option<Moment>)| Some((Moment::between(before.as_ref()?, last)?, periods));
    (1..).zip(earlier.iter().rev()).find_map(stretch_since)
}

/// Whether what follows the first so many micro-batches comes again after a period, for later ones.
fn repeats(body: &Body, iterations: &[Tick], at: u32, period: u32) -> bool {
    let [from, to, end] = [at, at + period, at + 2 * period].map(|count| end_of(body, iterations, count));
    from < to
        && to < end
        && later(body, &iterations[from..to], period).eq(iterations[to..end].iter().copied())
}

/// The place after all turns of the first so many micro-batches.
fn end_of(body: &Body, iterations: &[Tick], batches: u32) -> usize {
    let is_of = |tick: &Tick| tick.batch < batches && !is_once(body, tick);
    iterations.iter().rposition(is_of).map_or(0, |last| last + 1)
}

/// The same for micro-batches that are so many later.
fn later(body: &Body, iterations: &[Tick], batches: u32) -> impl Iterator<Item = Tick> {
    iterations.iter().map(move |tick| match is_once(body, tick) {
        true => *tick,
        false => Tick { batch: tick.batch + batches, ..*tick },
    })
}

/// Whether it is of the step, and of no micro-batch.
fn is_once(body: &Body, tick: &Tick) -> bool {
    matches!(body.codes[tick.code].pass, Pass::Begin | Pass::End)
}

/// How ranks stand to each other while nobody waits for anything.
struct Moment {
    clocks: Vec<f64>,
    /// Of each rank, by field.
    spent: Vec<[f64; 8]>,
    /// What is on its way: the table, the micro-batch of those that are to come, and both ranks.
    letters: Vec<(ExchangeId, i64, RankId, RankId)>,
    /// How far the host is ahead of the device.
    started: Vec<f64>,
    /// How long lines are taken and letters on their way, from where each rank is.
    ahead: Vec<f64>,
}

/// What one or several periods take.
struct Stretch {
    seconds: f64,
    spent: Vec<[f64; 8]>,
}

impl Moment {
    /// Once so many micro-batches are over; none where something goes on but letters.
    fn new(engine: &Engine<'_>, batches: u32) -> Option<Self> {
        if !engine.open.is_empty() || !engine.ranks.iter().all(SimulatedRank::is_free) {
            return None;
        }
        let mut ahead = vec![];
        for rank in &engine.ranks {
            ahead.extend(
                [rank.lines[0], rank.lines[1], rank.sent, rank.host, rank.offloaded, rank.sums]
                    .map(|time| (time - rank.clock).max(0.0)),
            );
            let copying =
                (0..COPIES_IN_FLIGHT).map(|at| rank.copying.get(at).map_or(0.0, |time| time - rank.clock));
            ahead.extend(copying.map(|time| time.max(0.0)));
        }
        let mut letters = vec![];
        for ((exchange, batch, from, to), (_, start, end)) in &engine.letters {
            letters.push((*exchange, i64::from(*batch) - i64::from(batches), *from, *to));
            let clock = engine.ranks[engine.places[to]].clock;
            ahead.extend([(start - clock).max(0.0), (end - clock).max(0.0), end - start]);
        }
        let spent = |lane: &Lane| lane.clone().fields().map(|field| *field);
        Some(Self {
            clocks: engine.ranks.iter().map(|rank| rank.clock).collect(),
            started: engine.ranks.iter().map(|rank| rank.clock - rank.started).collect(),
            spent: engine.ranks.iter().map(|rank| spent(&rank.lane)).collect(),
            letters,
            ahead,
        })
    }

    /// What it took from one to the other, if they are the same but for that.
    fn between(before: &Self, after: &Self) -> Option<Stretch> {
        let seconds = after.clocks.first()? - before.clocks.first()?;
        let same = |a: f64, b: f64| (a - b).abs() <= SAME * seconds;
        let are_same = |a: &[f64], b: &[f64]| a.iter().zip(b).all(|(a, b)| same(*a, *b));
        let as_long =
            after.clocks.iter().zip(&before.clocks).all(|(after, before)| same(after - before, seconds));
        // A host that gets further ahead is never waited for.
        let goes_on = |(after, before): (&f64, &f64)| *after >= *before || same(*after, *before);
        let as_far = after.started.iter().zip(&before.started).all(goes_on);
        let spent = after.spent.iter().zip(&before.spent);
        let spent = spent.map(|(after, before)| std::array::from_fn(|at| after[at] - before[at])).collect();
        (as_long && as_far && before.letters == after.letters && are_same(&before.ahead, &after.ahead))
            .then_some(Stretch { seconds, spent })
    }
}
