//! What the code says of itself: where it comes from, and what is moved.

use graph::{Graph, Source, TensorId};
use program::{Body, BufId, Collective, Cut, Grouping, GroupingId, How, Instr, Program, RankId, Role};
use rules::Reduction;

use super::modules::Modules;

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
}

impl Comments<'_> {
    pub(crate) fn of(&self, instr: &Instr) -> Option<String> {
        let (buf, what) = match instr {
            Instr::Collective(Collective { how, group, from, .. }) => {
                let together = if from.len() > 1 { ", in one message" } else { "" };
                (*from.first()?, format!("{}{together}", self.how(how, *group)))
            }
            Instr::Exchange { from, to, .. } => {
                (*from.first().or(to.first())?, "moved region by region".to_owned())
            }
            Instr::Slice(slice) => (slice.from, "the part that is needed here".to_owned()),
            Instr::Add { from, .. } => (*from.first()?, format!("sum over {} uses", from.len())),
            _ => return None,
        };
        Some(format!("{}: {what}", self.place(buf)?))
    }

    fn how(&self, how: &How, group: GroupingId) -> String {
        match how {
            How::AllReduce(reduction) => {
                format!("{} of {}", partial(*reduction), self.count(group, "partial result"))
            }
            How::AllGather(cut) => format!("{} joined along {}", self.count(group, "piece"), dim(cut)),
            How::ReduceScatter(cut) => {
                format!("sum of {}, cut along {}", self.count(group, "partial result"), dim(cut))
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
        let buf = self.role.body.bufs.get(buf.index())?;
        let name = self.tensor(buf.tensor)?;
        Some(if buf.grad { format!("gradient of {name}") } else { name })
    }

    fn tensor(&self, id: TensorId) -> Option<String> {
        let tensor = self.graph.tensors.get(id.index())?;
        Some(match &tensor.source {
            Source::Op { op, .. } => match self.modules.of(*op) {
                "" => tensor.name.clone(),
                path => path.to_owned(),
            },
            Source::Param { names, .. } => names.first()?.clone(),
            Source::Buffer { name, .. } | Source::Const { name } => name.clone(),
            Source::Input { .. } => tensor.name.clone(),
        })
    }
}

/// The group of a grouping that a role's first rank is in; a role's groups are of one size.
pub(crate) fn group_of<'a>(
    program: &'a Program,
    role: &Role,
    id: GroupingId,
) -> Option<&'a [program::RankId]> {
    let grouping = program.groupings.get(id.index())?;
    let rank = role.ranks.first()?;
    grouping.iter().find(|group| group.contains(rank)).map(Vec::as_slice)
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

/// The buf that gradients belong to, for naming them.
pub(crate) fn is_gradient(body: &Body, buf: BufId) -> bool {
    body.bufs.get(buf.index()).is_some_and(|buf| buf.grad)
}
