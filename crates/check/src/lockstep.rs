//! Steps of several micro-batches, where ranks with the same timetable go through it together: task by task.
//!
//! Ranks that run the same codes in the same order are one *class*. If a code meets nobody else than ranks of its class
//! then its members go through it together once all that it receives is there: that a micro-batch comes to its end
//! was followed by [`crate::order`]. So if no task waits for itself, ranks come to their ends; and as whoever waits
//! takes nothing from others meanwhile, they do in any order. Where one might, or where classes meet, [`crate::net`]
//! looks closer.

use std::collections::{BTreeMap, BTreeSet, HashSet};

use program::{Body, Code, CodeKey, ExchangeId, GroupingId, Instr, Pass, Timetable};

use crate::order::{Communications, Rendezvous};
use crate::periodic::Periodic;
use crate::state::Rank;

/// The codes of a class, what it receives and sends in each, and when it runs them.
struct LockstepClass<'c> {
    timetable: &'c Timetable,
    codes: BTreeMap<CodeKey, LockstepCode>,
}

#[derive(Default)]
struct LockstepCode {
    receives: BTreeSet<ExchangeId>,
    sends: BTreeSet<ExchangeId>,
}

/// All classes, or none if some ranks of two of them meet.
pub(crate) struct Lockstep<'c> {
    classes: Vec<LockstepClass<'c>>,
}

/// A task: which micro-batch it is for, every how many there is one, and its node.
#[derive(Clone, Copy)]
struct End {
    at: i64,
    every: i64,
    node: usize,
}

/// The tasks that send or receive in an exchange.
type Ends = BTreeMap<ExchangeId, Vec<End>>;

impl<'c> Lockstep<'c> {
    pub(crate) fn new(ranks: &[Rank<'c>], communications: &Communications) -> Option<Self> {
        let mut classes: Vec<LockstepClass<'c>> = vec![];
        let mut of_role: BTreeMap<usize, usize> = BTreeMap::new();
        let class = |rank: &Rank<'c>| *of_role.entry(rank.role).or_insert_with(|| class(&mut classes, rank));
        let class_of: Vec<usize> = ranks.iter().map(class).collect();
        if !meet_their_own(ranks, communications, &class_of) {
            return None;
        }
        for (rank, class) in ranks.iter().zip(&class_of) {
            if of_role.remove(&rank.role).is_some() {
                classes[*class].add(rank.body);
            }
        }
        Some(Self { classes })
    }

    /// Whether no task of any step waits for itself, as far as that is seen from their turns: if what runs early
    /// comes to its end by itself, the others are left, in their order.
    pub(crate) fn comes_to_its_end(&self) -> bool {
        self.begins_alone() && self.goes_on()
    }

    /// Whether loops for the first micro-batches come to their ends and wait for nothing that runs after them.
    fn begins_alone(&self) -> bool {
        let tasks = |class: &LockstepClass<'c>| {
            let all = class.timetable.early_tasks();
            all.map(|(task, batch)| (task.code(), batch)).collect::<Vec<_>>()
        };
        let steps: Vec<Vec<(CodeKey, u32)>> = self.classes.iter().map(tasks).collect();
        let mut next = vec![0; steps.len()];
        let mut sent: HashSet<(usize, ExchangeId, CodeKey, u32)> = HashSet::new();
        loop {
            let before = next.clone();
            for (current, step) in steps.iter().enumerate() {
                let there = |(code, batch): &&(CodeKey, u32)| {
                    let is_sent =
                        |&(class, exchange, sender)| sent.contains(&(class, exchange, sender, *batch));
                    self.awaited(current, *code).iter().all(is_sent)
                };
                if let Some((code, batch)) = step.get(next[current]).filter(there) {
                    let sends =
                        self.classes[current].codes.get(code).into_iter().flat_map(|code| &code.sends);
                    sent.extend(sends.map(|exchange| (current, *exchange, *code, *batch)));
                    next[current] += 1;
                }
            }
            if next == before {
                return next.iter().zip(&steps).all(|(next, step)| *next == step.len());
            }
        }
    }

    /// What has to be sent for a code: by which class, and in which of its codes.
    fn awaited(&self, class: usize, code: CodeKey) -> Vec<(usize, ExchangeId, CodeKey)> {
        let receives = self.classes[class].codes.get(&code).into_iter().flat_map(|code| &code.receives);
        let mut awaited = vec![];
        for exchange in receives {
            for (class, candidate) in self.classes.iter().enumerate() {
                let sends = candidate.codes.iter().filter(|(_, code)| code.sends.contains(exchange));
                awaited.extend(sends.map(|(sender, _)| (class, *exchange, *sender)));
            }
        }
        awaited
    }

    fn goes_on(&self) -> bool {
        let mut waits = Periodic::default();
        let (mut sends, mut receives) = (Ends::new(), Ends::new());
        for class in &self.classes {
            let tasks = waits.timetable(class.timetable, |_| 1);
            for (task, every, nodes) in tasks {
                let Some(code) = class.codes.get(&task.code()) else { continue };
                let end = End { at: task.at.into(), every: every.into(), node: nodes[0] };
                code.sends.iter().for_each(|exchange| sends.entry(*exchange).or_default().push(end));
                code.receives.iter().for_each(|exchange| receives.entry(*exchange).or_default().push(end));
            }
        }
        for (exchange, ends) in &receives {
            for (to, from) in ends
                .iter()
                .flat_map(|to| sends.get(exchange).into_iter().flatten().map(move |from| (to, from)))
            {
                if (from.at - to.at) % gcd(from.every, to.every) == 0 {
                    waits.before(from.node, to.node, 0);
                }
            }
        }
        waits.comes_to_its_end()
    }
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a.max(1) } else { gcd(b, a % b) }
}

/// The number of a rank's class, which is new if no other has its codes and timetable.
fn class<'c>(classes: &mut Vec<LockstepClass<'c>>, rank: &Rank<'c>) -> usize {
    let body = rank.body;
    let codes = || body.codes.iter().map(Code::key);
    let same = |class: &LockstepClass<'_>| {
        *class.timetable == body.timetable && class.codes.keys().copied().eq(sorted(codes()))
    };
    if let Some(known) = classes.iter().position(same) {
        return known;
    }
    let codes = codes().map(|code| (code, LockstepCode::default())).collect();
    classes.push(LockstepClass { timetable: &body.timetable, codes });
    classes.len() - 1
}

/// A class, and a grouping or table by which some of its ranks meet.
type Where = (usize, Option<GroupingId>, Option<ExchangeId>);

/// Whether all who meet are of one class, and meet in the same codes. What runs at the end of a step waits for nobody
/// who waits for it.
fn meet_their_own(ranks: &[Rank<'_>], communications: &Communications, class_of: &[usize]) -> bool {
    let mut known: HashSet<Rendezvous> = HashSet::new();
    // In which codes.
    let mut places: BTreeMap<Where, Vec<CodeKey>> = BTreeMap::new();
    let mut seen: HashSet<usize> = HashSet::new();
    for (member, rank) in ranks.iter().enumerate() {
        let mut meetings = BTreeMap::new();
        for code in rank.body.codes.iter().filter(|code| code.pass != Pass::End) {
            for instr in code.instrs.iter().filter(|instr| !crosses(instr)) {
                let Some(rendezvous) = communications.of_instr(member, instr) else { continue };
                let everybody = || communications.everybody(rendezvous).iter();
                if known.insert(rendezvous) && everybody().any(|other| class_of[*other] != class_of[member]) {
                    return false;
                }
                let key = (class_of[member], instr.group(), instr.exchange());
                meetings.entry(key).or_insert_with(Vec::new).push(code.key());
            }
        }
        if !seen.insert(rank.role) {
            continue;
        }
        for (key, codes) in meetings {
            if *places.entry(key).or_insert_with(|| codes.clone()) != codes {
                return false;
            }
        }
    }
    true
}

fn crosses(instr: &Instr) -> bool {
    matches!(instr, Instr::Send { .. } | Instr::Receive { .. })
}

fn sorted(codes: impl Iterator<Item = CodeKey>) -> impl Iterator<Item = CodeKey> {
    codes.collect::<BTreeSet<_>>().into_iter()
}

impl LockstepClass<'_> {
    /// What a role of the class receives and sends.
    fn add(&mut self, body: &Body) {
        for code in &body.codes {
            let entry = self.codes.entry(code.key()).or_default();
            for instr in &code.instrs {
                match instr {
                    Instr::Send { exchange, .. } => drop(entry.sends.insert(*exchange)),
                    Instr::Receive { exchange, .. } => drop(entry.receives.insert(*exchange)),
                    _ => {}
                }
            }
        }
    }
}
