//! Gradients of parameters that are communicated in one message, while they wait for it.

use std::collections::BTreeSet;

use graph::TensorId;
use indexmap::IndexMap;
use program::{GradSync, GroupingId};

use crate::event::Event;
use crate::segments::BUCKET;
use crate::uses::UseId;

/// Gradients that are communicated together.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Message {
    Reduce(GroupingId),
    /// Into parts, which are partial sums across groups. With a unit, as soon as its copies are not needed.
    Scatter {
        group: Option<GroupingId>,
        across: Option<Across>,
        when: GradSync,
        unit: Option<usize>,
    },
    /// Of the parts.
    Parts(Across),
}

/// Groups of ranks that hold the same parts.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Across {
    pub group: GroupingId,
    /// Whether all that is to be summed has arrived with the first message.
    pub early: bool,
}

#[derive(Default)]
struct Bucket {
    all: Vec<(UseId, TensorId)>,
    bytes: u64,
}

/// What waits, by message and size of an element.
#[derive(Default)]
pub struct Buckets {
    open: IndexMap<(Message, usize), Bucket>,
}

impl Buckets {
    pub fn add(&mut self, message: Message, id: UseId, tensor: TensorId, element: usize, bytes: u64) {
        let bucket = self.open.entry((message, element)).or_default();
        bucket.all.push((id, tensor));
        bucket.bytes += bytes;
    }

    /// `next` is what is needed before anything else is.
    pub fn full(&mut self, next: &BTreeSet<usize>) -> Vec<Event> {
        let over = |message: &Message| match message {
            Message::Scatter { unit: Some(unit), .. } => !next.contains(unit),
            _ => false,
        };
        let early = |message: &Message| !matches!(message, Message::Parts(Across { early: false, .. }));
        self.take(|message, bytes| bytes >= BUCKET && early(message) || over(message))
    }

    pub fn rest(&mut self) -> Vec<Event> {
        let mut events = self.take(|message, _| !matches!(message, Message::Parts(_)));
        events.extend(self.take(|_, _| true));
        events
    }

    fn take(&mut self, ready: impl Fn(&Message, u64) -> bool) -> Vec<Event> {
        let keys: Vec<(Message, usize)> = self
            .open
            .iter()
            .filter(|(key, bucket)| ready(&key.0, bucket.bytes))
            .map(|(key, _)| *key)
            .collect();
        let mut events = vec![];
        for key in keys {
            let Bucket { all, bytes } = self.open.shift_remove(&key).expect("it was found there");
            let uses = all.iter().map(|(id, _)| *id).collect();
            events.push(match key.0 {
                Message::Reduce(group) => Event::Reduce { group, uses },
                Message::Parts(Across { group, .. }) => {
                    let mut tensors: Vec<TensorId> = all.iter().map(|(_, tensor)| *tensor).collect();
                    tensors.sort_unstable();
                    tensors.dedup();
                    Event::ReduceParts { group, tensors }
                }
                Message::Scatter { group, across, when, .. } => {
                    if let Some(across) = across {
                        let waiting = self.open.entry((Message::Parts(across), key.1)).or_default();
                        waiting.all.extend(all.iter().copied());
                        waiting.bytes += bytes;
                    }
                    Event::Scatter { group, uses, when }
                }
            });
        }
        events
    }
}
