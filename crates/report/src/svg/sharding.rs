//! How modules are sharded: of each the dims with their parts, and the devices in the order of the parts.

use graph::Graph;
use plan::Plan;
use rules::Analysis;

use super::palette::*;
use super::picture::{Anchor, EDGE, Font, PLAIN, Picture, QUIET, WIDTH, cut, width_of};
use crate::{Row, rows};

/// So many rows are drawn, those with most work.
const ROWS: usize = 16;
/// So many lines and columns of a grid.
const GRID: (usize, usize) = (8, 16);
const CELL: f64 = 22.0;
const CHIPS: f64 = 330.0;
/// Names have so many lines at most, of this height.
const LINES: usize = 4;
const LINE_HEIGHT: f64 = 16.0;
/// Bold letters are as wide as others of this size, about.
const NAME_SIZE: f64 = 13.75;
const DEVICES: f64 = 620.0;

pub fn sharding(graph: &Graph, analysis: &Analysis, plan: &Plan) -> String {
    let mut shown = rows(graph, analysis, plan, None);
    let left_out = shown.len().saturating_sub(ROWS);
    if left_out > 0 {
        let mut works: Vec<f64> = shown.iter().map(|entry| entry.work).collect();
        works.sort_by(|a, b| b.total_cmp(a));
        let threshold = works[ROWS - 1];
        shown.retain(|entry| entry.work >= threshold);
        shown.truncate(ROWS);
    }
    let more =
        if left_out > 0 { format!("; {left_out} rows with less work are left out") } else { String::new() };
    let about = format!("how each module is sharded over {} devices{more}", plan.devices);
    let title = format!("{} under {}", graph.model, plan.name);
    let mut drawing =
        Drawing { picture: Picture::new(&title, &about), model: graph.model.clone(), dims: vec![] };
    shown.iter().for_each(|entry| drawing.entry(entry));
    drawing.finish()
}

struct Drawing {
    picture: Picture,
    model: String,
    /// In the order in which they occurred, each with its colour.
    dims: Vec<String>,
}

impl Drawing {
    fn colour(&mut self, dim: &str) -> Colour {
        if dim == "copies" {
            return COPIES;
        }
        let known = self.dims.iter().position(|known| known == dim);
        let at = known.unwrap_or_else(|| {
            self.dims.push(dim.to_owned());
            self.dims.len() - 1
        });
        DIMS[at % DIMS.len()]
    }

    fn entry(&mut self, entry: &Row) {
        let (ways, devices) = (&entry.decided.ways, &entry.decided.devices);
        let (down, across) = shape(ways, devices.len());
        let names = lines(&names_of(entry, &self.model));
        let grid = down.min(GRID.0) as f64 * CELL;
        let high = grid.max(names.len() as f64 * LINE_HEIGHT) + 16.0;
        let y = self.picture.y;
        let top = y + (high - grid) / 2.0;
        let middle = y + high / 2.0 + 4.0;
        let first = middle - (names.len() - 1) as f64 * LINE_HEIGHT / 2.0;
        for (line, name) in names.iter().enumerate() {
            let bold = Font { is_bold: true, ..PLAIN };
            self.picture.text([EDGE, first + line as f64 * LINE_HEIGHT], name, bold);
        }
        self.chips(ways, y + high / 2.0);
        for (at, device) in devices.iter().enumerate() {
            let (line, across_at) = (at / across, at % across);
            if line < GRID.0 && across_at < GRID.1 {
                let place = [DEVICES + across_at as f64 * CELL, top + line as f64 * CELL];
                let fill = self.fill(ways, at);
                self.picture.rounded([place[0], place[1], CELL - 2.0, CELL - 2.0], fill, None, 3.0);
                let font = Font { size: 10.0, anchor: Anchor::Middle, ..PLAIN };
                let center = [place[0] + CELL / 2.0 - 1.0, place[1] + CELL / 2.0 + 2.5];
                self.picture.text(center, &device.to_string(), font);
            }
        }
        if down > GRID.0 || across > GRID.1 {
            self.picture.text([DEVICES - 16.0, middle], "…", QUIET);
        }
        self.picture.y += high;
        self.picture.line(&[[EDGE, y + high], [WIDTH - EDGE, y + high]], LINE, 1.0, None);
    }

    fn chips(&mut self, ways: &[(String, u32)], middle: f64) {
        if ways.is_empty() {
            self.picture.text([CHIPS, middle + 4.0], "whole", QUIET);
        }
        let mut x = CHIPS;
        for (dim, parts) in ways {
            let colour = self.colour(dim);
            let word = format!("{dim} {parts}");
            let wide = width_of(&word, 12.0) + 16.0;
            self.picture.rounded([x, middle - 10.0, wide, 20.0], tint(colour, 0.25), Some(colour), 10.0);
            self.picture.text(
                [x + wide / 2.0, middle + 4.0],
                &word,
                Font { anchor: Anchor::Middle, ..PLAIN },
            );
            x += wide + 6.0;
        }
    }

    /// The innermost dim that is divided has the colour, and its parts have shades of it.
    fn fill(&mut self, ways: &[(String, u32)], at: usize) -> Colour {
        let mut inside = 1;
        for (dim, parts) in ways.iter().rev() {
            if dim != "copies" {
                let part = (at / inside) % *parts as usize;
                let shade = 0.2 + 0.5 * part as f64 / f64::from((*parts - 1).max(1));
                return tint(self.colour(dim), shade);
            }
            inside *= *parts as usize;
        }
        tint(COPIES, 0.4)
    }

    fn finish(mut self) -> String {
        let mut entries: Vec<(Colour, String)> =
            self.dims.iter().enumerate().map(|(at, dim)| (DIMS[at % DIMS.len()], dim.clone())).collect();
        entries.push((tint(COPIES, 0.4), "all of it on each device".to_owned()));
        self.picture.legend(&entries);
        self.picture.y += 14.0;
        let said = "A grid has the devices: down the first dim, across the others. Shades are parts of the last dim that is divided.";
        self.picture.text([EDGE, self.picture.y + 4.0], said, QUIET);
        self.picture.y += 6.0;
        self.picture.finish()
    }
}

/// How many lines and columns the devices have.
fn shape(ways: &[(String, u32)], devices: usize) -> (usize, usize) {
    let down = match ways {
        [(_, first), _, ..] => *first as usize,
        _ => devices.div_ceil(GRID.1),
    };
    let down = down.max(1);
    (down, devices.div_ceil(down).max(1))
}

/// Its modules; what belongs to none is the model itself.
fn names_of<'r>(entry: &'r Row, model: &'r str) -> Vec<&'r str> {
    entry.modules.iter().map(|path| if path.is_empty() { model } else { path }).collect()
}

/// Names one after the other, in lines that have room.
fn lines(names: &[&str]) -> Vec<String> {
    let room = CHIPS - EDGE - 16.0;
    let mut lines: Vec<(String, usize)> = vec![];
    for (at, name) in names.iter().enumerate() {
        let name = format!("{name}{}", if at + 1 < names.len() { "," } else { "" });
        match lines.last_mut() {
            Some((line, _)) if width_of(&format!("{line} {name}"), NAME_SIZE) <= room => {
                *line += &format!(" {name}");
            }
            _ => lines.push((cut(&name, room, NAME_SIZE), at)),
        }
    }
    if lines.len() > LINES {
        let written = lines[LINES - 1].1;
        lines.truncate(LINES - 1);
        lines.push((format!("and {} more", names.len() - written), written));
    }
    lines.into_iter().map(|(line, _)| line).collect()
}

#[cfg(test)]
mod tests {
    use super::{lines, shape};

    #[test]
    fn names_have_lines_with_room() {
        assert_eq!(lines(&["wte", "wpe"]), ["wte, wpe"]);
        let long = ["LlamaForCausalLM", "model", "model.rotary_emb"];
        assert_eq!(lines(&long), ["LlamaForCausalLM, model,", "model.rotary_emb"]);
        let layer = "model.layers.{0-31}.self_attn";
        let comma = format!("{layer},");
        assert_eq!(lines(&[layer; 4]), [&comma[..], &comma, &comma, layer]);
        assert_eq!(lines(&[layer; 9]), [&comma[..], &comma, &comma, "and 6 more"]);
        assert_eq!(lines(&["a".repeat(60).as_str()]), [format!("{}…", "a".repeat(37))]);
    }

    #[test]
    fn the_first_dim_goes_down() {
        let ways = |all: &[(&str, u32)]| -> Vec<(String, u32)> {
            all.iter().map(|(dim, parts)| ((*dim).to_owned(), *parts)).collect()
        };
        assert_eq!(shape(&ways(&[("batch", 2), ("heads", 4)]), 8), (2, 4));
        assert_eq!(shape(&ways(&[("batch", 8)]), 8), (1, 8));
        assert_eq!(shape(&ways(&[("batch", 64)]), 64), (4, 16));
        assert_eq!(shape(&ways(&[]), 1), (1, 1));
    }
}
