//! Origins of turns and tasks, typed and as earlier builds have sent them.

use model::{ContinuedBatch, FollowedTurn, TriggerType};

use super::*;

fn continued(turn: &str) -> ContinuedBatch {
    let turn = TurnId::parse(turn).unwrap();
    ContinuedBatch { batch: Position::from_stored(7), number: 2, turn }
}

fn followed(thread: &str) -> FollowedTurn {
    let thread = ThreadId::parse(thread).unwrap();
    let turn = TurnId::foreground(&thread, "x").unwrap();
    FollowedTurn { answer: turn.answer(1), turn, thread, batch: Position::from_stored(7) }
}

fn turns() -> Vec<TurnOpened> {
    let timer = TimerId::follow_up(&thread(), Position::from_stored(9));
    let fired = timer.turn().unwrap();
    let batch = Position::from_stored(7);
    let follow_up =
        TurnOrigin::FollowUp { timer, trigger: TriggerType::WaitingForDecision, reason: "r".into() };
    [
        (turn(), TurnOrigin::of_person(&Metadata::EMPTY)),
        (TurnId::heartbeat(&thread(), "01f3").unwrap(), TurnOrigin::Heartbeat { batch }),
        (TurnId::continuation(&thread(), batch).unwrap(), TurnOrigin::Continuation(continued("u0001-x"))),
        (fired, follow_up),
    ]
    .into_iter()
    .map(|(turn, origin)| TurnOpened {
        turn,
        thread: thread(),
        agent: AgentId::parse("a1").unwrap(),
        run: 0,
        content: "go".to_owned(),
        origin,
        metadata: Metadata::EMPTY,
        actor: None,
        options: TurnOptions::default(),
    })
    .collect()
}

fn tasks() -> Vec<Task> {
    let FollowedTurn { thread, answer, .. } = followed("t1");
    let summary = TaskOrigin::Summary { thread: thread.clone(), compaction: Position::from_stored(8) };
    let work = TaskOrigin::ContinuationAfterTurn { thread, answer, continued: continued("t0001-123") };
    let occurrence = format!("s0001-{}-1795950000000", "0".repeat(24));
    [
        ("k1", TaskKind::Task, TaskOrigin::of_sender(&Metadata::EMPTY)),
        (&occurrence, TaskKind::Task, TaskOrigin::of_schedule(&Metadata::EMPTY)),
        ("u0001-x-work", TaskKind::WorkRequest, TaskOrigin::AfterTurn(followed("t1"))),
        ("u0001-x-memory", TaskKind::Memory, TaskOrigin::AfterTurn(followed("t1"))),
        ("compaction-8", TaskKind::Compaction, summary),
        ("t0001-123-h", TaskKind::Task, TaskOrigin::Continuation(continued("t0001-123"))),
        ("t0001-123-h", TaskKind::WorkRequest, work),
    ]
    .into_iter()
    .map(|(id, kind, origin)| Task {
        agent: AgentId::parse("a1").unwrap().queue_of(kind),
        id: TaskId::parse(id).unwrap(),
        kind,
        content: "go".to_owned(),
        origin,
        metadata: Metadata::new(json!({"note": [1]}).as_object().unwrap().clone()).unwrap(),
    })
    .collect()
}

/// The entry as a build without the field has sent it.
fn of_earlier_build(entry: &[u8]) -> Vec<u8> {
    let mut entry = pb::CommandEntry::decode(entry).unwrap();
    entry.opened.iter_mut().for_each(|opened| opened.origin = None);
    entry.task.iter_mut().for_each(|task| task.origin = None);
    entry.encode_to_vec()
}

#[test]
fn every_origin_comes_back_also_from_an_earlier_build() {
    for opened in turns() {
        let (subject, entry) = (format!("commands.0.{}", opened.thread), encode_opened(&opened));
        let expected = Ok(Command::Turn(Box::new(opened)));
        assert_eq!(decode(&subject, of_earlier_build(&entry)), expected);
        assert_eq!(decode(&subject, entry), expected);
    }
    for task in tasks() {
        let (subject, entry) = (format!("commands.0.{}", task.agent), encode_task_of_fleet(&task));
        let expected = Ok(Command::Task(task));
        assert_eq!(decode(&subject, of_earlier_build(&entry)), expected);
        assert_eq!(decode(&subject, entry), expected);
    }
}

#[test]
fn an_origin_belongs_to_the_id_that_is_derived_from_it() {
    for opened in turns().into_iter().skip(1) {
        let other = TurnOpened { turn: turn(), ..opened };
        assert_eq!(code("commands.0.t1", encode_opened(&other)), "metadata_error", "{:?}", other.origin);
    }
    for task in tasks().into_iter().skip(5) {
        let other = Task { id: TaskId::parse("t0001-124-h").unwrap(), ..task };
        let subject = format!("commands.0.{}", other.agent);
        assert_eq!(code(&subject, encode_task_of_fleet(&other)), "metadata_error", "{:?}", other.origin);
    }
    let origin = TaskOrigin::AfterTurn(followed("other~t1"));
    let elsewhere = Task { origin, ..tasks().remove(2) };
    assert_eq!(code("commands.0.a1+work_request", encode_task_of_fleet(&elsewhere)), "other_tenant");
}

#[test]
fn only_the_fleet_says_what_the_origin_of_a_task_is() {
    for task in tasks() {
        let origin = Some(origin::pb_task_origin(&task.origin));
        assert_eq!(code("tasks.0.a1", tasking(|it| it.origin = origin)), RejectedEntry::WRONG_SUBJECT);
    }
    let json = json!({"task_id": "k1", "content": "x", "origin": {"kind": "scheduled"}});
    assert_eq!(code("tasks.0.a1", json.to_string()), "malformed");
}

#[test]
fn origins_that_make_no_sense_are_refused() {
    use pb::turn_origin::Kind;
    let of = |kind: Option<Kind>| {
        code("commands.0.t1", opening(|it| it.origin = Some(pb::TurnOrigin { kind: kind.clone() })))
    };
    let fired = |timer_id: &str, trigger_type: &str, reason: &str| {
        let [timer_id, trigger_type, reason] = [timer_id, trigger_type, reason].map(str::to_owned);
        Some(Kind::FollowUp(pb::FiredFollowUp { timer_id, trigger_type, reason }))
    };
    let timer = TimerId::follow_up(&thread(), Position::from_stored(9));
    assert_eq!(of(None), "invalid_command");
    for batch in [0, -1] {
        assert_eq!(of(Some(Kind::Heartbeat(batch))), "invalid_command");
    }
    assert_eq!(of(fired("x", "check_in", "")), "invalid_command");
    assert_eq!(of(fired(timer.as_str(), "summary", "")), "invalid_command");
    assert_eq!(of(fired(timer.as_str(), "check_in", "\0")), "invalid_command");
    let turn_id = "x".to_owned();
    let nowhere = pb::ContinuedBatch { batch: 1, number: 1, turn_id };
    assert_eq!(of(Some(Kind::Continuation(nowhere))), "invalid_command");
}
