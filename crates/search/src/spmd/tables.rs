//! The decisions of a space as tables, for whoever wants to solve them in another way.

use std::time::Instant;

use diag::Result;
use elimination::{Least, Problem, Solver};

use super::digits::Digits;
use super::maker::Operators;
use super::messages::{Count, Messages};
use super::objective::{FIRST, Objective, Weights};
use super::solved::MOST;
use super::space::Space;
use crate::Question;

/// What a plan costs that computes nothing again, in all that it works and waits.
pub struct Tables {
    pub problem: Problem,
    /// The least of it, if tables are not too large.
    pub least: Option<Least>,
    /// How long it took to make the tables, and to find the least.
    pub seconds: (f64, f64),
}

/// Where a byte has a price of so many units; under constraints that leave each bundle some choice.
pub fn tables(question: &Question<'_>, byte: f64) -> Result<Tables> {
    crate::refuse_numbers(question)?;
    let start = Instant::now();
    let digits = Digits::new(question.cluster, question.devices);
    let messages = Messages::new(question.cluster, &digits, Count::Alone);
    let operators = Operators::new(question);
    let space =
        Space::new(question, (&operators, &digits, &messages), &[]).expect("constraints leave choices");
    let problem = Objective::new(&space, Weights { look: FIRST[0], byte })?.problem();
    let made = start.elapsed().as_secs_f64();
    let least = Solver::default().solve(&problem, MOST);
    Ok(Tables { problem, least, seconds: (made, start.elapsed().as_secs_f64() - made) })
}
