//! Laws of the three ways to reshard: the steps of a fixed order, the cheapest route, and the one collective of lists.

use collective::Collective;
use rules::Reduction;
use sharding::{
    AXES, Along, Axis, By, COPIES, Cut, Get, HopKind, List, Mesh, Method, PARTIAL, Shard, ShardRef, Sharding,
    Step, Uses, greedy, is_regular, route, single,
};

/// A mesh that is all devices, and a tensor.
struct World {
    axes: Vec<Axis>,
    sizes: Vec<i64>,
}

impl World {
    fn new(axes: &[u32], sizes: &[i64]) -> World {
        let stride = |at: usize| axes[at + 1..].iter().product();
        let axis = |(at, size): (usize, &u32)| Axis::new(*size, stride(at));
        World { axes: axes.iter().enumerate().map(axis).collect(), sizes: sizes.to_vec() }
    }

    fn factors(&self) -> u8 {
        u8::try_from(self.sizes.len()).unwrap()
    }

    /// Every sharding, those with partial results among them or not.
    fn all(&self, partial: bool) -> Vec<Uses> {
        let words: Vec<u8> = (COPIES..=self.factors()).chain(partial.then_some(PARTIAL)).collect();
        let longer = |found: Vec<Uses>, at: usize| {
            let each = |uses: Uses| words.clone().into_iter().map(move |word| with(uses, at, word));
            found.into_iter().flat_map(each).collect()
        };
        (0..self.axes.len()).fold(vec![[COPIES; AXES]], longer)
    }

    /// Whether devices could take the steps: each adds axes of a factor behind those that are there, or takes them from
    /// behind. Others are a price only.
    fn nests(&self, from: &Uses, to: &Uses) -> bool {
        let begins = |one: Vec<Axis>, other: Vec<Axis>| other.starts_with(&one) || one.starts_with(&other);
        let nests =
            |step: Step, factor| begins(self.doing(&step.before, factor), self.doing(&step.after, factor));
        let each = |step: Step| (1..=self.factors()).all(|factor| nests(step, factor));
        is_regular(from, to, self.factors()) && self.steps(from, to).into_iter().all(each)
    }

    fn doing(&self, uses: &Uses, word: u8) -> Vec<Axis> {
        (0..self.axes.len()).filter(|at| uses[*at] == word).map(|at| self.axes[at]).collect()
    }

    fn sharding(&self, uses: &Uses) -> Sharding {
        let cut = |(factor, size): (u8, &i64)| Cut::nested(*size, self.doing(uses, factor));
        let cuts = (1..).zip(&self.sizes).map(cut).collect();
        let (partial, copies) = (self.doing(uses, PARTIAL), self.doing(uses, COPIES));
        Sharding::new(0, cuts, &partial, &copies, Reduction::Sum).expect("axes of one mesh")
    }

    fn steps(&self, from: &Uses, to: &Uses) -> Vec<Step> {
        let mut steps = vec![];
        greedy(from, to, self.factors(), |step| steps.push(step));
        steps
    }

    /// The elements that a device sends or receives in a step.
    fn elements(&self, step: &Step) -> u64 {
        let By::Collective(collective) = step.by else { return 0 };
        let how = match collective {
            Collective::AllReduce => Along::AllReduce(Reduction::Sum),
            Collective::AllGather => Along::AllGather(0),
            Collective::ReduceScatter => Along::ReduceScatter(0),
            Collective::AllToAll => Along::AllToAll { send: 0, receive: 1 },
        };
        let largest = |uses: &Uses| self.sharding(uses).largest().unsigned_abs();
        let group = step.axes.axes().map(|at| self.axes[at].size).product();
        HopKind::Collective(how).elements(group, largest(&step.before), largest(&step.after))
    }

    /// All pairs whose target is complete.
    fn pairs(&self) -> impl Iterator<Item = (Uses, Uses)> + '_ {
        let targets = self.all(false);
        let pair = move |from: Uses| targets.clone().into_iter().map(move |to| (from, to));
        self.all(true).into_iter().flat_map(pair)
    }
}

fn with(mut uses: Uses, at: usize, word: u8) -> Uses {
    uses[at] = word;
    uses
}

fn worlds() -> Vec<World> {
    vec![
        World::new(&[2, 2], &[16, 16]),
        World::new(&[2, 3], &[36, 36]),
        World::new(&[4, 2], &[64, 32]),
        World::new(&[2, 2, 2], &[64, 32]),
        World::new(&[2, 2], &[16, 8, 32]),
    ]
}

fn list<'s>(shards: &'s [Shard], sharding: &Sharding) -> List<'s> {
    let lent =
        |shard: &'s Shard| ShardRef { device: shard.device, region: &shard.region, share: shard.share };
    List { shards: shards.iter().map(lent).collect(), shares: sharding.shares(), reduction: Reduction::Sum }
}

#[test]
fn steps_follow_each_other_and_end_at_the_target() {
    for world in worlds() {
        for (from, to) in world.pairs() {
            let mut at = from;
            for step in world.steps(&from, &to) {
                assert_eq!(step.before, at);
                let changed = (0..AXES).filter(|axis| step.before[*axis] != step.after[*axis]);
                assert!(changed.eq(step.axes.axes()) && !step.axes.is_empty(), "{step:?}");
                at = step.after;
            }
            assert_eq!(at, to);
        }
    }
}

/// Where the order is fixed, routes can only be cheaper: they divide what copies have, sum less of it, and gather.
#[test]
fn a_route_is_never_dearer_than_the_steps() {
    let (mut equal, mut cheaper) = (0, 0);
    for world in worlds() {
        for (from, to) in world.pairs().filter(|(from, to)| world.nests(from, to)) {
            let steps = world.steps(&from, &to);
            let taken: u64 = steps.iter().map(|step| world.elements(step)).sum();
            let hops = route(&world.sharding(&from), &world.sharding(&to), 1).expect("one mesh");
            let least: u64 = hops.iter().map(|hop| hop.bytes).sum();
            assert!(least <= taken, "{from:?} to {to:?}: {least} of a route, {taken} of {steps:?}");
            if least == taken { equal += 1 } else { cheaper += 1 }
        }
    }
    assert!(equal > 1000 && equal > cheaper, "of {equal} pairs and {cheaper} routes are cheaper");
}

/// What one step does is one collective for the shards as a list too, over groups along the same axes.
#[test]
fn each_step_is_the_one_collective_of_its_shards() {
    for world in worlds() {
        let mesh = Mesh::new(0, &world.axes).unwrap();
        for (from, to) in world.pairs().filter(|(from, to)| world.nests(from, to)) {
            for step in world.steps(&from, &to) {
                let (before, after) = (world.sharding(&step.before), world.sharding(&step.after));
                let (had, wanted) = (before.shards(), after.shards());
                // What stays partial is no single collective of a list, nor an all-to-all of which there are copies.
                let is_copied = step.by == By::Collective(Collective::AllToAll) && !after.copies().is_empty();
                if after.shares() > 1 || is_copied {
                    continue;
                }
                let found = single(&list(&had, &before), &list(&wanted, &after));
                let (method, gets) = found.unwrap_or_else(|| panic!("{step:?}"));
                match (step.by, method) {
                    (By::Slice, Method::Local) => {
                        assert!(gets.iter().all(|get| matches!(get, Get::Is(_) | Get::Of(_))), "{step:?}");
                    }
                    (By::Collective(collective), Method::Collective(how, participants)) => {
                        assert_eq!(how.collective(), collective, "{step:?}");
                        let along: Vec<Axis> = step.axes.axes().map(|at| world.axes[at]).collect();
                        let sorted = |mut groups: Vec<Vec<u32>>| {
                            groups.iter_mut().for_each(|group| group.sort_unstable());
                            groups.sort();
                            groups
                        };
                        assert_eq!(
                            sorted(participants.groups),
                            sorted(mesh.groups(&along).unwrap()),
                            "{step:?}"
                        );
                    }
                    (by, method) => panic!("{by:?} is {method:?}"),
                }
            }
        }
    }
}

/// `p1 12 scatter@0 to_all@1`: a letter for what each axis does, before and after, and the axes of each step.
fn row(world: &World, from: Uses, to: Uses) -> String {
    let word = |word: &u8| match *word {
        COPIES => "-".to_owned(),
        PARTIAL => "p".to_owned(),
        factor => factor.to_string(),
    };
    let short = |uses: &Uses| uses[..world.axes.len()].iter().map(word).collect::<String>();
    let named = |step: &Step| {
        let name = match step.by {
            By::Slice => "slice",
            By::Exchange => "exchange",
            By::Collective(collective) => collective.name(),
        };
        format!(" {name}@{}", step.axes.axes().map(|at| at.to_string()).collect::<String>())
    };
    let steps: String = world.steps(&from, &to).iter().map(named).collect();
    format!("{} {}{steps}\n", short(&from), short(&to))
}

/// Recorded with the search's own steps, before they were these: its prices rest on them.
#[test]
fn the_steps_are_those_that_were_recorded() {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/greedy.txt");
    let worlds = [World::new(&[2, 2], &[8, 8, 8]), World::new(&[2, 2, 2], &[8, 8])];
    let rows = |world: &World| world.pairs().map(|(from, to)| row(world, from, to)).collect::<String>();
    let made: String = worlds.iter().map(rows).collect();
    if std::env::var_os("UPDATE").is_some() {
        std::fs::write(path, &made).expect("it is written");
    }
    let recorded = std::fs::read_to_string(path).expect("the record is there");
    assert!(recorded.lines().count() > 2000);
    for (made, recorded) in made.lines().zip(recorded.lines()) {
        assert_eq!(made, recorded);
    }
    assert_eq!(made.lines().count(), recorded.lines().count());
}
