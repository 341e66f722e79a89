//! What devices do in a step, drawn: a row for each, a column for each unit of time.

use std::fmt::Write;

use crate::loops::tasks;
use crate::problem::Problem;

/// The longest row.
const WIDE: usize = 200;

/// `F0` is the forward of micro-batch 0; where a device has several blocks of a pass, the block stands before it. Blocks of other names
/// are `name.0`. What takes longer than a column goes on as a line.
pub fn figure(problem: &Problem, starts: &[Vec<i64>]) -> String {
    let words = words(problem);
    let unit = problem.blocks.iter().fold(0, |unit, block| gcd(unit, block.time)).max(1);
    let longest = words.iter().map(String::len).max().unwrap_or(0);
    let column = longest + starts.len().saturating_sub(1).to_string().len() + 1;
    let mut text = String::new();
    for device in 0..problem.devices() {
        let mut timeline: Vec<(i64, usize, usize)> = problem
            .blocks_on(device)
            .flat_map(|at| starts.iter().enumerate().map(move |(batch, row)| (row[at], batch, at)))
            .collect();
        timeline.sort_unstable();
        let mut row = String::new();
        for (start, batch, at) in timeline {
            while row.len() < usize::try_from(start / unit).unwrap_or(0) * column {
                let _ = write!(row, "{:column$}", ".");
            }
            let wide = usize::try_from(problem.blocks[at].time / unit).unwrap_or(1) * column;
            let line = "-".repeat(wide - column);
            let _ = write!(row, "{:wide$}", format!("{}{batch}{line}", words[at]));
        }
        let short: String = row.chars().take(WIDE).collect();
        let more = if short.len() < row.len() { " ..." } else { "" };
        let _ = writeln!(text, "device {device:<3} {}{more}", short.trim_end());
    }
    text
}

/// What stands before the number of the micro-batch, for each block.
pub fn words(problem: &Problem) -> Vec<String> {
    let Some(tasks) = tasks(problem) else {
        return problem.blocks.iter().map(|block| format!("{}.", block.name)).collect();
    };
    let several = (0..problem.devices()).any(|device| {
        let passes: Vec<char> = problem.blocks_on(device).map(|at| tasks[at].pass.letter()).collect();
        passes.iter().enumerate().any(|(at, pass)| passes[..at].contains(pass))
    });
    let word = |task: &schedule::Task| match several {
        true => format!("{}{}", task.block, task.pass.letter()),
        false => task.pass.letter().to_string(),
    };
    tasks.iter().map(word).collect()
}

fn gcd(a: i64, b: i64) -> i64 {
    if b == 0 { a } else { gcd(b, a % b) }
}
