//! What communications make: results, and what is sent from and received in.

use program::{BufId, Collective, Cut, ExchangeId, How};

use crate::count;
use crate::cuts::extents;
use crate::purpose::Purpose;

use super::walk::Walk;

/// What has more elements is sent as it lies; smaller values are copied into one message.
pub(super) const TOGETHER: i64 = 1 << 16;

impl Walk<'_, '_> {
    pub(super) fn collective(&mut self, collective: &Collective) {
        for to in &collective.to {
            self.write(*to, None);
        }
        let (given, made) = (self.bytes(collective.from[0]), self.bytes(collective.to[0]));
        let buffers = match &collective.how {
            How::AllReduce(_) => self.small(&collective.to),
            How::AllGather(cut) => {
                if self.joins_flat(cut) {
                    0
                } else {
                    padded(made, cut)
                }
            }
            How::ReduceScatter(cut) => {
                if self.joins_flat(cut) {
                    0
                } else {
                    2 * padded(given, cut)
                }
            }
            // Pieces one behind the other, as they are sent and as they arrive, and apart again.
            How::AllToAll { .. } => 2 * given + made,
        };
        if collective.overlaps {
            self.in_flight = Some(self.ledger.make(buffers, Purpose::Communication));
        } else {
            self.ledger.meanwhile(buffers, Purpose::Communication);
        }
    }

    /// Bytes of the values that are sent together, if there are several.
    fn small(&self, bufs: &[BufId]) -> u64 {
        let numel = |buf: &BufId| {
            let held = self.rank.held(*buf)?;
            Some(self.cx.store.region(held.region).iter().map(|interval| interval.len()).product::<i64>())
        };
        let small: Vec<&BufId> =
            bufs.iter().filter(|buf| numel(buf).is_some_and(|numel| numel <= TOGETHER)).collect();
        if small.len() < 2 { 0 } else { small.into_iter().map(|buf| self.bytes(*buf)).sum() }
    }

    /// Whether pieces, one behind the other in memory, are the whole.
    fn joins_flat(&self, cut: &Cut) -> bool {
        let extents = extents(self.rank, &cut.extents).unwrap_or_default();
        let before: i64 = extents.iter().flatten().take(cut.factor).product();
        before == 1 && cut.sizes.windows(2).all(|pair| pair[0] == pair[1])
    }

    /// Pieces are sent from memory of their own.
    pub(super) fn send_off(&mut self, from: &[BufId]) {
        let sent = from.iter().map(|buf| self.bytes(*buf)).sum();
        self.ledger.meanwhile(sent, Purpose::Communication);
    }

    pub(super) fn exchange(&mut self, id: ExchangeId, _from: &[BufId], to: &[BufId]) {
        for buf in to {
            self.write(*buf, None);
        }
        let sent = self.transferred(id);
        self.ledger.meanwhile(sent, Purpose::Communication);
    }

    /// Bytes that this rank sends to others in an exchange, and gets from them.
    pub(super) fn transferred(&mut self, id: ExchangeId) -> u64 {
        let sent = count::sent(self.cx, id);
        sent.given(self.rank.id) + sent.got(self.rank.id)
    }
}

/// All pieces are as long as the longest.
fn padded(bytes: u64, cut: &Cut) -> u64 {
    let (longest, all) = (cut.sizes.iter().max().copied().unwrap_or(0), cut.sizes.iter().sum::<i64>());
    let pieces = cut.sizes.len() as u64;
    if all == 0 { 0 } else { bytes * pieces * longest.unsigned_abs() / all.unsigned_abs() }
}
