use serde_json::Value;

use super::*;
use crate::{BatchType, Task, TaskEdit, TimerId, TriggerType, TurnOrigin};

fn map(value: Value) -> Metadata {
    Metadata::new(value.as_object().unwrap().clone()).unwrap()
}

fn agent() -> AgentId {
    AgentId::parse("acme~a").unwrap()
}

fn thread() -> ThreadId {
    ThreadId::parse("acme~t").unwrap()
}

fn turn_id() -> TurnId {
    TurnId::foreground(&thread(), "x").unwrap()
}

fn task_turn() -> TurnId {
    TurnId::of_task(&agent(), Position::from_stored(77))
}

fn continued(turn: TurnId) -> ContinuedBatch {
    ContinuedBatch { batch: Position::from_stored(7), number: 3, turn }
}

fn turn_origins() -> Vec<TurnOrigin> {
    let timer = TimerId::follow_up(&thread(), Position::from_stored(9));
    vec![
        TurnOrigin::of_person(&Metadata::EMPTY),
        TurnOrigin::Heartbeat { batch: Position::from_stored(7) },
        TurnOrigin::Continuation(continued(turn_id())),
        TurnOrigin::FollowUp { timer, trigger: TriggerType::CheckIn, reason: "quiet  for an hour".into() },
    ]
}

fn task_origins() -> Vec<(TaskKind, TaskOrigin)> {
    let (thread, answer, batch) = (thread(), turn_id().answer(0), Position::from_stored(7));
    let followed = FollowedTurn { thread: thread.clone(), turn: turn_id(), answer: answer.clone(), batch };
    let continued = continued(task_turn());
    vec![
        (TaskKind::Task, TaskOrigin::of_sender(&Metadata::EMPTY)),
        (TaskKind::Task, TaskOrigin::of_schedule(&Metadata::EMPTY)),
        (TaskKind::WorkRequest, TaskOrigin::AfterTurn(followed.clone())),
        (TaskKind::Memory, TaskOrigin::AfterTurn(followed)),
        (TaskKind::Compaction, TaskOrigin::Summary { thread: thread.clone(), compaction: batch }),
        (TaskKind::Task, TaskOrigin::Continuation(continued.clone())),
        (TaskKind::WorkRequest, TaskOrigin::ContinuationAfterTurn { thread, answer, continued }),
    ]
}

/// The id that a task of this origin has.
fn task_id(origin: &TaskOrigin) -> TaskId {
    let scheduled = format!("s0001-{}-1795950000000", "0".repeat(24));
    match origin {
        TaskOrigin::Scheduled { .. } => TaskId::parse(&scheduled).unwrap(),
        TaskOrigin::Continuation(continued) | TaskOrigin::ContinuationAfterTurn { continued, .. } => {
            continued.task().unwrap()
        }
        _ => TaskId::parse("k").unwrap(),
    }
}

#[test]
fn inputs_are_shown_with_the_keys_that_they_have_always_had() {
    let shown = turn_origins().iter().map(|origin| origin.metadata().to_value()).collect::<Vec<_>>();
    let turn = turn_id();
    let bucket = thread().bucket().get();
    assert_eq!(
        shown,
        [
            json!({}),
            json!({"synthetic": true, "continues": "7", "continuation_number": 1, "heartbeat": true}),
            json!({"synthetic": true, "continues": "7", "continuation_number": 3, "turn_id": turn.as_str()}),
            json!({
                "synthetic": true, "trigger_type": "check_in", "trigger_reason": "quiet  for an hour",
                "timer_id": format!("f{bucket:04x}-9"),
            }),
        ]
    );
}

#[test]
fn tasks_are_shown_with_the_keys_that_they_have_always_had() {
    let shown = task_origins().iter().map(|(_, origin)| origin.metadata().to_value()).collect::<Vec<_>>();
    let (turn, task_turn, answer) = (turn_id(), task_turn(), turn_id().answer(0));
    let followed = json!({
        "thread_id": "t", "turn_id": turn.as_str(), "assistant_message_id": answer.as_str(), "batch_id": "7",
    });
    let continued = json!({
        "synthetic": true, "continues": "7", "continuation_number": 3, "turn_id": task_turn.as_str(),
    });
    let mut after_turn = continued.clone();
    after_turn["thread_id"] = json!("t");
    after_turn["assistant_message_id"] = json!(answer.as_str());
    let summary = json!({"thread_id": "t", "compaction_id": "7"});
    assert_eq!(shown, [json!({}), json!({}), followed.clone(), followed, summary, continued, after_turn]);
}

#[test]
fn an_origin_comes_back_from_json_and_from_earlier_metadata() {
    let own = map(json!({"note": 1, "recalled": ["f"]}));
    for origin in turn_origins() {
        let whole = own.joined(origin.metadata()).into_owned();
        let decoded = serde_json::from_str(&serde_json::to_string(&origin).unwrap()).unwrap();
        for known in [Some(decoded), None] {
            assert_eq!(TurnOrigin::split(known, whole.clone()), (origin.clone(), own.clone()));
        }
    }
    for (kind, origin) in task_origins() {
        let (whole, id) = (own.joined(origin.metadata()).into_owned(), task_id(&origin));
        let decoded = serde_json::from_str(&serde_json::to_string(&origin).unwrap()).unwrap();
        for known in [Some(decoded), None] {
            let found = TaskOrigin::split(known, (&agent(), &id, kind), whole.clone());
            assert_eq!(found, (origin.clone(), own.clone()));
        }
        assert!(origin.fits(&id, kind), "{origin:?}");
    }
}

#[test]
fn metadata_of_another_form_is_kept_whole() {
    let timer = TimerId::follow_up(&thread(), Position::from_stored(9));
    for whole in [
        json!({"synthetic": true}),
        json!({"synthetic": true, "continues": "7", "continuation_number": 1}),
        json!({"synthetic": true, "timer_id": timer.as_str(), "trigger_type": "new", "trigger_reason": ""}),
        json!({"synthetic": "true", "timer_id": timer.as_str(), "trigger_type": "check_in", "trigger_reason": ""}),
        json!({"continues": "07", "heartbeat": true}),
        json!({"thread_id": "t", "turn_id": "u", "assistant_message_id": "u-a", "batch_id": "7"}),
        json!({"thread_id": "t", "compaction_id": 7}),
    ] {
        let whole = map(whole);
        let (origin, own) = TurnOrigin::split(None, whole.clone());
        assert_eq!((origin.is_synthetic(), &own), (false, &whole));
        for kind in TaskKind::ALL {
            let id = TaskId::parse("k").unwrap();
            let (origin, own) = TaskOrigin::split(None, (&agent(), &id, kind), whole.clone());
            assert_eq!((origin.is_of_system(), &own), (false, &whole), "{kind:?}");
        }
    }
}

#[test]
fn a_sender_requests_a_batch_with_its_own_metadata() {
    let batch = Position::from_stored(7);
    for (metadata, requested) in [
        (json!({}), RequestedBatch::New),
        (json!({"continues": "7"}), RequestedBatch::Continue(batch)),
        (json!({"continues": "7", "heartbeat": "true"}), RequestedBatch::Continue(batch)),
        (json!({"continues": "7", "heartbeat": true}), RequestedBatch::Heartbeat(batch)),
        (json!({"continues": 7, "heartbeat": true}), RequestedBatch::New),
        (json!({"continues": "0"}), RequestedBatch::New),
        (json!({"continues": "x"}), RequestedBatch::New),
    ] {
        assert_eq!(RequestedBatch::of(&map(metadata.clone())), requested, "{metadata}");
        let (origin, own) = TurnOrigin::split(None, map(metadata.clone()));
        assert_eq!((origin, own), (TurnOrigin::Person { requested }, map(metadata)));
    }
}

#[test]
fn ids_show_which_origins_they_can_have() {
    let timer = TimerId::follow_up(&thread(), Position::from_stored(9));
    let ids = [
        turn_id(),
        TurnId::heartbeat(&thread(), "01f3").unwrap(),
        TurnId::continuation(&thread(), Position::from_stored(8)).unwrap(),
        timer.turn().unwrap(),
    ];
    let fitting =
        turn_origins().iter().map(|origin| ids.each_ref().map(|id| origin.fits(id))).collect::<Vec<_>>();
    assert_eq!(
        fitting,
        [
            [true, true, true, true],
            [false, true, true, false],
            [false, true, true, false],
            [false, false, false, true],
        ]
    );
    let other = TaskId::parse("t0001-78-h").unwrap();
    for (kind, origin) in task_origins() {
        let may_be_other = !origin.is_continuation();
        assert_eq!(origin.fits(&other, kind), may_be_other, "{origin:?}");
        let others = TaskKind::ALL.into_iter().filter(|kind| origin.fits(&task_id(&origin), *kind)).count();
        let expected = match origin {
            TaskOrigin::Sent { .. } | TaskOrigin::Continuation(_) => 4,
            TaskOrigin::AfterTurn(_) => 2,
            TaskOrigin::ContinuationAfterTurn { .. } => 3,
            TaskOrigin::Scheduled { .. } | TaskOrigin::Summary { .. } => 1,
        };
        assert_eq!(others, expected, "{origin:?}");
    }
}

#[test]
fn an_edit_keeps_what_the_system_wrote() {
    let edited = |kind, before: Value, after: Value| {
        let (agent, id) = (AgentId::parse("a").unwrap(), TaskId::parse("x").unwrap());
        let (origin, metadata) = TaskOrigin::split(None, (&agent, &id, kind), map(before));
        let mut task = Task { agent, id, kind, content: "old".to_owned(), origin, metadata };
        let unchanged = task.clone();
        task.edit(&TaskEdit::default());
        assert_eq!(task, unchanged);
        task.edit(&TaskEdit { content: Some("new".to_owned()), metadata: None });
        assert_eq!((&*task.content, &task.metadata), ("new", &unchanged.metadata));
        task.edit(&TaskEdit { content: None, metadata: Some(map(after)) });
        assert_eq!(task.content, "new");
        task.task_metadata().to_value()
    };
    for turn in ["u", "u0001-x"] {
        let follows =
            json!({"thread_id": "t", "turn_id": turn, "assistant_message_id": "u-a", "batch_id": "7"});
        let wanted = json!({"thread_id": "other", "continues": "7", "note": 1});
        let both = json!({"thread_id": "t", "turn_id": turn, "assistant_message_id": "u-a", "batch_id": "7", "note": 1});
        assert_eq!(edited(TaskKind::Memory, follows.clone(), json!({})), follows);
        assert_eq!(edited(TaskKind::WorkRequest, follows.clone(), wanted.clone()), both);
        assert_eq!(edited(TaskKind::Task, follows, wanted.clone()), wanted, "a client wrote all of it");
    }
    let continuation =
        json!({"synthetic": true, "continues": "7", "continuation_number": 1, "turn_id": "t0001-5"});
    assert_eq!(edited(TaskKind::Task, continuation.clone(), json!({})), continuation);
    assert_eq!(edited(TaskKind::Task, json!({"a": 1}), json!({})), json!({}));
}

#[test]
fn an_edit_changes_the_batch_that_a_sender_requests() {
    let (agent, id) = (agent(), TaskId::parse("k").unwrap());
    let (kind, origin) = (TaskKind::Task, TaskOrigin::of_sender(&Metadata::EMPTY));
    let mut task = Task { agent, id, kind, content: "go".to_owned(), origin, metadata: Metadata::EMPTY };
    task.edit(&TaskEdit { content: None, metadata: Some(map(json!({"continues": "7"}))) });
    assert_eq!(task.origin.continues(), Some(Position::from_stored(7)));
}

#[test]
fn the_input_of_background_work_is_marked() {
    let (_, origin) = task_origins().remove(3);
    let (agent, id) = (agent().queue_of(TaskKind::Memory), TaskId::parse("k").unwrap());
    let metadata = map(json!({"recalled": []}));
    let task = Task { agent, id, kind: TaskKind::Memory, content: "note".to_owned(), origin, metadata };
    let (turn, answer) = (turn_id(), turn_id().answer(0));
    let input = task.input_metadata();
    let expected = json!({
        "thread_id": "t", "turn_id": turn.as_str(), "assistant_message_id": answer.as_str(), "batch_id": "7",
        "recalled": [], "synthetic": true, "trigger_type": "memory", "task_id": "k", "task_kind": "memory",
    });
    assert_eq!(input.to_value(), expected);
    assert!(input.is_synthetic());
    assert_eq!(input.answer_followed(&task.agent), Some((thread(), answer)));
    assert_eq!(stored_source_thread(&task.agent, TaskKind::Memory, &input), Some(thread()));
    assert_eq!(task.batch_type(), BatchType::SystemTrigger);
}

#[test]
fn only_what_follows_a_turn_carries_its_text() {
    let of = |agent: &str, kind, metadata: Value| {
        let source = stored_source_thread(&AgentId::parse(agent).unwrap(), kind, &map(metadata));
        source.map(|thread| thread.as_str().to_owned())
    };
    let follows = json!({"thread_id": "t", "turn_id": "u", "assistant_message_id": "u-a"});
    assert_eq!(of("a", TaskKind::Memory, follows.clone()).as_deref(), Some("t"));
    assert_eq!(of("acme~a", TaskKind::WorkRequest, follows.clone()).as_deref(), Some("acme~t"));
    let summary = json!({"thread_id": "t", "compaction_id": "7"});
    assert_eq!(of("a", TaskKind::Compaction, summary).as_deref(), Some("t"));
    assert_eq!(of("a", TaskKind::Task, follows), None, "it was sent from outside, whatever it says");
    assert_eq!(of("a", TaskKind::Memory, json!({"thread_id": "t"})), None);
    assert_eq!(of("a", TaskKind::Memory, json!({"thread_id": "b~t", "compaction_id": "7"})), None);
}

#[test]
fn a_follow_up_says_of_itself_what_is_reserved() {
    let timer = TimerId::follow_up(&thread(), Position::from_stored(9));
    let (trigger, reason) = (TriggerType::CheckIn, "quiet \0 for an hour".into());
    let metadata = TurnOrigin::FollowUp { timer: timer.clone(), trigger, reason }.metadata();
    let (key, timer) = ("timer_id", timer.as_str());
    assert_eq!(
        metadata.to_value(),
        json!({"synthetic": true, "trigger_type": "check_in", "trigger_reason": "quiet  for an hour", key: timer})
    );
    assert!(Metadata::RESERVED.iter().all(|name| metadata.get(name).is_some()));
}
