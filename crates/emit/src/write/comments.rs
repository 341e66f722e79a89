//! What the code says of itself: where it comes from, and what is moved.

use std::collections::BTreeSet;

use graph::{Graph, Source, TensorId};
use program::{
    BufId, Collective, Cut, ExchangeId, Grouping, GroupingId, How, Instr, Kind, Program, RankId, Role,
};
use rules::Reduction;

use super::modules::Modules;
use super::ranks::{group_of, rank_names};
use super::sharding::Shardings;
use crate::names;
use crate::python::print;

/// The modules that use a function.
pub(crate) fn docstring(paths: &[&str], users: usize) -> Vec<String> {
    const WIDTH: usize = 70;
    let mut text = String::new();
    let mut shown = 0;
    for path in paths {
        if shown > 0 && text.len() + path.len() > WIDTH {
            break;
        }
        text.push_str(if shown > 0 { ", " } else { "" });
        text.extend(path.chars().map(|c| if c.is_control() { ' ' } else { c }).take(200));
        shown += 1;
    }
    if users > shown {
        text.push_str(&format!(" and {} more", users - shown));
    }
    if text.trim().is_empty() { vec![] } else { vec![text] }
}

/// The first of what an instruction moves or adds.
fn moved(instr: &Instr) -> Option<BufId> {
    match instr {
        Instr::Collective(Collective { from, .. }) | Instr::Add { from, .. } => from.first().copied(),
        Instr::Exchange { from, to, .. } => from.first().or(to.first()).copied(),
        Instr::Send { from, .. } => from.first().copied(),
        Instr::Receive { to, .. } => to.first().copied(),
        Instr::Slice(slice) => Some(slice.from),
        _ => None,
    }
}

/// Lines of a comment that lists something.
pub(crate) fn wrapped(title: &str, items: &[String]) -> String {
    const WIDTH: usize = 100;
    let mut lines: Vec<String> = vec![];
    for item in items {
        match lines.last_mut().filter(|line| line.len() + item.len() + 3 <= WIDTH) {
            Some(line) => *line += &format!("; {item}"),
            None => lines.push(format!("# {}{item}", if lines.is_empty() { title } else { "  " })),
        }
    }
    lines.iter().map(|line| print::clean(line) + "\n").collect()
}

/// Bytes to people: `2.0 GiB`.
fn size(bytes: i64) -> String {
    const UNITS: [(i64, &str); 3] = [(1 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
    match UNITS.iter().find(|(unit, _)| bytes >= *unit) {
        Some((unit, name)) => {
            let tenths = (bytes * 10 + unit / 2) / unit;
            format!("{}.{} {name}", tenths / 10, tenths % 10)
        }
        None => format!("{bytes} bytes"),
    }
}

/// The groups of ranks that communicate: `ranks (0 1) (2 3)`; of many groups, or many ranks, the first.
pub(crate) fn partition(grouping: &Grouping) -> String {
    const GROUPS: usize = 4;
    const RANKS: usize = 8;
    let shown = |group: &Vec<RankId>| {
        let ranks: Vec<String> = group.iter().take(RANKS).map(|rank| rank.0.to_string()).collect();
        let more = group.len().saturating_sub(RANKS);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        format!("({}{more})", ranks.join(" "))
    };
    let groups: Vec<String> = grouping.iter().take(GROUPS).map(shown).collect();
    let more = grouping.len().saturating_sub(GROUPS);
    let more = if more > 0 { format!(" and {more} more groups") } else { String::new() };
    format!("ranks {}{more}", groups.join(" "))
}

/// Names what is moved, and how.
pub(crate) struct Comments<'a> {
    pub(crate) graph: &'a Graph,
    pub(crate) program: &'a Program,
    pub(crate) role: &'a Role,
    pub(crate) modules: &'a Modules<'a>,
    pub(crate) shardings: &'a Shardings<'a>,
    /// What bufs are called, but for numbers.
    pub(crate) wanted: &'a [String],
}

impl Comments<'_> {
    pub(crate) fn text(&self, instr: &Instr) -> Option<String> {
        let buf = moved(instr)?;
        let what = match instr {
            Instr::Collective(it) => self.collective(it),
            Instr::Exchange { .. } => "moved region by region".to_owned(),
            Instr::Send { exchange, .. } | Instr::Receive { exchange, .. } => {
                self.across(instr, *exchange)?
            }
            Instr::Slice(slice) => {
                let part = self.shardings.shape(slice.to).map_or(String::new(), |shape| format!(", {shape}"));
                format!("the part that is needed here{part}")
            }
            Instr::Add { from, .. } => format!("sum over {} uses", from.len()),
            _ => return None,
        };
        let place = self.place(buf).filter(|place| !self.says(buf, place));
        Some(place.map_or(what.clone(), |_| format!("{}: {what}", self.about(instr).unwrap_or_default())))
    }

    /// What of the model an instruction moves: `gradient of h.0.ln_2`.
    pub(crate) fn about(&self, instr: &Instr) -> Option<String> {
        let buf = moved(instr)?;
        let place = self.place(buf)?;
        let grad = self.role.body.buf(buf).grad;
        Some(if grad { format!("gradient of {place}") } else { place })
    }

    /// Whether a buf's own name says where it is from.
    fn says(&self, buf: BufId, place: &str) -> bool {
        let called = &self.wanted[buf.index()];
        let called = called.strip_suffix("_part").unwrap_or(called);
        called.strip_prefix("g_").unwrap_or(called) == names::tail(place)
    }

    /// From where to where, and how many bytes each rank gives.
    /// To whom something goes, or from whom it comes, if that is the same for all ranks of the role.
    fn across(&self, instr: &Instr, exchange: ExchangeId) -> Option<String> {
        let table = &self.program.exchanges[exchange.index()];
        let (sends, ranks) = (instr.kind() == Kind::Send, &self.role.ranks);
        let ends = table.pieces.iter().map(|piece| (table.sources[piece.from].0, table.targets[piece.to].0));
        let pairs = ends.map(|(from, to)| if sends { (from, to) } else { (to, from) });
        let others: BTreeSet<RankId> =
            pairs.filter(|(rank, _)| ranks.contains(rank)).map(|(_, other)| other).collect();
        let others: Vec<RankId> = others.into_iter().collect();
        let word = if sends { "to" } else { "from" };
        (!others.is_empty()).then(|| format!("{word} {}", rank_names(&others)))
    }

    fn collective(&self, it: &Collective) -> String {
        let together = if it.from.len() > 1 { ", in one message" } else { "" };
        let bytes: Option<i64> = it.from.iter().map(|buf| self.shardings.bytes(*buf)).sum();
        let bytes = bytes.map_or(String::new(), |bytes| format!(", {}", size(bytes)));
        let how = self.how(&it.how, it.group);
        let lies = match (&it.from[..], &it.to[..]) {
            ([from], [to]) => self.way(*from, *to).map_or(String::new(), |way| format!("{way}, ")),
            _ => String::new(),
        };
        format!("{lies}{how}{together}{bytes}")
    }

    /// How it lies before and after, if that is another way.
    fn way(&self, from: BufId, to: BufId) -> Option<String> {
        let (from, to) = (self.shardings.shape(from)?, self.shardings.shape(to)?);
        Some(if from == to { to } else { format!("{from} to {to}") })
    }

    fn how(&self, how: &How, group: GroupingId) -> String {
        match how {
            How::AllReduce(reduction) => {
                format!("{} of {}", partial(*reduction), self.count(group, "part"))
            }
            How::AllGather(cut) => format!("{} joined along {}", self.count(group, "piece"), dim(cut)),
            How::ReduceScatter(cut) => {
                format!("sum of {}, cut along {}", self.count(group, "part"), dim(cut))
            }
            How::AllToAll { send, receive } => {
                format!("cut along {}, joined along {}", dim(send), dim(receive))
            }
        }
    }

    fn count(&self, group: GroupingId, what: &str) -> String {
        let size = group_of(self.program, self.role, group).map_or(0, <[_]>::len);
        format!("{size} {what}{}", if size == 1 { "" } else { "s" })
    }

    /// The module that made a buf, or the name of the parameter that it is.
    fn place(&self, buf: BufId) -> Option<String> {
        self.tensor(self.role.body.bufs.get(buf.index())?.tensor)
    }

    fn tensor(&self, id: TensorId) -> Option<String> {
        let tensor = self.graph.tensors.get(id.index())?;
        Some(match &tensor.source {
            Source::Op { .. } if names::is_made_up(&tensor.name) => return None,
            Source::Op { op, .. } => match self.modules.path_of(*op) {
                "" => tensor.name.clone(),
                path => path.to_owned(),
            },
            Source::Param { names, .. } => names.first()?.clone(),
            Source::Buffer { name, .. } | Source::Const { name } => name.clone(),
            Source::Input { .. } => tensor.name.clone(),
        })
    }
}

/// The tensor's dim in which a cut is.
fn dim(cut: &Cut) -> String {
    let mut before = 0;
    for (dim, factors) in cut.extents.iter().enumerate() {
        if cut.factor < before + factors.len() {
            return format!("dim {dim}");
        }
        before += factors.len();
    }
    format!("factor {}", cut.factor)
}

fn partial(reduction: Reduction) -> &'static str {
    match reduction {
        Reduction::Sum => "sum",
        Reduction::Max => "maximum",
        Reduction::Min => "minimum",
        Reduction::Any => "any",
        Reduction::All => "all",
    }
}
