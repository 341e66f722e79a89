//! Parts that run in turn: what each gives is added to the sum as soon as it is there, so that no more of them live
//! than the sum and one.

use std::collections::HashMap;

use program::{Body, Buf, BufId, Code, Instr};

pub(super) fn add(body: &mut Body) {
    body.codes.iter_mut().for_each(|code| add_in(code, &mut body.bufs));
}

fn add_in(code: &mut Code, bufs: &mut Vec<Buf>) {
    let mut made: HashMap<BufId, usize> = HashMap::new();
    // For each instruction what is added behind it.
    let mut behind: Vec<Vec<Instr>> = vec![vec![]; code.instrs.len()];
    for (at, instr) in code.instrs.iter_mut().enumerate() {
        if let Instr::Add { from, .. } = instr {
            from.sort_by_key(|buf| made.get(buf));
            while let [first, second, _, ..] = from[..] {
                let Some(&at) = made.get(&second) else { break };
                let to = BufId::new(bufs.len());
                bufs.push(bufs[first.index()].clone());
                behind[at].push(Instr::Add { from: vec![first, second], to });
                from.splice(..2, [to]);
            }
        }
        made.extend(instr.writes().into_iter().map(|buf| (buf, at)));
    }
    let all = std::mem::take(&mut code.instrs).into_iter().zip(behind);
    code.instrs = all.flat_map(|(instr, behind)| std::iter::once(instr).chain(behind)).collect();
}
