//! Problems as text.
//!
//! ```text
//! shardwright-blocks 1
//! devices 4
//! memory 6                                     # the room of each device; without this line there is no limit
//! memory 8 on 0 3                              # of some of them; later lines win
//! block E on 0..4: time 1                      # on all four at once
//! block F0 on 0: time 2, memory 1, after E     # keeps 1 from its beginning on
//! block B0 on 0: time 4, memory -1, after F0   # frees it at its end
//! ```

use std::collections::BTreeMap;
use std::fmt::Write;

use diag::{Error, Result};

use crate::problem::{Block, MOST_BLOCKS, MOST_DEVICES, MOST_TIME, Problem};

/// Reads a problem.
pub fn parse(text: &str) -> Result<Problem> {
    let mut lines = (1..).zip(text.lines()).filter_map(|(number, whole)| {
        let line = FileLine { number, whole, rest: whole.split('#').next().unwrap_or("").trim_end() };
        (!line.rest.trim().is_empty()).then_some(line)
    });
    match lines.next() {
        Some(first) if first.rest.trim() == "shardwright-blocks 1" => {}
        first => {
            return Err(Error::new("SW0370", "this is not a file of blocks of a known version")
                .at(first.map_or("line 1, column 1".into(), |line| line.place()))
                .fix("the first line must be `shardwright-blocks 1`"));
        }
    }
    let mut reader = OrderReader::default();
    for line in lines {
        reader.line(line)?;
    }
    reader.finish()?.checked()
}

/// What [`parse`] reads.
pub fn print(problem: &Problem) -> String {
    let mut text = format!("shardwright-blocks 1\ndevices {}\n", problem.devices());
    let is_even = problem.room.iter().all(|room| *room == problem.room[0]);
    for (device, room) in problem.room.iter().enumerate().take(if is_even { 1 } else { problem.devices() }) {
        let on = if is_even { String::new() } else { format!(" on {device}") };
        if let Some(room) = room {
            let _ = writeln!(text, "memory {room}{on}");
        }
    }
    for block in &problem.blocks {
        let devices: Vec<String> = block.devices.iter().map(ToString::to_string).collect();
        let _ = write!(text, "block {} on {}: time {}", block.name, devices.join(" "), block.time);
        if block.memory != 0 {
            let _ = write!(text, ", memory {}", block.memory);
        }
        if !block.after.is_empty() {
            let names: Vec<&str> = block.after.iter().map(|it| problem.blocks[*it].name.as_str()).collect();
            let _ = write!(text, ", after {}", names.join(" "));
        }
        text.push('\n');
    }
    text
}

/// A line of the file, and what is not read yet of it.
#[derive(Clone, Copy)]
struct FileLine<'t> {
    number: usize,
    whole: &'t str,
    rest: &'t str,
}

impl<'t> FileLine<'t> {
    /// Where the rest begins.
    fn place(&self) -> String {
        let rest = self.rest.trim_start();
        // A slice of the line: what lies between their beginnings has been read.
        let read = (rest.as_ptr() as usize).saturating_sub(self.whole.as_ptr() as usize);
        format!(
            "line {}, column {}",
            self.number,
            self.whole[..read.min(self.whole.len())].chars().count() + 1
        )
    }

    fn wrong(&self, what: impl Into<String>) -> Error {
        Error::new("SW0370", what).at(self.place())
    }

    fn word(&mut self) -> &'t str {
        self.rest = self.rest.trim_start();
        let end =
            self.rest.find(|c: char| c.is_whitespace() || c == ',' || c == ':').unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    fn sign(&mut self, sign: char) -> bool {
        let rest = self.rest.trim_start().strip_prefix(sign);
        self.rest = rest.unwrap_or(self.rest);
        rest.is_some()
    }

    fn number(&mut self, what: &str, low: i64, high: i64) -> Result<i64> {
        let before = *self;
        let word = self.word();
        word.trim_start_matches('+').parse().ok().filter(|number| (low..=high).contains(number)).ok_or_else(
            || {
                before
                    .wrong(format!("`{}` is no {what}", clip(word)))
                    .fix(format!("write a number from {low} to {high}"))
            },
        )
    }

    /// Until a sign or the end.
    fn words(&mut self) -> Vec<(FileLine<'t>, &'t str)> {
        let mut words = vec![];
        loop {
            let before = *self;
            match self.word() {
                "" => return words,
                word => words.push((before, word)),
            }
        }
    }

    /// `0 3` or `0..4`.
    fn devices(&mut self, count: usize) -> Result<Vec<usize>> {
        let mut devices = vec![];
        for (at, word) in self.words() {
            let wrong = || {
                let what = format!("`{}` is not one of the {count} devices", clip(word));
                at.wrong(what).fix("write numbers from 0, as `0 3`, or `0..4` for the first four")
            };
            let ends: Vec<usize> = word
                .split("..")
                .map(str::parse)
                .collect::<std::result::Result<_, _>>()
                .map_err(|_| wrong())?;
            match ends[..] {
                [one] if one < count => devices.push(one),
                [first, end] if first < end && end <= count => devices.extend(first..end),
                _ => return Err(wrong()),
            }
        }
        devices.sort_unstable();
        devices.dedup();
        if devices.is_empty() {
            Err(self.wrong("no device is named").fix("write `on 0 3` or `on 0..4`"))
        } else {
            Ok(devices)
        }
    }

    fn end(&self) -> Result<()> {
        match self.rest.trim() {
            "" => Ok(()),
            rest => Err(self.wrong(format!("`{}` does not belong here", clip(rest))).fix("leave it out")),
        }
    }
}

#[derive(Default)]
struct OrderReader<'t> {
    room: Vec<Option<i64>>,
    blocks: Vec<Block>,
    numbers: BTreeMap<&'t str, usize>,
    /// What blocks wait for, by name, which may stand further below.
    after: Vec<(usize, FileLine<'t>, &'t str)>,
}

impl<'t> OrderReader<'t> {
    fn line(&mut self, mut line: FileLine<'t>) -> Result<()> {
        let before = line;
        match line.word() {
            "devices" if self.room.is_empty() => {
                let count = line.number("number of devices", 1, MOST_DEVICES)?;
                self.room = vec![None; usize::try_from(count).unwrap_or(1)];
                line.end()
            }
            "memory" | "block" if self.room.is_empty() => {
                Err(before.wrong("the number of devices is not known yet").fix("write `devices 4` before it"))
            }
            "memory" => self.memory(line),
            "block" => self.block(line),
            word => Err(before
                .wrong(format!("no line begins with `{}` here", clip(word)))
                .fix("a line begins with `devices`, once, `memory` or `block`")),
        }
    }

    fn memory(&mut self, mut line: FileLine<'t>) -> Result<()> {
        let room = line.number("memory", 0, MOST_TIME)?;
        let devices = match line.rest.trim() {
            "" => (0..self.room.len()).collect(),
            _ => {
                self.keyword(&mut line, "on")?;
                line.devices(self.room.len())?
            }
        };
        devices.into_iter().for_each(|device| self.room[device] = Some(room));
        line.end()
    }

    fn keyword(&self, line: &mut FileLine<'t>, wanted: &str) -> Result<()> {
        let before = *line;
        match line.word() {
            word if word == wanted => Ok(()),
            word => Err(before.wrong(format!("`{}` is not `{wanted}`", clip(word))).fix(EXAMPLE)),
        }
    }

    fn block(&mut self, mut line: FileLine<'t>) -> Result<()> {
        let before = line;
        let name = line.word();
        let number = self.blocks.len();
        if name.is_empty() || self.numbers.insert(name, number).is_some() || number >= MOST_BLOCKS {
            let what = match (name.is_empty(), number >= MOST_BLOCKS) {
                (true, _) => "a block has no name".into(),
                (_, true) => format!("there are more than {MOST_BLOCKS} blocks"),
                _ => format!("there are two blocks `{}`", clip(name)),
            };
            return Err(before.wrong(what).fix(EXAMPLE));
        }
        self.keyword(&mut line, "on")?;
        let devices = line.devices(self.room.len())?;
        let mut block = Block { name: name.into(), devices, ..Block::default() };
        if !line.sign(':') {
            return Err(line.wrong("`:` is missing").fix(EXAMPLE));
        }
        loop {
            self.property(&mut line, &mut block)?;
            if !line.sign(',') {
                break;
            }
        }
        line.end()?;
        if block.time == 0 {
            return Err(before.wrong(format!("block `{}` has no time", clip(name))).fix(EXAMPLE));
        }
        self.blocks.push(block);
        Ok(())
    }

    fn property(&mut self, line: &mut FileLine<'t>, block: &mut Block) -> Result<()> {
        let before = *line;
        match line.word() {
            "time" => block.time = line.number("time", 1, MOST_TIME)?,
            "memory" => block.memory = line.number("memory", -MOST_TIME, MOST_TIME)?,
            "after" => {
                let names = line.words();
                if names.is_empty() {
                    return Err(line.wrong("`after` names no block").fix(EXAMPLE));
                }
                self.after.extend(names.into_iter().map(|(at, name)| (self.blocks.len(), at, name)));
            }
            word => {
                return Err(before
                    .wrong(format!("a block has no `{}`", clip(word)))
                    .fix("a block has `time`, `memory` and `after`"));
            }
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Problem> {
        for (block, at, name) in self.after {
            let Some(before) = self.numbers.get(name) else {
                return Err(at
                    .wrong(format!("there is no block `{}`", clip(name)))
                    .fix("name a block of the file"));
            };
            if !self.blocks[block].after.contains(before) {
                self.blocks[block].after.push(*before);
            }
        }
        Ok(Problem { blocks: self.blocks, room: self.room })
    }
}

const EXAMPLE: &str = "write `block F1 on 1: time 1, memory 1, after F0`";

/// What stood there, if that is not too long.
fn clip(text: &str) -> String {
    let short: String = text.chars().take(40).collect();
    let more = if short.len() < text.len() { "..." } else { "" };
    format!("{}{more}", short.escape_default())
}
