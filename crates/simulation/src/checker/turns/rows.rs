//! The messages of turns: complete, in one transaction, in their places, and with the text of one
//! delivery.

use std::collections::{BTreeMap, BTreeSet};

use model::{
    AgentId, BatchType, Chunk, ChunkKind, ControlKind, MessageKey, Position, Role, TaskEdit, TaskId, TurnId,
};

use crate::checker::evidence::{Evidence, MessageRow};
use crate::checker::expected_outcome::{ExpectedEnd, ExpectedOutcome};
use crate::checker::invariant::{Invariant, Violation};
use crate::checker::turns::evidence::{RunEnd, TransitionKind, TurnPart, TurnRow, Turns, ends, part_of};
use crate::checker::turns::timers::is_follow_up;
use model::Command;

type TurnRows<'a> = Vec<(&'a TurnRow, &'a MessageRow)>;

pub(super) fn check(
    evidence: &Evidence,
    turns: &Turns,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
    violations: &mut Vec<Violation>,
) {
    let stored: BTreeMap<&MessageKey, &MessageRow> =
        evidence.messages.iter().rev().map(|message| (&message.key, message)).collect();
    let mut by_turn: BTreeMap<TurnId, TurnRows<'_>> = BTreeMap::new();
    for row in &turns.rows {
        let Some((turn, _)) = part_of(&row.key.message) else { continue };
        let Some(message) = stored.get(&row.key) else { continue };
        by_turn.entry(turn).or_default().push((row, message));
    }
    let mut ended: BTreeMap<&TurnId, (u64, u32, &RunEnd)> = BTreeMap::new();
    for (happened, turn, run, _, end) in ends(turns) {
        if !matches!(end, RunEnd::Failed(_)) {
            ended.insert(turn, (happened.number, run, end));
        }
    }
    for turn in ended.keys().filter(|turn| !by_turn.contains_key(*turn)) {
        let (expected, seen) = ("its messages in the same transaction", "an end without messages");
        violations.push(Violation::new(Invariant::WholeTurn, turn, expected, seen));
    }
    let inputs = inputs(turns);
    let continued = continued(turns);
    if evidence.rules.stepped_back.is_empty() {
        check_batches(&turns.rows, violations);
    }
    for (turn, rows) in &by_turn {
        let end = ended.get(turn).map(|(number, run, end)| (*number, *run, *end));
        let mut continues = continued.get(turn).cloned().unwrap_or_default();
        let of = |batch: &Option<Position>| {
            let thread = rows.first().map(|(row, _)| row.key.thread.clone());
            thread
                .zip(*batch)
                .is_some_and(|(thread, batch)| evidence.rules.retired.contains(&(thread, batch.get())))
        };
        // The batch may be undone, so that positions begin again below it, or retention may have
        // deleted it.
        let is_apart = !evidence.rules.stepped_back.is_empty() || continues.iter().any(of);
        if is_apart {
            continues.push(None);
        }
        if let Some((expected, seen)) = shape(turn, rows, (&continues, is_apart), end) {
            violations.push(Violation::new(Invariant::WholeTurn, turn, expected, seen));
            continue;
        }
        let Some((_, run, end)) = end else { continue };
        // The turn may have been undone and answered again: the first answer in the stream need not
        // be the one that counts.
        let may_be_again = turn.as_str().starts_with('t') || is_follow_up(turn);
        if !evidence.rules.stepped_back.is_empty() && may_be_again {
            continue;
        }
        if let Some(known) = inputs.get(turn)
            && rows.first().is_some_and(|(_, input)| !known.contains(&input.content))
        {
            let seen = rows.first().map(|(_, input)| input.content.clone()).unwrap_or_default();
            violations.push(Violation::new(Invariant::WholeTurn, turn, format!("one of {known:?}"), seen));
        }
        check_text(turn, run, end, rows, expected_outcomes, violations);
    }
}

/// The texts that the inputs of turns may have.
fn inputs(turns: &Turns) -> BTreeMap<TurnId, BTreeSet<String>> {
    let mut inputs: BTreeMap<TurnId, BTreeSet<String>> = BTreeMap::new();
    let mut payloads: BTreeMap<(&AgentId, &TaskId), BTreeSet<String>> = BTreeMap::new();
    let mut edits = Vec::new();
    for ordered in &turns.ledger {
        match &ordered.command {
            Command::Turn(opened) => {
                inputs.entry(opened.turn.clone()).or_default().insert(opened.content.clone());
            }
            // The first payload counts; later ones are refused.
            Command::Task(task) => {
                let contents = payloads.entry((&task.agent, &task.id)).or_default();
                if contents.is_empty() {
                    contents.insert(task.content.clone());
                }
            }
            // The ledger has another entry for the task that a delayed task becomes.
            Command::DelayedTask(_) => {}
            Command::Control(control) => {
                if let ControlKind::EditTask { task, edit: TaskEdit { content: Some(content), .. } } =
                    &control.kind
                {
                    edits.push((&control.subject, task, content));
                }
            }
        }
    }
    for (agent, task, content) in edits {
        payloads.entry((agent, task)).or_default().insert(content.clone());
    }
    for happened in &turns.history {
        match &happened.what {
            TransitionKind::Queued { agent, task, position } => {
                let contents = payloads.get(&(agent, task)).cloned().unwrap_or_default();
                inputs.insert(task_turn(agent, *position), contents);
            }
            TransitionKind::Requeued { agent, from, to } => {
                let contents = inputs.get(&task_turn(agent, *from)).cloned().unwrap_or_default();
                inputs.insert(task_turn(agent, *to), contents);
            }
            _ => {}
        }
    }
    inputs
}

/// The batches that a turn may continue, if its command names one; an operator's edit may have
/// removed the name.
fn continued(turns: &Turns) -> BTreeMap<TurnId, Vec<Option<Position>>> {
    let mut continued: BTreeMap<TurnId, Vec<Option<Position>>> = BTreeMap::new();
    let mut payloads: BTreeMap<(&AgentId, &TaskId), Vec<Option<Position>>> = BTreeMap::new();
    for ordered in &turns.ledger {
        match &ordered.command {
            Command::Turn(opened) => {
                continued.entry(opened.turn.clone()).or_insert_with(|| vec![opened.origin.continues()]);
            }
            Command::Task(task) => {
                payloads
                    .entry((&task.agent, &task.id))
                    .or_insert_with(|| vec![task.origin.continues(), None]);
            }
            Command::DelayedTask(_) | Command::Control(_) => {}
        }
    }
    for happened in &turns.history {
        match &happened.what {
            TransitionKind::Queued { agent, task, position } => {
                let payload = payloads.get(&(agent, task)).cloned().unwrap_or_default();
                continued.insert(task_turn(agent, *position), payload);
            }
            TransitionKind::Requeued { agent, from, to } => {
                let payload = continued.get(&task_turn(agent, *from)).cloned().unwrap_or_default();
                continued.insert(task_turn(agent, *to), payload);
            }
            _ => {}
        }
    }
    continued
}

/// The messages of a batch, over all its turns, are numbered from 0 in the order of their
/// positions.
fn check_batches(rows: &[TurnRow], violations: &mut Vec<Violation>) {
    let mut batches: BTreeMap<(&model::ThreadId, i64), Vec<i32>> = BTreeMap::new();
    // In transaction order, which is the order of positions in a thread.
    for row in rows {
        batches.entry((&row.key.thread, row.batch_id)).or_default().push(row.sequence_num);
    }
    for ((thread, batch), numbers) in batches {
        if numbers.iter().zip(0..).any(|(number, expected)| *number != expected) {
            let subject = format!("batch {batch} of {thread}");
            violations.push(Violation::new(
                Invariant::WholeTurn,
                subject,
                "0, 1, 2, …",
                format!("{numbers:?}"),
            ));
        }
    }
}

fn task_turn(agent: &AgentId, position: i64) -> TurnId {
    TurnId::of_task(agent, Position::from_stored(position))
}

/// What is wrong with the form of a turn's rows, if anything: expected and seen.
fn shape(
    turn: &TurnId,
    rows: &TurnRows<'_>,
    (continues, is_apart): (&[Option<Position>], bool),
    end: Option<(u64, u32, &RunEnd)>,
) -> Option<(String, String)> {
    let Some((number, run, _)) = end else {
        return Some(("no messages: it has not ended so".to_owned(), format!("{} messages", rows.len())));
    };
    let wrong = |expected: &str, seen: String| Some((expected.to_owned(), seen));
    let (first, last) = (rows.first()?, rows.last()?);
    if rows.iter().any(|(row, _)| row.commit != number) {
        return wrong(
            "one transaction",
            format!("{:?}", rows.iter().map(|r| r.0.commit).collect::<Vec<_>>()),
        );
    }
    let is_continuing = first.0.batch_id != first.1.position;
    let is_known = match is_continuing {
        true => continues.contains(&Some(Position::from_stored(first.0.batch_id))),
        false => continues.is_empty() || continues.contains(&None),
    };
    let least = if is_continuing { first.0.sequence_num } else { 0 };
    if !is_known
        || rows.iter().any(|(row, _)| row.batch_id != first.0.batch_id)
        || rows.iter().zip(least..).any(|((row, _), number)| row.sequence_num != number)
    {
        let seen = rows.iter().map(|(row, _)| (row.batch_id, row.sequence_num)).collect::<Vec<_>>();
        return wrong("one batch, numbered from 0 or as it was continued", format!("{continues:?} {seen:?}"));
    }
    let kind = match (turn.as_str().starts_with('t'), first.0.key.thread.background_kind()) {
        _ if is_continuing => BatchType::Continuation,
        _ if is_apart && first.0.batch_type == BatchType::Continuation => BatchType::Continuation,
        (_, Some(_)) => BatchType::SystemTrigger,
        _ if is_follow_up(turn) => BatchType::SystemTrigger,
        (true, None) if is_of_schedule(first.1) => BatchType::SystemTrigger,
        (true, None) => BatchType::UserRequest,
        (false, None) => BatchType::UserRequest,
    };
    if rows.iter().any(|(row, _)| row.batch_type != kind) {
        return wrong(kind.name(), "another batch type".to_owned());
    }
    let parts: Vec<Option<TurnPart>> =
        rows.iter().map(|(row, _)| part_of(&row.key.message).map(|(_, part)| part)).collect();
    let is_in_order = parts.first() == Some(&Some(TurnPart::Input))
        && parts.last() == Some(&Some(TurnPart::Answer(run)))
        && parts[1..parts.len() - 1].iter().all(|part| *part == Some(TurnPart::Step(run)));
    if rows.len() < 2 || !is_in_order || first.1.role != Role::User || last.1.role != Role::Assistant {
        return wrong("input, steps and the answer of the run", format!("{parts:?}"));
    }
    for (before, (_, message)) in rows.iter().zip(&rows[1..]) {
        if message.parent != Some(before.1.position) {
            return wrong("a chain of messages", format!("{} after {:?}", message.key, message.parent));
        }
    }
    calls_match(&rows[1..])
}

/// True if the input is a task that an occurrence of a schedule has sent: its id is a timer's
/// series and a time.
fn is_of_schedule(input: &MessageRow) -> bool {
    let id = input.metadata.get("task_id").and_then(serde_json::Value::as_str).unwrap_or_default();
    let parts: Vec<&str> = id.split('-').collect();
    matches!(parts[..], [bucket, _, at] if bucket.starts_with('s') && bucket.len() == 5 && at.parse::<i64>().is_ok())
}

/// Each call has its result, in the order of the calls, and the last message has no calls.
fn calls_match(rows: &[(&TurnRow, &MessageRow)]) -> Option<(String, String)> {
    let mut open: Vec<&String> = Vec::new();
    for (row, message) in rows {
        let is_right = match (message.role, &row.answers) {
            (Role::Tool, Some(call)) => !open.is_empty() && *open.remove(0) == *call,
            (Role::Assistant, None) => open.is_empty(),
            _ => false,
        };
        if !is_right {
            return Some(("calls and results that match".to_owned(), format!("{row:?}")));
        }
        open.extend(&row.calls);
    }
    (!open.is_empty()).then(|| ("a result of each call".to_owned(), format!("none of {open:?}")))
}

/// Checks that the texts come from one attempt and one delivery, in order.
fn check_text(
    turn: &TurnId,
    run: u32,
    end: &RunEnd,
    rows: &TurnRows<'_>,
    expected_outcomes: &BTreeMap<MessageKey, ExpectedOutcome>,
    violations: &mut Vec<Violation>,
) {
    let Some((row, answer)) = rows.last() else { return };
    let texts: Vec<&str> = rows[1..].iter().map(|(_, message)| message.content.as_str()).collect();
    let Some(fate) = expected_outcomes.get(&row.key) else {
        if *end == RunEnd::Completed || texts.iter().any(|text| !text.is_empty()) {
            violations.push(Violation::new(Invariant::OneDelivery, turn, "no text", format!("{texts:?}")));
        }
        return;
    };
    let chunks = in_order(fate, answer.attempt);
    if *end == RunEnd::Completed && (fate.end != ExpectedEnd::Complete || fate.attempt != answer.attempt) {
        let expected = format!("{:?} in attempt {} of run {run}", fate.end, fate.attempt);
        let seen = format!("complete in attempt {}", answer.attempt);
        violations.push(Violation::new(Invariant::OneDelivery, turn, expected, seen));
        return;
    }
    // A stopped answer contains the chunks that had arrived before the stop.
    let is_found = match end {
        RunEnd::Completed => fold(&chunks) == texts,
        _ => (0..=chunks.len()).any(|count| fold(&chunks[..count]) == texts),
    };
    if !is_found {
        let (expected, seen) = (format!("{:?}", fold(&chunks)), format!("{texts:?}"));
        violations.push(Violation::new(Invariant::OneDelivery, turn, expected, seen));
    }
    let deliveries: BTreeSet<_> = chunks.iter().map(|chunk| &chunk.correlation_id).collect();
    if *end == RunEnd::Completed && deliveries.len() > 1 {
        let seen = format!("{deliveries:?}");
        violations.push(Violation::new(Invariant::OneDelivery, turn, "chunks of one delivery", seen));
    }
}

fn in_order(fate: &ExpectedOutcome, attempt: u32) -> Vec<&Chunk> {
    let chunks = fate.attempts.get(&attempt).into_iter().flatten();
    let in_order = chunks.enumerate().take_while(|(index, (id, _))| *index as u32 == **id);
    let chunks = in_order.map(|(_, (_, chunk))| &**chunk);
    chunks.take_while(|chunk| chunk.kind != ChunkKind::Error).collect()
}

/// The texts of the messages after the input: for each step the assistant's text, then the results
/// in the order of the calls; last the answer's text.
fn fold(chunks: &[&Chunk]) -> Vec<String> {
    let call_of = |chunk: &Chunk| {
        let id = chunk.metadata.get("tool_call_id").and_then(serde_json::Value::as_str);
        id.unwrap_or_default().to_owned()
    };
    let (mut texts, mut text): (Vec<String>, String) = (Vec::new(), String::new());
    let mut calls: Vec<(String, Option<String>)> = Vec::new();
    for chunk in chunks {
        let begins = matches!(chunk.kind, ChunkKind::Content | ChunkKind::Reasoning | ChunkKind::ToolCall);
        if begins && calls.iter().any(|(_, result)| result.is_some()) {
            texts.push(std::mem::take(&mut text));
            texts
                .extend(std::mem::take(&mut calls).into_iter().map(|(_, result)| result.unwrap_or_default()));
        }
        if chunk.kind == ChunkKind::Content {
            text.push_str(&chunk.text);
        }
        if matches!(chunk.kind, ChunkKind::ToolCall | ChunkKind::ToolResult) {
            let id = call_of(chunk);
            let at = calls.iter().position(|(known, _)| *known == id).unwrap_or_else(|| {
                calls.push((id, None));
                calls.len() - 1
            });
            if chunk.kind == ChunkKind::ToolResult {
                calls[at].1.get_or_insert_default().push_str(&chunk.text);
            }
        }
    }
    if !calls.is_empty() {
        texts.push(std::mem::take(&mut text));
        texts.extend(calls.into_iter().map(|(_, result)| result.unwrap_or_default()));
    }
    texts.push(text);
    texts
}
