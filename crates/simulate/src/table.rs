//! A step in the terminal: a line for each device over time, and one for the parts of its time.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use program::{Pass, RankId};

use crate::{Lane, Simulation, Span, What};

/// So many columns has a line.
const WIDTH: usize = 64;
/// And there are at most so many.
const LINES: usize = 32;

impl Simulation {
    /// What each device does over time, and below that the parts of its time. Devices in a row that do the same are one
    /// line; of many only the first of those that run the same code are told.
    pub fn drawn(&self) -> String {
        let mut lines: Vec<(RankId, RankId, String, String)> = vec![];
        let watched: BTreeSet<RankId> = self.spans.iter().map(|span| span.rank).collect();
        for lane in self.ranks.iter().filter(|lane| watched.contains(&lane.rank)) {
            let (row, shares) = (self.row(lane.rank), shares(lane, self.seconds));
            match lines.last_mut() {
                Some((_, last, line, parts))
                    if *line == row && *parts == shares && last.0 + 1 == lane.rank.0 =>
                {
                    *last = lane.rank;
                }
                _ => lines.push((lane.rank, lane.rank, row, shares)),
            }
        }
        let left = lines.len().saturating_sub(LINES);
        let shown = &lines[..lines.len() - left];
        let names = self.ranks.first().map_or(vec![], |lane| lane.parts().to_vec());
        let heads: Vec<String> = names.iter().map(|(name, _)| format!("{name:>0$}", column(name))).collect();
        let mut text = format!("{:<12}over time\n", "device");
        for (first, last, row, _) in shown {
            let _ = writeln!(text, "{:<12}{row}", set_of(*first, *last));
        }
        text.push_str(
            "F forward, B backward, W weight gradients, R recomputed, U optimizer, - waits for \
                       a message, . idle\n",
        );
        let _ = writeln!(text, "\n{:<12}{}", "device", heads.join(" "));
        for (first, last, _, shares) in shown {
            let _ = writeln!(text, "{:<12}{shares}", set_of(*first, *last));
        }
        if left > 0 {
            let _ = writeln!(text, "... and {left} lines more");
        }
        text
    }

    /// What a rank does most in each stretch of the step.
    fn row(&self, rank: RankId) -> String {
        let spans: Vec<&Span> = self.spans.iter().filter(|span| span.rank == rank).collect();
        let width = self.seconds / WIDTH as f64;
        let mut from = 0;
        let mut letter = |column: usize| {
            let (start, end) = (width * column as f64, width * (column + 1) as f64);
            while spans.get(from).is_some_and(|span| span.end <= start) {
                from += 1;
            }
            let mut most = (' ', 0.0);
            let mut shares: Vec<(char, f64)> = vec![];
            for span in spans[from..].iter().take_while(|span| span.start < end) {
                let share = span.end.min(end) - span.start.max(start);
                match shares.iter_mut().find(|(letter, _)| *letter == message_of(span)) {
                    Some((_, sum)) => *sum += share,
                    None => shares.push((message_of(span), share)),
                }
            }
            let idle = width - shares.iter().map(|(_, share)| share).sum::<f64>();
            for (letter, share) in shares.into_iter().chain([('.', idle)]) {
                most = if share > most.1 { (letter, share) } else { most };
            }
            most.0
        };
        (0..WIDTH).map(&mut letter).collect()
    }
}

/// As plans write sets of devices.
fn set_of(first: RankId, last: RankId) -> String {
    if first == last { first.0.to_string() } else { format!("{}..{}", first.0, last.0 + 1) }
}

fn message_of(span: &Span) -> char {
    match (span.what, span.pass) {
        (What::Wait, _) => '-',
        (What::Update, _) => 'U',
        (What::Instr(program::Kind::Call, _), Pass::Backward | Pass::Inputs | Pass::Weights) => 'R',
        (_, Pass::Begin | Pass::Forward) => 'F',
        (_, Pass::Weights) => 'W',
        (_, Pass::Backward | Pass::Inputs | Pass::End) => 'B',
    }
}

fn shares(lane: &Lane, seconds: f64) -> String {
    let share = |(name, part): (&str, f64)| {
        format!("{:>1$}", format!("{:.1}%", 100.0 * part / seconds), column(name))
    };
    lane.parts().map(share).join(" ")
}

/// How wide the column of a part is.
fn column(name: &str) -> usize {
    name.len().max(6)
}
