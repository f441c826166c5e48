//! Subjects that do not match their payload.

use super::*;

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

/// Every command in the encoding of the fleet, and in that of builds before the subject of
/// commands.
fn forged() -> Vec<(&'static str, Vec<u8>)> {
    use pb::control::Kind;
    let timer = TimerId::follow_up(&thread(), Position::from_stored(7)).to_string();
    let edit = pb::EditTask { task_id: "k1".to_owned(), content: Some("x".to_owned()), metadata: None };
    let kinds = [
        Kind::Pause(()),
        Kind::Resume(()),
        Kind::ClearBackoff(()),
        Kind::StopTurn(turn().as_str().to_owned()),
        Kind::RetryTask("k1".to_owned()),
        Kind::DropTask("k1".to_owned()),
        Kind::EditTask(edit),
        Kind::DropFailedTurn(turn().as_str().to_owned()),
        Kind::EraseThread(()),
        Kind::CancelTimer(timer.clone()),
        Kind::SnoozeTimer(pb::SnoozeTimer { timer_id: timer, until_ms: 5 }),
        Kind::PutSchedule("daily".to_owned()),
        Kind::DeleteSchedule("daily".to_owned()),
        Kind::DelayTask("k1".to_owned()),
    ];
    let mut all = vec![("opened", opening(|_| {})), ("task", fleet_task(|_| {}))];
    all.extend(kinds.map(|kind| ("control", controlling(pb_control(kind)))));
    let field = |tag: u8, inner: Vec<u8>| [vec![tag << 3 | 2, inner.len() as u8], inner].concat();
    all.push(("opened of an older build", field(3, pb_opened().encode_to_vec())));
    all.push(("control of an older build", field(4, pb_control(Kind::Pause(())).encode_to_vec())));
    all
}

#[test]
fn commands_are_taken_on_their_own_subject_alone() {
    for (name, payload) in forged() {
        for subject in ["chunks.0.t1", "messages.0.t1"] {
            assert_eq!(code(subject, payload.clone()), "wrong_subject", "{name} on {subject}");
        }
        if !name.contains("older") {
            assert_eq!(code("tasks.0.t1", payload.clone()), "wrong_subject", "{name} on tasks");
            assert!(decode("commands.0.t1", payload).is_ok(), "{name}");
        }
    }
    let control = pb_control(pb::control::Kind::Pause(())).encode_to_vec();
    let of_older_build = [vec![2 << 3 | 2, control.len() as u8], control].concat();
    assert_eq!(code("tasks.0.a1", of_older_build), "wrong_subject");
    // The commands are combined with content that the subject accepts.
    let chunk =
        pb::Chunk { session_id: "t1".to_owned(), message_id: "m1".to_owned(), ..pb::Chunk::default() };
    let frame = pb::Frame { chunks: vec![chunk], ..pb::Frame::default() }.encode_to_vec();
    let task = tasking(|_| {});
    for (name, payload) in forged() {
        for both in [[frame.clone(), payload.clone()].concat(), [payload.clone(), frame.clone()].concat()] {
            assert_eq!(code("chunks.0.t1", both), "wrong_subject", "{name} beside a chunk");
        }
        if !name.contains("older") {
            assert_eq!(code("tasks.0.a1", [task.clone(), payload].concat()), "wrong_subject", "{name}");
        }
    }
}

#[test]
fn tasks_that_follow_turns_come_from_the_fleet_alone() {
    for kind in TaskKind::ALL.into_iter().filter(|kind| *kind != TaskKind::Task) {
        for agent in ["a1".to_owned(), format!("a1+{}", kind.name())] {
            let subject = format!("tasks.0.{agent}");
            assert_eq!(code(&subject, tasking(|it| it.kind = kind as i32)), "wrong_subject", "{subject}");
            let json = json!({"task_id": "k", "content": "x", "kind": kind.name()}).to_string();
            assert_eq!(code(&subject, json), "wrong_subject", "{subject} in JSON");
        }
    }
}

#[test]
fn messages_of_other_roles_need_a_subject_of_their_own() {
    let of = |subject: &str, role: &str, message: &str| {
        let chunk = json!({"session_id": "t1", "message_id": message, "chunk_id": 0, "role": role});
        let decoded = decode_entry(PartitionId(0), subject, None, &chunk.to_string().into(), &limits());
        decoded.map(drop).map_err(|refusal| refusal.code)
    };
    for (role, on_chunks, on_messages) in [
        ("assistant", Ok(()), Ok(())),
        ("user", Err("role_not_allowed"), Ok(())),
        ("system", Err("role_not_allowed"), Ok(())),
        ("tool", Err("role_not_allowed"), Err("role_not_allowed")),
    ] {
        assert_eq!(of("chunks.0.t1", role, "m1"), on_chunks, "{role}");
        assert_eq!(of("messages.0.t1", role, "m1"), on_messages, "{role}");
        // Answers are accepted here, because the owner checks them by their token.
        assert_eq!(of("chunks.0.t1", role, &format!("{}-a", turn().as_str())), Ok(()), "{role}");
    }
    let mixed = json!([
        {"session_id": "t1", "message_id": "m1", "chunk_id": 0},
        {"session_id": "t1", "message_id": "m2", "chunk_id": 0, "role": "user"},
    ]);
    assert_eq!(code("chunks.0.t1", mixed.to_string()), "role_not_allowed");
}

#[test]
fn a_subject_is_read_as_it_was_written() {
    use crate::subject::{SubjectClass, in_fleet, parse_stored, stream_subjects};
    let eight = PartitionCount::new(8).unwrap();
    for class in SubjectClass::ALL {
        let (p, stored) = in_fleet(eight, &format!("{class}.5.t1")).unwrap();
        let read = parse_stored(p, &stored).unwrap();
        assert_eq!((read.class, read.key), (class, "t1"));
        assert!(stream_subjects(p).contains(&format!("{class}.{p}.*")));
    }
    for other in ["turns.0.t1", "Chunks.0.t1", "chunks.00.t", "live.t1", "work.0.t", "moving.chunks.0.t"] {
        assert_eq!(in_fleet(eight, other).is_none(), !other.starts_with("chunks"), "{other}");
        assert!(parse_stored(PartitionId(3), other).is_none(), "{other}");
    }
}
