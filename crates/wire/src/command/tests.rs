mod notes;
mod origins;
mod queries;
mod subjects;

use model::{
    ActiveTurn, Bucket, Command, Cut, DelayedTask, GatewayId, IdRange, MessageId, OpenMessageStatus,
    PartitionCount, PartitionId, Position, QueryTarget, QueueStatus, RequestInfo, Seq, TaskEdit, TurnOptions,
    TurnOrigin, WaitReason, WaitingTurn,
};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

use super::*;
use crate::query::Query;
use crate::{DecodeLimits, Decoded, decode_entry, query, status};

fn limits() -> DecodeLimits {
    DecodeLimits { chunk_bytes: 64 * 1024, partitions: PartitionCount::new(1).unwrap() }
}

fn decode(subject: &str, payload: impl Into<Bytes>) -> Result<Command, RejectedEntry> {
    match decode_entry(PartitionId(0), subject, None, &payload.into(), &limits())? {
        Decoded::Command(command) => Ok(command),
        Decoded::Frame(frame) => panic!("a frame: {frame:?}"),
    }
}

fn code(subject: &str, payload: impl Into<Bytes>) -> &'static str {
    decode(subject, payload).unwrap_err().code
}

fn thread() -> ThreadId {
    ThreadId::parse("t1").unwrap()
}

fn turn() -> TurnId {
    TurnId::foreground(&thread(), "x").unwrap()
}

fn other_bucket() -> TurnId {
    let bucket = (thread().bucket().get() + 1) % model::BUCKETS;
    TurnId::parse(&format!("u{bucket:04x}-x")).unwrap()
}

fn pb_opened() -> pb::TurnOpened {
    pb::TurnOpened {
        turn_id: turn().as_str().to_owned(),
        session_id: "t1".to_owned(),
        agent_id: "a1".to_owned(),
        content: "hello".to_owned(),
        ..pb::TurnOpened::default()
    }
}

fn options_of(opened: &mut pb::TurnOpened) -> &mut pb::TurnOptions {
    opened.options.get_or_insert_default()
}

fn opening(change: impl FnOnce(&mut pb::TurnOpened)) -> Vec<u8> {
    let mut opened = pb_opened();
    change(&mut opened);
    command_of(|entry| entry.opened = Some(opened))
}

fn tasking(change: impl FnOnce(&mut pb::Task)) -> Vec<u8> {
    let mut task = pb::Task { task_id: "k1".to_owned(), content: "work".to_owned(), ..pb::Task::default() };
    change(&mut task);
    pb::TaskEntry { task: Some(task) }.encode_to_vec()
}

/// A task sent by the fleet.
fn fleet_task(change: impl FnOnce(&mut pb::Task)) -> Vec<u8> {
    let task = pb::TaskEntry::decode(tasking(change).as_slice()).unwrap().task;
    command_of(|entry| entry.task = task)
}

fn command_of(change: impl FnOnce(&mut pb::CommandEntry)) -> Vec<u8> {
    let mut entry = pb::CommandEntry::default();
    change(&mut entry);
    entry.encode_to_vec()
}

fn pb_control(kind: pb::control::Kind) -> pb::Control {
    pb::Control { command_id: "c1".to_owned(), actor: "operator".to_owned(), kind: Some(kind) }
}

fn controlling(control: pb::Control) -> Vec<u8> {
    command_of(|entry| entry.control = Some(control))
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let text = "[^\\x00]{0,8}";
    prop::collection::vec((text, any::<i32>(), text), 0..3).prop_map(|entries| {
        let entries = entries
            .into_iter()
            .map(|(key, number, text)| (format!("k{key}"), json!([number, {"text": text}, null, true, 1.5])));
        Metadata::new(entries.collect()).unwrap()
    })
}

fn id() -> impl Strategy<Value = String> {
    "[A-Za-z0-9_-]{1,128}"
}

fn content() -> impl Strategy<Value = String> {
    "[^\\x00]{1,40}"
}

proptest! {
    #[test]
    fn openings_come_back_as_they_went(
        (thread, unique, agent) in (id(), "[A-Za-z0-9_-]{1,80}", id()),
        (run, busy_policy) in (0..=MAX_RUN, prop::sample::select(BusyPolicy::ALL.to_vec())),
        (content, metadata, parameters) in (content(), metadata(), metadata()),
        (actor, correlation_id) in (prop::option::of("[^\\x00]{1,20}"), prop::option::of("[^\\x00]{1,20}")),
    ) {
        let thread = ThreadId::parse(&thread).unwrap();
        let opened = TurnOpened {
            turn: TurnId::foreground(&thread, &unique).unwrap(),
            agent: AgentId::parse(&agent).unwrap(),
            actor: actor.map(Into::into),
            options: TurnOptions {
                correlation_id: correlation_id.map(Into::into),
                accepted_at: (run > 0).then_some(Timestamp(i64::from(run))),
                busy_policy, parameters,
            },
            origin: TurnOrigin::of_person(&metadata),
            thread, run, content, metadata,
        };
        let decoded = decode(&format!("commands.0.{}", opened.thread), encode_opened(&opened));
        prop_assert_eq!(decoded, Ok(Command::Turn(Box::new(opened))));
    }

    #[test]
    fn tasks_come_back_as_they_went_in_both_forms(
        (agent, id) in (id(), id()),
        (content, metadata) in (content(), metadata()),
    ) {
        let (agent, id) = (AgentId::parse(&agent).unwrap(), TaskId::parse(&id).unwrap());
        let origin = TaskOrigin::of_sender(&metadata);
        let task = Task { agent, id, kind: TaskKind::Task, content, origin, metadata };
        let subject = format!("tasks.0.{}", task.agent);
        prop_assert_eq!(decode(&subject, encode_task(&task)), Ok(Command::Task(task.clone())));
        let json = json!({
            "task_id": task.id, "content": task.content, "metadata": task.metadata, "kind": "task",
        });
        prop_assert_eq!(decode(&subject, json.to_string()), Ok(Command::Task(task.clone())));
        let with_line_feed = format!("\n\r {json}");
        prop_assert_eq!(decode(&subject, with_line_feed), Ok(Command::Task(task)));
    }

    #[test]
    fn tasks_of_the_fleet_come_back_as_they_went(
        (agent, id) in (id(), id()),
        kind in prop::sample::select(TaskKind::ALL.to_vec()),
        (content, metadata) in (content(), metadata()),
    ) {
        let (agent, id) = (AgentId::parse(&agent).unwrap().queue_of(kind), TaskId::parse(&id).unwrap());
        let origin = TaskOrigin::of_sender(&metadata);
        let task = Task { agent, id, kind, content, origin, metadata };
        let subject = format!("commands.0.{}", task.agent);
        prop_assert_eq!(decode(&subject, encode_task_of_fleet(&task)), Ok(Command::Task(task)));
    }

    #[test]
    fn delayed_tasks_come_back_as_they_went(
        (agent, id, at) in (id(), id(), 0_i64..=253_402_300_799_999),
        (content, metadata) in (content(), metadata()),
    ) {
        let (agent, id) = (AgentId::parse(&agent).unwrap(), TaskId::parse(&id).unwrap());
        let origin = TaskOrigin::of_sender(&metadata);
        let task = Task { agent, id, kind: TaskKind::Task, content, origin, metadata };
        let delayed = DelayedTask { task, not_before: Timestamp(at) };
        let decoded = decode(&format!("tasks.0.{}", delayed.task.agent), encode_delayed_task(&delayed));
        prop_assert_eq!(decoded, Ok(Command::DelayedTask(Box::new(delayed))));
    }

    #[test]
    fn acts_come_back_as_they_went(
        (subject, id, task) in (id(), id(), id()),
        actor in "[^\\x00]{0,20}",
        (content, metadata) in (content(), metadata()),
        (index, part) in (0..13_usize, 0..3),
    ) {
        let subject = AgentId::parse(&subject).unwrap();
        let turn = TurnId::foreground(&subject.thread(), "x").unwrap();
        let task = TaskId::parse(&task).unwrap();
        let edit = TaskEdit { content: (part != 0).then_some(content), metadata: (part != 1).then_some(metadata) };
        let all = [
            ControlKind::Pause, ControlKind::Resume, ControlKind::ClearBackoff, ControlKind::StopTurn(turn.clone()),
            ControlKind::RetryTask(task.clone()), ControlKind::DropTask(task.clone()),
            ControlKind::EditTask { task: task.clone(), edit }, ControlKind::DropFailedTurn(turn),
            ControlKind::SnoozeTimer {
                timer: TimerId::follow_up(&subject.thread(), Position::from_stored(7)), until: Timestamp(-8),
            },
            ControlKind::CancelTimer(TimerId::of_agent(TimerKind::Task, &subject, "x").unwrap()),
            ControlKind::PutSchedule(ScheduleName::parse("daily").unwrap()),
            ControlKind::DeleteSchedule(ScheduleName::parse("daily").unwrap()), ControlKind::DelayTask(task),
        ];
        let kind = all[index].clone();
        let control = Control { id: CommandId::parse(&id).unwrap(), actor: actor.into(), subject, kind };
        let one = PartitionCount::new(1).unwrap();
        let decoded = decode(&crate::subject::control_subject(one, &control), encode_control(&control));
        prop_assert_eq!(decoded, Ok(Command::Control(control)));
    }

    #[test]
    fn damage_is_refused_or_read_and_never_more(
        on_tasks in any::<bool>(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (subject, mut payload) = match on_tasks {
            true => ("tasks.0.a1", tasking(|_| {})),
            false => ("commands.0.t1", opening(|_| {})),
        };
        let length = payload.len();
        payload[at.index(length)] = byte;
        let _ = decode_entry(PartitionId(0), subject, None, &payload.clone().into(), &limits());
        payload.truncate(cut.index(length));
        let _ = decode_entry(PartitionId(0), subject, None, &payload.into(), &limits());
    }
}

#[test]
fn hostile_openings_are_refused_with_their_reason() {
    let of = |change: fn(&mut pb::TurnOpened)| code("commands.0.t1", opening(change));
    assert!(decode("commands.0.t1", opening(|_| {})).is_ok());
    assert_eq!(of(|it| it.content.clear()), "empty_input");
    assert_eq!(of(|it| it.content = "x".repeat(MAX_INPUT_BYTES + 1)), "input_too_large");
    assert!(decode("commands.0.t1", opening(|it| it.content = "x".repeat(MAX_INPUT_BYTES))).is_ok());
    assert_eq!(of(|it| it.session_id = "t2".to_owned()), "session_mismatch");
    assert_eq!(of(|it| it.session_id.clear()), "session_mismatch");
    assert_eq!(of(|it| it.turn_id = other_bucket().as_str().to_owned()), "turn_mismatch");
    let task_turn = |it: &mut pb::TurnOpened| it.turn_id.replace_range(..1, "t");
    assert_eq!(of(task_turn), "turn_mismatch", "a task's turn is opened by its task alone");
    let invalid: [fn(&mut pb::TurnOpened); 14] = [
        |it| it.content = "a\0b".to_owned(),
        |it| it.turn_id.clear(),
        |it| it.turn_id = "u0001".to_owned(),
        |it| it.turn_id.push('.'),
        |it| it.turn_id = "x".repeat(65_536),
        |it| it.agent_id.clear(),
        |it| it.agent_id = "a.b".to_owned(),
        |it| it.agent_id = "x".repeat(129),
        |it| options_of(it).busy_policy = 4,
        |it| options_of(it).busy_policy = -1,
        |it| it.run = MAX_RUN + 1,
        |it| it.actor = "x".repeat(257),
        |it| it.actor = "\0".to_owned(),
        |it| options_of(it).correlation_id = "c\0".to_owned(),
    ];
    for change in invalid {
        assert_eq!(of(change), "invalid_command");
    }
    assert_eq!(of(|it| options_of(it).correlation_id = "x".repeat(257)), "invalid_command");
    let value = |kind| {
        Some(prost_types::Struct {
            fields: [("tokens_used".to_owned(), prost_types::Value { kind: Some(kind) })].into(),
        })
    };
    use prost_types::value::Kind;
    let too_long = value(Kind::StringValue("x".repeat(TurnOptions::MAX_PARAMETERS)));
    assert_eq!(code("commands.0.t1", opening(|it| options_of(it).parameters = too_long)), "invalid_command");
    assert_eq!(
        code("commands.0.t1", opening(|it| options_of(it).parameters = value(Kind::NumberValue(1e16)))),
        "metadata_error"
    );
    for (kind, expected) in [
        (Kind::NumberValue(-1.0), "metadata_error"),
        (Kind::NumberValue(f64::NAN), "invalid_command"),
        (Kind::StringValue("\0".to_owned()), "invalid_command"),
    ] {
        assert_eq!(code("commands.0.t1", opening(|it| it.metadata = value(kind))), expected);
    }
}

#[test]
fn commands_about_timers_belong_to_their_threads_and_agents() {
    use pb::control::Kind;
    let of_thread = TimerId::follow_up(&thread(), Position::from_stored(7)).to_string();
    let agent = AgentId::parse("a1").unwrap();
    let of_agent = TimerId::of_agent(TimerKind::Task, &agent, "x").unwrap().to_string();
    let cancel = |timer: &str| pb_control(Kind::CancelTimer(timer.to_owned()));
    assert!(decode("commands.0.t1", controlling(cancel(&of_thread))).is_ok());
    assert!(decode("commands.0.a1", controlling(cancel(&of_agent))).is_ok());
    let elsewhere = TimerId::follow_up(&ThreadId::parse("t2").unwrap(), Position::from_stored(7)).to_string();
    for timer in [&elsewhere, &of_agent] {
        assert_eq!(code("commands.0.t1", controlling(cancel(timer))), "timer_mismatch", "{timer}");
    }
    for timer in [&elsewhere, &of_thread] {
        assert_eq!(code("commands.0.a1", controlling(cancel(timer))), "timer_mismatch", "{timer}");
    }
    assert_eq!(code("commands.0.a1", controlling(cancel("x"))), "invalid_command");
    let snooze = |timer_id: String| pb_control(Kind::SnoozeTimer(pb::SnoozeTimer { timer_id, until_ms: 5 }));
    assert_eq!(
        code("commands.0.a1", controlling(snooze(of_agent))),
        "timer_mismatch",
        "a task is not put off"
    );
    assert_eq!(
        code("commands.0.a1", controlling(pb_control(Kind::PutSchedule("a.b".to_owned())))),
        "invalid_command"
    );
}

#[test]
fn what_a_timer_fires_is_read_as_it_was_sent() {
    let timer = model::TimerId::follow_up(&thread(), Position::from_stored(123));
    let origin = TurnOrigin::FollowUp {
        timer: timer.clone(),
        trigger: model::TriggerType::CheckIn,
        reason: "quiet".into(),
    };
    let mut said = origin.metadata().as_map().cloned().unwrap();
    let opened = TurnOpened {
        turn: timer.turn().unwrap(),
        thread: thread(),
        agent: AgentId::parse("a1").unwrap(),
        run: 0,
        content: "Continue our conversation naturally.".to_owned(),
        origin,
        metadata: Metadata::EMPTY,
        actor: None,
        options: TurnOptions::default(),
    };
    let read = decode("commands.0.t1", encode_opened(&opened));
    assert_eq!(read, Ok(Command::Turn(Box::new(opened.clone()))));
    // An earlier build has sent only the metadata.
    let earlier = |turn: &TurnId, metadata: Map<String, Value>| {
        let metadata = convert::pb_metadata(&Metadata::new(metadata).unwrap());
        opening(|it| {
            (it.turn_id, it.metadata) = (turn.as_str().to_owned(), metadata);
            it.content.clone_from(&opened.content);
        })
    };
    assert_eq!(decode("commands.0.t1", earlier(&opened.turn, said.clone())), read);
    // The metadata are accepted only if the input's id is derived from a timer, and only with the
    // name of that timer.
    let other = TurnOpened { turn: turn(), ..opened.clone() };
    assert_eq!(code("commands.0.t1", encode_opened(&other)), "metadata_error");
    assert_eq!(code("commands.0.t1", earlier(&other.turn, said.clone())), "metadata_error");
    said.remove("timer_id");
    assert_eq!(code("commands.0.t1", earlier(&opened.turn, said)), "metadata_error");
}

#[test]
fn only_a_continuation_may_be_synthetic() {
    let said = |continuation: bool| {
        let mut map = json!({"synthetic": true}).as_object().unwrap().clone();
        if continuation {
            let more = json!({"continues": "7", "continuation_number": 1, "turn_id": "t0001-123"});
            map.extend(more.as_object().unwrap().clone());
        }
        convert::pb_metadata(&Metadata::new(map).unwrap())
    };
    let opened = |id: &str, continuation: bool| {
        let id = TurnId::foreground(&thread(), id).unwrap();
        opening(|it| (it.turn_id, it.metadata) = (id.as_str().to_owned(), said(continuation)))
    };
    let task = |id: &str, continuation: bool| {
        fleet_task(|it| (it.task_id, it.metadata) = (id.to_owned(), said(continuation)))
    };
    assert!(decode("commands.0.t1", opened("h123", true)).is_ok());
    assert!(decode("commands.0.a1", task("t0001-123-h", true)).is_ok());
    for (id, continuation) in
        [("x", true), ("hello", true), ("kx", true), ("k1", false), ("h", true), ("h123", false)]
    {
        assert_eq!(code("commands.0.t1", opened(id, continuation)), "metadata_error", "{id}");
    }
    for (id, continuation) in [("k1", true), ("k1-h", true), ("u0001-x-h", true), ("t0001-123-h", false)] {
        assert_eq!(code("commands.0.a1", task(id, continuation)), "metadata_error", "{id}");
    }
    for name in Metadata::RESERVED {
        let json = json!({"task_id": "t0001-123-h", "content": "x", "metadata": {name: true, "continuation_number": 1}});
        assert_eq!(code("tasks.0.a1", json.to_string()), "metadata_error", "{name}");
    }
    let as_others = tasking(|it| (it.task_id, it.metadata) = ("t0001-123-h".to_owned(), said(true)));
    assert_eq!(code("tasks.0.a1", as_others), "metadata_error", "only the fleet goes on with a turn");
    let edit = pb::EditTask {
        task_id: "t0001-123-h".to_owned(),
        content: Some("x".to_owned()),
        metadata: said(true),
    };
    assert_eq!(
        code("commands.0.a1", controlling(pb_control(pb::control::Kind::EditTask(edit)))),
        "metadata_error"
    );
}

#[test]
fn an_entry_of_commands_is_one_command() {
    let stop = || pb_control(pb::control::Kind::StopTurn(turn().as_str().to_owned()));
    let task = || pb::TaskEntry::decode(tasking(|_| {}).as_slice()).unwrap().task;
    for entry in [
        command_of(|_| {}),
        command_of(|entry| (entry.opened, entry.control) = (Some(pb_opened()), Some(stop()))),
        command_of(|entry| (entry.control, entry.task) = (Some(stop()), task())),
        command_of(|entry| (entry.opened, entry.task) = (Some(pb_opened()), task())),
        tasking(|_| {}),
        br#"{"task_id": "k", "content": "x"}"#.to_vec(),
        br#"{"stream":"PARTITION_0","seq":7}"#.to_vec(),
        br#"{"turn_id":"u0001-x","thread_id":"t1","agent_id":"a1","status":"completed"}"#.to_vec(),
    ] {
        assert_eq!(code("commands.0.t1", entry), "malformed");
    }
    assert_eq!(code("tasks.0.a1", ""), "malformed");
}

#[test]
fn what_follows_turns_is_kept_apart_from_tasks_and_inputs() {
    let memory = |it: &mut pb::Task| it.kind = TaskKind::Memory as i32;
    assert_eq!(code("commands.0.a1", fleet_task(memory)), "wrong_queue");
    assert!(decode("commands.0.a1+memory", fleet_task(memory)).is_ok());
    assert_eq!(code("commands.0.a1+work_request", fleet_task(memory)), "wrong_queue");
    assert_eq!(code("tasks.0.a1+memory", tasking(|_| {})), "wrong_queue");
    assert_eq!(code("tasks.0.a1+memory", r#"{"task_id": "k", "content": "x"}"#), "wrong_queue");
    let of_queue = |it: &mut pb::TurnOpened| it.agent_id = "a1+memory".to_owned();
    assert_eq!(code("commands.0.t1", opening(of_queue)), "internal_thread");
    let said = |message: &str| {
        let chunk = json!({"session_id": "a1+memory", "message_id": message, "chunk_id": 0, "chunk": "x"});
        decode_entry(PartitionId(0), "chunks.0.a1+memory", None, &chunk.to_string().into(), &limits())
    };
    assert_eq!(said("m1").unwrap_err().code, "internal_thread", "a message that no request opened");
    assert!(said("t0001-5-a").is_ok(), "its token is judged by the owner");
}

#[test]
fn agents_of_another_tenant_do_not_answer() {
    let by = |thread: &str, agent: &str| {
        let bucket = ThreadId::parse(thread).unwrap().bucket().get();
        opening(|it| {
            it.turn_id = format!("u{bucket:04x}-x");
            (it.session_id, it.agent_id) = (thread.to_owned(), agent.to_owned());
        })
    };
    assert!(decode("commands.0.acme~t1", by("acme~t1", "acme~a1")).is_ok());
    for (thread, agent) in [("acme~t1", "other~a1"), ("acme~t1", "a1"), ("t1", "acme~a1")] {
        let entry = by(thread, agent);
        assert_eq!(code(&format!("commands.0.{thread}"), entry), "other_tenant", "{agent} in {thread}");
    }
}

#[test]
fn half_of_a_utf16_pair_in_a_task_is_replaced() {
    let json = r#"{"task_id":"k","content":"a\ud83d","metadata":{"b":"\udea4\ud83d\udea4"}}"#;
    let Command::Task(task) = decode("tasks.0.a1", json).unwrap() else { panic!("no task") };
    assert_eq!(task.content, "a\u{fffd}");
    assert_eq!(task.metadata.to_value(), json!({"b": "\u{fffd}🚤"}));
}

#[test]
fn hostile_tasks_are_refused_with_their_reason() {
    let of = |change: fn(&mut pb::Task)| code("tasks.0.a1", tasking(change));
    assert_eq!(of(|it| it.content.clear()), "empty_input");
    assert_eq!(of(|it| it.content = "x".repeat(MAX_INPUT_BYTES + 1)), "input_too_large");
    let invalid: [fn(&mut pb::Task); 6] = [
        |it| it.task_id.clear(),
        |it| it.task_id = "a b".to_owned(),
        |it| it.task_id = "x".repeat(129),
        |it| it.kind = 4,
        |it| it.kind = i32::MIN,
        |it| it.content = "\0".to_owned(),
    ];
    for change in invalid {
        assert_eq!(of(change), "invalid_command");
    }
    for (json, expected) in [
        (r#"{"content":"x"}"#, "malformed"),
        (r#"{"task_id":"k"}"#, "malformed"),
        (r#"{"task_id":"k","content":"x","priority":1}"#, "malformed"),
        (r#"{"task_id":7,"content":"x"}"#, "malformed"),
        (r#"{"task_id":"k","content":null}"#, "malformed"),
        (r#"{"task_id":"k","content":"x","metadata":[]}"#, "malformed"),
        (r#"{"task_id":"k","content":"x","metadata":{"a":1e999}}"#, "malformed"),
        (r#"[{"task_id":"k","content":"x"}]"#, "malformed"),
        (r#"{"task_id":"k","content":"x"} x"#, "malformed"),
        (r#"{"task_id":"k","content":""}"#, "empty_input"),
        (r#"{"task_id":"k","content":"a\u0000"}"#, "invalid_command"),
        (r#"{"task_id":"k.","content":"x"}"#, "invalid_command"),
        (r#"{"task_id":"k","content":"x","kind":"TASK"}"#, "invalid_command"),
        (r#"{"task_id":"k","content":"x","kind":""}"#, "invalid_command"),
        (r#"{"task_id":"k","content":"x","metadata":{"a":"\u0000"}}"#, "invalid_command"),
        (r#"{"task_id":"k","content":"x","metadata":{"tokens_used":-1}}"#, "metadata_error"),
    ] {
        assert_eq!(code("tasks.0.a1", json), expected, "{json}");
    }
    let large = json!({"task_id": "k", "content": "x".repeat(MAX_INPUT_BYTES + 1)}).to_string();
    assert_eq!(code("tasks.0.a1", large), "input_too_large");
    let deep = format!(
        r#"{{"task_id":"k","content":"x","metadata":{{"x":{}1{}}}}}"#,
        "[".repeat(65),
        "]".repeat(65)
    );
    assert_eq!(code("tasks.0.a1", deep), "invalid_command");
    let minimal = decode("tasks.0.a1", r#"{"task_id":"k","content":"x"}"#).unwrap();
    let Command::Task(task) = minimal else { panic!("{minimal:?}") };
    assert_eq!((task.kind, task.metadata), (TaskKind::Task, Metadata::EMPTY));
}

#[test]
fn a_task_names_the_time_before_which_it_does_not_begin() {
    let at = |not_before: &str| format!(r#"{{"task_id":"k","content":"x","not_before":"{not_before}"}}"#);
    let Ok(Command::DelayedTask(delayed)) = decode("tasks.0.a1", at("2026-12-24T18:00:00.5+01:00")) else {
        panic!("no delayed task")
    };
    assert_eq!(delayed.not_before, Timestamp(1_798_131_600_500));
    for wrong in ["tomorrow", "2026-12-24", "1969-12-31T23:59:59Z"] {
        assert_eq!(code("tasks.0.a1", at(wrong)), "invalid_not_before", "{wrong}");
    }
    let memory = r#"{"task_id":"k","content":"x","kind":"memory","not_before":"2026-12-24T18:00:00Z"}"#;
    assert_eq!(code("tasks.0.a1+memory", memory), "wrong_subject");
}

#[test]
fn stops_are_of_turns_of_their_thread() {
    use pb::control::Kind;
    let turn = turn().as_str().to_owned();
    for kind in [Kind::StopTurn(turn.clone()), Kind::DropFailedTurn(turn)] {
        assert!(decode("commands.0.t1", controlling(pb_control(kind))).is_ok());
    }
    let elsewhere = other_bucket().as_str().to_owned();
    assert_eq!(code("commands.0.t1", controlling(pb_control(Kind::StopTurn(elsewhere)))), "turn_mismatch");
}

#[test]
fn hostile_acts_are_refused_with_their_reason() {
    use pb::control::Kind;
    let edit = |task: &str, content: &str| {
        Kind::EditTask(pb::EditTask {
            task_id: task.to_owned(),
            content: Some(content.to_owned()),
            metadata: None,
        })
    };
    let of = |control| code("commands.0.a1", controlling(control));
    let nothing = pb::EditTask { task_id: "k".to_owned(), content: None, metadata: None };
    assert_eq!(of(pb_control(Kind::EditTask(nothing))), "invalid_command");
    assert_eq!(of(pb_control(edit("k", ""))), "empty_input");
    assert_eq!(of(pb_control(edit("k", &"x".repeat(MAX_INPUT_BYTES + 1)))), "input_too_large");
    assert_eq!(of(pb_control(edit("k", "\0"))), "invalid_command");
    assert_eq!(of(pb_control(edit("k.", "x"))), "invalid_command");
    assert_eq!(of(pb_control(Kind::DropTask("*".to_owned()))), "invalid_command");
    let pause = || pb_control(Kind::Pause(()));
    for control in [
        pb::Control { kind: None, ..pause() },
        pb::Control { command_id: String::new(), ..pause() },
        pb::Control { command_id: "a/b".to_owned(), ..pause() },
        pb::Control { actor: "x".repeat(257), ..pause() },
        pb::Control { actor: "\0".to_owned(), ..pause() },
    ] {
        assert_eq!(of(control), "invalid_command");
    }
    assert_eq!(
        code("commands.0.t1", controlling(pb_control(Kind::StopTurn(String::new())))),
        "invalid_command"
    );
}
