//! How many bytes a rank has at once, and where they are the most: before anything runs.
//!
//! Once a rank was followed to its end it is known which part of which tensor each buffer holds, and of which
//! operator each local one is a part. So its codes are gone through once more, as the runtime runs them
//! in a step that is not the first, micro-batch by micro-batch as its timetable says, and every block of memory is counted from where it is written until nobody
//! holds it any more:
//!
//! - a name of emitted code, until its last use in its code; inside of a call the caller holds the arguments;
//! - autograd, what the operators' rules say that it keeps, until their backward ran; nothing of a call that is
//!   computed again;
//! - where a backward has two halves, what the first leaves for the second, until that ran ([`split_backward`]);
//! - what a code keeps for a later one, until that has taken it and read it;
//! - what goes to the host, until its call is over, and again from where it is brought back. On the host are copies,
//!   which are counted by themselves;
//! - the gradient of a leaf, from its first contribution to the end of the step. Several that are
//!   reduced together lie in one message, whose memory is there from step to step;
//! - a parameter that is divided between steps, from where it is gathered until it is released, whoever holds it:
//!   autograd does, and it is gathered again into the same memory. One that is gathered once a step is there from
//!   step to step. A message is there until a call reads what it brings, one of gradients until the next but
//!   one is sent.
//!
//! Where steps follow each other without a pause ([`no_flush`]), parameters and their gradients are there of two.
//!
//! A parameter that is held in a wider type than it is read in is there twice, and its gradient has the wider type.
//! A view has no memory of its own, and holds what it views. What an operator or a communication needs while it
//! runs is there for that moment. What is not counted: the workspaces of libraries, memory that an allocator
//! keeps in reserve, and the temporary values of an optimizer's step.

mod calls;
mod communication;
mod divided;
mod gradients;
mod ledger;
mod lives;
mod no_flush;
mod offloaded;
mod pending;
mod sizes;
mod split_backward;
mod walk;

use std::collections::{BTreeSet, HashMap};
use std::fmt::Debug;

use graph::{Dtype, Source, Tensor};

use crate::purpose::{CLOSE, Masters, Memory, Phase};
use crate::state::{Context, Rank};

use lives::Lives;
pub(crate) use pending::OffloadedBytes;
use sizes::RankSizes;
use walk::Walk;

/// Of each rank, all of which were followed to their ends, in a step of so many micro-batches; and what goes to its host.
pub(crate) fn of_all<'a>(
    cx: &mut Context<'a>,
    ranks: &[Rank<'a>],
    masters: &Masters,
    batches: u32,
) -> (Vec<Memory>, Vec<OffloadedBytes>) {
    walked(cx, ranks, masters, |walk, _| walk.step(batches)).into_iter().unzip()
}

/// What each rank has in each turn of a step of so many micro-batches.
pub(crate) fn over<'a>(
    cx: &mut Context<'a>,
    ranks: &[Rank<'a>],
    masters: &Masters,
    batches: u32,
) -> Vec<Vec<Phase>> {
    walked(cx, ranks, masters, |walk, closely| walk.over(batches, closely))
}

/// What is asked of each rank's walk, and whether it is looked at closely. Of ranks of the same sizes one is gone through.
fn walked<'a, T: Clone + PartialEq + Debug>(
    cx: &mut Context<'a>,
    ranks: &[Rank<'a>],
    masters: &Masters,
    ask: impl Fn(Walk<'_, 'a>, bool) -> T,
) -> Vec<T> {
    let lives: Vec<Lives> = cx.program.roles.iter().map(|role| Lives::new(&role.body)).collect();
    let held: Vec<Dtype> = cx.facts.graph.tensors.iter().map(|tensor| held_as(tensor, masters)).collect();
    let mut roles = BTreeSet::new();
    let mut closely = |role: usize| roles.insert(role) || ranks.len() <= CLOSE;
    let (mut sizes, mut known) = (RankSizes::default(), HashMap::new());
    let mut walk = |rank: &Rank<'a>| {
        let closely = closely(rank.role);
        let key = (sizes.of_rank(cx, rank), closely);
        let mut anew = || ask(Walk::new(cx, rank, &lives[rank.role], &held), closely);
        if let Some(known) = known.get(&key) {
            debug_assert_eq!(*known, anew(), "ranks of the same sizes have the same");
            return T::clone(known);
        }
        let made = anew();
        known.insert(key, made.clone());
        made
    };
    ranks.iter().map(&mut walk).collect()
}

/// The type in which a tensor is held between steps.
pub fn held_as(tensor: &Tensor, masters: &Masters) -> Dtype {
    let Source::Param { names, .. } = &tensor.source else { return tensor.dtype };
    names.iter().find_map(|name| masters.get(name)).copied().unwrap_or(tensor.dtype)
}
