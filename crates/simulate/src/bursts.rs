//! When the links of a rank are busy: communications that follow each other closely are a burst.

use cluster::Cluster;
use serde_json::{Value, json};

use crate::link::LinkKind;
use crate::{Message, Simulation, TakesPart};

/// A pause of more than this share of the step ends a burst.
const PAUSE: f64 = 0.01;
/// Bursts whose distances are this close to the usual one, as a share of it, follow each other regularly.
const REGULAR: f64 = 0.1;

struct Burst {
    start: f64,
    end: f64,
    busy: f64,
    bytes: u64,
    /// Of the rank's communications, in the order of time.
    orders: Vec<usize>,
}

/// For each link that a rank uses its bursts over the step, and how regularly they follow each other.
pub(crate) fn links(cluster: &Cluster, simulation: &Simulation, parts: &[&TakesPart]) -> Vec<Value> {
    let mut links = vec![];
    for link in LinkKind::ALL {
        let all = parts.iter().map(|part| &simulation.messages[part.message]).enumerate();
        let mut on_it: Vec<(usize, &Message)> =
            all.filter(|(_, message)| LinkKind::crossed_by(cluster, &message.group) == link).collect();
        if on_it.is_empty() {
            continue;
        }
        on_it.sort_by(|(_, a), (_, b)| a.start.total_cmp(&b.start));
        links.push(to_json(link, &bursts(&on_it, PAUSE * simulation.seconds)));
    }
    links
}

fn bursts(on_it: &[(usize, &Message)], pause: f64) -> Vec<Burst> {
    let mut bursts: Vec<Burst> = vec![];
    for (order, message) in on_it {
        let (start, end, bytes) = (message.start, message.end, message.bytes);
        match bursts.last_mut().filter(|last| start <= last.end + pause) {
            Some(last) => {
                // Messages may go on at the same time.
                last.busy += (end - start.max(last.end)).max(0.0);
                last.end = last.end.max(end);
                last.bytes += bytes;
                last.orders.push(*order);
            }
            None => bursts.push(Burst { start, end, busy: end - start, bytes, orders: vec![*order] }),
        }
    }
    bursts
}

fn to_json(link: LinkKind, bursts: &[Burst]) -> Value {
    let (period, regular) = period(bursts).unzip();
    let burst = |it: &Burst| {
        json!({
            "start_seconds": it.start,
            "seconds": it.end - it.start,
            "busy_seconds": it.busy,
            "bytes": it.bytes,
            "communications": it.orders,
        })
    };
    json!({
        "link": link.name(),
        "busy_seconds": bursts.iter().map(|it| it.busy).sum::<f64>(),
        "bytes": bursts.iter().map(|it| it.bytes).sum::<u64>(),
        "period_seconds": period,
        "regular": regular,
        "bursts": bursts.iter().map(burst).collect::<Vec<_>>(),
    })
}

/// From the start of a burst to the next: the one in the middle, and what share of all is close to it. Of fewer than three
/// bursts nothing repeats.
fn period(bursts: &[Burst]) -> Option<(f64, f64)> {
    let mut all: Vec<f64> = bursts.windows(2).map(|two| two[1].start - two[0].start).collect();
    if all.len() < 2 {
        return None;
    }
    all.sort_by(f64::total_cmp);
    let middle = all[all.len() / 2];
    let close = all.iter().filter(|it| (**it - middle).abs() <= REGULAR * middle).count();
    Some((middle, close as f64 / all.len() as f64))
}

#[cfg(test)]
mod tests {
    use program::{Kind, RankId};

    use super::*;

    fn message(start: f64, end: f64) -> Message {
        let group = vec![RankId(0), RankId(1)];
        Message { kind: Kind::AllReduce, group, bytes: 8, dtype: None, start, end, share: 1.0 }
    }

    #[test]
    fn what_follows_closely_is_a_burst() {
        let all = [(0.0, 1.0), (1.5, 2.0), (10.0, 11.0), (10.5, 12.0), (20.0, 21.0), (50.0, 51.0)];
        let messages: Vec<Message> = all.iter().map(|(start, end)| message(*start, *end)).collect();
        let on_it: Vec<(usize, &Message)> = messages.iter().enumerate().collect();
        let bursts = bursts(&on_it, 0.6);
        let said: Vec<_> = bursts.iter().map(|it| (it.start, it.end, it.busy, &it.orders[..])).collect();
        assert_eq!(
            said,
            [
                (0.0, 2.0, 1.5, &[0, 1][..]),
                (10.0, 12.0, 2.0, &[2, 3][..]),
                (20.0, 21.0, 1.0, &[4][..]),
                (50.0, 51.0, 1.0, &[5][..]),
            ]
        );
        assert_eq!(bursts.iter().map(|it| it.bytes).sum::<u64>(), 48);
        assert_eq!(period(&bursts), Some((10.0, 2.0 / 3.0)));
        assert_eq!(period(&bursts[..2]), None);
    }
}
