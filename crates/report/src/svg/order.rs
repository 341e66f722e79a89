//! The order of the blocks of a pipeline: a line for each device, a box for each block of each micro-batch.

use super::palette::*;
use super::picture::{Anchor, EDGE, Font, PLAIN, Picture, QUIET, WIDTH, ticks, width_of};

const LEFT: f64 = 90.0;
const HIGH: f64 = 26.0;

/// What an order is, as plain data.
#[derive(Clone, Debug, Default)]
pub struct OrderPicture {
    pub title: String,
    pub about: String,
    pub devices: usize,
    pub blocks: Vec<OrderBlock>,
    /// Of each micro-batch when each block begins.
    pub starts: Vec<Vec<i64>>,
    pub end: i64,
}

#[derive(Clone, Debug, Default)]
pub struct OrderBlock {
    /// What stands before the number of the micro-batch.
    pub word: String,
    pub name: String,
    pub devices: Vec<usize>,
    pub time: i64,
}

pub fn order(order: &OrderPicture) -> String {
    let mut picture = Picture::new(&order.title, &order.about);
    let scale = (WIDTH - LEFT - EDGE) / order.end.max(1) as f64;
    let top = picture.y + 14.0;
    for at in ticks(0.0, order.end as f64, 10.0) {
        let x = LEFT + at * scale;
        picture.line(&[[x, top - 4.0], [x, top + order.devices as f64 * HIGH]], LINE, 1.0, None);
        picture.text([x + 3.0, top - 4.0], &format!("{at}"), Font { size: 11.0, ..QUIET });
    }
    for device in 0..order.devices {
        let y = top + device as f64 * HIGH;
        picture.text([EDGE, y + 17.0], &format!("device {device}"), PLAIN);
        picture.area([LEFT, y + 2.0, order.end as f64 * scale, HIGH - 4.0], TRACK);
    }
    let kinds = kinds(&order.blocks);
    for (batch, starts) in order.starts.iter().enumerate() {
        for (at, (block, start)) in order.blocks.iter().zip(starts).enumerate() {
            let colour = colour_of(&kinds, at);
            for device in &block.devices {
                let y = top + *device as f64 * HIGH;
                let (x, wide) = (LEFT + *start as f64 * scale, block.time as f64 * scale);
                picture.rounded([x, y + 2.0, wide, HIGH - 4.0], colour, Some(WHITE), 2.0);
                let (long, short) = (format!("{}{batch}", block.word), batch.to_string());
                let fits = |text: &&String| width_of(text, 11.0) < wide - 3.0;
                if let Some(text) = [&long, &short].into_iter().find(fits) {
                    let font = Font { size: 11.0, anchor: Anchor::Middle, ..PLAIN };
                    picture.text([x + wide / 2.0, y + 17.0], text, font);
                }
            }
        }
    }
    picture.y = top + order.devices as f64 * HIGH;
    let entries: Vec<(Colour, String)> =
        kinds.iter().map(|(word, blocks)| (colour_of(&kinds, blocks[0]), word.clone())).collect();
    let idle = std::iter::once((TRACK, "idle".to_owned()));
    picture.legend(&entries.into_iter().chain(idle).collect::<Vec<_>>());
    picture.finish()
}

/// Passes, or blocks of names that are none of a task, with their blocks.
fn kinds(blocks: &[OrderBlock]) -> Vec<(String, Vec<usize>)> {
    let mut kinds: Vec<(String, Vec<usize>)> = vec![];
    for (at, block) in blocks.iter().enumerate() {
        let word = pass_of(&block.name).map_or_else(|| block.name.clone(), str::to_owned);
        match kinds.iter_mut().find(|(known, _)| *known == word) {
            Some((_, indices)) => indices.push(at),
            None => kinds.push((word, vec![at])),
        }
    }
    kinds
}

/// `F0` is the forward of block 0.
fn pass_of(name: &str) -> Option<&'static str> {
    let (pass, number) = name.split_at_checked(1)?;
    number.parse::<u32>().ok()?;
    match pass {
        "F" => Some("forward"),
        "B" => Some("backward"),
        "I" => Some("input gradients"),
        "W" => Some("weight gradients"),
        _ => None,
    }
}

fn colour_of(kinds: &[(String, Vec<usize>)], block: usize) -> Colour {
    let at = kinds.iter().position(|(_, blocks)| blocks.contains(&block)).unwrap_or(0);
    match &kinds[at].0[..] {
        "forward" => FORWARD,
        "backward" | "input gradients" => BACKWARD,
        "weight gradients" => WEIGHTS,
        // Dark ones would hide what stands on them.
        _ => tint(DIMS[at % DIMS.len()], 0.6),
    }
}
