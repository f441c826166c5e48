//! The rules of turns, tasks and agents. They are checked only on the tables and the accepted
//! commands.
//!
//! [`verify_turns`] takes rows, promises and the published ends of turns, and returns every
//! violation.

use std::collections::{BTreeMap, BTreeSet};

use model::{Bucket, MessageId, Position, TurnId};

use super::evidence::{Findings, RuleViolation};
use testkit::{
    db_snapshot::{
        DeadLetterRow,
        turns::{StoredAgent, StoredFailedTurn, StoredTask, StoredUsage, TurnMessage},
    },
    turn_events::StoredTurnEvent,
};

/// An accepted input: a gateway answered 202, or the stream acknowledged it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Promise {
    /// The thread of the input, or the agent of a task.
    pub place: String,
    pub content: String,
}

/// All compared data. It is read after all turns have had time to end.
#[derive(Debug, Default)]
pub struct TurnEvidence {
    /// Accepted messages of people, keyed by turn id.
    pub turns: BTreeMap<String, Promise>,
    /// Accepted tasks, keyed by agent and task id.
    pub tasks: BTreeMap<(String, String), Promise>,
    /// The messages of their threads, ordered by thread and position.
    pub messages: Vec<TurnMessage>,
    pub agents: Vec<StoredAgent>,
    /// All tasks, ordered by agent and position.
    pub stored_tasks: Vec<StoredTask>,
    pub failed_turns: Vec<StoredFailedTurn>,
    pub dead_letters: Vec<DeadLetterRow>,
    /// The content of the stream `TURNS`.
    pub ends: Vec<StoredTurnEvent>,
    /// Number of rows in the audit log.
    pub acts: usize,
    /// The ledger of model calls.
    pub usage: Vec<StoredUsage>,
}

struct Batch<'a> {
    turn: TurnId,
    answer: &'a TurnMessage,
    rows: &'a [TurnMessage],
}

/// Checks every rule. An empty result means that all of them hold.
pub fn verify_turns(evidence: &TurnEvidence) -> Vec<RuleViolation> {
    let mut findings = Findings::default();
    let batches = batches(&evidence.messages, &mut findings);
    a_turn_is_committed_at_most_once(&batches, &mut findings);
    tasks_run_in_the_order_of_their_queue(&batches, &mut findings);
    a_task_is_completed_when_its_turn_is(evidence, &batches, &mut findings);
    every_message_of_a_person_ends(evidence, &batches, &mut findings);
    every_task_ends(evidence, &mut findings);
    what_follows_a_turn_names_its_answer(evidence, &mut findings);
    a_backoff_ends_with_a_success(evidence, &mut findings);
    each_end_is_published_once(evidence, &batches, &mut findings);
    the_ledger_has_what_answers_used(evidence, &batches, &mut findings);
    findings.0
}

/// Splits the messages of each thread into batches. Messages that form no complete turn are a
/// violation.
fn batches<'a>(messages: &'a [TurnMessage], findings: &mut Findings) -> Vec<Batch<'a>> {
    let mut batches = Vec::new();
    for thread in messages.chunk_by(|a, b| a.thread_id == b.thread_id) {
        let parents = std::iter::once(None).chain(thread.iter().map(|row| Some(row.position)));
        for (row, parent) in thread.iter().zip(parents).filter(|(row, parent)| row.parent_id != *parent) {
            let found = format!("parent {:?} after {parent:?}", row.parent_id);
            findings.add("a message names its predecessor", place(row), found);
        }
        for rows in thread.chunk_by(|a, b| a.batch_id == b.batch_id) {
            match batch(rows) {
                Ok(batch) => batches.push(batch),
                Err(found) => findings.add("a turn is in the history whole", place(&rows[0]), found),
            }
        }
    }
    batches
}

fn batch(rows: &[TurnMessage]) -> Result<Batch<'_>, String> {
    let ([first, ..], [.., answer]) = (rows, rows) else { return Err("nothing".to_owned()) };
    let id = first.message_id.strip_suffix("-q").ok_or("it does not begin with an input")?;
    let turn = TurnId::parse(id).map_err(|error| error.to_string())?;
    let answered = MessageId::parse(&answer.message_id).ok().and_then(|id| TurnId::of_answer(&id));
    if answered.is_none_or(|(answered, _)| answered != turn) {
        return Err(format!("it ends with {}", answer.message_id));
    }
    if (first.role.as_str(), answer.role.as_str()) != ("user", "assistant") {
        return Err(format!("from {} to {}", first.role, answer.role));
    }
    let numbers: Vec<_> = rows.iter().map(|row| row.sequence_num).collect();
    if !numbers.iter().copied().eq(0..rows.len() as i32) || first.batch_id != first.position {
        return Err(format!("batch {} at {} has the numbers {numbers:?}", first.batch_id, first.position));
    }
    let transactions: BTreeSet<_> = rows.iter().map(|row| row.transaction).collect();
    if transactions.len() > 1 {
        return Err(format!("written by the transactions {transactions:?}"));
    }
    Ok(Batch { turn, answer, rows })
}

fn a_turn_is_committed_at_most_once(batches: &[Batch<'_>], findings: &mut Findings) {
    let mut seen = BTreeSet::new();
    for batch in batches.iter().filter(|batch| !seen.insert(batch.turn.clone())) {
        findings.add("a turn is committed at most once", place(batch.answer), "a second batch of the turn");
    }
}

/// Checks that each completed answer has a row with the tokens that its workflow reported. Before
/// that row there is at most one row for each failed attempt whose call had ended. All other rows
/// must be partial.
fn the_ledger_has_what_answers_used(evidence: &TurnEvidence, batches: &[Batch<'_>], findings: &mut Findings) {
    const RULE: &str = "the ledger has what answers used";
    let mut used: BTreeMap<(&str, &str), Vec<i64>> = BTreeMap::new();
    for row in evidence.usage.iter().filter(|row| !row.is_partial) {
        used.entry((&row.thread_id, &row.message_id)).or_default().push(row.output_tokens);
    }
    for answer in batches.iter().map(|batch| batch.answer) {
        let written = &answer.metadata["usage"]["completion_tokens"];
        let written = written.as_i64().or_else(|| answer.metadata["tokens_used"].as_i64());
        let reported: Vec<i64> = written.into_iter().collect();
        let rows = used.remove(&(answer.thread_id.as_str(), answer.message_id.as_str())).unwrap_or_default();
        if !rows.ends_with(&reported) || rows.len() as i64 > reported.len() as i64 + answer.attempt {
            let found = format!("{rows:?} instead of {reported:?} of attempt {}", answer.attempt);
            findings.add(RULE, place(answer), found);
        }
    }
    for ((thread, message), rows) in used {
        findings.add(RULE, format!("{thread}/{message}"), format!("{rows:?} of no answer"));
    }
}

fn tasks_run_in_the_order_of_their_queue(batches: &[Batch<'_>], findings: &mut Findings) {
    let mut last: BTreeMap<&str, i64> = BTreeMap::new();
    for batch in batches {
        let Some(position) = task_position(&batch.turn) else { continue };
        let before = last.insert(&batch.answer.thread_id, position);
        if before.is_some_and(|before| before >= position) {
            let found = format!("the task at {position} after the one at {before:?}");
            findings.add("tasks run in the order of their queue", place(batch.answer), found);
        }
    }
}

fn a_task_is_completed_when_its_turn_is(
    evidence: &TurnEvidence,
    batches: &[Batch<'_>],
    findings: &mut Findings,
) {
    let committed: BTreeSet<_> = batches.iter().map(|batch| batch.turn.as_str()).collect();
    let mut known = BTreeSet::new();
    for task in &evidence.stored_tasks {
        let turn = task_turn(task);
        let is_stopped = task.failure_code.as_deref() == Some("stopped");
        let is_in_history = committed.contains(turn.as_str());
        let fits = match task.status.as_str() {
            "completed" => is_in_history,
            "failed" => !is_in_history || is_stopped,
            _ => !is_in_history,
        };
        if !fits {
            let found = format!("{} and in the history: {is_in_history}", task.status);
            findings.add("a task is completed when its turn is in the history", place_of(task), found);
        }
        known.insert(turn);
    }
    for batch in batches.iter().filter(|batch| batch.turn.as_str().starts_with('t')) {
        if !known.contains(batch.turn.as_str()) {
            findings.add("a task's turn has its task", place(batch.answer), "no such task");
        }
    }
}

fn every_message_of_a_person_ends(evidence: &TurnEvidence, batches: &[Batch<'_>], findings: &mut Findings) {
    const RULE: &str = "a message that was accepted ends as a turn, a failed turn or a dead letter";
    let committed: BTreeMap<_, _> = batches.iter().map(|batch| (batch.turn.as_str(), batch)).collect();
    let failed: BTreeMap<_, _> =
        evidence.failed_turns.iter().map(|failed| (failed.turn_id.as_str(), failed)).collect();
    for (turn, promise) in &evidence.turns {
        let (thread, content) = match (committed.get(turn.as_str()), failed.get(turn.as_str())) {
            (Some(batch), None) => (&batch.rows[0].thread_id, &batch.rows[0].content),
            (None, Some(failed)) => (&failed.thread_id, &failed.content),
            (Some(_), Some(_)) => {
                findings.add("a turn is in the history or failed, not both", turn, "both");
                continue;
            }
            (None, None) if is_dead(evidence, turn) => continue,
            (None, None) => {
                findings.add(RULE, turn, format!("no trace of {:?} in {}", promise.content, promise.place));
                continue;
            }
        };
        if (thread, content) != (&promise.place, &promise.content) {
            let found =
                format!("{content:?} in {thread} instead of {:?} in {}", promise.content, promise.place);
            findings.add("an input is kept as it was said", turn, found);
        }
    }
    for batch in batches.iter().filter(|batch| batch.turn.as_str().starts_with('u')) {
        if !evidence.turns.contains_key(batch.turn.as_str()) {
            findings.add(
                "what was not said is not answered",
                place(batch.answer),
                "its input was not accepted",
            );
        }
    }
}

fn every_task_ends(evidence: &TurnEvidence, findings: &mut Findings) {
    let mut stored: BTreeMap<(&str, &str), Vec<&StoredTask>> = BTreeMap::new();
    for task in &evidence.stored_tasks {
        stored.entry((&task.agent_id, &task.task_id)).or_default().push(task);
        if task.status == "pending" {
            findings.add("a task ends once there is peace", place_of(task), "it is pending");
        }
    }
    for ((agent, id), all) in &stored {
        if all.len() > 1 {
            let found = format!("{} rows", all.len());
            findings.add("a task is stored once", format!("{agent}/{id}"), found);
        }
    }
    for ((agent, id), promise) in &evidence.tasks {
        match stored.get(&(agent.as_str(), id.as_str())).and_then(|all| all.first()) {
            Some(task) if task.content == promise.content => {}
            Some(task) => findings.add("an input is kept as it was said", place_of(task), &*task.content),
            None if is_dead(evidence, id) => {}
            None => {
                findings.add("a task that was accepted is stored", format!("{agent}/{id}"), "no trace of it")
            }
        }
    }
}

/// True if the raw payload of a dead letter contains the id.
fn is_dead(evidence: &TurnEvidence, id: &str) -> bool {
    evidence.dead_letters.iter().any(|letter| String::from_utf8_lossy(&letter.raw).contains(id))
}

fn what_follows_a_turn_names_its_answer(evidence: &TurnEvidence, findings: &mut Findings) {
    let answers: BTreeSet<_> = evidence
        .messages
        .iter()
        .filter(|row| row.role == "assistant")
        .map(|row| (row.thread_id.as_str(), row.message_id.as_str()))
        .collect();
    for task in evidence.stored_tasks.iter().filter(|task| task.kind != "task") {
        let field = |name: &str| task.metadata[name].as_str().unwrap_or_default();
        let named = (field("thread_id"), field("assistant_message_id"));
        if !answers.contains(&named) {
            let rule = "a task that follows a turn names its persisted answer";
            findings.add(rule, place_of(task), format!("{named:?} is not there"));
        }
    }
}

fn a_backoff_ends_with_a_success(evidence: &TurnEvidence, findings: &mut Findings) {
    for agent in &evidence.agents {
        let waits = (agent.backoff_attempt_count > 0, agent.next_run_ms.is_some());
        let has_pending = evidence
            .stored_tasks
            .iter()
            .any(|task| task.agent_id == agent.agent_id && task.status == "pending");
        if !has_pending && waits != (false, false) {
            let found = format!("{} failures, next run {:?}", agent.backoff_attempt_count, agent.next_run_ms);
            findings.add("an agent without tasks does not back off", &agent.agent_id, found);
        }
    }
}

fn each_end_is_published_once(evidence: &TurnEvidence, batches: &[Batch<'_>], findings: &mut Findings) {
    const RULE: &str = "each end is published once, and as it is";
    let mut published: BTreeMap<&str, Vec<&StoredTurnEvent>> = BTreeMap::new();
    let mut ids = BTreeSet::new();
    for end in &evidence.ends {
        published.entry(&end.said.turn_id).or_default().push(end);
        if !ids.insert(&end.id) {
            findings.add(RULE, &end.said.turn_id, format!("{} twice", end.id));
        }
    }
    for batch in batches {
        let ends = published.get(batch.turn.as_str()).map(Vec::as_slice).unwrap_or_default();
        let whole: Vec<_> = ends.iter().filter(|end| end.said.status != "failed").collect();
        let is_right = |end: &StoredTurnEvent| {
            end.said.message_id.as_ref() == Some(&batch.answer.message_id)
                && end.said.batch_id == Some(batch.rows[0].batch_id.to_string())
                && (end.said.status == "stopped") == (batch.answer.metadata["stopped"] == true)
        };
        match whole.as_slice() {
            [end] if is_right(end) => {}
            other => findings.add(RULE, place(batch.answer), format!("published: {other:?}")),
        }
    }
    let failed_tasks = evidence.stored_tasks.iter().filter(|task| task.status == "failed");
    let given_up =
        failed_tasks.filter(|task| !matches!(task.failure_code.as_deref(), Some("dropped" | "stopped")));
    let failed =
        evidence.failed_turns.iter().map(|failed| failed.turn_id.clone()).chain(given_up.map(task_turn));
    for turn in failed {
        let ends = published.get(turn.as_str()).map(Vec::as_slice).unwrap_or_default();
        if !ends.iter().any(|end| end.said.status == "failed") {
            findings.add(RULE, &turn, "its failure was not published");
        }
    }
}

fn task_turn(task: &StoredTask) -> String {
    let bucket = Bucket::of_key(&task.agent_id).get();
    format!("t{bucket:04x}-{}", Position::from_stored(task.position))
}

fn task_position(turn: &TurnId) -> Option<i64> {
    let (kind, position) = turn.as_str().split_once('-')?;
    if kind.starts_with('t') { position.parse().ok() } else { None }
}

fn place(row: &TurnMessage) -> String {
    format!("{}/{}", row.thread_id, row.message_id)
}

fn place_of(task: &StoredTask) -> String {
    format!("{}/{}", task.agent_id, task.task_id)
}

#[cfg(test)]
mod tests;
