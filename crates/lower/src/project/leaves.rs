//! What ranks hold between steps, and the leaves through which their code reads it.

use std::rc::Rc;

use graph::{Source, TensorId};
use program::{BufId, ExchangeId, Gathered, GradSync, GroupingId, Instr, Leaf, LeafId, Of, Shard};

use super::Projector;
use super::per_rank::Asked;
use crate::moves::Move;
use crate::param_sharding::Divided;
use crate::uses::UseId;

impl Projector<'_> {
    pub(super) fn hold(&mut self) -> Asked<()> {
        let global = self.global;
        for tensor in global.cx.graph.tensor_ids() {
            if matches!(global.cx.graph.tensor(tensor).source, Source::Op { .. } | Source::Input { .. }) {
                continue;
            }
            let divided = global.param_shardings.get(tensor);
            let held = divided.map_or(global.uses.written[tensor.index()], |it| it.held);
            for index in 0..self.role_ranks.shards(held)? {
                let region = self.role_ranks.shard(held, index)?;
                self.held.entry(tensor).or_default().push((self.table.shards.len(), region));
                self.table
                    .shards
                    .push(Shard { tensor, region: self.role_ranks.per_rank.region(region).clone() });
            }
            if let Some(divided) = divided {
                self.hold_copy(tensor, divided)?;
            }
        }
        Ok(())
    }

    /// What is gathered of a parameter, on ranks that hold a part of it.
    fn hold_copy(&mut self, tensor: TensorId, divided: &Rc<Divided>) -> Asked<()> {
        let parts = self.role_ranks.divided(divided)?;
        let (Some(parts), Some(held)) = (parts, self.held.get(&tensor).cloned()) else { return Ok(()) };
        for (index, (shard, _)) in held.into_iter().enumerate() {
            let whole = self.role_ranks.shard(self.global.uses.written[tensor.index()], index)?;
            self.copies.entry(tensor).or_default().push((self.table.copies.len(), whole));
            let region = self.role_ranks.per_rank.region(whole).clone();
            self.table.copies.push(Gathered { shard, region, factor: divided.factor, parts });
        }
        Ok(())
    }

    fn copies_of(&self, tensors: &[TensorId]) -> Vec<usize> {
        let all = tensors.iter().flat_map(|tensor| self.copies.get(tensor).into_iter().flatten());
        let mut copies: Vec<usize> = all.map(|(copy, _)| *copy).collect();
        copies.sort_unstable();
        copies
    }

    pub(super) fn gather(&mut self, group: GroupingId, tensors: &[TensorId]) -> Asked<()> {
        let copies = self.copies_of(tensors);
        if !copies.is_empty() {
            self.push(Instr::Gather { group, copies });
        }
        Ok(())
    }

    pub(super) fn release(&mut self, tensors: &[TensorId]) -> Asked<()> {
        let copies = self.copies_of(tensors);
        if !copies.is_empty() {
            self.push(Instr::Release { copies });
        }
        Ok(())
    }

    pub(super) fn scatter(&mut self, group: Option<GroupingId>, uses: &[UseId], when: GradSync) -> Asked<()> {
        let mut leaves = self.all_leaves_here(uses)?;
        leaves.sort_unstable();
        if !leaves.is_empty() {
            self.push(match group {
                Some(group) => Instr::Scatter { group, leaves, when },
                None => Instr::Part { leaves, when },
            });
        }
        Ok(())
    }

    pub(super) fn reduce_parts(&mut self, group: GroupingId, tensors: &[TensorId]) -> Asked<()> {
        let held = tensors.iter().flat_map(|tensor| self.held.get(tensor).into_iter().flatten());
        let mut shards: Vec<usize> = held.map(|(shard, _)| *shard).collect();
        shards.sort_unstable();
        if !shards.is_empty() {
            self.push(Instr::ReduceShards { group, shards });
        }
        Ok(())
    }

    /// The leaf through which a use reads a parameter, buffer or constant. Uses without gradients
    /// share a leaf; those with gradients have their own, since their gradients' layouts differ.
    pub(super) fn leaf(&mut self, id: UseId, port: usize) -> Asked<BufId> {
        let it = self.global.uses.get(id);
        let (tensor, region) = (it.tensor, self.role_ranks.port(it.ports, port)?);
        let key = match it.carries_grad {
            true => {
                (tensor, Some(id), self.role_ranks.leaf(it.ports, port, &self.global.schedule.leaves[&id])?)
            }
            false => (tensor, None, 0),
        };
        for (known, buf) in self.leaves.get(&key).cloned().unwrap_or_default() {
            if self.role_ranks.per_rank.same(known, region)? {
                return Ok(buf);
            }
        }
        let buf = self.buf(tensor, false);
        self.leaves.entry(key).or_default().push((region, buf));
        let number = self.body.leaves.iter().filter(|l| l.tensor == tensor).count();
        let container = self.container(tensor, region)?;
        self.leaf_of.insert(buf, self.body.leaves.len());
        self.body.leaves.push(Leaf { tensor, number: u32::try_from(number).unwrap_or(0), buf });
        self.table.leaves.push((container, self.role_ranks.per_rank.region(region).clone()));
        Ok(buf)
    }

    fn container(&mut self, tensor: TensorId, region: super::RegionsId) -> Asked<Of> {
        for (copy, whole) in self.copies.get(&tensor).cloned().unwrap_or_default() {
            if self.role_ranks.per_rank.contains(whole, region)? {
                return Ok(Of::Copy(copy));
            }
        }
        for (shard, held) in self.held.get(&tensor).cloned().unwrap_or_default() {
            if self.role_ranks.per_rank.contains(held, region)? {
                return Ok(Of::Shard(shard));
            }
        }
        unreachable!("a rank holds what it reads")
    }

    /// The leaves of a use, as (position in the use's layout, leaf).
    fn leaves_here(&mut self, id: UseId) -> Asked<Vec<(usize, LeafId)>> {
        let tensor = self.global.uses.get(id).tensor;
        let here = self.role_ranks.leaves(&self.global.schedule.leaves[&id])?;
        let leaf = |(at, number): &(usize, usize)| {
            let (_, buf) = self.leaves[&(tensor, Some(id), *number)][0];
            (*at, LeafId::new(self.leaf_of[&buf]))
        };
        Ok(here.iter().map(leaf).collect())
    }

    fn all_leaves_here(&mut self, uses: &[UseId]) -> Asked<Vec<LeafId>> {
        let mut leaves = vec![];
        for &id in uses {
            leaves.extend(self.leaves_here(id)?.into_iter().map(|(_, leaf)| leaf));
        }
        Ok(leaves)
    }

    pub(super) fn reduce(&mut self, group: GroupingId, uses: &[UseId]) -> Asked<()> {
        let leaves = self.all_leaves_here(uses)?;
        if !leaves.is_empty() {
            self.push(Instr::ReduceGradients { group, leaves });
        }
        Ok(())
    }

    pub(super) fn reduce_exactly(
        &mut self,
        id: UseId,
        exchange: ExchangeId,
        plan: &Rc<Move>,
        when: GradSync,
    ) -> Asked<()> {
        let here = self.leaves_here(id)?;
        // Also those that nothing is taken from: they are copies, and their gradients are dropped, not added.
        let gives = self.role_ranks.gives_exactly(plan)?;
        let leaf = |source: &usize| here.iter().find(|(at, _)| at == source).map(|(_, leaf)| *leaf);
        let leaves: Vec<LeafId> = gives.iter().filter_map(leaf).collect();
        let tensor = self.global.uses.get(id).tensor;
        let held = self.held.get(&tensor);
        let shards: Vec<usize> = held.into_iter().flatten().map(|(shard, _)| *shard).collect();
        if !leaves.is_empty() || !shards.is_empty() {
            self.push(Instr::ExchangeGradients { exchange, leaves, shards, when });
        }
        Ok(())
    }
}
