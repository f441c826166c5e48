//! Deciding batch by batch, newest first, from rows that come in pages.

use std::collections::{BTreeMap, BTreeSet};

use model::Position;

use super::{Context, ContextRequest, Decision, Inclusion, Older, Reason};
use crate::tokens::{self, PER_MESSAGE, TokenCounter};
use crate::{Batch, BatchState, SharedItem};

/// What a [`Builder`] wants to read next.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum NextRead {
    /// The messages before this position, newest first; `None`: the last ones.
    Older(Option<Position>),
    /// All messages of these batches.
    Batches(Vec<Position>),
    /// It has enough.
    Nothing,
}

/// Builds a [`Context`] from rows, newest first.
pub struct Builder<'a> {
    request: ContextRequest,
    counter: &'a dyn TokenCounter,
    /// Messages of batches that are not decided yet.
    open: BTreeMap<Position, Vec<SharedItem>>,
    /// Batches that were given whole.
    whole: BTreeSet<Position>,
    /// Everything from here on has been read.
    low: Option<Position>,
    at_end: bool,
    /// What instructions, summary and the active batch take, once the latter is known.
    fixed: Option<u64>,
    used: u64,
    /// A batch had no room: so everything older has none.
    is_full: bool,
    superseded: BTreeMap<Position, Position>,
    chosen: Vec<Batch>,
    decisions: Vec<Decision>,
    decided: BTreeSet<Position>,
}

/// Batches before the window that are read at once.
pub(super) const BATCHES_AT_ONCE: usize = 64;

impl<'a> Builder<'a> {
    /// Nothing read yet.
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

    /// The next messages before those that were read, without a hole; none: there are no more.
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

    /// All messages of one batch; none: they are gone.
    pub fn batch(&mut self, id: Position, items: impl IntoIterator<Item = impl Into<SharedItem>>) {
        self.whole.insert(id);
        let items = items.into_iter().map(Into::into);
        items.filter(|item: &SharedItem| item.batch_id == id).for_each(|item| self.take(item));
    }

    /// There are no messages before those that were read.
    pub fn end(&mut self) {
        self.at_end = true;
    }

    /// Everything from here on has been read; `None`: nothing yet.
    pub fn low(&self) -> Option<Position> {
        self.low
    }

    /// What it wants to read next. A caller that gives it less gets a context all the same, with less in it.
    pub fn next_read(&mut self) -> NextRead {
        self.advance();
        if self.fixed.is_none() {
            // The active batch is among the last messages, nearly always.
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
            // The newest first, and not more than the budget may have room for.
            wanted => NextRead::Batches(wanted[wanted.len().saturating_sub(BATCHES_AT_ONCE)..].to_vec()),
        }
    }

    /// Reading begins before this, where the context is that of a past turn.
    fn first_after(&self) -> Option<Position> {
        self.request.until.map(|until| Position::from_stored(until.get().saturating_add(1)))
    }

    /// The context of what was read.
    pub fn build(mut self) -> Context {
        self.advance();
        if self.fixed.is_none() {
            self.settle_active();
            self.advance();
        }
        // What is left: only parts were read.
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

    /// Decides what can be decided, newest first.
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

    /// The newest batch that can be decided: one that was read whole. Those before the window wait for each other, because the
    /// newest of them goes first; parts of batches that a compaction has put away hold up no other batch.
    fn next_decidable(&self) -> Option<Position> {
        let newest = self.open.keys().next_back().copied()?;
        if self.at_end || self.low.is_some_and(|low| newest >= low) {
            return Some(newest);
        }
        if !self.is_window_read() {
            return None;
        }
        // The newest that is still to be read.
        let unread = self.wanted().last().copied();
        let is_next = |id: &Position| unread.is_none_or(|unread| *id > unread) && self.is_whole(*id);
        self.open.keys().rev().copied().find(is_next)
    }

    fn is_whole(&self, id: Position) -> bool {
        self.at_end || self.whole.contains(&id) || self.low.is_some_and(|low| id >= low)
    }

    /// Whether all batches are read that no compaction has put away.
    fn is_window_read(&self) -> bool {
        let through = self.request.compaction.as_ref().map(|compaction| compaction.through);
        self.at_end || through.is_some_and(|through| self.low.is_some_and(|low| low <= through))
    }

    /// Batches before the window that belong into the context: kept ones, and those that have gone on since.
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

    /// The active batch is in, whatever it takes and whatever it lacks.
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
