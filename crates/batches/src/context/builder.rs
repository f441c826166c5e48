//! Decides batch by batch, newest first, from pages of rows.

use std::collections::{BTreeMap, BTreeSet};

use model::Position;

use super::{Context, ContextRequest, Decision, Inclusion, Older, Reason};
use crate::tokens::{self, PER_MESSAGE, TokenCounter};
use crate::{Batch, BatchState, SharedItem};

/// The next read that a [`Builder`] needs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextRead {
    /// The messages before this position, newest first; `None`: the newest ones of the thread.
    Older(Option<Position>),
    /// All messages of these batches.
    Batches(Vec<Position>),
    /// Nothing more is needed.
    Nothing,
}

/// Builds a [`Context`] from rows, newest first.
pub struct Builder<'a> {
    request: ContextRequest,
    counter: &'a dyn TokenCounter,
    /// Messages of undecided batches.
    open: BTreeMap<Position, Vec<SharedItem>>,
    /// Batches that were given whole.
    whole: BTreeSet<Position>,
    /// All messages from this position on were read.
    low: Option<Position>,
    at_end: bool,
    /// Tokens of instructions, summary and the active batch, once that batch is known.
    fixed: Option<u64>,
    used: u64,
    /// True if a batch did not fit, so that older ones are excluded too.
    is_full: bool,
    superseded: BTreeMap<Position, Position>,
    chosen: Vec<Batch>,
    decisions: Vec<Decision>,
    decided: BTreeSet<Position>,
}

/// Maximum number of batches before the window in one read.
pub(super) const BATCHES_AT_ONCE: usize = 64;

impl<'a> Builder<'a> {
    /// A builder that has read nothing.
    pub fn new(request: ContextRequest, counter: &'a dyn TokenCounter) -> Self {
        Self {
            request,
            counter,
            open: BTreeMap::new(),
            whole: BTreeSet::new(),
            low: None,
            at_end: false,
            fixed: None,
            used: 0,
            is_full: false,
            superseded: BTreeMap::new(),
            chosen: Vec::new(),
            decisions: Vec::new(),
            decided: BTreeSet::new(),
        }
    }

    /// Adds the next messages before those already read, without a gap. An empty page means that
    /// the thread has no earlier messages.
    pub fn page(&mut self, items: impl IntoIterator<Item = impl Into<SharedItem>>) {
        let mut is_empty = true;
        for item in items {
            let item = item.into();
            is_empty = false;
            self.low = Some(self.low.map_or(item.position, |low| low.min(item.position)));
            self.take(item);
        }
        self.at_end |= is_empty;
    }

    /// Adds all messages of one batch. An empty list means that the batch was deleted.
    pub fn batch(&mut self, id: Position, items: impl IntoIterator<Item = impl Into<SharedItem>>) {
        self.whole.insert(id);
        let items = items.into_iter().map(Into::into);
        items.filter(|item: &SharedItem| item.batch_id == id).for_each(|item| self.take(item));
    }

    /// Reports that there are no messages before those already read.
    pub fn end(&mut self) {
        self.at_end = true;
    }

    /// All messages from this position on were read; `None`: nothing yet.
    pub fn low(&self) -> Option<Position> {
        self.low
    }

    /// The next read. A caller that stops before the last read still gets a context, with fewer
    /// batches.
    pub fn next_read(&mut self) -> NextRead {
        self.advance();
        if self.fixed.is_none() {
            // The active batch is nearly always among the newest messages.
            return match (self.low, self.request.active) {
                (Some(_), Some(active)) => NextRead::Batches(vec![active]),
                (low, _) => NextRead::Older(low.or_else(|| self.first_after())),
            };
        }
        if self.is_full {
            return NextRead::Nothing;
        }
        if !self.is_window_read() {
            return NextRead::Older(self.low.or_else(|| self.first_after()));
        }
        match self.wanted() {
            wanted if wanted.is_empty() => NextRead::Nothing,
            // Reads the newest batches first, and not many more than the budget may have room for.
            wanted => NextRead::Batches(wanted[wanted.len().saturating_sub(BATCHES_AT_ONCE)..].to_vec()),
        }
    }

    /// The position before which reading begins, for the context of a past turn.
    fn first_after(&self) -> Option<Position> {
        self.request.until.map(|until| Position::from_stored(until.get().saturating_add(1)))
    }

    /// The context of the messages read so far.
    pub fn build(mut self) -> Context {
        self.advance();
        if self.fixed.is_none() {
            self.settle_active();
            self.advance();
        }
        // Only a part of these batches was read.
        for (id, items) in std::mem::take(&mut self.open) {
            let batch = Batch::new(id, items);
            let reason = self.compacted(&batch).unwrap_or(Reason::Unread);
            let tokens = self.tokens(&batch);
            self.decide(&batch, tokens, Inclusion::Out(reason));
        }
        let older = self.older();
        self.decisions.sort_by_key(|decision| decision.batch);
        self.chosen.sort_by_key(Batch::id);
        Context {
            tokens: self.fixed.unwrap_or_default() + self.used,
            budget: self.request.budget,
            summary: self.request.compaction.and_then(|compaction| compaction.summary),
            system: self.request.system,
            active: self.request.active,
            batches: self.chosen,
            decisions: self.decisions,
            older,
        }
    }

    fn take(&mut self, item: SharedItem) {
        let is_later = self.request.until.is_some_and(|until| item.position > until);
        if !is_later && !self.decided.contains(&item.batch_id) {
            self.open.entry(item.batch_id).or_default().push(item);
        }
    }

    /// Decides all batches that can be decided, newest first.
    fn advance(&mut self) {
        if self.fixed.is_none() {
            let known = self.request.active.is_none_or(|active| self.is_whole(active));
            if !known || (self.low.is_none() && !self.at_end) {
                return;
            }
            self.settle_active();
        }
        while let Some(id) = self.next_decidable() {
            if let Some(items) = self.open.remove(&id) {
                self.judge(Batch::new(id, items));
            }
        }
    }

    /// The newest batch that was read whole and can be decided. Batches before the window wait for
    /// each other, because the newest is decided first. A partly read batch does not block others
    /// if a compaction omits it.
    fn next_decidable(&self) -> Option<Position> {
        let newest = self.open.keys().next_back().copied()?;
        if self.at_end || self.low.is_some_and(|low| newest >= low) {
            return Some(newest);
        }
        if !self.is_window_read() {
            return None;
        }
        // The newest batch that still has to be read.
        let unread = self.wanted().last().copied();
        let is_next = |id: &Position| unread.is_none_or(|unread| *id > unread) && self.is_whole(*id);
        self.open.keys().rev().copied().find(is_next)
    }

    fn is_whole(&self, id: Position) -> bool {
        self.at_end || self.whole.contains(&id) || self.low.is_some_and(|low| id >= low)
    }

    /// True if all batches that no compaction omits were read.
    fn is_window_read(&self) -> bool {
        let through = self.request.compaction.as_ref().map(|compaction| compaction.through);
        self.at_end || through.is_some_and(|through| self.low.is_some_and(|low| low <= through))
    }

    /// Batches before the window that belong in the context: those that the compaction kept, and
    /// those that have continued after the compaction.
    fn wanted(&self) -> Vec<Position> {
        let Some(compaction) = &self.request.compaction else { return Vec::new() };
        let gone_on = self.open.iter().filter(|(id, items)| {
            let last = items.iter().map(|item| item.position).max().unwrap_or(**id);
            !compaction.hides(**id, last)
        });
        let known = |id: &Position| {
            let is_later = self.request.until.is_some_and(|until| *id > until);
            self.is_whole(*id) || is_later || self.request.active == Some(*id)
        };
        let wanted: BTreeSet<Position> = gone_on
            .map(|(id, _)| *id)
            .chain(compaction.kept.iter().copied())
            .filter(|id| !known(id))
            .collect();
        wanted.into_iter().collect()
    }

    /// Includes the active batch, whatever its size and state.
    fn settle_active(&mut self) {
        let count =
            |text: &Option<String>| text.as_ref().map_or(0, |text| self.counter.count(text) + PER_MESSAGE);
        let summary = self.request.compaction.as_ref().map_or(0, |compaction| count(&compaction.summary));
        self.fixed = Some(count(&self.request.system) + summary);
        let Some(id) = self.request.active else { return };
        let Some(items) = self.open.remove(&id) else { return };
        let batch = Batch::new(id, items);
        self.note_superseded(&batch);
        let tokens = self.tokens(&batch);
        self.used += tokens;
        self.decide(&batch, tokens, Inclusion::In);
        self.chosen.push(batch);
    }

    fn judge(&mut self, batch: Batch) {
        let tokens = self.tokens(&batch);
        let reason = self.unfit(&batch).or_else(|| self.compacted(&batch)).or_else(|| self.replaced(&batch));
        let reason = reason.or_else(|| self.without_room(tokens));
        match reason {
            Some(reason) => self.decide(&batch, tokens, Inclusion::Out(reason)),
            None => {
                self.note_superseded(&batch);
                self.used += tokens;
                self.decide(&batch, tokens, Inclusion::In);
                self.chosen.push(batch);
            }
        }
    }

    fn tokens(&self, batch: &Batch) -> u64 {
        tokens::of_batch(batch, self.counter)
    }

    fn unfit(&self, batch: &Batch) -> Option<Reason> {
        if batch.is_maintenance() {
            return Some(Reason::Maintenance);
        }
        let BatchState::Incomplete(why) = batch.state() else { return None };
        Some(match batch.abandoned_since(self.request.now, self.request.timeout_ms) {
            Some(_) => Reason::Abandoned(why),
            None => Reason::Incomplete(why),
        })
    }

    fn compacted(&self, batch: &Batch) -> Option<Reason> {
        let compaction = self.request.compaction.as_ref()?;
        let last = batch.items().iter().map(|item| item.position).max()?;
        compaction.hides(batch.id(), last).then_some(Reason::Compacted { by: compaction.id })
    }

    fn replaced(&self, batch: &Batch) -> Option<Reason> {
        self.superseded.get(&batch.id()).map(|by| Reason::Superseded { by: *by })
    }

    fn note_superseded(&mut self, batch: &Batch) {
        if let Some(other) = batch.supersedes() {
            self.superseded.insert(other, batch.id());
        }
    }

    fn without_room(&mut self, tokens: u64) -> Option<Reason> {
        let fixed = self.fixed.unwrap_or_default();
        let room = self.request.budget.saturating_sub(fixed);
        let fits = !self.is_full && tokens <= room.saturating_sub(self.used);
        self.is_full |= !fits;
        match fits {
            true => None,
            false if tokens > room => Some(Reason::LargerThanBudget { room }),
            false => Some(Reason::BudgetUsed),
        }
    }

    fn decide(&mut self, batch: &Batch, tokens: u64, inclusion: Inclusion) {
        self.decided.insert(batch.id());
        let numbers = || batch.items().iter().filter_map(|item| item.number);
        let numbers = numbers().min().zip(numbers().max());
        let messages = batch.items().len();
        self.decisions.push(Decision { batch: batch.id(), messages, numbers, tokens, inclusion });
    }

    fn older(&self) -> Older {
        let through = self.request.compaction.as_ref().map(|compaction| compaction.through);
        match through {
            _ if self.at_end => Older::Nothing,
            Some(through) if self.is_window_read() => Older::Compacted { through },
            _ => Older::Unread { before: self.low },
        }
    }
}
