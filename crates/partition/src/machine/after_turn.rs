//! What follows a completed turn: tasks for its agent, and the continuation requested by its
//! answer.

use batches::compaction::{transcript_for_memory, transcript_of_turn};
use batches::memory::RECALLED;
use batches::prompts;
use model::{
    BusyPolicy, CommandId, ContinuedBatch, FollowedTurn, Message, Metadata, Position, Task, TaskId, TaskKind,
    TaskOrigin, TurnId, TurnOpened, TurnOptions, TurnOrigin,
};
use serde_json::{Map, Value};

use crate::turn_state::{RunRequest, TrackedTurn, TurnSource};
use crate::types::{NewWork, Pause};

/// Key in an answer's metadata; `true` requests a continuation of its batch.
const CONTINUATION: &str = "continuation";
/// Maximum number of continuations in a row, because a model might never finish.
const MAX_CONTINUATIONS: u64 = 50;
/// Bytes of a turn's messages passed to the tasks that follow it.
const MOST_OF_TURN: usize = 128 << 10;

/// Whether a batch continues.
#[derive(Debug, PartialEq)]
pub(super) enum Continuation {
    /// No continuation was requested.
    None,
    /// The batch continues with this input or task.
    Next(NewWork),
    /// The request was rejected, for example because there were too many in a row.
    Rejected,
}

/// The continuation that the last of these messages requests: the next input of the same batch. Its
/// id is derived from the answer's position or the task's turn.
pub(super) fn continuation(turn: &TrackedTurn, messages: &[Message]) -> Continuation {
    let (Some(first), Some(answer)) = (messages.first(), messages.last()) else { return Continuation::None };
    if answer.metadata.get(CONTINUATION) != Some(&Value::Bool(true)) {
        return Continuation::None;
    }
    if turn.is_follow_up() {
        // A follow-up is a single message.
        return Continuation::Rejected;
    }
    if let TurnSource::Task(queued) = &turn.source
        && matches!(queued.task.kind, TaskKind::Memory | TaskKind::Compaction)
    {
        // The results of these tasks are read from one answer, so a continuation is refused.
        return Continuation::Rejected;
    }
    let number = turn.continuation_number() + 1;
    if number > MAX_CONTINUATIONS {
        return Continuation::Rejected;
    }
    let continued = ContinuedBatch { batch: first.placement.batch_id, number, turn: turn.id.clone() };
    let next = match &turn.source {
        TurnSource::Input(opened) => opening(opened, answer.placement.position, continued),
        TurnSource::Task(queued) => task(&queued.task, continued),
    };
    next.map_or(Continuation::None, Continuation::Next)
}

fn opening(opened: &TurnOpened, answer: Position, continued: ContinuedBatch) -> Option<NewWork> {
    Some(NewWork::Turn(Box::new(TurnOpened {
        turn: TurnId::continuation(&opened.thread, answer).ok()?,
        run: 0,
        content: prompts::CONTINUE.to_owned(),
        origin: TurnOrigin::Continuation(continued),
        metadata: Metadata::EMPTY,
        actor: None,
        options: TurnOptions {
            busy_policy: BusyPolicy::Enqueue,
            accepted_at: None,
            ..opened.options.clone()
        },
        ..opened.clone()
    })))
}

fn task(task: &Task, continued: ContinuedBatch) -> Option<NewWork> {
    let id = continued.task()?;
    // The origin keeps the thread whose text the task carries: when that thread is erased, the task
    // is deleted.
    let origin = match &task.origin {
        TaskOrigin::AfterTurn(FollowedTurn { thread, answer, .. })
        | TaskOrigin::ContinuationAfterTurn { thread, answer, .. } => {
            let (thread, answer) = (thread.clone(), answer.clone());
            TaskOrigin::ContinuationAfterTurn { thread, answer, continued }
        }
        TaskOrigin::Sent { .. }
        | TaskOrigin::Scheduled { .. }
        | TaskOrigin::Summary { .. }
        | TaskOrigin::Continuation(_) => TaskOrigin::Continuation(continued),
    };
    let (content, metadata) = (prompts::CONTINUE.to_owned(), Metadata::EMPTY);
    Some(NewWork::Task(Task { id, content, origin, metadata, ..task.clone() }))
}

/// The pause of an agent whose credentials were refused in this run of a person's turn.
pub(super) fn pause(opened: &TurnOpened, run: u32) -> Option<Pause> {
    let id = CommandId::parse(&format!("{}-auth{run}", opened.turn)).ok()?;
    Some(Pause { turn: opened.turn.clone(), id, agent: opened.agent.clone() })
}

/// The tasks that follow a turn with a person, in their own queues. Their ids are derived from the
/// turn's id, so that each task happens once. They carry the turn's text, because a workflow cannot
/// look the turn up.
pub(super) fn tasks(
    opened: &TurnOpened,
    request: &RunRequest,
    messages: &[Message],
    batch: Option<Position>,
) -> Vec<Task> {
    let Some(rules) = request.rules().filter(|_| opened.origin.timer().is_none()) else {
        return Vec::new();
    };
    let wanted = [
        (rules.work_request, TaskKind::WorkRequest, "work", prompts::DO_WORK),
        (rules.memory, TaskKind::Memory, "memory", prompts::NOTE_FACTS),
    ];
    if wanted.iter().all(|(wanted, ..)| !wanted) {
        return Vec::new();
    }
    let said = |kind| match kind {
        TaskKind::Memory => transcript_for_memory(messages, MOST_OF_TURN),
        _ => transcript_of_turn(messages, MOST_OF_TURN),
    };
    let (Some(batch), Some(answer)) = (batch, messages.last()) else { return Vec::new() };
    let followed = FollowedTurn {
        thread: opened.thread.clone(),
        turn: opened.turn.clone(),
        answer: answer.key.message.clone(),
        batch,
    };
    let task = |(_, kind, suffix, wanted): (bool, TaskKind, &str, &str)| {
        let recalled = match kind {
            TaskKind::Memory => request.recalled.clone().with_results(messages).to_value(),
            _ => None,
        };
        let map: Map<String, Value> =
            recalled.into_iter().map(|recalled| (RECALLED.to_owned(), recalled)).collect();
        Some(Task {
            agent: opened.agent.queue_of(kind),
            id: TaskId::parse(&format!("{}-{suffix}", opened.turn)).ok()?,
            kind,
            content: format!("{wanted}\n\n{}", said(kind)),
            origin: TaskOrigin::AfterTurn(followed.clone()),
            metadata: Metadata::new(map).ok()?,
        })
    };
    wanted.into_iter().filter(|(wanted, ..)| *wanted).filter_map(task).collect()
}
