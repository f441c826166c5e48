//! Short constructors for turns, tasks and agents.

use model::{
    AgentId, BatchType, BusyPolicy, CommandId, Message, Position, QueuedTask, Role, Seq, Task, TaskId,
    TaskKind, TaskOrigin, ThreadId, TurnId, TurnOpened, TurnOptions, TurnOrigin,
};
use partition::{
    AgentWrite, AuditWrite, BackoffChange, FailedTask, FailedTurn, Fallback, OpenTurn, TaskWrite, TurnWrite,
};
use serde_json::json;

use crate::fixture::{message, metadata};

pub(crate) fn at(position: i64) -> Position {
    Position::from_stored(position)
}

pub(crate) fn agent(id: &str) -> AgentId {
    AgentId::parse(id).unwrap()
}

pub(crate) fn turn(thread: &str, unique: &str) -> TurnId {
    TurnId::foreground(&ThreadId::parse(thread).unwrap(), unique).unwrap()
}

/// Moves the head of an agent to `position`, if it is below.
pub(crate) fn completes(id: &str, position: i64) -> AgentWrite {
    AgentWrite {
        agent: agent(id),
        guard: at(position),
        head: at(position),
        run: 0,
        failures: 0,
        wait: BackoffChange::Clear,
        paused: false,
        error: None,
    }
}

/// The task after `head` has failed, for the `failures`th time.
pub(crate) fn backs_off(id: &str, head: i64, position: i64, failures: u32, wait_ms: i64) -> AgentWrite {
    AgentWrite {
        guard: at(position),
        head: at(head),
        run: failures,
        failures,
        wait: BackoffChange::Start(wait_ms),
        error: Some(("stalled".to_owned(), format!("failure {failures}"))),
        ..completes(id, position)
    }
}

/// The messages of a turn: input, a step with a call, its result, and the answer.
pub(crate) fn messages_of(thread: &str, turn: &TurnId, run: u32, position: i64) -> Vec<Message> {
    let ids = [turn.input(), turn.step(run, 0), turn.result(run, 0, 0), turn.answer(run)];
    let roles = [Role::User, Role::Assistant, Role::Tool, Role::Assistant];
    let mut messages: Vec<Message> = Vec::new();
    for ((id, role), number) in ids.into_iter().zip(roles).zip(0_i32..) {
        let mut one = message(thread, id.as_str(), position + i64::from(number));
        one.role = role;
        one.placement.batch_id = at(position);
        one.placement.sequence_num = number;
        one.placement.batch_type = BatchType::UserRequest;
        messages.push(one);
    }
    messages[1].tool_calls = Some(json!([{"id": "c1", "name": "search", "arguments": "{}"}]));
    messages[2].tool_call_id = Some("c1".to_owned());
    messages
}

/// A turn of four messages in `thread`; `agent` is the index of its agent's write.
pub(crate) fn finishes(
    thread: &str,
    turn: &TurnId,
    run: u32,
    position: i64,
    agent: Option<usize>,
) -> TurnWrite {
    TurnWrite {
        turn: turn.clone(),
        messages: messages_of(thread, turn, run, position),
        agent,
        answered_by: None,
        ends_failed: None,
        on_refusal: Fallback::Turn(Box::new(failed_turn(thread, turn, run))),
    }
}

pub(crate) fn input(thread: &str, turn: &TurnId, run: u32) -> TurnOpened {
    TurnOpened {
        turn: turn.clone(),
        thread: ThreadId::parse(thread).unwrap(),
        agent: agent("someone"),
        run,
        content: format!("question of {turn}"),
        origin: TurnOrigin::PERSON,
        metadata: metadata(json!({"a": [1, {"b": null}]})),
        actor: (run > 0).then(|| "anna".into()),
        options: TurnOptions {
            busy_policy: BusyPolicy::Interrupt,
            parameters: metadata(json!({"temperature": 0.5, "instructions": format!("of {turn}")})),
            correlation_id: Some("c-1".into()),
            ..TurnOptions::default()
        },
    }
}

pub(crate) fn failed_turn(thread: &str, turn: &TurnId, run: u32) -> FailedTurn {
    FailedTurn {
        opened: input(thread, turn, run),
        code: "deadline".to_owned(),
        text: format!("run {run}"),
        is_retryable: true,
        partial: format!("so far, {run}"),
    }
}

pub(crate) fn open_turn(thread: &str, turn: &TurnId, run: u32, seq: u64) -> OpenTurn {
    OpenTurn { opened: input(thread, turn, run), seq: Seq(seq), age_ms: 0 }
}

pub(crate) fn task(id: &str, task: &str, position: i64) -> TaskWrite {
    let task = Task {
        agent: agent(id),
        id: TaskId::parse(task).unwrap(),
        kind: TaskKind::WorkRequest,
        content: format!("do {task}"),
        origin: TaskOrigin::SENT,
        metadata: metadata(json!({"n": position})),
    };
    TaskWrite { seq: Seq(1), digest: task.digest(), queued: QueuedTask { position: at(position), task } }
}

pub(crate) fn mark(id: &str, position: i64) -> FailedTask {
    FailedTask {
        agent: agent(id),
        position: at(position),
        code: "dropped".to_owned(),
        text: "why".to_owned(),
    }
}

pub(crate) fn act(subject: &str, id: &str) -> AuditWrite {
    AuditWrite {
        id: CommandId::parse(id).unwrap(),
        subject: agent(subject),
        actor: "anna".to_owned(),
        action: "pause".to_owned(),
        target: None,
        error: None,
    }
}
