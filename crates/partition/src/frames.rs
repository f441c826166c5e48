//! Numbers the frames of each thread, so that a reader of one thread notices a missing frame.

use std::collections::BTreeMap;

use hashbrown::HashMap;
use model::{FrameNumber, ThreadId};

/// Counts the frames of a partition under one epoch, and remembers the last frame of up to `limit`
/// threads.
///
/// A forgotten thread costs its readers one query: its next frame names the latest forgotten frame
/// as its predecessor, and a reader whose last frame is older sends a query.
#[derive(Debug)]
pub(crate) struct Frames {
    epoch: u64,
    limit: usize,
    /// Number of the last frame.
    number: u64,
    /// Number of the last frame of any forgotten thread.
    forgotten: u64,
    last: HashMap<ThreadId, u64, foldhash::fast::FixedState>,
    threads: BTreeMap<u64, ThreadId>,
}

impl Frames {
    pub(crate) fn new(epoch: u64, limit: usize, hash_seed: u64) -> Self {
        let last = HashMap::with_hasher(foldhash::fast::FixedState::with_seed(hash_seed));
        Self { epoch, limit, number: 0, forgotten: 0, last, threads: BTreeMap::new() }
    }

    /// Numbers the next frame, which belongs to `thread`.
    pub(crate) fn next(&mut self, thread: &ThreadId) -> FrameNumber {
        self.number += 1;
        let after = match self.last.get_mut(thread) {
            Some(last) => {
                let after = std::mem::replace(last, self.number);
                self.threads.remove(&after);
                after
            }
            None => {
                self.last.insert(thread.clone(), self.number);
                self.forgotten
            }
        };
        self.threads.insert(self.number, thread.clone());
        if self.threads.len() > self.limit
            && let Some((number, thread)) = self.threads.pop_first()
        {
            self.last.remove(&thread);
            self.forgotten = number;
        }
        FrameNumber { epoch: self.epoch, number: self.number, after }
    }

    /// Number of the last frame.
    pub(crate) fn number(&self) -> u64 {
        self.number
    }

    /// Threads that had frames after `number`, with the last frame of each, latest first, at most
    /// `most`. `false` if there may be others.
    pub(crate) fn since(&self, number: u64, most: usize) -> (Vec<(ThreadId, u64)>, bool) {
        let later = self.threads.range(number.saturating_add(1)..);
        let threads: Vec<_> =
            later.rev().take(most).map(|(number, thread)| (thread.clone(), *number)).collect();
        let is_complete = threads.len() < most && number >= self.forgotten;
        (threads, is_complete)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn thread(name: &str) -> ThreadId {
        ThreadId::parse(name).unwrap()
    }

    fn sent(frames: &mut Frames, names: &str) -> String {
        let number = |name| {
            let frame = frames.next(&thread(name));
            format!("{}>{}", frame.after, frame.number)
        };
        names.split(' ').map(number).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn each_frame_names_the_one_before_it_in_its_thread() {
        let mut frames = Frames::new(7, 10, 0);
        assert_eq!(sent(&mut frames, "a b a a b"), "0>1 0>2 1>3 3>4 2>5");
        assert_eq!(frames.number(), 5);
    }

    #[test]
    fn a_forgotten_thread_begins_after_whatever_was_forgotten() {
        let mut frames = Frames::new(7, 2, 0);
        assert_eq!(sent(&mut frames, "a b c"), "0>1 0>2 0>3");
        // The machine only knows that the last frame of thread a was 1 or earlier; the same holds
        // for d.
        assert_eq!(sent(&mut frames, "d a b"), "1>4 2>5 3>6");
    }

    #[test]
    fn changed_threads_come_with_their_last_frame() {
        let mut frames = Frames::new(7, 3, 0);
        sent(&mut frames, "a b a c");
        let named = |(threads, is_complete): (Vec<(ThreadId, u64)>, bool)| {
            let names: Vec<_> = threads.iter().map(|(thread, number)| format!("{thread}{number}")).collect();
            (names.join(" "), is_complete)
        };
        assert_eq!(named(frames.since(0, 9)), ("c4 a3 b2".into(), true));
        assert_eq!(named(frames.since(2, 9)), ("c4 a3".into(), true));
        assert_eq!(named(frames.since(4, 9)), (String::new(), true));
        assert_eq!(named(frames.since(0, 2)), ("c4 a3".into(), false));
        sent(&mut frames, "d");
        assert_eq!(named(frames.since(0, 9)), ("d5 c4 a3".into(), false), "b is forgotten");
        assert_eq!(named(frames.since(2, 9)), ("d5 c4 a3".into(), true));
    }
}
