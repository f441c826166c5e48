//! The queue of one agent: strictly the oldest pending task, one at a time, with the agent's own
//! backoff.

use std::collections::VecDeque;

use model::{Position, QueuedTask, TaskEdit, TaskId, Timestamp};

/// Maximum bytes of one agent's tasks in memory besides the first.
const WINDOW_BYTES: usize = 64 << 10;

/// An agent's queue in the memory of its owner: the first tasks, and their state.
///
/// It holds only a window of the tasks; while [`AgentQueue::has_more`], the others are in the
/// store.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct AgentQueue {
    /// All tasks up to here are done or marked failed.
    pub head: Option<Position>,
    /// Number of failures of the first task. It is also the run number of the task's next turn.
    pub run: u32,
    /// Failures since the last success.
    pub failures: u32,
    /// True: no task starts.
    pub paused: bool,
    waits_until: Option<Timestamp>,
    tasks: VecDeque<QueuedTask>,
    bytes: usize,
    has_more: bool,
    is_loading: bool,
    /// The running task. Once its end is decided, it is no longer the first task: the next task may
    /// be changed while the end is being stored.
    busy: Option<Position>,
    /// Replaces an unknown `head`: nothing up to here was pending when the first task came. Without
    /// it, a queue that was forgotten would load tasks again that are done.
    floor: Option<Position>,
    /// Tasks were stored since the last load was requested, so its answer about further tasks is
    /// outdated.
    came_since: bool,
    /// A task was changed since the last load was requested.
    is_doubtful: bool,
    /// Number of changes of stored tasks that are decided but not stored yet, so that the store is
    /// outdated.
    unsettled: u32,
}

/// State of the first task of a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum HeadState {
    /// There is no task.
    None,
    /// The queue has a first task, but only in the store.
    NotLoaded,
    /// The first task is running.
    Running,
    /// The agent is paused.
    Paused,
    /// The agent backs off until this time.
    Waits(Timestamp),
    /// A change of the first task is decided and not stored yet.
    Unsettled,
    /// The first task may start.
    Ready,
}

impl AgentQueue {
    /// A queue as it was saved. `waits_until` is by the caller's clock.
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

    /// Takes the tasks that fit into memory, and notes whether there are more.
    fn fill(&mut self, tasks: Vec<QueuedTask>, has_more: bool) {
        self.has_more = false;
        let window = tasks.len();
        tasks.into_iter().for_each(|task| self.push(task, window));
        self.has_more |= has_more;
    }

    /// State of the first task.
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

    /// First task, if it is in memory.
    pub fn first(&self) -> Option<&QueuedTask> {
        self.tasks.front()
    }

    /// End of the backoff.
    pub fn waits_until(&self) -> Option<Timestamp> {
        self.waits_until
    }

    /// True if the store has tasks that are not in memory.
    pub fn has_more(&self) -> bool {
        self.has_more
    }

    /// Number of tasks in memory.
    pub fn len(&self) -> usize {
        self.tasks.len()
    }

    /// True if no task is in memory.
    pub fn is_empty(&self) -> bool {
        self.tasks.is_empty()
    }

    /// Adds a task that was stored behind all others. Beyond `window` it stays only in the store. A
    /// task that was loaded before its commit was reported is in memory already.
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

    /// Announces that a stored task will move to the end of the queue, to this position, without
    /// being loaded into memory.
    pub fn expect(&mut self, position: Position) {
        self.came(position);
        self.has_more = true;
        self.mark_unknown();
    }

    /// Notes a change of a stored task. Until [`AgentQueue::settle`], nothing is loaded from the
    /// store, and the answer to a load in progress is ignored. No task starts either, because a
    /// later owner would not know the change that led to the start.
    pub fn mark_unknown(&mut self) {
        self.is_doubtful = true;
        self.unsettled += 1;
    }

    /// Notes that a change from [`AgentQueue::expect`] or [`AgentQueue::mark_unknown`] is stored.
    pub fn settle(&mut self) {
        self.unsettled = self.unsettled.saturating_sub(1);
    }

    /// Notes a task behind all others.
    fn came(&mut self, position: Position) {
        let is_first = self.tasks.is_empty() && !self.has_more && self.head.is_none();
        // The task's commit was in progress when another task was expected behind it.
        if is_first || self.floor.is_some_and(|floor| floor >= position) {
            self.floor = Some(Position::from_stored(position.get() - 1));
        }
        self.came_since = true;
    }

    /// Position after which to load tasks from the store, returned once per load; `None` while
    /// tasks are in memory.
    pub fn load_after(&mut self) -> Option<Position> {
        if !self.has_more || self.is_loading || self.unsettled > 0 || !self.tasks.is_empty() {
            return None;
        }
        (self.is_loading, self.came_since, self.is_doubtful) = (true, false, false);
        Some(self.done_up_to().unwrap_or(Position::from_stored(0)))
    }

    /// Takes the answer to [`AgentQueue::load_after`].
    pub fn loaded(&mut self, after: Position, tasks: Vec<QueuedTask>, more: bool) {
        self.is_loading = false;
        // The answer is outdated if the head has moved since the tasks were requested, or a task
        // was changed.
        if self.is_doubtful || !self.tasks.is_empty() || self.done_up_to().is_some_and(|done| done > after) {
            return;
        }
        let more = more || self.came_since;
        self.fill(tasks, more);
    }

    /// Highest position up to which nothing is pending, as far as known.
    fn done_up_to(&self) -> Option<Position> {
        self.head.max(self.floor)
    }

    /// Bytes of the tasks in memory.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Marks the first task as running.
    pub fn begin(&mut self) {
        self.busy = self.tasks.front().map(|first| first.position);
    }

    /// Notes that no task is running any more.
    pub fn rest(&mut self) {
        self.busy = None;
    }

    /// True while a task is running, or its end is being stored.
    pub fn is_busy(&self) -> bool {
        self.busy.is_some()
    }

    /// Moves the head past the first task, which is done or given up, and resets the backoff. True
    /// if there was a backoff.
    pub fn advance(&mut self) -> bool {
        let had_backoff = self.failures > 0 || self.waits_until.is_some();
        if let Some(done) = self.tasks.pop_front() {
            self.bytes -= done.task.size();
            self.head = Some(done.position);
        }
        (self.run, self.failures, self.waits_until) = (0, 0, None);
        had_backoff
    }

    /// The first task failed and stays. The wait starts with [`AgentQueue::wait_until`], when the
    /// failure is stored.
    pub fn fail(&mut self) {
        self.run = self.run.saturating_add(1);
        self.failures = self.failures.saturating_add(1);
    }

    /// The first task was given back without having failed: its next turn is another run.
    pub fn requeue_head(&mut self) {
        self.run = self.run.saturating_add(1);
    }

    /// Sets the time before which no task starts.
    pub fn wait_until(&mut self, until: Timestamp) {
        self.waits_until = Some(until);
    }

    /// Ends the backoff by command.
    pub fn clear_backoff(&mut self) {
        (self.failures, self.waits_until) = (0, None);
    }

    /// Removes a task that is not running; false if it is running or not in memory.
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

    /// The task at this position, if it is in memory and not running.
    pub fn get(&self, position: Position) -> Option<&QueuedTask> {
        self.tasks.get(self.index(position)?)
    }

    /// Changes the payload of the task at this position, if it is in memory and not running.
    pub fn edit(&mut self, position: Position, edit: &TaskEdit) {
        let Some(queued) = self.index(position).and_then(|index| self.tasks.get_mut(index)) else { return };
        let before = queued.task.size();
        queued.task.edit(edit);
        self.bytes = self.bytes + queued.task.size() - before;
    }

    /// True if the task of that id is the running one.
    pub fn is_under_way(&self, task: &TaskId) -> bool {
        self.tasks.front().is_some_and(|first| self.busy == Some(first.position) && first.task.id == *task)
    }

    /// True if the task at this position is neither done nor marked failed. This is certain,
    /// because agents with pending tasks are never forgotten.
    pub fn is_pending(&self, position: Position) -> bool {
        match self.tasks.front() {
            Some(first) => position >= first.position,
            None => self.has_more && self.done_up_to().is_none_or(|done| position > done),
        }
    }

    /// True if all fields have their defaults, so that the queue can be dropped.
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
