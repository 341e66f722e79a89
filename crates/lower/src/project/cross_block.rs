//! Values that one code makes and another one of the same ranks reads: they are kept, and taken.

use std::collections::{BTreeMap, HashMap};

use program::{Body, BufId, Instr, KeepId};

/// What one code reads of another, both by their positions.
type Between = BTreeMap<(usize, usize), Vec<BufId>>;

pub(super) fn keep(body: &mut Body) {
    let between = between(body);
    if between.is_empty() {
        return;
    }
    let known = body.instrs().filter(|instr| matches!(instr, Instr::Keep { .. })).count();
    for (next, ((from, to), values)) in (known..).zip(between) {
        let fresh: HashMap<BufId, BufId> =
            values.iter().map(|value| (*value, body.another(*value))).collect();
        let id = KeepId::new(next);
        let taken = values.iter().map(|value| fresh[value]).collect();
        let reader = &mut body.codes[to];
        for buf in
            reader.instrs.iter_mut().flat_map(Instr::reads_mut).chain(reader.gives.iter_mut().flatten())
        {
            *buf = fresh.get(buf).copied().unwrap_or(*buf);
        }
        reader.instrs.insert(0, Instr::Take { id, to: taken });
        body.codes[from].instrs.push(Instr::Keep { id, from: values, offloads: false });
    }
    number(body);
}

fn between(body: &Body) -> Between {
    let mut made: HashMap<BufId, usize> = HashMap::new();
    let mut between = Between::new();
    for (at, code) in body.codes.iter().enumerate() {
        made.extend(code.takes.iter().map(|buf| (*buf, at)));
        for instr in &code.instrs {
            made.extend(instr.writes().map(|buf| (buf, at)));
        }
        let reads = code.instrs.iter().flat_map(Instr::reads).chain(code.gives.iter().flatten().copied());
        for buf in reads {
            let Some(from) = made.get(&buf).copied().filter(|from| *from != at) else { continue };
            let values = between.entry((from, at)).or_default();
            if !values.contains(&buf) {
                values.push(buf);
            }
        }
    }
    between
}

/// In the order in which they are kept.
fn number(body: &mut Body) {
    let mut new: HashMap<KeepId, KeepId> = HashMap::new();
    for instr in body.codes.iter_mut().flat_map(|code| &mut code.instrs) {
        if let Instr::Keep { id, .. } = instr {
            let number = KeepId::new(new.len());
            *id = *new.entry(*id).or_insert(number);
        }
    }
    for instr in body.codes.iter_mut().flat_map(|code| &mut code.instrs) {
        if let Instr::Take { id, .. } = instr {
            *id = new[id];
        }
    }
}
