use crate::{
    AgentWrite, ArmedTimer, AuditWrite, BackoffChange, FailedTask, FailedTurn, TurnEnded, UsageWrite,
};
use model::{
    AgentId, BatchType, CommandId, ContinuedBatch, ControlKind, FollowedTurn, Metadata, PartitionId,
    Placement, QueuedTask, Role, Task, TaskId, TaskKind, TaskOrigin, ThreadId, TimerId, Timestamp,
    TurnOpened, TurnOrigin,
};
use serde_json::Value;

use super::*;

fn position(number: i64) -> Position {
    Position::from_stored(number)
}

fn message(thread: &ThreadId, id: model::MessageId, at: i64) -> Message {
    let placement = Placement {
        position: position(at),
        batch_id: position(at),
        sequence_num: 0,
        batch_type: BatchType::UserRequest,
    };
    Message {
        key: MessageKey { thread: thread.clone(), message: id },
        placement,
        role: Role::User,
        content: "x".to_owned(),
        tool_calls: None,
        tool_call_id: None,
        metadata: Metadata::EMPTY,
        token_count: None,
        attempt: 0,
        times: model::MessageTimes::default(),
    }
}

fn ended(turn: &TurnId, thread: &ThreadId) -> Outgoing {
    Outgoing::TurnEnded(TurnEnded {
        turn: turn.clone(),
        thread: thread.clone(),
        agent: thread.agent(),
        status: TurnStatus::Completed,
        task: None,
        message: Some(turn.answer(0)),
        batch: Some(position(1)),
        code: None,
    })
}

fn memory_task(turn: &TurnId, agent: &AgentId) -> Outgoing {
    let thread = agent.thread();
    let followed = FollowedTurn { thread, turn: turn.clone(), answer: turn.answer(0), batch: position(1) };
    Outgoing::Task(Task {
        agent: agent.clone(),
        id: TaskId::parse(&format!("{turn}-work")).unwrap(),
        kind: TaskKind::WorkRequest,
        content: "work".to_owned(),
        origin: TaskOrigin::AfterTurn(followed),
        metadata: Metadata::EMPTY,
    })
}

fn used(turn: &TurnId, thread: &ThreadId) -> UsageWrite {
    UsageWrite {
        turn: turn.clone(),
        answer: MessageKey { thread: thread.clone(), message: turn.answer(0) },
        number: 0,
        agent: thread.agent(),
        kind: model::UsageKind::Turn,
        call: model::ModelCall::default(),
        is_partial: false,
        finish_reason: None,
    }
}

fn write_of(agent: &AgentId, head: i64) -> AgentWrite {
    AgentWrite {
        agent: agent.clone(),
        guard: position(head),
        head: position(head),
        run: 0,
        failures: 0,
        wait: BackoffChange::Keep,
        paused: false,
        error: None,
    }
}

fn mark(agent: &AgentId, at: i64, code: &str) -> FailedTask {
    FailedTask { agent: agent.clone(), position: position(at), code: code.to_owned(), text: String::new() }
}

/// Two turns in one commit: a person's turn in thread `t` with its consequences, and a task's turn
/// of agent `b`, which has the second agent write.
struct Both {
    commit: Commit,
    input: TurnId,
    task: TurnId,
    agent: AgentId,
}

fn both() -> Both {
    let (thread, agent) = (ThreadId::parse("t").unwrap(), AgentId::parse("b").unwrap());
    let input = TurnId::foreground(&thread, "x").unwrap();
    let task = TurnId::of_task(&agent, position(70));
    let opened = TurnOpened {
        turn: input.clone(),
        thread: thread.clone(),
        agent: thread.agent(),
        run: 0,
        content: "x".to_owned(),
        origin: TurnOrigin::PERSON,
        metadata: Metadata::EMPTY,
        actor: None,
        options: model::TurnOptions::default(),
    };
    let failed = FailedTurn {
        opened,
        code: String::new(),
        text: String::new(),
        is_retryable: false,
        partial: String::new(),
    };
    let mut commit = Commit::empty(PartitionId(0), 3, Seq(99), Timestamp(1));
    commit.turns = vec![
        TurnWrite {
            turn: input.clone(),
            messages: vec![message(&thread, input.input(), 11), message(&thread, input.answer(0), 12)],
            agent: None,
            answered_by: None,
            ends_failed: Some(thread.clone()),
            on_refusal: Fallback::Turn(Box::new(failed)),
        },
        TurnWrite {
            turn: task.clone(),
            messages: vec![message(&agent.thread(), task.input(), 21)],
            agent: Some(1),
            answered_by: None,
            ends_failed: None,
            on_refusal: Fallback::Task(mark(&agent, 70, "")),
        },
    ];
    commit.agents = vec![write_of(&AgentId::parse("a").unwrap(), 5), write_of(&agent, 70)];
    commit.failed_tasks =
        vec![mark(&AgentId::parse("a").unwrap(), 5, "dropped"), mark(&agent, 70, "stopped")];
    commit.usage = vec![used(&input, &thread), used(&task, &agent.thread())];
    commit.ended_turns = vec![(thread.clone(), input.clone())];
    commit.ended_spills = vec![MessageKey { thread: thread.clone(), message: input.answer(0) }];
    let outgoing =
        vec![memory_task(&input, &thread.agent()), ended(&input, &thread), ended(&task, &agent.thread())];
    commit.outbox = Some(OutboxBatch { id: position(30), outgoing });
    Both { commit, input, task, agent }
}

#[test]
fn a_task_dropped_behind_a_turn_comes_with_its_audit() {
    let Both { mut commit, agent, .. } = both();
    commit.failed_tasks.push(mark(&agent, 80, "dropped"));
    let mut parts = CommitParts::of(commit);
    let turns = [parts.next().unwrap(), parts.next().unwrap()];
    assert_eq!(parts.alone(&turns[1]).failed_tasks, [mark(&agent, 70, "stopped")]);
    turns.into_iter().for_each(|turn| parts.wrote(turn));
    assert_eq!(parts.rest().failed_tasks.last(), Some(&mark(&agent, 80, "dropped")));
}

#[test]
fn a_turn_alone_has_with_it_what_must_not_be_missing_later() {
    let Both { commit, input, task, agent } = both();
    let mut parts = CommitParts::of(commit.clone());
    let first = parts.next().unwrap();
    let alone = parts.alone(&first);
    assert_eq!((alone.epoch, alone.checkpoint), (3, Seq(0)));
    assert_eq!(alone.turns, commit.turns[..1]);
    assert!(alone.agents.is_empty() && alone.failed_tasks.is_empty());
    assert_eq!(alone.ended_turns, commit.ended_turns);
    assert_eq!(alone.ended_spills, commit.ended_spills);
    assert_eq!(alone.usage, commit.usage[..1]);
    let outbox = alone.outbox.unwrap();
    assert_eq!(outbox.id, position(11), "no other batch has the number of its first message");
    assert_eq!(outbox.outgoing, commit.outbox.as_ref().unwrap().outgoing[..2]);

    let second = parts.next().unwrap();
    let alone = parts.alone(&second);
    assert_eq!(alone.turns[0].turn, task);
    assert_eq!(alone.usage, commit.usage[1..]);
    assert_eq!(alone.turns[0].agent, Some(0), "the write is the only one now");
    assert_eq!(alone.agents, [write_of(&agent, 70)]);
    assert_eq!(alone.failed_tasks, [mark(&agent, 70, "stopped")]);
    assert!(alone.ended_turns.is_empty() && alone.ended_spills.is_empty());
    assert_eq!(alone.outbox.unwrap().outgoing, [ended(&task, &agent.thread())]);

    assert!(parts.next().is_none());
    parts.wrote(first);
    parts.wrote(second);
    let rest = parts.rest().clone();
    assert_eq!(rest.checkpoint, Seq(99));
    assert!(rest.turns.is_empty() && rest.usage.is_empty());
    assert_eq!(rest.agents, commit.agents[..1], "a queue's head moves once");
    assert_eq!(rest.sent, [position(11), position(21)], "what was written alone comes with the rest again");
    assert_eq!(rest.outbox, commit.outbox);
    assert!(parts.refused.is_empty() && rest.failed_turns.is_empty());
    assert_eq!(parts.rest(), &rest, "asking again changes nothing");
    drop(input);
}

#[test]
fn a_refused_turn_has_failed_and_nothing_follows_from_it() {
    let Both { commit, input, task, agent } = both();
    let mut parts = CommitParts::of(commit.clone());
    while let Some(part) = parts.next() {
        parts.refuse(part, "22P05".to_owned());
    }
    let rest = parts.rest().clone();
    assert_eq!(parts.refused, [(input.clone(), "22P05".to_owned()), (task, "22P05".to_owned())]);
    assert_eq!(rest.failed_turns.len(), 1);
    assert_eq!(rest.usage, commit.usage, "the models were called all the same");
    let failed = &rest.failed_turns[0];
    assert_eq!((failed.code.as_str(), failed.text.as_str()), ("rejected_by_database", "22P05"));
    assert_eq!(rest.failed_tasks.len(), 2, "the mark of the stopped task is replaced: a row is written once");
    assert_eq!(
        rest.failed_tasks[1],
        FailedTask { text: "22P05".to_owned(), ..mark(&agent, 70, "rejected_by_database") }
    );
    assert_eq!(rest.agents, commit.agents, "the queue moves on all the same");
    assert!(rest.sent.is_empty());
    let outgoing = rest.outbox.unwrap().outgoing;
    assert_eq!(outgoing.len(), 2, "the task that would have followed is gone");
    for outgoing in outgoing {
        let Outgoing::TurnEnded(ended) = outgoing else { panic!("{outgoing:?}") };
        assert_eq!(ended.status, TurnStatus::Failed);
        assert_eq!(
            (ended.message, ended.batch, ended.code.as_deref()),
            (None, None, Some("rejected_by_database"))
        );
    }
}

#[test]
fn a_failed_turn_of_a_person_arms_nothing_in_its_thread() {
    let arm = |of: &str, position: i64| {
        let thread = ThreadId::parse(of).unwrap();
        TimerWrite::Arm(ArmedTimer {
            id: TimerId::follow_up(&thread, Position::from_stored(position)),
            agent: thread.agent(),
            thread: Some(thread),
            wait_ms: 1,
            body: Metadata::EMPTY,
            armed_by: None,
        })
    };
    for (synthetic, left) in [(false, vec![arm("u", 5)]), (true, vec![arm("t", 5), arm("u", 5)])] {
        let Both { mut commit, .. } = both();
        commit.timers = vec![arm("t", 5), arm("u", 5)];
        let mut parts = CommitParts::of(commit);
        let mut refused = parts.next().unwrap();
        if let CommitPart::Turn(turn) = &mut refused
            && let Fallback::Turn(failed) = &mut turn.on_refusal
        {
            let of_system = TurnOrigin::Heartbeat { batch: position(1) };
            failed.opened.origin = if synthetic { of_system } else { TurnOrigin::PERSON };
        }
        parts.refuse(refused, "no".to_owned());
        assert_eq!(parts.rest().timers, left);
    }
}

#[test]
fn one_refused_turn_leaves_the_other_as_it_is() {
    let Both { commit, input, task, agent } = both();
    let mut parts = CommitParts::of(commit);
    let (first, second) = (parts.next().unwrap(), parts.next().unwrap());
    parts.refuse(first, "no".to_owned());
    let alone = parts.alone(&second);
    assert_eq!(alone.turns[0].turn, task);
    parts.wrote(second);
    let rest = parts.rest();
    assert_eq!(rest.agents.len(), 1);
    let mark_of_the_other = mark(&AgentId::parse("a").unwrap(), 5, "dropped");
    assert_eq!(rest.failed_tasks, [mark_of_the_other], "a mark is written once, with its turn");
    let outgoing = &rest.outbox.as_ref().unwrap().outgoing;
    assert_eq!(outgoing[1], ended(&task, &agent.thread()));
    assert_eq!(parts.refused, [(input, "no".to_owned())]);
}

#[test]
fn a_bare_message_becomes_a_dead_letter() {
    let thread = ThreadId::parse("t").unwrap();
    let mut commit = Commit::empty(PartitionId(0), 1, Seq(5), Timestamp(1));
    let message = message(&thread, model::MessageId::parse("m").unwrap(), 1);
    commit.messages.push(message.clone());
    commit.tasks.push(crate::TaskWrite {
        seq: Seq(7),
        queued: QueuedTask {
            position: position(2),
            task: Task {
                agent: thread.agent(),
                id: TaskId::parse("k").unwrap(),
                kind: TaskKind::Task,
                content: "x".to_owned(),
                origin: TaskOrigin::SENT,
                metadata: Metadata::EMPTY,
            },
        },
        digest: 0,
    });
    let mut parts = CommitParts::of(commit);
    let part = parts.next().unwrap();
    let alone = parts.alone(&part);
    assert_eq!((alone.messages.len(), alone.tasks.len(), alone.checkpoint), (1, 0, Seq(0)));
    parts.refuse(part, "no".to_owned());
    assert_eq!(parts.unstorable, [(message.key, "no".to_owned())]);
    let rest = parts.rest();
    assert_eq!((rest.messages.len(), rest.dead_letters.len(), rest.tasks.len()), (0, 1, 1));
}

#[test]
fn a_message_alone_has_what_was_saved_of_it_with_it() {
    let thread = ThreadId::parse("t").unwrap();
    let [one, two] = ["one", "two"].map(|id| message(&thread, model::MessageId::parse(id).unwrap(), 7));
    let mut commit = Commit::empty(PartitionId(0), 3, Seq(9), Timestamp(5));
    commit.ended_spills = vec![one.key.clone(), two.key.clone()];
    commit.messages = vec![one.clone(), two];
    let mut parts = CommitParts::of(commit);
    let first = parts.next().unwrap();
    assert_eq!(parts.alone(&first).ended_spills, [one.key], "or a new owner finds it open");
}

#[test]
fn parts_come_in_the_order_of_their_places() {
    let Both { mut commit, input, task, .. } = both();
    let thread = ThreadId::parse("t").unwrap();
    let bare = |id: &str, at| message(&thread, model::MessageId::parse(id).unwrap(), at);
    commit.messages = vec![bare("after", 15), bare("before", 3)];
    let mut parts = CommitParts::of(commit);
    let mut command = Vec::new();
    while let Some(part) = parts.next() {
        command.push(match &part {
            CommitPart::Message(message) => message.key.message.to_string(),
            CommitPart::Turn(turn) => turn.turn.to_string(),
            CommitPart::Task(_) | CommitPart::Usage(_) | CommitPart::Opened(_) => panic!("{part:?}"),
        });
    }
    assert_eq!(command, ["before".to_owned(), input.to_string(), "after".to_owned(), task.to_string()]);
}

#[test]
fn audit_of_turn_or_agent_is_written_with_its_part() {
    let Both { mut commit, input, task, agent } = both();
    let audit = |id: &str, subject: &AgentId, control: ControlKind| AuditWrite {
        id: CommandId::parse(id).unwrap(),
        subject: subject.clone(),
        actor: "x".to_owned(),
        action: control.name().to_owned(),
        target: control.target().map(str::to_owned),
        error: None,
    };
    let other = AgentId::parse("a").unwrap();
    commit.audit = vec![
        audit("stops", &other, ControlKind::StopTurn(input)),
        audit("stops-the-other", &other, ControlKind::StopTurn(task)),
        audit("pauses", &agent, ControlKind::Pause),
        audit("resumes", &agent, ControlKind::Resume),
        audit("clears", &agent, ControlKind::ClearBackoff),
        audit("pauses-another", &other, ControlKind::Pause),
        audit("drops", &agent, ControlKind::DropTask(TaskId::parse("k").unwrap())),
    ];
    let names = |audit: &[AuditWrite]| audit.iter().map(|it| it.id.to_string()).collect::<Vec<_>>();
    let mut parts = CommitParts::of(commit);
    let first = parts.next().unwrap();
    assert_eq!(names(&parts.alone(&first).audit), ["stops"]);
    parts.wrote(first);
    let second = parts.next().unwrap();
    assert_eq!(names(&parts.alone(&second).audit), ["stops-the-other", "pauses", "resumes", "clears"]);
    parts.wrote(second);
    assert_eq!(names(&parts.rest().audit), ["pauses-another", "drops"], "what they did comes with the rest");
}

#[test]
fn refused_task_becomes_a_dead_letter_alone() {
    let agent = AgentId::parse("acme~ann").unwrap();
    let write = |number: u64| crate::TaskWrite {
        seq: Seq(number),
        queued: QueuedTask {
            position: position(number as i64),
            task: Task {
                agent: agent.clone(),
                id: TaskId::parse(&format!("k{number}")).unwrap(),
                kind: TaskKind::Task,
                content: "work".to_owned(),
                origin: TaskOrigin::SENT,
                metadata: Metadata::EMPTY,
            },
        },
        digest: number,
    };
    let mut commit = Commit::empty(PartitionId(3), 1, Seq(9), Timestamp(1));
    commit.tasks = (1..=3).map(write).collect();
    let mut parts = CommitParts::of(commit);
    assert!(parts.next().is_none(), "only messages and turns are tried first");
    assert_eq!(parts.rest().tasks.len(), 3);
    assert!(parts.take_rest_apart());
    while let Some(part) = parts.next() {
        let alone = parts.alone(&part);
        assert_eq!((alone.tasks.len(), alone.checkpoint), (1, Seq(0)));
        match alone.tasks[0].seq {
            Seq(2) => parts.refuse(part, "22003 out of range".to_owned()),
            _ => parts.wrote(part),
        }
    }
    assert_eq!(parts.dropped, [("acme~ann/k2".to_owned(), "22003 out of range".to_owned())]);
    let rest = parts.rest();
    assert_eq!((rest.tasks.len(), rest.checkpoint, rest.dead_letters.len()), (0, Seq(9), 1));
    let DeadLetterSource::Entry { subject, payload, refusal } = &rest.dead_letters[0].source else {
        panic!()
    };
    assert_eq!((rest.dead_letters[0].seq, subject.as_str()), (Seq(2), "tasks.3.acme~ann"));
    assert_eq!((refusal.code, refusal.detail.as_str()), ("rejected_by_database", "22003 out of range"));
    let payload: Value = serde_json::from_slice(payload).unwrap();
    assert_eq!(payload["content"], "work");
    assert!(!parts.take_rest_apart(), "nothing is left that could be the cause");
}

#[test]
fn what_a_turn_asks_for_is_written_with_it_or_not_at_all() {
    let Both { mut commit, input, task, agent } = both();
    let continued = |turn: &TurnId| ContinuedBatch { batch: position(11), number: 1, turn: turn.clone() };
    let Fallback::Turn(failed) = &commit.turns[0].on_refusal else { unreachable!() };
    let opened = TurnOpened {
        turn: TurnId::continuation(&failed.opened.thread, position(12)).unwrap(),
        origin: TurnOrigin::Continuation(continued(&input)),
        ..failed.opened.clone()
    };
    commit.opened = vec![OpenTurn { opened, seq: Seq(99), age_ms: 0 }];
    let queued = |id: &str, origin: TaskOrigin| TaskWrite {
        seq: Seq(99),
        queued: QueuedTask {
            position: position(90),
            task: Task {
                agent: agent.clone(),
                id: TaskId::parse(id).unwrap(),
                kind: TaskKind::Task,
                content: "x".to_owned(),
                origin,
                metadata: Metadata::EMPTY,
            },
        },
        digest: 0,
    };
    let other = queued("k", TaskOrigin::SENT);
    commit.tasks = vec![queued("h", TaskOrigin::Continuation(continued(&task))), other.clone()];
    let mut parts = CommitParts::of(commit.clone());
    let (first, second) = (parts.next().unwrap(), parts.next().unwrap());
    let alone = parts.alone(&first);
    assert_eq!((&alone.opened, &alone.tasks), (&commit.opened, &vec![]), "else its continuation is lost");
    parts.wrote(first);
    assert_eq!(parts.alone(&second).tasks, commit.tasks[..1]);
    parts.refuse(second, "no".to_owned());
    let rest = parts.rest();
    assert_eq!((&rest.opened, &rest.tasks), (&vec![], &vec![other]));
}
