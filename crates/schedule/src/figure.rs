//! What devices do in a step, drawn: a row for each, time from left to right.

use std::fmt::Write;

use crate::shape::{Shape, ShapeLoop, Task};
use crate::simulate::{Lane, Stuck, Times, simulate};

/// A forward is one column, a whole backward two.
const TIMES: Times = Times::EQUAL;
/// The longest row.
const WIDE: usize = 150;

/// Rows with names. `F0` is the forward of micro-batch 0; where a device has several blocks, the block stands before it.
pub fn figure(
    shape: &Shape,
    names: &[String],
    orders: &[Vec<ShapeLoop>],
    batches: u32,
) -> Result<String, Stuck> {
    let lanes = simulate(shape, orders, batches, TIMES)?;
    let named = names.iter().map(String::len).max().unwrap_or(0);
    let several = (0..shape.devices()).any(|device| shape.blocks_of(device).nth(1).is_some());
    let word = |task: &Task, batch: u32| {
        let block = if several { task.block.to_string() } else { String::new() };
        format!("{block}{}{batch}", task.pass.letter())
    };
    let words = lanes.iter().flat_map(|lane| &lane.tasks).map(|(task, batch, _)| word(task, *batch).len());
    let column = words.max().unwrap_or(0) + 1;
    let mut text = String::new();
    for (name, lane) in names.iter().zip(&lanes) {
        let row = row(lane, column, word);
        let short: String = row.chars().take(WIDE).collect();
        let more = if short.len() < row.len() { " ..." } else { "" };
        let _ = writeln!(text, "{name:named$}  {}{more}", short.trim_end());
    }
    Ok(text)
}

fn row(lane: &Lane, column: usize, word: impl Fn(&Task, u32) -> String) -> String {
    let mut row = String::new();
    let mut now = 0;
    for (task, batch, start) in &lane.tasks {
        (now..*start).for_each(|_| row += &format!("{:column$}", "."));
        let wide = column * usize::try_from(TIMES.length(task.pass)).unwrap_or(1);
        // A task that is two columns wide goes on as a line.
        let line = "-".repeat(wide.saturating_sub(column));
        row += &format!("{:wide$}", word(task, *batch) + &line);
        now = start + TIMES.length(task.pass);
    }
    row
}
