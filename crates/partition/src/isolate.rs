//! Finds the items that the store refuses in a commit or query, and writes or reads all others.
//!
//! Entry points: [`parts`] for queries, and [`CommitParts`] for a commit. The writer of commits
//! tries each part [`alone`](CommitParts::alone), reports its result, and writes the
//! [`rest`](CommitParts::rest).
//!
//! A part written alone does not move the checkpoint. After a crash its entries are read again, and
//! the part is found done. The rest of the commit, with the checkpoint, comes last.

use std::sync::Arc;

use model::{
    Chunk, DeadLetter, DeadLetterSource, FailedMessage, Message, MessageFailure, MessageKey, MessageOutcome,
    PartitionId, Position, RejectedEntry, Seq, Task, TurnId,
};
use serde_json::json;

use crate::action::Action;
use crate::commit::Commit;
use crate::commit::single::Single;
use crate::timers::{TimerEnd, TimerWrite};
use crate::types::{
    AgentWrite, Fallback, OpenTurn, OutboxBatch, Outgoing, TaskWrite, TurnStatus, TurnWrite, UsageWrite,
};

/// Code of a turn or task that the store refuses.
const UNSTORABLE: &str = "rejected_by_database";

/// A commit that is split into parts, and the items that the store has refused.
#[derive(Debug)]
pub struct CommitParts {
    rest: Commit,
    /// Parts in the order of their positions: each message of a thread refers to the one before it.
    untried: std::vec::IntoIter<CommitPart>,
    /// Indices in `rest.agents` of writes done together with their turn.
    written: Vec<usize>,
    /// Refused messages, with the store's error: they have become dead letters.
    pub unstorable: Vec<(MessageKey, String)>,
    /// Turns whose messages were refused, with the store's error: they have failed.
    pub refused: Vec<(TurnId, String)>,
    /// Refused tasks, inputs and model calls, by name, with the store's error. Tasks have become
    /// dead letters, and the machine that has them in its queues must be rebuilt.
    pub dropped: Vec<(String, String)>,
}

/// A part of a commit that is tried alone.
#[derive(Debug)]
pub enum CommitPart {
    /// A bare message.
    Message(Message),
    /// A turn with everything that it writes.
    Turn(TurnWrite),
    /// A task that enters its queue.
    Task(TaskWrite),
    /// A model call.
    Usage(UsageWrite),
    /// An input that the commit itself opens.
    Opened(OpenTurn),
}

impl CommitPart {
    /// Position of its first message.
    fn position(&self) -> Option<Position> {
        let first = match self {
            Self::Message(message) => Some(message),
            Self::Turn(turn) => turn.messages.first(),
            Self::Task(_) | Self::Usage(_) | Self::Opened(_) => None,
        };
        first.map(|message| message.placement.position)
    }

    /// The write of the agent, for a task's turn.
    fn queue<'a>(&self, commit: &'a Commit) -> Option<&'a AgentWrite> {
        match self {
            Self::Turn(turn) => commit.agents.get(turn.agent?),
            Self::Message(_) | Self::Task(_) | Self::Usage(_) | Self::Opened(_) => None,
        }
    }

    /// Selects the rows that belong to the part. A task or call needs no other: it is recognized
    /// when it is decided again.
    fn single<'a>(&'a self, queue: Option<&'a AgentWrite>) -> Option<Single<'a>> {
        match self {
            Self::Message(message) => Some(Single::Message(&message.key)),
            Self::Turn(turn) => Some(Single::Turn(&turn.turn, queue)),
            Self::Task(_) | Self::Usage(_) | Self::Opened(_) => None,
        }
    }
}

impl CommitParts {
    /// Splits a commit into parts.
    pub fn of(mut commit: Commit) -> Self {
        let messages = std::mem::take(&mut commit.messages).into_iter().map(CommitPart::Message);
        let turns = std::mem::take(&mut commit.turns).into_iter().map(CommitPart::Turn);
        let mut untried: Vec<CommitPart> = messages.chain(turns).collect();
        untried.sort_by_key(CommitPart::position);
        Self {
            untried: untried.into_iter(),
            rest: commit,
            written: Vec::new(),
            unstorable: Vec::new(),
            refused: Vec::new(),
            dropped: Vec::new(),
        }
    }

    /// Splits off the tasks, inputs and model calls to try them alone, after the store has refused
    /// the rest. False: there is nothing more to split.
    pub fn take_rest_apart(&mut self) -> bool {
        let tasks = std::mem::take(&mut self.rest.tasks).into_iter().map(CommitPart::Task);
        let usage = std::mem::take(&mut self.rest.usage).into_iter().map(CommitPart::Usage);
        let opened = std::mem::take(&mut self.rest.opened).into_iter().map(CommitPart::Opened);
        self.untried = tasks.chain(usage).chain(opened).collect::<Vec<_>>().into_iter();
        self.untried.len() > 0
    }

    /// Next part to try.
    #[expect(
        clippy::should_implement_trait,
        reason = "between two of them it has to be told what came of the first"
    )]
    pub fn next(&mut self) -> Option<CommitPart> {
        self.untried.next()
    }

    /// The commit that writes this part alone. It includes everything that must be written with the
    /// part, because the part will later be found done.
    pub fn alone(&self, part: &CommitPart) -> Commit {
        let rest = &self.rest;
        let mut alone = match part.single(part.queue(rest)) {
            Some(single) => rest.rows_with(single),
            None => Commit::empty(rest.partition, rest.epoch, Seq(0), rest.position_high_water),
        };
        match part {
            CommitPart::Message(message) => alone.messages.push(message.clone()),
            CommitPart::Task(task) => alone.tasks.push(task.clone()),
            CommitPart::Usage(usage) => alone.usage.push(usage.clone()),
            CommitPart::Opened(open) => alone.opened.push(open.clone()),
            CommitPart::Turn(turn) => {
                let write = part.queue(rest);
                alone.agents.extend(write.cloned());
                alone.outbox = own_batch(turn, rest);
                alone.turns.push(TurnWrite { agent: write.map(|_| 0), ..turn.clone() });
            }
        }
        alone
    }

    /// Notes that the part has been written.
    pub fn wrote(&mut self, part: CommitPart) {
        // Tasks and calls were removed from the rest before they were tried.
        let queue = part.queue(&self.rest).cloned();
        if let Some(single) = part.single(queue.as_ref()) {
            self.rest.remove_with(single);
        }
        if let CommitPart::Turn(turn) = part {
            // The turn's own outbox batch is deleted: the batch that is written with the rest
            // contains it.
            self.rest.sent.extend(own_batch(&turn, &self.rest).map(|batch| batch.id));
            self.written.extend(turn.agent);
        }
    }

    /// Notes that the store refused the part with the error `detail`.
    pub fn refuse(&mut self, part: CommitPart, detail: String) {
        match part {
            CommitPart::Message(message) => {
                let key = message.key.clone();
                self.rest.failed_messages.push(FailedMessage::unstorable(&message, detail.clone()));
                self.rest.dead_letters.push(dead_letter(message, &detail));
                self.unstorable.push((key, detail));
            }
            CommitPart::Task(task) => {
                let Task { agent, id, .. } = &task.queued.task;
                self.dropped.push((format!("{agent}/{id}"), detail.clone()));
                self.rest.dead_letters.push(dead_task(task, self.rest.partition, detail));
            }
            CommitPart::Usage(usage) => {
                self.dropped.push((format!("{} call {}", usage.answer, usage.number), detail));
            }
            CommitPart::Opened(open) => self.dropped.push((open.opened.turn.to_string(), detail)),
            CommitPart::Turn(turn) => {
                if let Some(batch) = &mut self.rest.outbox {
                    apply_refusal(batch, &turn.turn);
                    if matches!(turn.on_refusal, Fallback::FollowUp(_)) {
                        withhold(batch, &turn.turn);
                    }
                }
                self.rest.timers.retain(|timer| timer.armed_by() != Some(&turn.turn));
                let single = Single::Turn(&turn.turn, None);
                self.rest.opened.retain(|open| !single.opens(open));
                self.rest.tasks.retain(|task| !single.continues(task));
                // The turn's last message is its answer; a follow-up's answer was never shown.
                let is_shown = !matches!(turn.on_refusal, Fallback::FollowUp(_));
                let answer = turn.messages.last().filter(|_| is_shown);
                self.rest
                    .failed_messages
                    .extend(answer.map(|answer| FailedMessage::unstorable(answer, detail.clone())));
                self.refused.push((turn.turn.clone(), detail.clone()));
                self.write_otherwise(turn.on_refusal, detail);
            }
        }
    }

    fn write_otherwise(&mut self, on_refusal: Fallback, text: String) {
        let rest = &mut self.rest;
        match on_refusal {
            Fallback::Turn(mut failed) => {
                (failed.code, failed.text) = (UNSTORABLE.to_owned(), text);
                rest.fail_turn(*failed);
            }
            Fallback::FollowUp(id) => {
                let by = UNSTORABLE.to_owned();
                rest.timers.push(TimerWrite::End { id, state: TimerEnd::Withdrawn, by });
            }
            Fallback::Task(mut failed) => {
                (failed.code, failed.text) = (UNSTORABLE.to_owned(), text);
                // A stopped task already has a failure mark.
                rest.failed_tasks.retain(|other| !other.is_of(&failed.agent, failed.position));
                rest.fail_task(failed);
            }
        }
    }

    /// What remains to be written, with the checkpoint.
    pub fn rest(&mut self) -> &Commit {
        let written = std::mem::take(&mut self.written);
        let mut index = 0..;
        self.rest.agents.retain(|_| index.next().is_some_and(|index| !written.contains(&index)));
        &self.rest
    }
}

/// Asks for all items at once. A refused query is split in halves, down to the items that are
/// refused alone, which get the refusal.
///
/// An outer error of `ask` ends the call. Answers come in the order of the items, each with its
/// part.
///
/// # Errors
/// The outer error of `ask`.
pub async fn parts<'q, Q, A, R, E, F>(
    items: &'q [Q],
    ask: impl Fn(&'q [Q]) -> F,
) -> Result<Vec<(&'q [Q], Result<A, R>)>, E>
where
    F: Future<Output = Result<Result<A, R>, E>>,
{
    let mut answers = Vec::new();
    // A stack: the last part is asked next.
    let mut parts: Vec<&'q [Q]> = (!items.is_empty()).then_some(items).into_iter().collect();
    while let Some(part) = parts.pop() {
        match ask(part).await? {
            Err(_) if part.len() > 1 => {
                let (first, second) = part.split_at(part.len() / 2);
                parts.extend([second, first]);
            }
            answer => answers.push((part, answer)),
        }
    }
    Ok(answers)
}

/// Corrects the actions of a machine after a commit that was applied except for these items. The
/// machine assumed that these messages and turns were complete.
pub fn apply_refusals(actions: &mut [Action], unstorable: &[(MessageKey, String)], refused: &[TurnId]) {
    for action in actions {
        match action {
            Action::End(ending) => {
                if let Some((_, detail)) = unstorable.iter().find(|(key, _)| *key == ending.key) {
                    ending.outcome =
                        MessageOutcome::Failed(MessageFailure::Unstorable { detail: detail.clone() });
                }
            }
            Action::Send(batch) => refused.iter().for_each(|turn| apply_refusal(batch, turn)),
            _ => {}
        }
    }
}

/// Removes the consequences of a refused turn from an outbox batch, because the turn has failed.
fn apply_refusal(batch: &mut OutboxBatch, turn: &TurnId) {
    batch.outgoing.retain(|outgoing| match outgoing {
        Outgoing::Task(_) | Outgoing::Pause(_) => !is_of(outgoing, turn),
        Outgoing::TurnEnded(_) => true,
    });
    for outgoing in &mut batch.outgoing {
        if let Outgoing::TurnEnded(ended) = outgoing
            && ended.turn == *turn
        {
            ended.status = TurnStatus::Failed;
            ended.code = Some(UNSTORABLE.to_owned());
            (ended.message, ended.batch) = (None, None);
        }
    }
}

/// Removes everything of a follow-up's turn from an outbox batch: a follow-up that leaves nothing
/// is not published.
pub(crate) fn withhold(batch: &mut OutboxBatch, turn: &TurnId) {
    batch.outgoing.retain(|outgoing| !is_of(outgoing, turn));
}

/// The part of the outbox that belongs to this turn. Its id is the turn's own first position, which
/// no other batch has.
fn own_batch(turn: &TurnWrite, commit: &Commit) -> Option<OutboxBatch> {
    let id: Position = turn.messages.first()?.placement.position;
    let all = &commit.outbox.as_ref()?.outgoing;
    let outgoing: Vec<Outgoing> = all.iter().filter(|it| is_of(it, &turn.turn)).cloned().collect();
    (!outgoing.is_empty()).then_some(OutboxBatch { id, outgoing })
}

/// Whether the item follows from the turn.
fn is_of(outgoing: &Outgoing, turn: &TurnId) -> bool {
    match outgoing {
        Outgoing::TurnEnded(ended) => ended.turn == *turn,
        Outgoing::Task(task) => task.origin.turn() == Some(turn),
        Outgoing::Pause(pause) => pause.turn == *turn,
    }
}

/// The task in the form in which clients send it, so that it can be replayed.
fn dead_task(write: TaskWrite, partition: PartitionId, detail: String) -> DeadLetter {
    let metadata = write.queued.task.task_metadata().into_owned();
    let Task { agent, id, kind, content, .. } = write.queued.task;
    let payload = json!({
        "task_id": id.as_str(), "kind": kind.name(), "content": content, "metadata": metadata.to_value(),
    });
    let source = DeadLetterSource::Entry {
        subject: format!("tasks.{}.{agent}", partition.0),
        payload: payload.to_string().into(),
        refusal: RejectedEntry { code: UNSTORABLE, detail },
    };
    DeadLetter { seq: write.seq, source }
}

fn dead_letter(message: Message, detail: &str) -> DeadLetter {
    let chunk = Chunk { metadata: message.metadata, ..Chunk::content(0, &message.content, true) };
    let source = DeadLetterSource::Message {
        key: message.key,
        attempt: message.attempt,
        chunks: vec![Arc::new(chunk)],
        failure: MessageFailure::Unstorable { detail: detail.to_owned() },
    };
    DeadLetter { seq: Seq(0), source }
}

#[cfg(test)]
mod tests;
