//! Blocks of a rank's memory: what each is for, who holds it, and when all together are the most.

use graph::OpId;

use crate::purpose::Purpose;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct MemoryBlock(usize);

/// The memory behind a value and all views of it. It is free once nobody holds it.
struct State {
    bytes: u64,
    purpose: Purpose,
    holders: u32,
    /// How many of the holders are backward.
    kept: u32,
}

/// The instruction that the rank is at, over all codes, and the operator inside of it.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct At {
    pub(super) instr: usize,
    pub(super) op: Option<OpId>,
}

#[derive(Default)]
pub(super) struct Ledger {
    blocks: Vec<State>,
    pub(super) now: [u64; Purpose::COUNT],
    pub(super) at: At,
    /// By purpose, when all together were the most, and when that was.
    pub(super) peak: ([u64; Purpose::COUNT], At),
    /// Of each purpose.
    pub(super) most: [u64; Purpose::COUNT],
    /// Bytes on the host, now and at most.
    offloaded: u64,
    pub(super) most_offloaded: u64,
    /// By purpose, when all together were the most since [`Ledger::mark`].
    pub(super) high: [u64; Purpose::COUNT],
}

impl State {
    /// What backward holds are activations, unless it is held anyway.
    fn shown(&self) -> Purpose {
        if self.kept > 0 && self.purpose == Purpose::Working { Purpose::Activations } else { self.purpose }
    }
}

impl Ledger {
    /// A block with one holder.
    pub(super) fn make(&mut self, bytes: u64, purpose: Purpose) -> MemoryBlock {
        self.blocks.push(State { bytes, purpose, holders: 1, kept: 0 });
        self.add(bytes, purpose);
        MemoryBlock(self.blocks.len() - 1)
    }

    /// From now on the most is looked for anew.
    pub(super) fn mark(&mut self) {
        self.high = self.now;
    }

    /// Bytes that live for this moment only.
    pub(super) fn meanwhile(&mut self, bytes: u64, purpose: Purpose) {
        self.add(bytes, purpose);
        self.now[purpose as usize] -= bytes;
    }

    pub(super) fn hold(&mut self, block: MemoryBlock) -> MemoryBlock {
        self.blocks[block.0].holders += 1;
        block
    }

    pub(super) fn release(&mut self, block: MemoryBlock) {
        let state = &mut self.blocks[block.0];
        state.holders -= 1;
        if state.holders == 0 {
            self.now[state.shown() as usize] -= state.bytes;
        }
    }

    /// Backward holds it, too.
    pub(super) fn keep(&mut self, block: MemoryBlock) -> MemoryBlock {
        self.change(block, |state| state.kept += 1);
        self.hold(block)
    }

    pub(super) fn drop_block(&mut self, block: MemoryBlock) {
        self.change(block, |state| state.kept -= 1);
        self.release(block);
    }

    /// Whether it is there only for what is computed and kept: nothing that a rank has anyway.
    pub(super) fn can_go(&self, block: MemoryBlock) -> bool {
        self.blocks[block.0].purpose == Purpose::Working
    }

    /// As many bytes are on the host.
    pub(super) fn send(&mut self, bytes: u64) {
        self.offloaded += bytes;
        self.most_offloaded = self.offloaded.max(self.most_offloaded);
    }

    /// They come from there into a block with one holder.
    pub(super) fn bring(&mut self, bytes: u64) -> MemoryBlock {
        self.offloaded -= bytes;
        self.make(bytes, Purpose::Working)
    }

    /// It is for something else from now on.
    pub(super) fn becomes(&mut self, block: MemoryBlock, purpose: Purpose) {
        self.change(block, |state| state.purpose = purpose);
    }

    /// The same memory is longer or shorter from now on, whoever holds it.
    pub(super) fn resize(&mut self, block: MemoryBlock, bytes: u64) {
        self.change(block, |state| state.bytes = bytes);
    }

    pub(super) fn bytes(&self, block: MemoryBlock) -> u64 {
        self.blocks[block.0].bytes
    }

    /// Whether it has no other holder.
    pub(super) fn is_alone(&self, block: MemoryBlock) -> bool {
        self.blocks[block.0].holders == 1
    }

    fn change(&mut self, block: MemoryBlock, change: impl FnOnce(&mut State)) {
        let state = &mut self.blocks[block.0];
        self.now[state.shown() as usize] -= state.bytes;
        change(state);
        let (bytes, shown) = (state.bytes, state.shown());
        self.add(bytes, shown);
    }

    fn add(&mut self, bytes: u64, purpose: Purpose) {
        self.now[purpose as usize] += bytes;
        let most = &mut self.most[purpose as usize];
        *most = self.now[purpose as usize].max(*most);
        let all = self.now.iter().sum::<u64>();
        if all > self.high.iter().sum() {
            self.high = self.now;
        }
        if all > self.peak.0.iter().sum() {
            self.peak = (self.now, self.at);
        }
    }
}
