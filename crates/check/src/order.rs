//! Follows all ranks together.
//!
//! A rank runs up to its next communication and waits there, until everybody whom it needs waits there, too.
//! So a program that comes to its end here does so however its ranks are timed, and one that does not names
//! who waits for whom.

use std::collections::{BTreeMap, BTreeSet};

use program::{BufId, Collective, ExchangeId, GroupingId, How, Instr, RankId};

use rules::Region;

use crate::calls;
use crate::copies;
use crate::count;
use crate::exchange;
use crate::fault::Fault;
use crate::finish;
use crate::fold::{only_these, others_too};
use crate::held::Held;
use crate::moves::{self, Group};
use crate::state::{Context, Rank, place};

/// Runs the program to its end, or to a fault after which nothing can be said.
pub(crate) fn run(cx: &mut Context<'_>, ranks: &mut [Rank<'_>]) -> bool {
    let mut communications = Communications::new(cx, ranks);
    for member in 0..ranks.len() {
        if !advance(cx, ranks, member, &mut communications) {
            return false;
        }
    }
    while let Some((rendezvous, members)) = communications.next() {
        if cx.faults.is_full() {
            return false;
        }
        if let Err(fault) = communicate(cx, ranks, &mut communications, rendezvous, &members) {
            let first = ranks[members[0]].id;
            let whose = fault.rank.unwrap_or(first);
            let place = place(&ranks[communications.index[&whose]], None);
            // Where ranks do different things, nothing after it means anything.
            let lost = fault.code == "SW0506";
            cx.faults.push(fault.at(first, Some(place)));
            if lost {
                return false;
            }
        }
        for &member in &members {
            ranks[member].next += 1;
            if !advance(cx, ranks, member, &mut communications) {
                return false;
            }
        }
    }
    communications.nobody_waits(cx, ranks)
}

/// Follows a rank up to its next communication. `false` if it is one that the rank is no part of.
fn advance(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    member: usize,
    communications: &mut Communications,
) -> bool {
    let rank = &mut ranks[member];
    while let Some(instr) = cx.codes[rank.role].instrs.get(rank.next).copied() {
        if let Instr::Send { exchange, from } = instr {
            if !communications.send(member, *exchange, from) {
                let what = "a rank sends something that it is not a source of, or sends it twice";
                cx.refuse(rank, Fault::new("SW0506", what));
                return false;
            }
            count::sent_by(cx, rank, *exchange);
        } else if instr.kind().communicates() {
            let Some(rendezvous) = communications.of_instr(member, instr) else {
                let what = format!("a rank takes part in {}, but is in none of its groups", named(instr));
                cx.refuse(rank, Fault::new("SW0506", what));
                return false;
            };
            communications.wait(rendezvous, member);
            break;
        }
        local(cx, rank, rank.next, instr);
        rank.next += 1;
    }
    true
}

/// Follows an instruction that concerns this rank only.
fn local(cx: &mut Context<'_>, rank: &mut Rank<'_>, index: usize, instr: &Instr) {
    match instr {
        Instr::Call(made) => calls::call(cx, rank, index, made),
        Instr::Grad(made) => calls::grad(cx, rank, made),
        Instr::Slice(slice) => moves::slice(cx, rank, slice),
        Instr::Add { from, to } => moves::add(cx, rank, from, *to),
        Instr::Update { shard, from } => finish::update(cx, rank, *shard, *from),
        Instr::Keep { id, from, .. } => rank.keep(*id, from),
        Instr::Take { id, to } => rank.take(*id, to),
        Instr::Part { leaves, .. } => copies::part_gradients(cx, rank, leaves),
        // What they do to values shows where these are read.
        Instr::Release { .. } | Instr::Fetch { .. } => {}
        // Ranks meet in these, or a message leaves.
        Instr::Collective(_)
        | Instr::Exchange { .. }
        | Instr::Send { .. }
        | Instr::Receive { .. }
        | Instr::ReduceGradients { .. }
        | Instr::ExchangeGradients { .. }
        | Instr::Gather { .. }
        | Instr::Scatter { .. }
        | Instr::ReduceShards { .. } => {}
    }
}

/// What ranks wait for together.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Rendezvous {
    /// One group of a grouping.
    Group(GroupingId, usize),
    Exchange(ExchangeId),
    /// Of those who receive what others have sent.
    Receive(ExchangeId),
}

/// Who waits where, and for whom.
pub(crate) struct Communications {
    /// Where each rank is in the list of ranks.
    index: BTreeMap<RankId, usize>,
    /// For each grouping and rank: its group.
    groups: Vec<Vec<Option<usize>>>,
    /// For each grouping and group: its members, in its order.
    members: Vec<Vec<Vec<usize>>>,
    /// Those who take part in each exchange, and those who give and get something in it.
    involved: Vec<Vec<usize>>,
    sources: Vec<Vec<usize>>,
    targets: Vec<Vec<usize>>,
    /// What was sent of each exchange, by whom.
    sent: BTreeMap<ExchangeId, BTreeMap<usize, Vec<BufId>>>,
    waiting: BTreeMap<Rendezvous, Vec<usize>>,
    /// Those for which everybody waits.
    ready: BTreeSet<Rendezvous>,
    /// How often each group of a grouping has met.
    rounds: BTreeMap<GroupingId, Vec<usize>>,
}

impl Communications {
    pub(crate) fn new(cx: &Context<'_>, ranks: &[Rank<'_>]) -> Self {
        let index: BTreeMap<RankId, usize> = ranks.iter().enumerate().map(|(i, rank)| (rank.id, i)).collect();
        let numbers = |list: &Vec<RankId>| list.iter().map(|rank| index[rank]).collect::<Vec<usize>>();
        let groupings = &cx.program.groupings;
        let members: Vec<Vec<Vec<usize>>> =
            groupings.iter().map(|grouping| grouping.iter().map(numbers).collect()).collect();
        let places = members.iter().map(|groups| {
            let mut places = vec![None; ranks.len()];
            for (group, members) in groups.iter().enumerate() {
                members.iter().for_each(|&member| places[member] = Some(group));
            }
            places
        });
        let exchanges = || cx.program.exchanges.iter();
        let all = |ends: &mut dyn Iterator<Item = &(RankId, Region)>| -> Vec<usize> {
            let all: BTreeSet<usize> = ends.filter_map(|(rank, _)| index.get(rank).copied()).collect();
            all.into_iter().collect()
        };
        let involved = exchanges().map(|it| all(&mut it.sources.iter().chain(it.targets.iter()))).collect();
        let sources = exchanges().map(|it| all(&mut it.sources.iter())).collect();
        let targets = exchanges().map(|it| all(&mut it.targets.iter())).collect();
        let groups = places.collect();
        let (sent, waiting, ready, rounds) = Default::default();
        Self { index, groups, members, involved, sources, targets, sent, waiting, ready, rounds }
    }

    pub(crate) fn of_instr(&self, member: usize, instr: &Instr) -> Option<Rendezvous> {
        if let Some(grouping) = instr.group() {
            let group = self.groups[grouping.index()][member]?;
            return Some(Rendezvous::Group(grouping, group));
        }
        let exchange = instr.exchange()?;
        let rendezvous = match instr {
            Instr::Receive { .. } => Rendezvous::Receive(exchange),
            _ => Rendezvous::Exchange(exchange),
        };
        self.everybody(rendezvous).contains(&member).then_some(rendezvous)
    }

    /// Something leaves for those who will receive it. `false` if the rank has nothing to give, or has given it.
    fn send(&mut self, member: usize, exchange: ExchangeId, from: &[BufId]) -> bool {
        let sent = self.sent.entry(exchange).or_default();
        if !self.sources[exchange.index()].contains(&member) || sent.insert(member, from.to_vec()).is_some() {
            return false;
        }
        self.look(Rendezvous::Receive(exchange));
        true
    }

    /// Whether everybody is there, and everything that they wait for.
    fn look(&mut self, rendezvous: Rendezvous) {
        let there = self.waiting.get(&rendezvous).map_or(0, Vec::len);
        let sent = match rendezvous {
            Rendezvous::Receive(exchange) => {
                self.sent.get(&exchange).map_or(0, BTreeMap::len) == self.sources[exchange.index()].len()
            }
            _ => true,
        };
        if sent && there > 0 && there == self.everybody(rendezvous).len() {
            self.ready.insert(rendezvous);
        }
    }

    pub(crate) fn everybody(&self, rendezvous: Rendezvous) -> &[usize] {
        match rendezvous {
            Rendezvous::Group(grouping, group) => &self.members[grouping.index()][group],
            Rendezvous::Exchange(exchange) => &self.involved[exchange.index()],
            Rendezvous::Receive(exchange) => &self.targets[exchange.index()],
        }
    }

    fn wait(&mut self, rendezvous: Rendezvous, member: usize) {
        self.waiting.entry(rendezvous).or_default().push(member);
        self.look(rendezvous);
    }

    /// A collective for which everybody is there, and all of them in their order.
    fn next(&mut self) -> Option<(Rendezvous, Vec<usize>)> {
        let rendezvous = self.ready.pop_first()?;
        self.waiting.remove(&rendezvous);
        Some((rendezvous, self.everybody(rendezvous).to_vec()))
    }

    /// Whether this is the first group of its grouping that meets so often: groups of one grouping do the same
    /// thing together, which counts as one.
    fn is_first(&mut self, rendezvous: Rendezvous) -> bool {
        let Rendezvous::Group(grouping, group) = rendezvous else { return true };
        let count = self.members[grouping.index()].len();
        let rounds = self.rounds.entry(grouping).or_insert_with(|| vec![0; count]);
        let most = rounds.iter().copied().max().unwrap_or(0);
        rounds[group] += 1;
        rounds[group] > most
    }

    /// Nobody is left waiting at the end, or it is said who waits for whom.
    fn nobody_waits(&self, cx: &mut Context<'_>, ranks: &[Rank<'_>]) -> bool {
        let Some((rendezvous, there)) = self.waiting.first_key_value() else {
            return self.all_received(cx, ranks);
        };
        let offloaded = |member: &&usize| !there.contains(member);
        let silent = |member: &&usize| match rendezvous {
            Rendezvous::Receive(exchange) => {
                !self.sent.get(exchange).is_some_and(|sent| sent.contains_key(member))
            }
            _ => false,
        };
        let senders: &[usize] = match rendezvous {
            Rendezvous::Receive(exchange) => &self.sources[exchange.index()],
            _ => &[],
        };
        let missing =
            senders.iter().find(silent).or_else(|| self.everybody(*rendezvous).iter().find(offloaded));
        let missing = missing.expect("somebody is missing");
        let first = &ranks[there[0]];
        let (waits_at, missing) = (named(cx.codes[first.role].instrs[first.next]), &ranks[*missing]);
        let state = match cx.codes[missing.role].instrs.get(missing.next) {
            Some(instr) => format!("found it waiting in {}", named(instr)),
            None => "found it at its end".into(),
        };
        let fault =
            Fault::new("SW0506", format!("the ranks of {waits_at} wait for rank {} for ever", missing.id.0))
                .why(format!("expected rank {} to take part, {state}", missing.id.0));
        cx.refuse(first, fault);
        false
    }
}

impl Communications {
    /// Whatever was sent has arrived.
    fn all_received(&self, cx: &mut Context<'_>, ranks: &[Rank<'_>]) -> bool {
        let Some((exchange, sent)) = self.sent.first_key_value() else { return true };
        let Some((member, _)) = sent.first_key_value() else { return true };
        let what = format!("no rank receives what is sent by table {}", exchange.0);
        cx.faults.push(Fault::new("SW0506", what).at(ranks[*member].id, None));
        false
    }
}

fn communicate(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    communications: &mut Communications,
    rendezvous: Rendezvous,
    members: &[usize],
) -> Result<(), Fault> {
    let instrs: Vec<&Instr> =
        members.iter().map(|&m| cx.codes[ranks[m].role].instrs[ranks[m].next]).collect();
    let first = instrs[0];
    if let Some(at) = instrs.iter().position(|instr| instr.kind() != first.kind()) {
        let (a, b) = (ranks[members[0]].id.0, ranks[members[at]].id.0);
        let why = format!("rank {a} does {}, rank {b} does {}", named(first), named(instrs[at]));
        return Err(
            Fault::new("SW0506", "ranks that communicate with each other do different things").why(why)
        );
    }
    // Of several micro-batches the ones would come more often than the others, or later.
    let once = |member: usize| ranks[member].body.pass_at(ranks[member].next).is_once();
    if let Some(other) = members.iter().copied().find(|other| once(*other) != once(members[0])) {
        let what =
            "ranks that communicate with each other do so once a step here, and with micro-batches there";
        let (here, there) = if once(other) { (other, members[0]) } else { (members[0], other) };
        let why =
            format!("rank {} does so once a step, rank {} does not", ranks[here].id.0, ranks[there].id.0);
        return Err(Fault::new("SW0506", what).why(why));
    }
    if communications.is_first(rendezvous) {
        cx.tally.communication(first.kind().noun());
    }
    match rendezvous {
        Rendezvous::Group(group, _) => {
            count::count(cx, ranks, members);
            in_group(cx, ranks, group, members, &instrs)
        }
        Rendezvous::Exchange(id) => {
            count::count(cx, ranks, members);
            exchanged(cx, ranks, id, members, &instrs)
        }
        Rendezvous::Receive(id) => {
            let sent = communications.sent.remove(&id).unwrap_or_default();
            received(cx, ranks, id, members, &instrs, &sent)
        }
    }
}

pub(crate) fn named(instr: &Instr) -> String {
    let kind = instr.kind().noun();
    let article = if kind.starts_with(['a', 'e']) { "an" } else { "a" };
    match (instr.group(), instr.exchange()) {
        (Some(group), _) => format!("{article} {kind} in grouping {}", group.0),
        (_, Some(exchange)) => format!("{article} {kind} by table {}", exchange.0),
        _ => kind.into(),
    }
}

fn each<'i, T>(instrs: &[&'i Instr], list_of: impl Fn(&'i Instr) -> &'i [T]) -> Vec<&'i [T]> {
    instrs.iter().map(|instr| list_of(instr)).collect()
}

/// Ranks that communicate gradients do so in the same micro-batches.
fn one_time(instrs: &[&Instr]) -> Result<(), Fault> {
    let differ = instrs.iter().any(|instr| instr.settles() != instrs[0].settles());
    let what = "ranks communicate gradients in different micro-batches";
    if differ { Err(Fault::new("SW0506", what)) } else { Ok(()) }
}

fn in_group<'i>(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    grouping: GroupingId,
    members: &[usize],
    instrs: &[&'i Instr],
) -> Result<(), Fault> {
    match instrs[0] {
        Instr::ReduceGradients { .. } => {
            return finish::reduce_gradients(cx, ranks, grouping, members, instrs);
        }
        Instr::Gather { .. } => {
            return copies::gather(cx, ranks, grouping, members, &each(instrs, Instr::copies));
        }
        Instr::ReduceShards { .. } => {
            return copies::reduce_shards(cx, ranks, grouping, members, &each(instrs, Instr::shards));
        }
        Instr::Scatter { .. } => {
            one_time(instrs)?;
            return copies::scatter(cx, ranks, grouping, members, &each(instrs, Instr::leaves));
        }
        _ => {}
    }
    let as_collective = |instr: &&'i Instr| match instr {
        Instr::Collective(collective) => Some(collective),
        _ => None,
    };
    let all: Vec<&Collective> = instrs.iter().filter_map(as_collective).collect();
    if all.iter().any(|c| c.from.len() != all[0].from.len()) {
        return Err(Fault::new("SW0506", "the ranks of one group communicate different numbers of values"));
    }
    for value in 0..all[0].from.len() {
        let from: Vec<BufId> = all.iter().map(|c| c.from[value]).collect();
        let Some(mut group) = Group::new(ranks, members, &from) else { continue };
        if matches!(all[0].how, How::AllReduce(_)) {
            group.held = others_too(cx, ranks, grouping, members, group.held);
        } else {
            only_these(cx, grouping);
        }
        let made = collective(cx, ranks, &group, &all)?;
        for ((&member, all), held) in members.iter().zip(&all).zip(made) {
            ranks[member].bufs[all.to[value].index()] = Some(held);
        }
    }
    Ok(())
}

fn collective(
    cx: &mut Context<'_>,
    ranks: &[Rank<'_>],
    group: &Group<'_>,
    all: &[&Collective],
) -> Result<Vec<Held>, Fault> {
    let cuts = || all.iter().filter_map(|c| c.how.cuts().next()).collect::<Vec<_>>();
    if !matches!(all[0].how, How::AllToAll { .. }) {
        group.held.iter().try_for_each(|held| moves::rests(cx, *held))?;
    }
    match &all[0].how {
        How::AllReduce(reduction) => {
            if all.iter().any(|c| c.how != all[0].how) {
                return Err(Fault::new("SW0506", "the ranks of one all-reduce name different reductions"));
            }
            moves::all_reduce(cx, group, *reduction)
        }
        How::AllGather(_) => moves::all_gather(cx, ranks, group, &cuts()),
        How::ReduceScatter(_) => moves::reduce_scatter(cx, ranks, group, &cuts()),
        How::AllToAll { .. } => {
            let both = all.iter().filter_map(|c| match &c.how {
                How::AllToAll { send, receive } => Some((send, receive)),
                _ => None,
            });
            moves::all_to_all(cx, ranks, group, &both.collect::<Vec<_>>())
        }
    }
}

fn received(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    id: ExchangeId,
    members: &[usize],
    instrs: &[&Instr],
    sent: &BTreeMap<usize, Vec<BufId>>,
) -> Result<(), Fault> {
    let mut ends: BTreeMap<usize, (&[BufId], &[BufId])> = BTreeMap::new();
    sent.iter().for_each(|(member, from)| ends.entry(*member).or_default().0 = from);
    for (member, instr) in members.iter().zip(instrs) {
        if let Instr::Receive { to, .. } = instr {
            ends.entry(*member).or_default().1 = to;
        }
    }
    let all: Vec<_> = ends.into_iter().map(|(member, (from, to))| (member, from, to)).collect();
    exchange::buffers(cx, ranks, id, &all)
}

fn exchanged(
    cx: &mut Context<'_>,
    ranks: &mut [Rank<'_>],
    id: ExchangeId,
    members: &[usize],
    instrs: &[&Instr],
) -> Result<(), Fault> {
    let pairs = members.iter().copied().zip(instrs);
    if let Instr::Exchange { .. } = instrs[0] {
        let all = pairs.filter_map(|(member, instr)| match instr {
            Instr::Exchange { from, to, .. } => Some((member, &from[..], &to[..])),
            _ => None,
        });
        return exchange::buffers(cx, ranks, id, &all.collect::<Vec<_>>());
    }
    let all = pairs.filter_map(|(member, instr)| match instr {
        Instr::ExchangeGradients { leaves, shards, .. } => Some((member, &leaves[..], &shards[..])),
        _ => None,
    });
    let all: Vec<_> = all.collect();
    let Instr::ExchangeGradients { when, .. } = instrs[0] else { return Ok(()) };
    one_time(instrs)?;
    exchange::gradients(cx, ranks, id, &all, *when)
}
