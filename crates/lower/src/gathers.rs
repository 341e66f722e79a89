//! When divided parameters are gathered, and for how long.
//!
//! What is gathered in passing is there from before the first instruction that reads it to after the last one,
//! as long as nothing else that is gathered comes between them. Each message is posted before the instructions
//! that read the one before it, so that it travels while these compute.

use std::collections::BTreeSet;

use plan::Gather;

use crate::event::Event;
use crate::param_sharding::{Message, ParamShardings};
use crate::segments::Segments;
use crate::uses::Context;

/// What is gathered once a step.
pub fn once(cx: &Context<'_>, param_shardings: &ParamShardings) -> Vec<Event> {
    param_shardings.messages(cx, Gather::Step).into_iter().map(gather).collect()
}

/// Events from `first` to `last` for which a unit must be there.
struct NeededRun {
    unit: usize,
    first: usize,
    last: usize,
}

/// A pass with what is gathered for it.
pub fn in_passing(
    cx: &Context<'_>,
    param_shardings: &ParamShardings,
    segments: &Segments,
    events: Vec<Event>,
) -> Vec<Event> {
    let messages = param_shardings.messages(cx, Gather::Pass);
    if messages.is_empty() {
        return events;
    }
    let runs = runs(segments, &events);
    let messages_of = |unit: usize| messages.iter().filter(move |message| message.unit == unit).cloned();
    let mut before: Vec<Vec<Event>> = events.iter().map(|_| vec![]).collect();
    let mut after: Vec<Vec<Event>> = events.iter().map(|_| vec![]).collect();
    for (index, run) in runs.iter().enumerate() {
        let posted = index.checked_sub(1).map_or(run.first, |before| runs[before].first);
        // Not before it was released.
        let free =
            runs[..index].iter().rev().find(|other| other.unit == run.unit).map(|other| other.last + 1);
        before[posted.max(free.unwrap_or(0))].extend(messages_of(run.unit).map(gather));
        let tensors = messages_of(run.unit).flat_map(|message| message.tensors).collect();
        after[run.last].push(Event::Release { tensors });
    }
    let all = before.into_iter().zip(events).zip(after);
    all.flat_map(|((before, event), after)| before.into_iter().chain([event]).chain(after)).collect()
}

fn gather(message: Message) -> Event {
    Event::Gather { group: message.group, tensors: message.tensors }
}

/// By their first events.
fn runs(segments: &Segments, events: &[Event]) -> Vec<NeededRun> {
    let mut runs: Vec<NeededRun> = vec![];
    let mut open: BTreeSet<usize> = BTreeSet::new();
    for (at, event) in events.iter().enumerate() {
        let (Event::Call { segment } | Event::Recompute { segment, .. } | Event::Grad { segment, .. }) =
            event
        else {
            continue;
        };
        let units = &segments.all[*segment].units;
        if units.is_empty() {
            continue;
        }
        for &unit in units {
            match runs.iter_mut().rev().find(|run| run.unit == unit).filter(|_| open.contains(&unit)) {
                Some(run) => run.last = at,
                None => runs.push(NeededRun { unit, first: at, last: at }),
            }
        }
        open.clone_from(units);
    }
    runs
}
