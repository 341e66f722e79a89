//! Plans that are evaluated at the same time, each on a thread of its own.
//!
//! Searches look at one plan after the other, and what they look at next depends on what the last one takes. So plans
//! that come next, if nothing changes, are evaluated ahead. What a search finds is the same with any number of threads.

use std::panic::resume_unwind;
use std::sync::Mutex;
use std::thread;

use diag::Result;
use plan::Plan;

use crate::{Evaluated, Question, candidate};

/// Each plan, lowered and simulated, in their order.
pub(crate) fn evaluated(question: &Question<'_>, plans: Vec<Plan>) -> Vec<Result<Evaluated>> {
    each(question.threads, plans, |plan| candidate(question, plan))
}

/// What is made of each item, in their order, by so many threads.
pub(crate) fn each<I: Send, R: Send>(threads: usize, items: Vec<I>, make: impl Fn(I) -> R + Sync) -> Vec<R> {
    let threads = threads.min(items.len());
    if threads <= 1 {
        return items.into_iter().map(make).collect();
    }
    let waiting = Mutex::new(items.into_iter().enumerate());
    let work = || {
        let next = || waiting.lock().expect("nobody panicked").next();
        std::iter::from_fn(next).map(|(at, item)| (at, make(item))).collect::<Vec<_>>()
    };
    let mut done = thread::scope(|scope| {
        let others: Vec<_> = (1..threads).map(|_| scope.spawn(work)).collect();
        let mut done = work();
        for other in others {
            done.extend(other.join().unwrap_or_else(|panic| resume_unwind(panic)));
        }
        done
    });
    done.sort_by_key(|(at, _)| *at);
    done.into_iter().map(|(_, made)| made).collect()
}
