//! Steps of several micro-batches, where ranks with the same timetable go through it together: task by task.
//!
//! Ranks that run the same codes in the same order are one *class*. If a code meets nobody else than ranks of its class
//! then its members go through it together once all that it receives is there: that a micro-batch comes to its end
//! was followed by [`crate::order`]. So if there is an order of tasks in which each finds what it receives sent, ranks
//! come to their ends; and as whoever waits takes nothing from others meanwhile, they do in any order.
//! Where there is none, or where classes meet, [`crate::net`] looks closer.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use program::{Body, ExchangeId, GroupingId, Instr, Pass, Timetable};

use crate::order::{Meeting, Meetings};
use crate::state::Rank;

/// The codes of a class, what it receives and sends in each, and when it runs them.
struct Class<'c> {
    timetable: &'c Timetable,
    codes: BTreeMap<(u32, Pass), Code>,
}

#[derive(Default)]
struct Code {
    receives: BTreeSet<ExchangeId>,
    sends: BTreeSet<ExchangeId>,
}

/// All classes, or none if some ranks of two of them meet.
pub(crate) struct Lockstep<'c> {
    classes: Vec<Class<'c>>,
    /// Of each exchange how many classes send in it.
    senders: BTreeMap<ExchangeId, usize>,
}

impl<'c> Lockstep<'c> {
    pub(crate) fn of(ranks: &[Rank<'c>], meetings: &Meetings) -> Option<Self> {
        let mut classes: Vec<Class<'c>> = vec![];
        let mut of_role: BTreeMap<usize, usize> = BTreeMap::new();
        let class = |rank: &Rank<'c>| *of_role.entry(rank.role).or_insert_with(|| class(&mut classes, rank));
        let class_of: Vec<usize> = ranks.iter().map(class).collect();
        if !meet_their_own(ranks, meetings, &class_of) {
            return None;
        }
        for (rank, class) in ranks.iter().zip(&class_of) {
            if of_role.remove(&rank.role).is_some() {
                classes[*class].add(rank.body);
            }
        }
        let mut senders: BTreeMap<ExchangeId, usize> = BTreeMap::new();
        for code in classes.iter().flat_map(|class| class.codes.values()) {
            code.sends.iter().for_each(|exchange| *senders.entry(*exchange).or_default() += 1);
        }
        Some(Self { classes, senders })
    }

    /// Whether all tasks of a step find what they receive.
    pub(crate) fn comes_to_its_end(&self, batches: u32) -> bool {
        let steps: Vec<Vec<(&Code, u32)>> = self.classes.iter().map(|class| class.step(batches)).collect();
        let mut next = vec![0; steps.len()];
        let mut sent: BTreeMap<(ExchangeId, u32), usize> = BTreeMap::new();
        loop {
            let mut moved = false;
            for (class, step) in steps.iter().enumerate() {
                while let Some((code, batch)) = step.get(next[class]) {
                    let there = |exchange: &ExchangeId| {
                        sent.get(&(*exchange, *batch)).copied().unwrap_or(0) == self.senders[exchange]
                    };
                    if !code.receives.iter().all(there) {
                        break;
                    }
                    for exchange in &code.sends {
                        *sent.entry((*exchange, *batch)).or_default() += 1;
                    }
                    (next[class], moved) = (next[class] + 1, true);
                }
            }
            if !moved {
                return next.iter().zip(&steps).all(|(next, step)| *next == step.len());
            }
        }
    }
}

/// The number of a rank's class, which is new if no other has its codes and timetable.
fn class<'c>(classes: &mut Vec<Class<'c>>, rank: &Rank<'c>) -> usize {
    let body = rank.body;
    let codes = || body.codes.iter().map(|code| (code.block, code.pass));
    let same = |class: &Class<'_>| {
        *class.timetable == body.timetable && class.codes.keys().copied().eq(sorted(codes()))
    };
    if let Some(known) = classes.iter().position(same) {
        return known;
    }
    let codes = codes().map(|code| (code, Code::default())).collect();
    classes.push(Class { timetable: &body.timetable, codes });
    classes.len() - 1
}

/// A class, and a grouping or table by which some of its ranks meet.
type Where = (usize, Option<GroupingId>, Option<ExchangeId>);

/// Whether all who meet are of one class, and meet in the same codes. What runs at the end of a step waits for nobody
/// who waits for it.
fn meet_their_own(ranks: &[Rank<'_>], meetings: &Meetings, class_of: &[usize]) -> bool {
    let mut known: HashSet<Meeting> = HashSet::new();
    // In which codes.
    let mut places: BTreeMap<Where, Vec<(u32, Pass)>> = BTreeMap::new();
    let mut seen: HashSet<usize> = HashSet::new();
    for (member, rank) in ranks.iter().enumerate() {
        let mut own = BTreeMap::new();
        for code in rank.body.codes.iter().filter(|code| code.pass != Pass::End) {
            for instr in code.instrs.iter().filter(|instr| !crosses(instr)) {
                let Some(meeting) = meetings.of_instr(member, instr) else { continue };
                let everybody = || meetings.everybody(meeting).iter();
                if known.insert(meeting) && everybody().any(|other| class_of[*other] != class_of[member]) {
                    return false;
                }
                let key = (class_of[member], instr.group(), instr.exchange());
                own.entry(key).or_insert_with(Vec::new).push((code.block, code.pass));
            }
        }
        if !seen.insert(rank.role) {
            continue;
        }
        for (key, own) in own {
            if *places.entry(key).or_insert_with(|| own.clone()) != own {
                return false;
            }
        }
    }
    true
}

fn crosses(instr: &Instr) -> bool {
    matches!(instr, Instr::Send { .. } | Instr::Receive { .. })
}

fn sorted(codes: impl Iterator<Item = (u32, Pass)>) -> impl Iterator<Item = (u32, Pass)> {
    codes.collect::<BTreeSet<_>>().into_iter()
}

impl Class<'_> {
    /// What a role of the class receives and sends.
    fn add(&mut self, body: &Body) {
        for code in &body.codes {
            let own = self.codes.entry((code.block, code.pass)).or_default();
            for instr in &code.instrs {
                match instr {
                    Instr::Send { exchange, .. } => drop(own.sends.insert(*exchange)),
                    Instr::Receive { exchange, .. } => drop(own.receives.insert(*exchange)),
                    _ => {}
                }
            }
        }
    }

    fn step(&self, batches: u32) -> Vec<(&Code, u32)> {
        let task =
            |(task, batch): (&program::Task, u32)| Some((self.codes.get(&(task.block, task.pass()))?, batch));
        self.timetable.tasks(batches).filter_map(task).collect()
    }
}
