//! Parameters that ranks divide among them, or that live on the host: what is gathered of them, and how their gradients get to
//! the parts.

use graph::TensorId;
use program::{Call, Instr, LeafId, Of, Pass};

use crate::purpose::Purpose;
use crate::region::numel;

use super::communication::TOGETHER;
use super::gradients::symmetric;
use super::ledger::MemoryBlock;
use super::pending::{Gathering, Scattering};
use super::walk::Walk;

/// How a copy falls into the parts of ranks.
struct CopyForm {
    tensor: TensorId,
    shard: usize,
    parts: u64,
    /// Elements of the longest part; others are sent as long.
    width: u64,
    on_host: bool,
    /// Whether parts, one behind the other in memory, are the whole.
    flat: bool,
}

impl CopyForm {
    /// Whether it travels by itself, or stays on its rank, where nothing is copied for a message.
    fn goes_alone(&self) -> bool {
        self.flat && (self.parts == 1 || self.width > TOGETHER.unsigned_abs())
    }
}

impl Walk<'_, '_> {
    /// What is gathered once a step is there from the last step.
    pub(super) fn make_copies(&mut self) {
        let count = self.rank.own.table.copies.len();
        self.copies = (0..count).map(|_| self.ledger.make(0, Purpose::Gathered)).collect();
        let codes = self.rank.body.codes.iter().filter(|code| code.pass == Pass::Begin);
        for copy in codes.flat_map(|code| &code.instrs).flat_map(Instr::copies) {
            self.fill(*copy);
        }
    }

    /// Copies are made one after the other, and there may be thousands.
    pub(super) fn is_gathered(&self, block: MemoryBlock) -> bool {
        self.copies.binary_search(&block).is_ok()
    }

    pub(super) fn gather(&mut self, copies: &[usize]) {
        for copies in symmetric(copies.iter().copied(), |copy| self.read_as(copy)) {
            let mut gathering = Gathering { copies, sent: vec![], received: vec![] };
            for message in self.apart(&gathering.copies, |copy| copy) {
                let forms: Vec<CopyForm> = message.iter().map(|copy| self.form(*copy)).collect();
                if forms.iter().all(|form| form.parts == 1) {
                    gathering.sent.extend(self.bring(&message, &forms));
                    continue;
                }
                gathering.sent.extend(self.own_parts(&forms));
                match &forms[..] {
                    // It arrives where it belongs.
                    [form] if form.flat => self.fill(message[0]),
                    _ => {
                        let bytes = forms.iter().map(|form| form.parts * self.bytes_of_part(form)).sum();
                        gathering.received.push(self.ledger.make(bytes, Purpose::Communication));
                    }
                }
            }
            self.coming.push(gathering);
        }
    }

    /// What is nowhere else than on this rank's host comes to where it belongs, as it is held there if it is read as a cast.
    fn bring(&mut self, copies: &[usize], forms: &[CopyForm]) -> Vec<MemoryBlock> {
        copies.iter().for_each(|copy| self.fill(*copy));
        let casts = forms.iter().filter(|form| form.on_host && self.is_cast(form.tensor));
        let bytes: Vec<u64> = casts.map(|form| form.width * self.width_held(form.tensor)).collect();
        bytes.into_iter().map(|bytes| self.ledger.make(bytes, Purpose::Communication)).collect()
    }

    /// This rank's parts in one message. A single one is sent as it lies, if it is as read and as long; several are copied
    /// into it, from where they are held or from where they are brought to.
    fn own_parts(&mut self, forms: &[CopyForm]) -> Option<MemoryBlock> {
        let [form] = forms else {
            let all = forms.iter().map(|form| self.bytes_of_part(form)).sum();
            let joined = self.ledger.make(all, Purpose::Communication);
            let there: Vec<usize> = forms.iter().filter(|form| form.on_host).map(|form| form.shard).collect();
            let brought = there.into_iter().map(|shard| self.bytes_of_shard(shard)).sum();
            self.ledger.meanwhile(brought, Purpose::Communication);
            return Some(joined);
        };
        let as_long = numel(&self.rank.own.shard(form.shard).0) == form.width;
        let lies = as_long && !self.is_cast(form.tensor) && !form.on_host;
        let bytes = self.bytes_of_part(form);
        (!lies).then(|| self.ledger.make(bytes, Purpose::Communication))
    }

    /// These are there from now on, if they are on their way.
    pub(super) fn arrive(&mut self, copies: &[usize]) {
        let read = |gathering: &Gathering| gathering.copies.iter().any(|copy| copies.contains(copy));
        let (there, coming) = std::mem::take(&mut self.coming).into_iter().partition(read);
        self.coming = coming;
        let there: Vec<Gathering> = there;
        for gathering in &there {
            gathering.sent.iter().for_each(|block| self.ledger.release(*block));
            gathering.copies.iter().for_each(|copy| self.fill(*copy));
        }
        there.iter().flat_map(|gathering| &gathering.received).for_each(|block| self.ledger.release(*block));
    }

    fn fill(&mut self, copy: usize) {
        let bytes = numel(&self.rank.own.copy(copy).0) * self.width(self.form(copy).tensor);
        self.ledger.resize(self.copies[copy], bytes);
    }

    pub(super) fn release(&mut self, copies: &[usize]) {
        self.arrive(copies);
        copies.iter().for_each(|copy| self.ledger.resize(self.copies[*copy], 0));
    }

    /// What a call reads of what is gathered.
    pub(super) fn copies_of(&self, call: &Call) -> Vec<usize> {
        let leaves = call.inputs.iter().filter_map(|buf| self.code().leaf_of.get(buf));
        leaves.filter_map(|leaf| self.copy_of(*leaf)).collect()
    }

    /// Results that are views of what is gathered get memory of their own.
    pub(super) fn own_results(&mut self, call: &Call) {
        for buf in &call.outputs {
            if self.values[buf.index()].is_some_and(|block| self.is_gathered(block)) {
                self.drop_all(&[*buf]);
                self.write(*buf, None);
            }
        }
    }

    pub(super) fn scatter(&mut self, leaves: &[LeafId]) {
        for group in self.by_dtype(leaves) {
            self.take_arrived(1);
            let mut scattering = Scattering::default();
            for message in self.apart(&group, |leaf| self.copy_of(leaf).unwrap_or(0)) {
                self.send_gradients(&message, &mut scattering);
            }
            self.leaving.push(scattering);
        }
    }

    /// One whose parts follow each other is sent as it lies; others are copied into one message.
    fn send_gradients(&mut self, leaves: &[usize], scattering: &mut Scattering) {
        let gradients: Vec<MemoryBlock> = leaves.iter().map(|leaf| self.give_up(*leaf)).collect();
        let forms: Vec<CopyForm> =
            leaves.iter().filter_map(|leaf| Some(self.form(self.copy_of(*leaf)?))).collect();
        let bytes: Vec<u64> = forms.iter().map(|form| form.width * self.width_held(form.tensor)).collect();
        let sent = match (&forms[..], &gradients[..]) {
            ([form], [gradient]) if form.flat => *gradient,
            _ => {
                let all = forms.iter().zip(&bytes).map(|(form, bytes)| form.parts * bytes).sum();
                let rows = self.ledger.make(all, Purpose::Communication);
                gradients.into_iter().for_each(|gradient| self.ledger.release(gradient));
                rows
            }
        };
        let received = self.ledger.make(bytes.iter().sum(), Purpose::Gradients);
        scattering.sent.push(sent);
        for form in forms {
            scattering.received.push((form.shard, self.ledger.hold(received)));
        }
        self.ledger.release(received);
    }

    fn give_up(&mut self, leaf: usize) -> MemoryBlock {
        self.fill_in(leaf);
        self.gradients[leaf].take().expect("it was filled in")
    }

    /// Waits for gradients on their way, but for so many of the last messages.
    pub(super) fn take_arrived(&mut self, left: usize) {
        let arrived = self.leaving.len().saturating_sub(left);
        for scattering in self.leaving.drain(..arrived).collect::<Vec<_>>() {
            scattering.sent.into_iter().for_each(|block| self.ledger.release(block));
            for (shard, block) in scattering.received {
                self.arrives_at_shard(shard, block);
            }
        }
    }

    /// The first becomes the shard's, others are added in place. On the host if the shard is there.
    pub(super) fn arrives_at_shard(&mut self, shard: usize, gradient: MemoryBlock) {
        if self.is_on_host(shard) {
            self.ledger.release(gradient);
            if self.arrived[shard].is_none() {
                self.ledger.send(self.bytes_of_shard(shard));
                self.arrived[shard] = Some(self.ledger.make(0, Purpose::Gradients));
            }
            return;
        }
        match self.arrived[shard] {
            None => self.arrived[shard] = Some(gradient),
            Some(_) => self.ledger.release(gradient),
        }
    }

    pub(super) fn part_gradients(&mut self, leaves: &[LeafId]) {
        for leaf in leaves {
            let (shard, gradient) = (self.rank.own.shard_of(leaf.index()), self.give_up(leaf.index()));
            // To the host it goes as it is.
            if self.is_on_host(shard) {
                self.arrives_at_shard(shard, gradient);
                continue;
            }
            let part = self.gradient_of_shard(shard);
            self.arrives_at_shard(shard, part);
            self.ledger.release(gradient);
        }
    }

    /// The sums are made beside what is summed, which comes from the host if it is there; small ones are copied into one
    /// message.
    pub(super) fn reduce_shards(&mut self, shards: &[usize]) {
        self.take_arrived(0);
        let there: Vec<usize> = shards.iter().copied().filter(|shard| self.is_on_host(*shard)).collect();
        let brought: Vec<MemoryBlock> =
            there.into_iter().map(|shard| self.gradient_of_shard(shard)).collect();
        let sums: Vec<MemoryBlock> = shards.iter().map(|shard| self.gradient_of_shard(*shard)).collect();
        let numel = |shard: &usize| numel(&self.rank.own.shard(*shard).0);
        let small: Vec<&usize> =
            shards.iter().filter(|shard| numel(shard) <= TOGETHER.unsigned_abs()).collect();
        let together = small.iter().map(|shard| self.bytes_of_shard(**shard)).sum();
        self.ledger.meanwhile(if small.len() < 2 { 0 } else { together }, Purpose::Communication);
        for (shard, sum) in shards.iter().zip(sums) {
            if self.is_on_host(*shard) {
                self.arrives_at_shard(*shard, sum);
                continue;
            }
            let old = self.arrived[*shard].replace(sum);
            old.into_iter().for_each(|old| self.ledger.release(old));
        }
        brought.into_iter().for_each(|block| self.ledger.release(block));
    }

    pub(super) fn gradient_of_shard(&mut self, shard: usize) -> MemoryBlock {
        let bytes = self.bytes_of_shard(shard);
        self.ledger.make(bytes, Purpose::Gradients)
    }

    /// What is large and can lie as it is travels by itself.
    fn apart(&self, items: &[usize], copy: impl Fn(usize) -> usize) -> Vec<Vec<usize>> {
        let goes_alone = |item: &usize| self.form(copy(*item)).goes_alone();
        let (alone, small): (Vec<usize>, Vec<usize>) = items.iter().copied().partition(goes_alone);
        let small = (!small.is_empty()).then_some(small);
        alone.into_iter().map(|item| vec![item]).chain(small).collect()
    }

    fn copy_of(&self, leaf: usize) -> Option<usize> {
        match self.rank.own.leaf(leaf).0 {
            Of::Copy(copy) => Some(copy),
            Of::Shard(_) => None,
        }
    }

    fn bytes_of_part(&self, form: &CopyForm) -> u64 {
        form.width * self.width(form.tensor)
    }

    fn read_as(&self, copy: usize) -> graph::Dtype {
        self.cx.facts.graph.tensor(self.form(copy).tensor).dtype
    }

    fn form(&self, copy: usize) -> CopyForm {
        let (it, region) = (&self.rank.own.table.copies[copy], &self.rank.own.copy(copy).0);
        let (parts, divided) = (u64::from(it.parts), region[it.factor].len().unsigned_abs());
        let others = numel(&region[..it.factor]) * numel(&region[it.factor + 1..]);
        let outermost = numel(&region[..it.factor]) == 1;
        CopyForm {
            tensor: self.rank.own.table.shards[it.shard].tensor,
            shard: it.shard,
            parts,
            width: divided.div_ceil(parts) * others,
            on_host: self.is_on_host(it.shard),
            flat: outermost && divided % parts == 0,
        }
    }
}
