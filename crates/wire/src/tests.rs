use bytes::Bytes;
use model::*;
use prost::Message as _;

use crate::*;

fn limits() -> DecodeLimits {
    DecodeLimits { chunk_bytes: 64 * 1024, partitions: PartitionCount::new(1).unwrap() }
}

fn decode(payload: impl Into<Bytes>) -> Result<Frame, RejectedEntry> {
    match decode_entry(PartitionId(0), "chunks.0.t1", None, &payload.into(), &limits())? {
        Decoded::Frame(frame) => Ok(frame),
        Decoded::Command(command) => panic!("a command: {command:?}"),
    }
}

fn code(payload: impl Into<Bytes>) -> &'static str {
    decode(payload).unwrap_err().code
}

fn frame(chunks: Vec<Chunk>) -> Frame {
    let arrival = |chunk| IncomingChunk {
        message: MessageId::parse("m1").unwrap(),
        attempt: 2,
        step: 1,
        role: Role::Assistant,
        chunk: std::sync::Arc::new(chunk),
    };
    Frame {
        thread: ThreadId::parse("t1").unwrap(),
        chunks: chunks.into_iter().map(arrival).collect(),
        token: None,
    }
}

fn rich() -> Chunk {
    let metadata = serde_json::json!({"tokens_used": 15, "a": [1.5, "x", null, {"b": true}]});
    Chunk {
        metadata: Metadata::new(metadata.as_object().unwrap().clone()).unwrap(),
        timestamp: Some("2026-01-02T03:04:05Z".into()),
        correlation_id: Some("c-1".into()),
        ..Chunk::content(1, "hé\u{2028}llo", true)
    }
}

#[test]
fn halves_of_utf16_pairs_are_no_reason_to_refuse_a_chunk() {
    let json = |fields: &str| format!(r#"{{"session_id":"t1","message_id":"m1","chunk_id":0,{fields}}}"#);
    let read = |fields: &str| decode(json(fields)).unwrap().chunks[0].chunk.clone();
    let first = read(r#""chunk":"Ahoy \ud83d""#);
    assert_eq!((&*first.text, first.halves), ("Ahoy ", Halves::new(None, Some(0xD83D))));
    let second = read(r#""chunk":"\udea4!","is_final":true"#);
    assert_eq!((&*second.text, second.halves), ("!", Halves::new(Some(0xDEA4), None)));
    assert_ne!(first.digest(), read(r#""chunk":"Ahoy \ud83e""#).digest(), "another half is another chunk");
    let metadata = read(r#""chunk":"\ud83d","metadata":{"k\udea4":["\ud83d"]}"#);
    assert_eq!(metadata.metadata.to_value(), serde_json::json!({"k\u{fffd}": ["\u{fffd}"]}));
    assert_eq!(metadata.halves.last(), Some(0xD83D), "the text keeps its half");
    let array = format!("[{},{}]", json(r#""chunk":"\ud83d""#), json(r#""chunk":"\udea4""#));
    assert_eq!(decode(array).unwrap().chunks.len(), 2);
}

#[test]
fn the_literal_json_of_c1_is_read() {
    let json = r#"{"session_id":"t1","message_id":"m1","chunk_id":3,"chunk":"d","chunk_type":"content","is_final":false,
        "metadata":{"k":1},"timestamp":"2026-01-02T03:04:05.678+02:00","correlation_id":"c"}"#;
    let frame = decode(json).unwrap();
    assert_eq!(frame.chunks[0].chunk.id, 3);
    assert_eq!(&*frame.chunks[0].chunk.text, "d");
    assert_eq!(frame.chunks[0].chunk.metadata.get("k"), Some(&1.into()));
    let minimal = decode(r#"{"session_id":"t1","message_id":"m1","chunk_id":0}"#).unwrap();
    assert_eq!(minimal.chunks[0].chunk.kind, ChunkKind::Content);
    assert_eq!(minimal.chunks[0].role, Role::Assistant);
}

#[test]
fn null_is_as_good_as_absent_for_whatever_may_be_absent() {
    let absent = decode(r#"{"session_id":"t1","message_id":"m1","chunk_id":0}"#).unwrap();
    let optional = ["chunk", "chunk_type", "is_final", "metadata", "timestamp", "correlation_id"];
    let ours = ["attempt", "step", "role", "turn_token"];
    for field in optional.into_iter().chain(ours) {
        let json = format!(r#"{{"session_id":"t1","message_id":"m1","chunk_id":0,"{field}":null}}"#);
        assert_eq!(decode(json).as_ref(), Ok(&absent), "{field}");
    }
    for field in ["session_id", "message_id", "chunk_id"] {
        let mut chunk = serde_json::json!({"session_id": "t1", "message_id": "m1", "chunk_id": 0});
        chunk[field] = serde_json::Value::Null;
        assert_eq!(code(chunk.to_string()), "malformed", "{field}");
    }
}

#[test]
fn frames_survive_both_encodings() {
    for frame in
        [frame(vec![Chunk::content(0, "a", false)]), frame(vec![Chunk::content(0, "a", false), rich()])]
    {
        assert_eq!(decode(encode_frame(&frame)).unwrap(), frame);
        assert_eq!(decode(encode_json(&frame)).unwrap(), frame);
    }
}

#[test]
fn a_turn_token_goes_with_the_frame() {
    let chunks = vec![Chunk::content(0, "a", false), rich()];
    let token = Some(TurnToken::received("0123abcd"));
    for chunks in [chunks[..1].to_vec(), chunks.clone()] {
        let mut with = Frame { token: token.clone(), ..frame(chunks) };
        for arrival in &mut with.chunks {
            arrival.message = MessageId::parse("u0001-x-a").unwrap();
        }
        assert_eq!(decode(encode_frame(&with)).unwrap(), with);
        assert_eq!(decode(encode_json(&with)).unwrap(), with);
    }
    // The same frame with the id of a delivery.
    let mut with =
        Frame { token: token.clone().map(|token| token.of_delivery("d-1")), ..frame(chunks.clone()) };
    for arrival in &mut with.chunks {
        arrival.message = MessageId::parse("u0001-x-a").unwrap();
    }
    for payload in [encode_frame(&with), encode_json(&with)] {
        let decoded = decode(payload).unwrap();
        assert_eq!(decoded.token.as_ref().and_then(TurnToken::delivery), Some("d-1"));
        assert_eq!(decoded, with);
    }
    with.token = token.clone().map(|token| token.of_delivery(&"d".repeat(65)));
    assert_eq!([code(encode_frame(&with)), code(encode_json(&with))], ["invalid_chunk"; 2]);
    // A token is only for the answer of a turn. If a chunk of another message has a token, it is
    // refused.
    for other in ["m1", "u0001-x", "u0001-x-q", "u0001-x-a-s0", "t0001-1-a-s0-r1"] {
        let mut with = Frame { token: token.clone(), ..frame(chunks.clone()) };
        for (arrival, id) in with.chunks.iter_mut().zip(["u0001-x-a", other]) {
            arrival.message = MessageId::parse(id).unwrap();
        }
        assert_eq!(code(encode_frame(&with)), "turn_mismatch", "{other}");
        assert_eq!(code(encode_json(&with)), "turn_mismatch", "{other}");
        let without = Frame { token: None, ..with };
        assert_eq!(decode(encode_json(&without)).unwrap(), without);
    }
    let json = |one: &str, two: &str| {
        let chunk = |id, token| format!(r#"{{"session_id":"t1","message_id":"m1","chunk_id":{id}{token}}}"#);
        format!("[{},{}]", chunk(0, one), chunk(1, two))
    };
    assert_eq!(decode(json("", "")).unwrap().token, None);
    assert_eq!(decode(json("", r#","turn_token":"""#)).unwrap().token, None);
    for (one, two) in [("a", "b"), ("a", ""), ("", "a")] {
        for name in ["turn_token", "delivery_id"] {
            let field = |text: &str| format!(r#","{name}":"{text}""#);
            assert_eq!(code(json(&field(one), &field(two))), "invalid_chunk", "{one} {two}");
        }
    }
    assert_eq!(decode(json(r#","delivery_id":"a""#, r#","delivery_id":"a""#)).unwrap().token, None);
    assert_eq!(code(json(r#","turn_token":7"#, "")), "malformed");
    assert_eq!(code(vec![0x12, 0x02, 0xFF, 0xFE]), "malformed", "a token that is no text");
}

#[test]
fn a_payload_that_begins_like_both_forms_is_decoded() {
    let json = format!("\n{}", String::from_utf8(encode_json(&frame(vec![rich()])).to_vec()).unwrap());
    assert!(decode(json).is_ok());
    for size in 0..300 {
        let frame = frame(vec![Chunk::content(0, &"{".repeat(size), false)]);
        assert_eq!(decode(encode_frame(&frame)).unwrap(), frame);
    }
}

#[test]
fn every_truncation_is_refused_or_valid() {
    let whole = encode_frame(&frame(vec![Chunk::content(0, "abc", false), rich()]));
    for length in 0..whole.len() {
        if let Ok(part) = decode(whole.slice(..length)) {
            assert_eq!(part.chunks.len(), 1, "only a cut between two chunks leaves a valid frame");
        }
    }
    let json = encode_json(&frame(vec![rich()]));
    for length in 0..json.len() {
        assert_eq!(code(json.slice(..length)), "malformed");
    }
}

#[test]
fn hostile_json_is_refused_with_its_reason() {
    let with = |field: &str| format!(r#"{{"session_id":"t1","message_id":"m1","chunk_id":0,{field}}}"#);
    for malformed in [
        "",
        " ",
        "{",
        "nul",
        "[]",
        "[1]",
        "\u{feff}{}",
        r#"{"session_id":"t1"}"#,
        r#"{"session_id":"t1","message_id":"m1","chunk_id":0} x"#,
        r#"{"session_id":"t1","message_id":"m1","chunk_id":"0"}"#,
        r#"{"session_id":"t1","message_id":"m1","chunk_id":0.0}"#,
        r#"{"session_id":"t1","message_id":"m1","chunk_id":9223372036854775808}"#,
        r#"{"session_id":"t1","message_id":"m1","chunkId":0}"#,
    ] {
        assert_eq!(code(malformed.to_owned()), "malformed", "{malformed}");
    }
    for field in [r#""is_final":1"#, r#""metadata":[]"#, r#""metadata":{"x":1e999}"#, r#""x":1"#] {
        assert_eq!(code(with(field)), "malformed", "{field}");
    }
    let deep = with(&format!(r#""metadata":{{"x":{}{}}}"#, "[".repeat(129), "]".repeat(129)));
    assert_eq!(code(deep), "malformed");
    for field in [
        r#""chunk":"a\u0000""#,
        r#""chunk_type":"event""#,
        r#""role":"root""#,
        r#""metadata":{"x":"\u0000"}"#,
        r#""timestamp":"infinity""#,
        r#""timestamp":"+294277-01-01T00:00:00Z""#,
        r#""timestamp":"yesterday""#,
    ] {
        assert_eq!(code(with(field)), "invalid_chunk", "{field}");
    }
    for id in ["-1", "1000000", "4294967295"] {
        let json = format!(r#"{{"session_id":"t1","message_id":"m1","chunk_id":{id}}}"#);
        assert_eq!(code(json), "invalid_chunk", "{id}");
    }
    for tokens in ["null", "-1", "9007199254740993"] {
        assert_eq!(
            code(with(&format!(r#""is_final":true,"metadata":{{"tokens_used":{tokens}}}"#))),
            "metadata_error"
        );
    }
    assert_eq!(code(with(&format!(r#""chunk":"{}""#, "x".repeat(65_537)))), "chunk_too_large");
}

#[test]
fn what_only_the_system_may_say_is_refused_in_both_forms() {
    for (metadata, shown) in [
        (serde_json::json!({"synthetic": true}), "metadata.synthetic"),
        (serde_json::json!({"synthetic": "no"}), "metadata.synthetic"),
        (serde_json::json!({"trigger_type": "check_in"}), "metadata.trigger_type"),
        (serde_json::json!({"trigger_reason": "quiet"}), "metadata.trigger_reason"),
        (serde_json::json!({"n": [9_007_199_254_740_994_u64]}), "2^53"),
        (serde_json::json!({"n": 1e300}), "2^53"),
    ] {
        for is_final in [false, true] {
            let metadata = Metadata::new(metadata.as_object().unwrap().clone()).unwrap();
            let hidden = frame(vec![Chunk { metadata, ..Chunk::content(0, "hidden", is_final) }]);
            for payload in [encode_json(&hidden), encode_frame(&hidden)] {
                let refusal = decode(payload).unwrap_err();
                assert_eq!(refusal.code, "metadata_error");
                assert!(refusal.detail.contains(shown), "{}", refusal.detail);
            }
        }
    }
}

#[test]
fn hostile_ids_and_subjects_are_refused() {
    for id in ["", "a.b", "*", ">", "../", "é", &"x".repeat(129), &"x".repeat(65_536)] {
        let json = serde_json::json!({"session_id": "t1", "message_id": id, "chunk_id": 0}).to_string();
        assert_eq!(code(json), "invalid_chunk");
    }
    assert_eq!(code(r#"{"session_id":"t2","message_id":"m1","chunk_id":0}"#), "session_mismatch");
    let payload: Bytes = encode_frame(&frame(vec![rich()]));
    let of =
        |subject: &str| decode_entry(PartitionId(0), subject, None, &payload, &limits()).unwrap_err().code;
    assert_eq!(of("chunks.0.é"), "invalid_subject");
    assert_eq!(of("chunks.1.t1"), "invalid_subject");
    assert_eq!(of("tasks.0.t1"), "malformed", "a frame where a task should be");
    let two = DecodeLimits { partitions: PartitionCount::new(1024).unwrap(), ..limits() };
    let wrong = decode_entry(PartitionId(0), "chunks.0.t1", None, &payload, &two).unwrap_err();
    assert_eq!(wrong.code, "wrong_partition");
}

#[test]
fn hostile_protobuf_is_refused() {
    let chunk = pb::Chunk { session_id: "t1".into(), message_id: "m1".into(), ..pb::Chunk::default() };
    let frame = |chunk: pb::Chunk| pb::Frame { chunks: vec![chunk], ..pb::Frame::default() }.encode_to_vec();
    assert_eq!(code(frame(pb::Chunk { chunk_type: i32::MAX, ..chunk.clone() })), "invalid_chunk");
    assert_eq!(code(frame(pb::Chunk { chunk_id: -1, ..chunk.clone() })), "invalid_chunk");
    assert_eq!(code(frame(pb::Chunk { chunk: "\0".into(), ..chunk.clone() })), "invalid_chunk");
    assert_eq!(code(vec![0x0B; 10_000]), "malformed", "nested groups");
    assert_eq!(
        code(vec![0x0A, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0xFF, 0x7F]),
        "malformed",
        "length 2^63"
    );
    let mut unknown = frame(chunk.clone());
    unknown.extend([0xA8, 0x01, 0x07]);
    assert!(decode(unknown).is_ok(), "unknown fields are for later versions");
    let nan = prost_types::Value { kind: Some(prost_types::value::Kind::NumberValue(f64::NAN)) };
    let metadata = prost_types::Struct { fields: [("x".to_owned(), nan)].into_iter().collect() };
    assert_eq!(code(frame(pb::Chunk { metadata: Some(metadata), ..chunk })), "invalid_chunk");
}

#[test]
fn out_frames_survive() {
    let failures = [
        MessageFailure::GapTimeout { missing: vec![IdRange { first: 2, last: 4 }] },
        MessageFailure::Stalled,
        MessageFailure::UnknownThread,
        MessageFailure::FinalConflict { final_id: 5, other_id: 6 },
        MessageFailure::TooManyChunks { limit: 10_000 },
        MessageFailure::MessageTooLarge { limit: 4 << 20 },
        MessageFailure::ProducerError {
            text: "no model".into(),
            code: Some("model_away".into()),
            hint: model::RetryHint::TRANSIENT,
        },
        MessageFailure::Refused {
            code: "invalid_chunk".into(),
            detail: "chunk_id is -1".into(),
            dead_letter: "entry:0:1:7".into(),
        },
        MessageFailure::ProducerError {
            text: "no key".into(),
            code: None,
            hint: model::RetryHint { class: model::ErrorClass::Auth, retry_after_ms: None },
        },
        MessageFailure::Unrequestable { detail: "too large".into() },
        MessageFailure::Turn(model::TurnError::Deadline),
        MessageFailure::Unstorable { detail: "22P05".into() },
    ];
    let outcomes = failures
        .map(MessageOutcome::Failed)
        .into_iter()
        .chain([MessageOutcome::Complete, MessageOutcome::Stopped]);
    let used = ModelCall {
        model: Some("m".into()),
        input_tokens: 1 << 40,
        output_tokens: 3,
        cached_tokens: Some(0),
        reasoning_tokens: None,
        is_estimated: true,
    };
    let reports = FinishReason::ALL.map(|reason| AnswerReport {
        finish_reason: Some(reason),
        usage: (reason != FinishReason::Stop).then(|| Box::new(used.clone())),
    });
    let reports = reports.into_iter().chain([AnswerReport::default()]).cycle();
    for (outcome, report) in outcomes.zip(reports) {
        let out = LiveFrame {
            thread: ThreadId::parse("t1").unwrap(),
            message: MessageId::parse("m1").unwrap(),
            attempt: 3,
            role: Role::Tool,
            chunks: vec![std::sync::Arc::new(Chunk::content(0, "a", false)), std::sync::Arc::new(rich())],
            batch_type: model::BatchType::Continuation,
            number: model::FrameNumber { epoch: 9, number: 1 << 40, after: 12 },
            terminal: Some(MessageEnd { position: Position::from_stored(7), chunks: 2, outcome, report }),
            input: None,
        };
        assert_eq!(live::decode(&live::encode(&out)).unwrap().into_frame().unwrap(), out);
    }
}

fn open_input() -> std::sync::Arc<model::OpenInput> {
    let metadata = serde_json::json!({ "a": [1, "b"] }).as_object().unwrap().clone();
    std::sync::Arc::new(model::OpenInput {
        turn: model::TurnId::foreground(&ThreadId::parse("t1").unwrap(), "x").unwrap(),
        run: 2,
        content: "How are you?\n".to_owned(),
        metadata: Metadata::new(metadata).unwrap(),
        accepted_at: model::Timestamp(1_795_000_000_123),
    })
}

#[test]
fn open_inputs_come_back_with_a_status() {
    let about = model::QueryTarget::Inputs(ThreadId::parse("t1").unwrap());
    let query = status::encode_query(&about);
    assert_eq!(query::decode_query(&query).unwrap(), query::Query::Status(about));
    for is_cut in [false, true] {
        let inputs = vec![(*open_input()).clone(); 2];
        let inputs = Some(model::OpenInputs { inputs, is_cut });
        let status = model::QueueStatus { inputs, ..model::QueueStatus::default() };
        assert_eq!(status::decode_reply(&status::encode_reply(7, &status)).unwrap(), status);
    }
}

#[test]
fn busy_threads_come_back_with_a_status() {
    for tenant in [None, Some("acme")] {
        let about = model::QueryTarget::BusyThreads(tenant.map(|name| model::Tenant::parse(name).unwrap()));
        let query = status::encode_query(&about);
        assert_eq!(query::decode_query(&query).unwrap(), query::Query::Status(about));
    }
    let thread = |name, is_running| model::BusyThread { thread: ThreadId::parse(name).unwrap(), is_running };
    for is_cut in [false, true] {
        let threads = vec![thread("acme~t1", true), thread("t2", false)];
        let busy = Some(model::BusyThreads { threads, is_cut });
        let status = model::QueueStatus { busy, ..model::QueueStatus::default() };
        assert_eq!(status::decode_reply(&status::encode_reply(7, &status)).unwrap(), status);
    }
}

#[test]
fn notices_travel_among_frames() {
    for reason in model::WaitReason::ALL {
        let (thread, message) = (ThreadId::parse("acme~t1").unwrap(), MessageId::parse("m1").unwrap());
        let notice = model::WaitNotice { thread, message, reason };
        let mut batch = live::FrameBatch::default();
        batch.push(&live::encode_notice(&notice));
        let [(thread, payload)] = &live::frames(&batch.into_payload()).unwrap()[..] else { panic!() };
        assert_eq!(*thread, notice.thread);
        assert_eq!(live::decode(payload).unwrap(), live::FromOwner::Notice(notice));
    }
}

#[test]
fn gathered_frames_come_apart_in_their_order() {
    let frame = |name: &str, id: u32| LiveFrame {
        thread: ThreadId::parse(name).unwrap(),
        message: MessageId::parse("m1").unwrap(),
        attempt: 0,
        role: Role::Assistant,
        chunks: vec![std::sync::Arc::new(Chunk::content(id, "a", false))],
        batch_type: model::BatchType::UserRequest,
        number: model::FrameNumber { epoch: 9, number: id.into(), after: 0 },
        terminal: None,
        input: None,
    };
    let asked = LiveFrame { chunks: Vec::new(), input: Some(open_input()), ..frame("t1", 3) };
    let sent = [frame("t1", 1), frame("acme~t2", 2), asked];
    let mut batch = live::FrameBatch::default();
    sent.iter().for_each(|frame| batch.push(&live::encode(frame)));
    let size = batch.size();
    let payload = batch.into_payload();
    assert_eq!(payload.len(), size);
    let frames = live::frames(&payload).unwrap();
    let threads: Vec<_> = frames.iter().map(|(thread, _)| thread.as_str()).collect();
    assert_eq!(threads, ["t1", "acme~t2", "t1"]);
    let read: Vec<_> =
        frames.iter().map(|(_, frame)| live::decode(frame).unwrap().into_frame().unwrap()).collect();
    assert_eq!(read, sent);
    assert!(live::frames(&payload.slice(..size - 1)).is_err(), "cut short");
    assert!(live::frames(&Bytes::from_static(&[0x0A, 0x00])).is_err(), "a frame of no thread");
    let owner = (model::PartitionId(1_023), 1 << 40);
    assert_eq!(live::decode_owner(&live::encode_owner(owner.0, owner.1)).unwrap(), owner);
}

#[test]
fn snapshots_and_changed_threads_come_back() {
    let thread = |name: &str| ThreadId::parse(name).unwrap();
    let message = MessageId::parse("m1").unwrap();
    let known = [false, true].map(|has_input| {
        let message = message.clone();
        model::KnownMessage { message, attempt: 1, next: 7, has_input }
    });
    let known = known.to_vec();
    let request = query::SnapshotRequest { thread: thread("t1"), known, max_messages: 64 };
    let gateway = model::GatewayId::parse("gateway-1").unwrap();
    let read = query::decode_query(&query::encode_snapshot_request(&gateway, &request)).unwrap();
    assert_eq!(read, query::Query::Snapshot(gateway.clone(), request));
    let open = model::PartialText {
        message,
        attempt: 2,
        role: Role::Tool,
        batch_type: model::BatchType::AgentToAgent,
        chunks: vec![std::sync::Arc::new(rich())],
        next: 9,
        input: Some(open_input()),
    };
    let committed = Position::from_stored(1 << 60);
    for (is_current, left_out, more) in [(true, false, true), (false, true, false)] {
        let cut = model::Cut { epoch: 3, number: 44, committed, is_current };
        let reply = query::SnapshotReply { cut, open: vec![open.clone()], left_out, more };
        assert_eq!(query::decode_snapshot(&query::encode_snapshot(&reply)).unwrap(), reply);
    }
    let after = query::ChangedThreadsQuery { epoch: 3, number: 44, unfollowed: vec![thread("t3")] };
    let read = query::decode_query(&query::encode_changed_threads_query(&gateway, &after)).unwrap();
    assert_eq!(read, query::Query::ChangedThreads(gateway, after));
    let threads = vec![(thread("acme~t1"), 45), (thread("t2"), 46)];
    for is_complete in [true, false] {
        let changed = query::ChangedThreads { epoch: 3, number: 46, threads: threads.clone(), is_complete };
        let payload = query::encode_changed_threads(&changed);
        assert_eq!(query::decode_changed_threads(&payload).unwrap(), changed);
    }
}

#[test]
fn requests_whose_answers_go_elsewhere_are_no_repetitions() {
    let id = |count, turn, run| {
        let count = model::PartitionCount::new(count).unwrap();
        subject::work_id(turn, run, &subject::partition_chunks(count, &ThreadId::parse("agent-5").unwrap()))
    };
    assert_eq!(id(8, "t1", 0), "t1.0.4");
    assert_eq!(id(16, "t1", 0), "t1.0.12");
    assert_eq!(id(4, "t1", 0), id(1, "t1", 0));
    assert_ne!(id(8, "t1", 0), id(8, "t1", 1));
}

#[test]
fn subjects_of_tool_calls_name_their_place() {
    let place = subject::ToolCallPlace {
        workflow: WorkflowName::parse("default").unwrap(),
        thread: ThreadId::parse("acme~talk").unwrap(),
        turn: TurnId::foreground(&ThreadId::parse("acme~talk").unwrap(), "x").unwrap(),
        call: "0-ab".to_owned(),
    };
    for of in [subject::tool_call, subject::tool_incident] {
        let name = of(&place.workflow, &place.thread, &place.turn, &place.call);
        assert_eq!(subject::parse_tool_call(&name), Some(place.clone()), "{name}");
        for other in [format!("{name}.more"), format!("other.{name}"), name.replace("0-ab", "")] {
            assert_eq!(subject::parse_tool_call(&other), None, "{other}");
        }
    }
}
