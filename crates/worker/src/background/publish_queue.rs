//! Order in which the outbox is sent (no I/O).

use std::collections::{HashMap, VecDeque};

use bytes::Bytes;
use model::Position;

/// Outbox batches read at once.
const PAGE: usize = 1_000;
/// The next page is read when at most this many batches are queued.
const FEW: usize = 200;

/// One message of a batch.
#[derive(Debug, Clone)]
pub(super) struct OutboxMessage {
    pub(super) batch: Position,
    pub(super) subject: String,
    pub(super) payload: Bytes,
    pub(super) content_type: &'static str,
    pub(super) id: String,
}

/// The messages of one batch.
pub(super) type OutboxMessages = (Position, Vec<OutboxMessage>);

/// Messages to different subjects are sent concurrently, those to the same subject one at a time.
///
/// The previous owner may have left more than fits into memory. The machine passes on the first
/// batches. The remaining ones are read from the store in pages, and new batches queue behind them.
#[derive(Debug, Default)]
pub(super) struct PublishQueue {
    /// Number of unsent messages per batch.
    left: HashMap<Position, usize>,
    /// Messages that wait for an earlier one, by subject. A subject is present while it has an
    /// unsent message.
    behind: HashMap<String, VecDeque<OutboxMessage>>,
    /// Messages to send as soon as there is room for another publish in flight.
    ready: VecDeque<OutboxMessage>,
    rest: Option<UnreadOutbox>,
}

#[derive(Debug)]
struct UnreadOutbox {
    /// Last batch before the unread ones.
    after: Position,
    /// True once that batch is queued.
    is_next: bool,
    left: usize,
    /// New batches, which are queued after the unread ones.
    later: Vec<OutboxMessages>,
}

impl PublishQueue {
    /// Creates a queue with `left` batches to read after the batch `after`, which the machine
    /// passes on.
    pub(super) fn with_rest(after: Option<Position>, left: usize) -> Self {
        let rest = |after| UnreadOutbox { after, is_next: false, left, later: Vec::new() };
        Self { rest: after.filter(|_| left > 0).map(rest), ..Self::default() }
    }

    /// Next read: the batch to start after, and the number of batches.
    pub(super) fn wants(&self) -> Option<(Position, usize)> {
        let rest = self.rest.as_ref().filter(|rest| rest.is_next && self.left.len() <= FEW)?;
        Some((rest.after, rest.left.min(PAGE)))
    }

    /// Takes a requested page. Returns its empty batches, which count as sent.
    pub(super) fn read(&mut self, page: Vec<OutboxMessages>) -> Vec<Position> {
        let Some(mut rest) = self.rest.take() else { return Vec::new() };
        rest.left = rest.left.saturating_sub(page.len());
        rest.after = page.last().map_or(rest.after, |(batch, _)| *batch);
        let mut sent: Vec<_> = page.into_iter().filter_map(|batch| self.join(batch)).collect();
        match rest.left {
            0 => sent.extend(rest.later.into_iter().filter_map(|batch| self.join(batch))),
            _ => self.rest = Some(rest),
        }
        sent
    }

    /// Takes a batch that the machine passes on. Returns the batch if it is empty.
    pub(super) fn take(&mut self, batch: OutboxMessages) -> Option<Position> {
        match &mut self.rest {
            Some(rest) if batch.0 > rest.after => {
                rest.later.push(batch);
                None
            }
            Some(rest) => {
                rest.is_next |= batch.0 == rest.after;
                self.join(batch)
            }
            None => self.join(batch),
        }
    }

    fn join(&mut self, (batch, items): OutboxMessages) -> Option<Position> {
        if items.is_empty() {
            return Some(batch);
        }
        self.left.insert(batch, items.len());
        for item in items {
            match self.behind.get_mut(&item.subject) {
                Some(behind) => behind.push_back(item),
                None => {
                    self.behind.insert(item.subject.clone(), VecDeque::new());
                    self.ready.push_back(item);
                }
            }
        }
        None
    }

    /// Next message to send.
    pub(super) fn next(&mut self) -> Option<OutboxMessage> {
        self.ready.pop_front()
    }

    /// Notes that a message was sent. Returns the batch if this was its last message.
    pub(super) fn leave(&mut self, batch: Position, subject: &str) -> Option<Position> {
        match self.behind.get_mut(subject).and_then(VecDeque::pop_front) {
            Some(next) => self.ready.push_back(next),
            None => drop(self.behind.remove(subject)),
        }
        let left = self.left.get_mut(&batch)?;
        *left -= 1;
        if *left > 0 {
            return None;
        }
        self.left.remove(&batch);
        Some(batch)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(batch: i64) -> Position {
        Position::from_stored(batch)
    }

    fn items(batch: i64, subjects: &str) -> OutboxMessages {
        let item = |(number, subject): (usize, &str)| OutboxMessage {
            batch: at(batch),
            subject: subject.to_owned(),
            payload: Bytes::new(),
            content_type: wire::CONTENT_TYPE_JSON,
            id: format!("{batch}{subject}{number}"),
        };
        (at(batch), subjects.split_terminator(' ').enumerate().map(item).collect())
    }

    fn ready(line: &mut PublishQueue) -> Vec<String> {
        std::iter::from_fn(|| line.next()).map(|item| item.id).collect()
    }

    #[test]
    fn what_goes_to_one_subject_goes_in_its_order() {
        let mut line = PublishQueue::default();
        assert_eq!((line.take(items(1, "a b a")), line.take(items(2, "a c"))), (None, None));
        assert_eq!(ready(&mut line), ["1a0", "1b1", "2c1"]);
        assert_eq!(line.leave(at(2), "c"), None);
        assert_eq!(ready(&mut line), [] as [&str; 0]);
        assert_eq!(line.leave(at(1), "a"), None);
        assert_eq!(ready(&mut line), ["1a2"], "the second batch's waits behind all of the first's");
        assert_eq!(line.leave(at(1), "b"), None);
        assert_eq!(line.leave(at(1), "a"), Some(at(1)));
        assert_eq!(ready(&mut line), ["2a0"]);
        assert_eq!(line.leave(at(2), "a"), Some(at(2)));
        assert!(line.left.is_empty() && line.behind.is_empty() && line.ready.is_empty());
        assert_eq!(line.take(items(1, "")), Some(at(1)));
        assert_eq!(line.wants(), None);
    }

    #[test]
    fn the_rest_comes_after_the_first_and_before_what_is_new() {
        let mut line = PublishQueue::with_rest(Some(at(2)), PAGE + 1);
        assert_eq!((line.take(items(1, "a")), line.wants()), (None, None), "the first are not all here");
        assert_eq!(line.take(items(2, "a")), None);
        assert_eq!(line.wants(), Some((at(2), PAGE)));
        assert_eq!(line.take(items(9_000, "a")), None);
        // The last batch of the page is empty.
        let last = 2 + PAGE as i64;
        let mut page: Vec<_> = (3..last).map(|batch| items(batch, "a")).collect();
        page.push(items(last, ""));
        assert_eq!((line.read(page), line.wants()), (vec![at(last)], None), "there is enough in the line");
        assert_eq!((line.take(items(9_001, "")), ready(&mut line)), (None, vec!["1a0".to_owned()]));
        for batch in 1..last - FEW as i64 {
            assert_eq!((line.wants(), line.leave(at(batch), "a")), (None, Some(at(batch))));
        }
        assert_eq!(line.wants(), Some((at(last), 1)));
        assert_eq!(line.read(vec![items(last + 1, "a")]), [at(9_001)]);
        assert_eq!(line.wants(), None);
        let mut sent = Vec::new();
        for batch in (last - FEW as i64..last).chain([last + 1, 9_000]) {
            sent.push(line.leave(at(batch), "a"));
        }
        assert!(sent.iter().all(Option::is_some) && line.left.is_empty(), "{sent:?}");
        assert_eq!(line.take(items(9_002, "b")), None);
        assert_eq!(ready(&mut line).last().map(String::as_str), Some("9002b0"));
    }
}
