use model::{
    AgentId, BatchType, MessageId, Metadata, Position, Role, ThreadId, Timestamp, TurnId, TurnToken,
};
use serde_json::json;

use super::*;

fn start() -> Start {
    let thread = ThreadId::parse("t1").unwrap();
    Start {
        turn: TurnId::foreground(&thread, "x").unwrap(),
        run: 2,
        attempt: 3,
        agent: AgentId::parse("a1").unwrap(),
        task: None,
        content: "now?".to_owned(),
        metadata: Metadata::EMPTY,
        is_adopted: false,
        token: TurnToken::received("secret"),
        correlation_id: None,
        thread,
    }
}

fn rules_of(settings: Value) -> TurnRules {
    rules(&start(), settings.as_object().unwrap(), &TurnRules::default())
}

#[test]
fn settings_count_when_they_make_sense() {
    let defaults = TurnRules::default();
    assert_eq!(rules_of(json!({})), defaults);
    let all =
        json!({"deadline_ms": 1, "backoff_base_ms": 2.0, "backoff_cap_ms": 86_400_000, "max_attempts": 4});
    let expected =
        TurnRules { deadline_ms: 1, backoff_base_ms: 2, backoff_cap_ms: 86_400_000, max_attempts: Some(4) };
    assert_eq!(rules_of(all), expected);
    for wrong in [json!(0), json!(-1), json!(1.5), json!("60000"), json!(86_400_001), json!(1e300), json!([])]
    {
        let settings = json!({"deadline_ms": wrong, "backoff_base_ms": wrong, "backoff_cap_ms": wrong});
        assert_eq!(rules_of(settings), defaults, "{wrong}");
    }
    for wrong in [json!(0), json!(null), json!(4_294_967_296_i64), json!(true)] {
        assert_eq!(rules_of(json!({ "max_attempts": wrong })).max_attempts, None, "{wrong}");
    }
}

#[test]
fn a_workflow_is_named_or_the_default_counts() {
    let default = WorkflowName::parse("default").unwrap();
    let of = |name: Option<&str>| {
        let context = StartContext { workflow: name.map(str::to_owned), ..StartContext::default() };
        workflow(&context, &default)
    };
    assert_eq!(of(None), Ok(default.clone()));
    assert_eq!(of(Some("w")).unwrap().as_str(), "w");
    assert!(of(Some("a.b")).unwrap_err().contains("a.b"));
}

/// `3.0 user text` is the first message of batch 3; a call is `name`, its answer too.
fn stored(batch: i64, number: i32, role: Role, content: &str, call: Option<&str>) -> StoredMessage {
    let is_tool = role == Role::Tool;
    let calls = call.filter(|_| !is_tool).map(|id| json!([{"id": id, "name": "look", "arguments": "{}"}]));
    StoredMessage {
        position: Position::from_stored(batch + i64::from(number)),
        message_id: MessageId::parse(&format!("m-{batch}-{number}")).unwrap(),
        batch_id: Position::from_stored(batch),
        sequence_num: number,
        batch_type: BatchType::UserRequest,
        role,
        content: content.to_owned(),
        tool_calls: calls,
        tool_call_id: call.filter(|_| is_tool).map(str::to_owned),
        metadata: json!({}),
        token_count: None,
        parent: None,
        attempt: 0,
        created_at: Timestamp(0),
    }
}

#[test]
fn a_request_has_whole_turns_and_then_the_input() {
    let messages = vec![
        stored(10, 3, Role::Assistant, "the end of a turn that was cut off", None),
        stored(20, 0, Role::User, "look", None),
        stored(20, 1, Role::Assistant, "", Some("c1")),
        stored(20, 2, Role::Tool, "seen", Some("c1")),
        stored(20, 3, Role::Assistant, "I saw", None),
    ];
    let settings = json!({"system": "Be brief."}).as_object().unwrap().clone();
    let context = StartContext { workflow: None, settings: settings.clone(), messages };
    let workflow = WorkflowName::parse("w").unwrap();
    let request =
        request(&start(), context, &workflow, &TurnRules::default(), PartitionCount::new(8).unwrap());
    let turn = start().turn;
    let said: Vec<_> = request.context.iter().map(|it| (it.role.as_str(), it.content.as_str())).collect();
    let expected =
        [("user", "look"), ("assistant", ""), ("tool", "seen"), ("assistant", "I saw"), ("user", "now?")];
    assert_eq!(said, expected);
    let call = ToolCall { id: "c1".to_owned(), name: "look".to_owned(), arguments: "{}".to_owned() };
    assert_eq!(request.context[1].tool_calls, [call]);
    assert_eq!(request.context[2].tool_call_id.as_deref(), Some("c1"));
    assert_eq!(request.context[4].message_id, turn.input().as_str());
    assert_eq!((request.run, request.attempt, request.deadline_ms), (2, 3, 120_000));
    assert_eq!(request.message_id, turn.answer(2).as_str());
    assert_eq!((request.turn_token.as_str(), request.workflow.as_str()), ("secret", "w"));
    assert_eq!(request.settings, settings);
    assert_eq!((request.task, request.correlation_id), (None, None));
}
