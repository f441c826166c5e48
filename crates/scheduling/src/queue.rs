//! The queue of one agent: strictly the oldest pending task, one at a time, with the agent's own backoff.

use std::collections::VecDeque;

use model::{Position, QueuedTask, TaskEdit, TaskId, Timestamp};

/// Bytes of one agent's tasks that are in memory besides the first.
const WINDOW_BYTES: usize = 64 << 10;

/// An agent's queue as its owner has it: the first tasks, and how they stand.
///
/// Only a window of the tasks is here; while [`AgentQueue::has_more`], the others are in the store.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentQueue {
    /// All tasks up to here are done or marked failed.
    pub head: Option<Position>,
    /// How often the first task has failed: the run of its next turn.
    pub run: u32,
    /// Failures since the last success.
    pub failures: u32,
    /// Nothing starts.
    pub paused: bool,
    waits_until: Option<Timestamp>,
    tasks: VecDeque<QueuedTask>,
    bytes: usize,
    has_more: bool,
    is_loading: bool,
    /// The task under way. Not the first any more once its end is decided: the next may be changed while that is being stored.
    busy: Option<Position>,
    /// What `head` would be if it were known: nothing up to here was pending when the first task came. Without it a queue that
    /// was forgotten would read tasks again that are long done.
    floor: Option<Position>,
    /// Tasks came to the store since it was asked for more: what it says of there being more is old.
    came_since: bool,
    /// Something was changed since then.
    is_doubtful: bool,
    /// Changes of stored tasks that are decided and not stored yet: what the store has is not what is to be.
    unsettled: u32,
}

/// How the first task of a queue stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadState {
    /// There is none.
    None,
    /// There is one, in the store.
    NotLoaded,
    /// It is under way.
    Running,
    /// The agent is paused.
    Paused,
    /// The agent backs off until then.
    Waits(Timestamp),
    /// Which one it is, or what it says, is decided and not stored yet.
    Unsettled,
    /// It may start.
    Ready,
}

impl AgentQueue {
    /// A queue as it was saved. `waits_until` by the caller's clock.
    pub fn restore(
        head: Position,
        run: u32,
        failures: u32,
        paused: bool,
        waits_until: Option<Timestamp>,
        tasks: Vec<QueuedTask>,
        has_more: bool,
    ) -> Self {
        let mut queue = Self { head: Some(head), run, failures, paused, waits_until, ..Self::default() };
        queue.fill(tasks, has_more);
        queue
    }

    /// Takes as many as may be in memory, and notes whether there are more.
    fn fill(&mut self, tasks: Vec<QueuedTask>, has_more: bool) {
        self.has_more = false;
        let window = tasks.len();
        tasks.into_iter().for_each(|task| self.push(task, window));
        self.has_more |= has_more;
    }

    /// How the first task stands.
    pub fn head_state(&self, now: Timestamp) -> HeadState {
        match (self.tasks.front(), self.waits_until) {
            (None, _) if self.has_more => HeadState::NotLoaded,
            (None, _) => HeadState::None,
            (Some(_), _) if self.busy.is_some() => HeadState::Running,
            (Some(_), _) if self.unsettled > 0 => HeadState::Unsettled,
            (Some(_), _) if self.paused => HeadState::Paused,
            (Some(_), Some(until)) if now < until => HeadState::Waits(until),
            (Some(_), _) => HeadState::Ready,
        }
    }

    /// The first task, if it is here.
    pub fn first(&self) -> Option<&QueuedTask> {
        self.tasks.front()
    }

    /// When the backoff ends.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.waits_until
    }

    /// There are tasks in the store that are not here.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Tasks that are here.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// No task is here.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// A task has been stored behind all others. Beyond `window` it stays in the store. One that was read there before its
    /// commit was reported is here already.
    pub fn push(&mut self, task: QueuedTask, window: usize) {
        if self.tasks.back().is_some_and(|last| last.position >= task.position) {
            return;
        }
        self.came(task.position);
        let size = task.task.size();
        let is_full =
            self.tasks.len() >= window.max(1) || (!self.tasks.is_empty() && self.bytes + size > WINDOW_BYTES);
        if self.has_more || is_full {
            self.has_more = true;
        } else {
            self.bytes += size;
            self.tasks.push_back(task);
        }
    }

    /// A stored task will come to stand at the end, at this place, without passing here.
    pub fn expect(&mut self, position: Position) {
        self.came(position);
        self.has_more = true;
        self.mark_unknown();
    }

    /// A stored task is changed. Before [`AgentQueue::settle`] nothing is read from the store, what is being read does not
    /// count, and nothing starts: an owner after this one would not know why.
    pub fn mark_unknown(&mut self) {
        self.is_doubtful = true;
        self.unsettled += 1;
    }

    /// What was decided with [`AgentQueue::expect`] or [`AgentQueue::mark_unknown`] is stored.
    pub fn settle(&mut self) {
        self.unsettled = self.unsettled.saturating_sub(1);
    }

    /// A task behind all others.
    fn came(&mut self, position: Position) {
        let is_first = self.tasks.is_empty() && !self.has_more && self.head.is_none();
        // Its commit was under way when another one was expected behind it.
        if is_first || self.floor.is_some_and(|floor| floor >= position) {
            self.floor = Some(Position::from_stored(position.get() - 1));
        }
        self.came_since = true;
    }

    /// The position after which tasks are wanted from the store, once; `None` while there are enough here.
    pub fn load_after(&mut self) -> Option<Position> {
        if !self.has_more || self.is_loading || self.unsettled > 0 || !self.tasks.is_empty() {
            return None;
        }
        (self.is_loading, self.came_since, self.is_doubtful) = (true, false, false);
        Some(self.done_up_to().unwrap_or(Position::from_stored(0)))
    }

    /// The answer to [`AgentQueue::load_after`].
    pub fn loaded(&mut self, after: Position, tasks: Vec<QueuedTask>, more: bool) {
        self.is_loading = false;
        // The head has moved on since the tasks were requested, or something was changed.
        if self.is_doubtful || !self.tasks.is_empty() || self.done_up_to().is_some_and(|done| done > after) {
            return;
        }
        let more = more || self.came_since;
        self.fill(tasks, more);
    }

    /// Nothing up to here is pending, as far as it is known.
    fn done_up_to(&self) -> Option<Position> {
        self.head.max(self.floor)
    }

    /// Bytes of the tasks that are here.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// The first task is under way.
    pub fn begin(&mut self) {
        self.busy = self.tasks.front().map(|first| first.position);
    }

    /// No task is under way any more.
    pub fn rest(&mut self) {
        self.busy = None;
    }

    /// True while a task is under way, or its end is being stored.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// The first task is done or given up: the head moves past it, the backoff is reset. True when there was one.
    pub fn advance(&mut self) -> bool {
        let had_backoff = self.failures > 0 || self.waits_until.is_some();
        if let Some(done) = self.tasks.pop_front() {
            self.bytes -= done.task.size();
            self.head = Some(done.position);
        }
        (self.run, self.failures, self.waits_until) = (0, 0, None);
        had_backoff
    }

    /// The first task failed and stays. The wait begins with [`AgentQueue::wait_until`], when it is stored.
    pub fn fail(&mut self) {
        self.run = self.run.saturating_add(1);
        self.failures = self.failures.saturating_add(1);
    }

    /// The first task was given back without having failed: its next turn is another run.
    pub fn requeue_head(&mut self) {
        self.run = self.run.saturating_add(1);
    }

    /// Nothing starts before then.
    pub fn wait_until(&mut self, until: Timestamp) {
        self.waits_until = Some(until);
    }

    /// The backoff is over, by command.
    pub fn clear_backoff(&mut self) {
        (self.failures, self.waits_until) = (0, None);
    }

    /// Takes a task out that is not under way; false when it is not here or under way.
    pub fn remove(&mut self, position: Position) -> bool {
        let Some(index) = self.index(position) else { return false };
        if let Some(gone) = self.tasks.remove(index) {
            self.bytes -= gone.task.size();
        }
        if index == 0 {
            (self.run, self.failures, self.waits_until) = (0, 0, None);
        }
        true
    }

    /// The task at this place, if it is here and not under way.
    pub fn get(&self, position: Position) -> Option<&QueuedTask> {
        self.tasks.get(self.index(position)?)
    }

    /// Gives the task at this place another payload, if it is here and not under way.
    pub fn edit(&mut self, position: Position, edit: &TaskEdit) {
        let Some(queued) = self.index(position).and_then(|index| self.tasks.get_mut(index)) else { return };
        let before = queued.task.size();
        queued.task.edit(edit);
        self.bytes = self.bytes + queued.task.size() - before;
    }

    /// The task of that id is the one under way.
    pub fn is_under_way(&self, task: &TaskId) -> bool {
        self.tasks.front().is_some_and(|first| self.busy == Some(first.position) && first.task.id == *task)
    }

    /// The task at this place is neither done nor marked failed. Known for certain, because agents with pending tasks are
    /// never forgotten.
    pub fn is_pending(&self, position: Position) -> bool {
        match self.tasks.front() {
            Some(first) => position >= first.position,
            None => self.has_more && self.done_up_to().is_none_or(|done| position > done),
        }
    }

    /// All fields have their defaults, so the queue can be dropped.
    pub fn is_forgettable(&self) -> bool {
        self.tasks.is_empty()
            && !self.has_more
            && self.busy.is_none()
            && !self.paused
            && self.failures == 0
            && self.run == 0
            && self.waits_until.is_none()
            && self.unsettled == 0
    }

    fn index(&self, position: Position) -> Option<usize> {
        let index = self.tasks.iter().position(|queued| queued.position == position)?;
        (self.busy != Some(position)).then_some(index)
    }
}

#[cfg(test)]
mod tests;
