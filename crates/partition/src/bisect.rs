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
use crate::timers::{TimerEnd, TimerWrite};
use crate::types::{
    AgentWrite, AuditWrite, Fallback, OpenTurn, OutboxBatch, Outgoing, TaskWrite, TurnStatus, TurnWrite,
    UsageWrite,
};

/// Equal to [`model::ControlKind::name`].
const STOP_TURN: &str = "stop_turn";
/// Names of commands that change an agent's own row.
const OF_AGENTS: [&str; 3] = ["pause", "resume", "clear_backoff"];
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
    /// Refused tasks and model calls, by name, with the store's error. Tasks have become dead
    /// letters, and the machine that has them in its queues must be rebuilt.
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

    /// Splits off the tasks, inputs and model calls to try them alone, after the store has refused the
    /// rest. False: there is nothing more to split.
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
        let mut alone = Commit::empty(rest.partition, rest.epoch, Seq(0), rest.position_high_water);
        match part {
            CommitPart::Message(message) => {
                // The message's saved chunks would become a message again if the rest were never
                // written.
                alone.ended_spills = keep(&rest.ended_spills, |key| *key == message.key);
                alone.messages.push(message.clone());
            }
            // A task or call needs nothing else: it is recognized when it is decided again.
            CommitPart::Task(task) => alone.tasks.push(task.clone()),
            CommitPart::Usage(usage) => alone.usage.push(usage.clone()),
            CommitPart::Opened(open) => alone.opened.push(open.clone()),
            CommitPart::Turn(turn) => {
                let write = turn.agent.and_then(|index| rest.agents.get(index));
                alone.agents.extend(write.cloned());
                // Tasks behind the turn's own that operators have dropped are left out: they are
                // written with their audit rows.
                alone.failed_tasks = keep(&rest.failed_tasks, |failed| {
                    write.is_some_and(|write| write.agent == failed.agent && failed.position <= write.head)
                });
                alone.ended_turns = keep(&rest.ended_turns, |(_, ended)| *ended == turn.turn);
                alone.ended_spills = keep(&rest.ended_spills, |key| answers(key, &turn.turn));
                alone.audit = keep(&rest.audit, |audit| is_done_with(audit, &turn.turn, write));
                alone.timers = keep(&rest.timers, |timer| timer.armed_by() == Some(&turn.turn));
                alone.usage = keep(&rest.usage, |usage| usage.turn == turn.turn);
                alone.outbox = own_batch(turn, rest);
                alone.opened = keep(&rest.opened, |open| follows(open, &turn.turn));
                alone.tasks = keep(&rest.tasks, |task| continues(task, &turn.turn));
                alone.turns.push(TurnWrite { agent: write.map(|_| 0), ..turn.clone() });
            }
        }
        alone
    }

    /// Notes that the part has been written.
    pub fn wrote(&mut self, part: CommitPart) {
        // Tasks and calls were removed from the rest before they were tried.
        if let CommitPart::Turn(turn) = part {
            self.rest.timers.retain(|timer| timer.armed_by() != Some(&turn.turn));
            self.rest.usage.retain(|usage| usage.turn != turn.turn);
            self.rest.opened.retain(|open| !follows(open, &turn.turn));
            self.rest.tasks.retain(|task| !continues(task, &turn.turn));
            // The turn's own outbox batch is deleted: the batch that is written with the rest
            // contains it.
            self.rest.sent.extend(own_batch(&turn, &self.rest).map(|batch| batch.id));
            let write = turn.agent.and_then(|index| self.rest.agents.get(index));
            self.rest.audit.retain(|audit| !is_done_with(audit, &turn.turn, write));
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
                self.rest.opened.retain(|open| !follows(open, &turn.turn));
                self.rest.tasks.retain(|task| !continues(task, &turn.turn));
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
                rest.failed_turns.retain(|other| other.opened.turn != failed.opened.turn);
                rest.fail_turn(*failed);
            }
            Fallback::FollowUp(id) => {
                let by = UNSTORABLE.to_owned();
                rest.timers.push(TimerWrite::End { id, state: TimerEnd::Withdrawn, by });
            }
            Fallback::Task(mut failed) => {
                (failed.code, failed.text) = (UNSTORABLE.to_owned(), text);
                // A stopped task already has a failure mark, and one statement can write a row only
                // once.
                let same = (failed.agent.clone(), failed.position);
                rest.failed_tasks.retain(|other| (&other.agent, other.position) != (&same.0, same.1));
                rest.failed_tasks.push(failed);
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
    let outgoing = keep(&commit.outbox.as_ref()?.outgoing, |outgoing| is_of(outgoing, &turn.turn));
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

/// Whether the turn asked for this input.
fn follows(open: &OpenTurn, turn: &TurnId) -> bool {
    open.opened.origin.turn() == Some(turn)
}

/// Whether the task continues the turn.
fn continues(task: &TaskWrite, turn: &TurnId) -> bool {
    task.queued.task.origin.turn() == Some(turn)
}

/// Whether the audit row concerns the turn or its agent's write: they must be written together.
fn is_done_with(audit: &AuditWrite, turn: &TurnId, write: Option<&AgentWrite>) -> bool {
    let is_of_turn = audit.action == STOP_TURN && audit.target.as_deref() == Some(turn.as_str());
    let is_of_agent = write.is_some_and(|write| write.agent == audit.subject);
    is_of_turn || (is_of_agent && OF_AGENTS.contains(&audit.action.as_str()))
}

fn answers(key: &MessageKey, turn: &TurnId) -> bool {
    TurnId::of_answer(&key.message).is_some_and(|(of, _)| of == *turn)
}

fn keep<T: Clone>(all: &[T], wanted: impl Fn(&T) -> bool) -> Vec<T> {
    all.iter().filter(|one| wanted(one)).cloned().collect()
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
