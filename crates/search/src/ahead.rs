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
    let threads = question.threads.min(plans.len());
    if threads <= 1 {
        return plans.into_iter().map(|plan| candidate(question, plan)).collect();
    }
    let waiting = Mutex::new(plans.into_iter().enumerate());
    let work = || {
        let next = || waiting.lock().expect("nobody panicked").next();
        let evaluated = |(at, plan)| (at, candidate(question, plan));
        std::iter::from_fn(next).map(evaluated).collect::<Vec<_>>()
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
    done.into_iter().map(|(_, evaluated)| evaluated).collect()
}
