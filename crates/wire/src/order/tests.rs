use model::{Cut, IdRange, MessageId, PartitionCount, PartitionId, Position, Seq};
use proptest::prelude::*;
use serde_json::json;

use super::*;
use crate::explain::{self, ActiveTurn, Explanation, OpenMessage, WaitReason, WaitingTurn};
use crate::{DecodeLimits, Decoded, decode_entry, query};

fn limits() -> DecodeLimits {
    DecodeLimits { chunk_bytes: 64 * 1024, partitions: PartitionCount::new(1).unwrap() }
}

fn decode(subject: &str, payload: impl Into<Bytes>) -> Result<Order, Refusal> {
    match decode_entry(PartitionId(0), subject, None, &payload.into(), &limits())? {
        Decoded::Order(order) => Ok(order),
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
    let bucket = (Bucket::of(&thread()).get() + 1) % model::BUCKETS;
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

fn opening(change: impl FnOnce(&mut pb::TurnOpened)) -> Vec<u8> {
    let mut opened = pb_opened();
    change(&mut opened);
    pb::Frame { opened: Some(opened), ..pb::Frame::default() }.encode_to_vec()
}

fn tasking(change: impl FnOnce(&mut pb::Task)) -> Vec<u8> {
    let mut task = pb::Task { task_id: "k1".to_owned(), content: "work".to_owned(), ..pb::Task::default() };
    change(&mut task);
    pb::TaskEntry { task: Some(task), act: None }.encode_to_vec()
}

fn pb_act(what: pb::control::What) -> pb::Control {
    pb::Control { act_id: "c1".to_owned(), actor: "somebody".to_owned(), what: Some(what) }
}

fn on_thread(act: pb::Control) -> Vec<u8> {
    pb::Frame { act: Some(act), ..pb::Frame::default() }.encode_to_vec()
}

fn on_agent(act: pb::Control) -> Vec<u8> {
    pb::TaskEntry { act: Some(act), task: None }.encode_to_vec()
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
        (run, policy) in (0..=MAX_RUN, prop::sample::select(BusyPolicy::ALL.to_vec())),
        (content, metadata, parameters) in (content(), metadata(), metadata()),
        (work_request, memory) in any::<(bool, bool)>(),
        (actor, correlation_id) in (prop::option::of("[^\\x00]{1,20}"), prop::option::of("[^\\x00]{1,20}")),
    ) {
        let thread = ThreadId::parse(&thread).unwrap();
        let opened = TurnOpened {
            turn: TurnId::foreground(&thread, &unique).unwrap(),
            agent: AgentId::parse(&agent).unwrap(),
            actor: actor.map(Into::into),
            correlation_id: correlation_id.map(Into::into),
            thread, run, policy, content, metadata, parameters, work_request, memory,
        };
        let decoded = decode(&format!("chunks.0.{}", opened.thread), encode_opened(&opened));
        prop_assert_eq!(decoded, Ok(Order::Turn(Box::new(opened))));
    }

    #[test]
    fn tasks_come_back_as_they_went_in_both_forms(
        (agent, id) in (id(), id()),
        kind in prop::sample::select(TaskKind::ALL.to_vec()),
        (content, metadata) in (content(), metadata()),
    ) {
        let (agent, id) = (AgentId::parse(&agent).unwrap().queue_of(kind), TaskId::parse(&id).unwrap());
        let task = Task { agent, id, kind, content, metadata };
        let subject = format!("tasks.0.{}", task.agent);
        prop_assert_eq!(decode(&subject, encode_task(&task)), Ok(Order::Task(task.clone())));
        let json = json!({
            "task_id": task.id, "content": task.content, "metadata": task.metadata, "kind": kind.name(),
        });
        prop_assert_eq!(decode(&subject, json.to_string()), Ok(Order::Task(task.clone())));
        let with_line_feed = format!("\n\r {json}");
        prop_assert_eq!(decode(&subject, with_line_feed), Ok(Order::Task(task)));
    }

    #[test]
    fn acts_come_back_as_they_went(
        (subject, id, task) in (id(), id(), id()),
        actor in "[^\\x00]{0,20}",
        (content, metadata) in (content(), metadata()),
        index in 0..8_usize,
    ) {
        let subject = AgentId::parse(&subject).unwrap();
        let turn = TurnId::foreground(&subject.thread(), "x").unwrap();
        let task = TaskId::parse(&task).unwrap();
        let all = [
            ActKind::Pause, ActKind::Resume, ActKind::ClearBackoff, ActKind::StopTurn(turn.clone()),
            ActKind::RetryTask(task.clone()), ActKind::DropTask(task.clone()),
            ActKind::EditTask { task, content, metadata }, ActKind::DropFailedTurn(turn),
        ];
        let what = all[index].clone();
        let act = Act { id: ActId::parse(&id).unwrap(), actor: actor.into(), subject, what };
        let one = PartitionCount::new(1).unwrap();
        let decoded = decode(&crate::subject::act_exact(one, &act), encode_act(&act));
        prop_assert_eq!(decoded, Ok(Order::Act(act)));
    }

    #[test]
    fn damage_is_refused_or_read_and_never_more(
        on_tasks in any::<bool>(), at in any::<prop::sample::Index>(), byte in any::<u8>(),
        cut in any::<prop::sample::Index>(),
    ) {
        let (subject, mut payload) = match on_tasks {
            true => ("tasks.0.a1", tasking(|_| {})),
            false => ("chunks.0.t1", opening(|_| {})),
        };
        let length = payload.len();
        payload[at.index(length)] = byte;
        let _ = decode_entry(PartitionId(0), subject, None, &payload.clone().into(), &limits());
        payload.truncate(cut.index(length));
        let _ = decode_entry(PartitionId(0), subject, None, &payload.into(), &limits());
    }

    #[test]
    fn explanations_come_back_as_they_went(
        turns in prop::collection::vec("[A-Za-z0-9_-]{1,80}", 0..4),
        (run, idle_ms, for_ms) in (any::<u32>(), any::<i64>(), any::<i64>()),
        (reason, waits_for) in (prop::option::of(0..7_usize), prop::option::of(0..7_usize)),
        (paused, head) in (any::<bool>(), prop::option::of(id())),
        epoch in any::<u64>(),
        gap_for_ms in prop::option::of(any::<i64>()),
    ) {
        let reasons = [
            WaitReason::Backoff { for_ms }, WaitReason::HeadOfLine, WaitReason::Gap, WaitReason::Paused,
            WaitReason::NoWorkflow, WaitReason::Capacity, WaitReason::CatchingUp,
        ];
        let waiting: Vec<_> = turns
            .iter()
            .map(|unique| WaitingTurn {
                turn: TurnId::foreground(&thread(), unique).unwrap(),
                reason: reasons[unique.len() % reasons.len()],
                age_ms: idle_ms,
                steps_aside: paused,
            })
            .collect();
        let active = waiting.first().map(|first| ActiveTurn {
            turn: first.turn.clone(),
            thread: thread(),
            message: first.turn.answer(run),
            waits_for: waits_for.map(|index| reasons[index]),
            run, idle_ms,
        });
        let reason = reason.map(|index| reasons[index]);
        let head = head.map(|head| TaskId::parse(&head).unwrap());
        let missing = vec![IdRange { first: run, last: run }];
        let open = turns.iter().map(|unique| OpenMessage {
            message: MessageId::parse(unique).unwrap(),
            expected: run, received: 1, released: 0, missing: missing.clone(), gap_for_ms,
        });
        let open = open.collect();
        let explanation = Explanation { active, waiting, reason, paused, head, known_up_to: Seq(77), open };
        let payload = explain::encode_explanation(epoch, &explanation);
        prop_assert_eq!(explain::decode_explanation(&payload).unwrap(), explanation);
        prop_assert_eq!(query::decode_reply(&payload).unwrap().cut.epoch, epoch);
    }
}

#[test]
fn both_kinds_of_questions_are_told_apart() {
    let have = vec![(MessageId::parse("m1").unwrap(), 1, 9)];
    let open = query::Query { thread: thread(), have, most_messages: 16 };
    assert_eq!(query::decode_question(&query::encode_query(&open)).unwrap(), query::Question::Open(open));
    let all = [
        explain::About::Agent(AgentId::parse("a1").unwrap()),
        explain::About::Thread(thread()),
        explain::About::Turn(turn()),
    ];
    for about in all {
        let asked = query::decode_question(&explain::encode_question(&about)).unwrap();
        assert_eq!(asked, query::Question::Why(about));
    }
    let nothing = pb::Query { about: Some(pb::About { what: None }), ..pb::Query::default() }.encode_to_vec();
    assert!(query::decode_question(&nothing.into()).is_err());
    let cut = Cut { epoch: 1, number: 0, committed: Position::from_stored(0), is_current: true };
    let of_text =
        query::encode_reply(&query::QueryReply { cut, open: Vec::new(), left_out: false, more: false });
    assert!(explain::decode_explanation(&of_text).is_err(), "the answer to another question");
    let unknown = pb::Explanation { reason: Some(pb::WaitReason::default()), ..pb::Explanation::default() };
    let unknown = pb::QueryReply { explanation: Some(unknown), ..pb::QueryReply::default() };
    assert!(explain::decode_explanation(&unknown.encode_to_vec().into()).is_err());
}

#[test]
fn hostile_openings_are_refused_with_their_reason() {
    let of = |change: fn(&mut pb::TurnOpened)| code("chunks.0.t1", opening(change));
    assert!(decode("chunks.0.t1", opening(|_| {})).is_ok());
    assert_eq!(of(|it| it.content.clear()), "empty_input");
    assert_eq!(of(|it| it.content = "x".repeat(MAX_INPUT_BYTES + 1)), "input_too_large");
    assert!(decode("chunks.0.t1", opening(|it| it.content = "x".repeat(MAX_INPUT_BYTES))).is_ok());
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
        |it| it.policy = 4,
        |it| it.policy = -1,
        |it| it.run = MAX_RUN + 1,
        |it| it.actor = "x".repeat(257),
        |it| it.actor = "\0".to_owned(),
        |it| it.correlation_id = "c\0".to_owned(),
    ];
    for change in invalid {
        assert_eq!(of(change), "invalid_order");
    }
    assert_eq!(of(|it| it.correlation_id = "x".repeat(257)), "invalid_order");
    let value = |kind| {
        Some(prost_types::Struct {
            fields: [("tokens_used".to_owned(), prost_types::Value { kind: Some(kind) })].into(),
        })
    };
    use prost_types::value::Kind;
    let too_long = value(Kind::StringValue("x".repeat(TurnOpened::MAX_PARAMETERS)));
    assert_eq!(code("chunks.0.t1", opening(|it| it.parameters = too_long)), "invalid_order");
    assert_eq!(
        code("chunks.0.t1", opening(|it| it.parameters = value(Kind::NumberValue(1e16)))),
        "metadata_error"
    );
    for (kind, expected) in [
        (Kind::NumberValue(-1.0), "metadata_error"),
        (Kind::NumberValue(f64::NAN), "invalid_order"),
        (Kind::StringValue("\0".to_owned()), "invalid_order"),
    ] {
        assert_eq!(code("chunks.0.t1", opening(|it| it.metadata = value(kind))), expected);
    }
}

#[test]
fn only_a_heartbeat_says_that_it_is_made_up() {
    let said = |heartbeat: bool| {
        let mut map = json!({"synthetic": true}).as_object().unwrap().clone();
        if heartbeat {
            map.insert("heartbeat".to_owned(), json!(1));
        }
        convert::pb_metadata(&Metadata::new(map).unwrap())
    };
    let opened = |id: &str, heartbeat: bool| {
        let id = TurnId::foreground(&thread(), id).unwrap();
        opening(|it| (it.turn_id, it.metadata) = (id.as_str().to_owned(), said(heartbeat)))
    };
    let task = |id: &str, heartbeat: bool| {
        tasking(|it| (it.task_id, it.metadata) = (id.to_owned(), said(heartbeat)))
    };
    assert!(decode("chunks.0.t1", opened("h123", true)).is_ok());
    assert!(decode("tasks.0.a1", task("t0001-123-h", true)).is_ok());
    for (id, heartbeat) in [("x", true), ("hello", true), ("h", true), ("h123", false)] {
        assert_eq!(code("chunks.0.t1", opened(id, heartbeat)), "metadata_error", "{id}");
    }
    for (id, heartbeat) in [("k1", true), ("k1-h", true), ("u0001-x-h", true), ("t0001-123-h", false)] {
        assert_eq!(code("tasks.0.a1", task(id, heartbeat)), "metadata_error", "{id}");
    }
    for name in Metadata::RESERVED {
        let json =
            json!({"task_id": "t0001-123-h", "content": "x", "metadata": {name: true, "heartbeat": 1}});
        assert_eq!(code("tasks.0.a1", json.to_string()), "metadata_error", "{name}");
    }
    let edit =
        pb::EditTask { task_id: "t0001-123-h".to_owned(), content: "x".to_owned(), metadata: said(true) };
    assert_eq!(code("tasks.0.a1", on_agent(pb_act(pb::control::What::EditTask(edit)))), "metadata_error");
}

#[test]
fn a_frame_is_chunks_or_one_order() {
    let chunk =
        || pb::Chunk { session_id: "t1".to_owned(), message_id: "m1".to_owned(), ..pb::Chunk::default() };
    let stop = || pb_act(pb::control::What::StopTurn(turn().as_str().to_owned()));
    let both =
        |chunks, opened, act| pb::Frame { chunks, opened, act, ..pb::Frame::default() }.encode_to_vec();
    for frame in [
        both(vec![chunk()], Some(pb_opened()), None),
        both(vec![chunk()], None, Some(stop())),
        both(Vec::new(), Some(pb_opened()), Some(stop())),
        both(Vec::new(), None, None),
        pb::Frame { turn_token: "x".to_owned(), ..pb::Frame::default() }.encode_to_vec(),
    ] {
        assert_eq!(code("chunks.0.t1", frame), "malformed");
    }
    let task = pb::Task { task_id: "k1".to_owned(), content: "x".to_owned(), ..pb::Task::default() };
    let two = pb::TaskEntry { task: Some(task), act: Some(pb_act(pb::control::What::Pause(()))) };
    assert_eq!(code("tasks.0.a1", two.encode_to_vec()), "malformed");
    assert_eq!(code("tasks.0.a1", ""), "malformed");
}

#[test]
fn what_follows_turns_is_kept_apart_from_tasks_and_inputs() {
    let memory = |it: &mut pb::Task| it.kind = TaskKind::Memory as i32;
    assert_eq!(code("tasks.0.a1", tasking(memory)), "wrong_queue");
    assert!(decode("tasks.0.a1+memory", tasking(memory)).is_ok());
    assert_eq!(code("tasks.0.a1+work_request", tasking(memory)), "wrong_queue");
    assert_eq!(code("tasks.0.a1+memory", tasking(|_| {})), "wrong_queue");
    assert_eq!(code("tasks.0.a1+memory", r#"{"task_id": "k", "content": "x"}"#), "wrong_queue");
    let of_queue = |it: &mut pb::TurnOpened| it.agent_id = "a1+memory".to_owned();
    assert_eq!(code("chunks.0.t1", opening(of_queue)), "internal_thread");
    let said = |message: &str| {
        let chunk = json!({"session_id": "a1+memory", "message_id": message, "chunk_id": 0, "chunk": "x"});
        decode_entry(PartitionId(0), "chunks.0.a1+memory", None, &chunk.to_string().into(), &limits())
    };
    assert_eq!(said("m1").unwrap_err().code, "internal_thread", "a message that nobody asked for");
    assert!(said("t0001-5-a").is_ok(), "its token is judged by the owner");
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
        assert_eq!(of(change), "invalid_order");
    }
    for (json, expected) in [
        (r#"{"content":"x"}"#, "malformed"),
        (r#"{"task_id":"k"}"#, "malformed"),
        (r#"{"task_id":"k","content":"x","priority":1}"#, "malformed"),
        (r#"{"task_id":7,"content":"x"}"#, "malformed"),
        (r#"{"task_id":"k","content":null}"#, "malformed"),
        (r#"{"task_id":"k","content":"\ud800"}"#, "malformed"),
        (r#"{"task_id":"k","content":"x","metadata":[]}"#, "malformed"),
        (r#"{"task_id":"k","content":"x","metadata":{"a":1e999}}"#, "malformed"),
        (r#"[{"task_id":"k","content":"x"}]"#, "malformed"),
        (r#"{"task_id":"k","content":"x"} x"#, "malformed"),
        (r#"{"task_id":"k","content":""}"#, "empty_input"),
        (r#"{"task_id":"k","content":"a\u0000"}"#, "invalid_order"),
        (r#"{"task_id":"k.","content":"x"}"#, "invalid_order"),
        (r#"{"task_id":"k","content":"x","kind":"TASK"}"#, "invalid_order"),
        (r#"{"task_id":"k","content":"x","kind":""}"#, "invalid_order"),
        (r#"{"task_id":"k","content":"x","metadata":{"a":"\u0000"}}"#, "invalid_order"),
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
    assert_eq!(code("tasks.0.a1", deep), "invalid_order");
    let minimal = decode("tasks.0.a1", r#"{"task_id":"k","content":"x"}"#).unwrap();
    let Order::Task(task) = minimal else { panic!("{minimal:?}") };
    assert_eq!((task.kind, task.metadata), (TaskKind::Task, Metadata::EMPTY));
}

#[test]
fn acts_stand_on_the_subject_of_what_they_are_about() {
    use pb::control::What;
    let (turn, task) = (turn().as_str().to_owned(), "k1".to_owned());
    for what in [
        What::Pause(()),
        What::Resume(()),
        What::ClearBackoff(()),
        What::RetryTask(task.clone()),
        What::DropTask(task.clone()),
        What::EditTask(pb::EditTask { task_id: task, content: "x".to_owned(), metadata: None }),
    ] {
        assert_eq!(code("chunks.0.t1", on_thread(pb_act(what.clone()))), "wrong_subject");
        assert!(decode("tasks.0.a1", on_agent(pb_act(what))).is_ok());
    }
    for what in [What::StopTurn(turn.clone()), What::DropFailedTurn(turn)] {
        assert_eq!(code("tasks.0.t1", on_agent(pb_act(what.clone()))), "wrong_subject");
        assert!(decode("chunks.0.t1", on_thread(pb_act(what))).is_ok());
    }
    let elsewhere = other_bucket().as_str().to_owned();
    assert_eq!(code("chunks.0.t1", on_thread(pb_act(What::StopTurn(elsewhere)))), "turn_mismatch");
}

#[test]
fn hostile_acts_are_refused_with_their_reason() {
    use pb::control::What;
    let edit = |task: &str, content: &str| {
        What::EditTask(pb::EditTask { task_id: task.to_owned(), content: content.to_owned(), metadata: None })
    };
    let of = |act| code("tasks.0.a1", on_agent(act));
    assert_eq!(of(pb_act(edit("k", ""))), "empty_input");
    assert_eq!(of(pb_act(edit("k", &"x".repeat(MAX_INPUT_BYTES + 1)))), "input_too_large");
    assert_eq!(of(pb_act(edit("k", "\0"))), "invalid_order");
    assert_eq!(of(pb_act(edit("k.", "x"))), "invalid_order");
    assert_eq!(of(pb_act(What::DropTask("*".to_owned()))), "invalid_order");
    let pause = || pb_act(What::Pause(()));
    for act in [
        pb::Control { what: None, ..pause() },
        pb::Control { act_id: String::new(), ..pause() },
        pb::Control { act_id: "a/b".to_owned(), ..pause() },
        pb::Control { actor: "x".repeat(257), ..pause() },
        pb::Control { actor: "\0".to_owned(), ..pause() },
    ] {
        assert_eq!(of(act), "invalid_order");
    }
    assert_eq!(code("chunks.0.t1", on_thread(pb_act(What::StopTurn(String::new())))), "invalid_order");
}

#[test]
fn agents_are_read_in_their_own_partition_only() {
    let payload = || tasking(|_| {}).into();
    let of = |p, subject: &str, count| {
        let limits = DecodeLimits { partitions: PartitionCount::new(count).unwrap(), ..limits() };
        decode_entry(PartitionId(p), subject, None, &payload(), &limits).map_err(|refusal| refusal.code)
    };
    let right = Bucket::of_key("a1").partition(PartitionCount::new(8).unwrap());
    for p in 0..8 {
        let read = of(p, &format!("tasks.{p}.a1"), 8);
        match p == right.0 {
            true => assert!(read.is_ok()),
            false => assert_eq!(read, Err("wrong_partition")),
        }
    }
    assert_eq!(of(0, "tasks.1.a1", 1), Err("invalid_subject"));
    assert_eq!(of(0, "tasks.0.a.1", 1), Err("invalid_subject"));
    assert_eq!(of(0, "tasks.0.", 1), Err("invalid_subject"));
}
