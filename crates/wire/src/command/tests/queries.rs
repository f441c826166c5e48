//! Queries to owners, and their replies.

use model::{BatchType, MessageTimes, OpenBatch, OpenBatchMessage, Role};
use serde_json::Value;

use super::*;

proptest! {
    #[test]
    fn status_replies_come_back(
        turns in prop::collection::vec("[A-Za-z0-9_-]{1,80}", 0..4),
        (run, idle_ms, for_ms) in (any::<u32>(), any::<i64>(), any::<i64>()),
        (reason, waits_for) in (prop::option::of(0..WaitReason::ALL.len()), prop::option::of(0..WaitReason::ALL.len())),
        (paused, head) in (any::<bool>(), prop::option::of(id())),
        epoch in any::<u64>(),
        gap_for_ms in prop::option::of(any::<i64>()),
    ) {
        let reasons = WaitReason::ALL.map(|reason| reason.lasting(for_ms));
        let waiting: Vec<_> = turns
            .iter()
            .map(|unique| WaitingTurn {
                turn: TurnId::foreground(&thread(), unique).unwrap(),
                reason: reasons[unique.len() % reasons.len()],
                age_ms: idle_ms,
                yields: paused,
            })
            .collect();
        let active = waiting.first().map(|first| ActiveTurn {
            turn: first.turn.clone(),
            thread: thread(),
            message: first.turn.answer(run),
            waits_for: waits_for.map(|index| reasons[index]),
            request: RequestInfo {
                deliveries: run,
                handed_back: run / 2,
                again_ms: gap_for_ms,
                alive_ms: gap_for_ms,
                fails_ms: Some(for_ms),
            },
            accepted_at: Timestamp(for_ms),
            started_at: gap_for_ms.map(Timestamp),
            batch: gap_for_ms.map(|at| Box::new(open_batch(first, at, paused))),
            run, idle_ms,
        });
        let reason = reason.map(|index| reasons[index]);
        let head = head.map(|head| TaskId::parse(&head).unwrap());
        let missing = vec![IdRange { first: run, last: run }];
        let open = turns.iter().map(|unique| OpenMessageStatus {
            message: MessageId::parse(unique).unwrap(),
            expected: run, received: 1, released: 0, missing: missing.clone(), gap_for_ms,
        });
        let open = open.collect();
        let status = QueueStatus { active, waiting, reason, paused, head, applied_seq: Seq(77), open, inputs: None, busy: None };
        let payload = status::encode_reply(epoch, &status);
        prop_assert_eq!(status::decode_reply(&payload).unwrap(), status);
        prop_assert_eq!(crate::query_envelope::read_reply(&payload).unwrap().0, epoch);
    }
}

fn open_batch(first: &WaitingTurn, at: i64, is_cut: bool) -> OpenBatch {
    let calls = json!([{"id": "c", "name": "f", "arguments": "{\"n\":1}"}]);
    let message = |role, calls: Option<Value>| OpenBatchMessage {
        id: first.turn.input(),
        role,
        content: format!("text {at}"),
        tool_call_id: calls.is_none().then(|| "c".to_owned()),
        metadata: Metadata::new(json!({"a": calls.is_some()}).as_object().unwrap().clone()).unwrap(),
        tool_calls: calls,
        times: MessageTimes { created_at: is_cut.then_some(Timestamp(at)), started_at: Some(Timestamp(at)) },
    };
    let messages = vec![message(Role::Assistant, Some(calls)), message(Role::Tool, None)];
    let continues = is_cut.then(|| Position::from_stored(7));
    OpenBatch { continues, batch_type: BatchType::Continuation, messages, is_cut }
}

#[test]
fn queries_of_all_kinds_come_back() {
    let message = MessageId::parse("m1").unwrap();
    let known = vec![model::KnownMessage { message, attempt: 1, next: 9, has_input: true }];
    let request = query::SnapshotRequest { thread: thread(), known, max_messages: 16 };
    let gateway = GatewayId::parse("gateway-1").unwrap();
    let read = query::decode_query(&query::encode_snapshot_request(&gateway, &request)).unwrap();
    assert_eq!(read, Query::Snapshot(gateway, request));
    let all = [
        QueryTarget::Agent(AgentId::parse("a1").unwrap()),
        QueryTarget::Thread(thread()),
        QueryTarget::Turn(turn()),
        QueryTarget::Batch(thread()),
    ];
    for target in all {
        let read = query::decode_query(&status::encode_query(&target)).unwrap();
        assert_eq!(read, Query::Status(target));
    }
    let without_target = pb::query::Kind::Status(pb::StatusQuery::default());
    for nothing in [pb::Query { kind: None }, pb::Query { kind: Some(without_target) }] {
        assert!(query::decode_query(&nothing.encode_to_vec().into()).is_err());
    }
    let cut = Cut { epoch: 1, number: 0, committed: Position::from_stored(0), is_current: true };
    let snapshot = query::SnapshotReply { cut, open: Vec::new(), left_out: false, more: false };
    let snapshot = query::encode_snapshot(&snapshot);
    assert!(status::decode_reply(&snapshot).is_err(), "the reply to another query");
    let unknown = pb::QueueStatus { reason: Some(pb::WaitReason::default()), ..pb::QueueStatus::default() };
    let reply = Some(pb::query_reply::Reply::Status(unknown));
    let unknown = pb::QueryReply { epoch: 1, reply };
    assert!(status::decode_reply(&unknown.encode_to_vec().into()).is_err());
}

#[test]
fn wait_reasons_have_the_numbers_of_protobuf() {
    let kinds = (1..).map_while(|number| pb::wait_reason::Kind::try_from(number).ok());
    let names = kinds.map(|kind| kind.as_str_name().trim_start_matches("KIND_").to_lowercase());
    assert_eq!(names.collect::<Vec<_>>(), WaitReason::ALL.map(WaitReason::name));
}
