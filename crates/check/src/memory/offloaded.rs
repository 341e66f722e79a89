//! What is on the host from forward to backward: a copy of each block that is not there anyway. Blocks stay here until they
//! are copied, and of that the latest that the runtime allows counts.

use hashing::Map;
use program::{COPIES_IN_FLIGHT, Offloaded};

use super::ledger::MemoryBlock;
use super::pending::Sent;
use super::walk::Walk;

impl Walk<'_, '_> {
    /// Sends blocks that backward keeps, of which the others stay.
    pub(super) fn send<'b>(&mut self, what: Offloaded, kept: impl Iterator<Item = &'b MemoryBlock>) {
        let (mut sent, mut known) = (Sent::new(), Map::default());
        for block in kept.copied().filter(|block| self.ledger.can_go(*block)).collect::<Vec<_>>() {
            if known.insert(block, ()).is_none() {
                sent.push((self.ledger.hold(block), self.ledger.bytes(block)));
            }
            self.ledger.drop_block(block);
        }
        sent.iter().for_each(|(_, bytes)| self.ledger.send(*bytes));
        if !sent.is_empty() {
            if self.copying.len() == COPIES_IN_FLIGHT {
                self.arrived_there();
            }
            self.copying.push_back(sent.iter().map(|(block, _)| *block).collect());
        }
        self.sent.insert(what, sent.iter().map(|(_, bytes)| bytes).sum());
        self.offloaded.insert(what, sent);
    }

    pub(super) fn fetch(&mut self, what: Offloaded) {
        self.arrived_there();
        let sent = self.offloaded.remove(&what).unwrap_or_default();
        let back: Vec<MemoryBlock> = sent.iter().map(|(_, bytes)| self.ledger.bring(*bytes)).collect();
        let fresh: Map<MemoryBlock, MemoryBlock> =
            sent.iter().zip(&back).map(|((old, _), back)| (*old, *back)).collect();
        let mut none = vec![];
        let kept = match what {
            Offloaded::Call(call) => self.saved.get_mut(&call.0),
            Offloaded::Kept(kept) => self.kept.get_mut(&kept.0),
        };
        for block in kept.unwrap_or(&mut none).iter_mut().flatten() {
            if let Some(back) = fresh.get(block) {
                *block = self.ledger.keep(*back);
            }
        }
        back.into_iter().for_each(|back| self.ledger.release(back));
    }

    /// What was sent first of all that is in flight.
    fn arrived_there(&mut self) {
        self.copying.pop_front().into_iter().flatten().for_each(|block| self.ledger.release(block));
    }
}
