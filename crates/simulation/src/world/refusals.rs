//! A store that refuses the messages of a turn: what is written and published instead, as the worker does it.

use model::{AgentId, FailedMessage, Position, TurnId};
use partition::{Commit, Otherwise, OutboxBatch, Outgoing, TurnStatus};
use serde_json::Value;

const UNSTORABLE: &str = "unstorable";

/// Puts what the turn's write says otherwise in the place of its messages. Its run.
pub(super) fn refuse(commit: &mut Commit, turn: &TurnId, text: &str) -> Option<u32> {
    let index = commit.turns.iter().position(|write| write.turn == *turn)?;
    let write = commit.turns.remove(index);
    let answer = write.messages.last()?;
    let run = TurnId::of_answer(&answer.key.message).map_or(0, |(_, run)| run);
    commit.failed_messages.push(FailedMessage::unstorable(answer, text.to_owned()));
    if let Some(batch) = &mut commit.outbox {
        amend(batch, turn);
    }
    match write.otherwise {
        Otherwise::Turn(mut failed) => {
            (failed.code, failed.text) = (UNSTORABLE.to_owned(), text.to_owned());
            commit.failed_turns.push(*failed);
        }
        Otherwise::Task(mut failed) => {
            (failed.code, failed.text) = (UNSTORABLE.to_owned(), text.to_owned());
            let same: (AgentId, Position) = (failed.agent.clone(), failed.position);
            commit.failed_tasks.retain(|other| (&other.agent, other.position) != (&same.0, same.1));
            commit.failed_tasks.push(failed);
        }
    }
    Some(run)
}

/// The turn has failed, and nothing follows from it.
pub(super) fn amend(batch: &mut OutboxBatch, turn: &TurnId) {
    batch.outgoing.retain(|outgoing| match outgoing {
        Outgoing::Task(task) => !task.id.as_str().starts_with(&format!("{turn}-")),
        Outgoing::TurnOpened(opened) => {
            opened.metadata.get("turn_id").and_then(Value::as_str) != Some(turn.as_str())
        }
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
