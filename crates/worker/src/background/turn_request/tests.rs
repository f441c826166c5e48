use batches::SharedItem;
use batches::context::{LastMessages, NextRead};
use model::{
    AgentId, BatchType, MessageId, Metadata, Position, Role, ThreadId, Timestamp, TurnId, TurnOptions,
    TurnOrigin, TurnToken,
};
use scheduling::follow_up::ArmingRules;
use serde_json::json;

use super::*;

fn start() -> Start {
    let thread = ThreadId::parse("t1").unwrap();
    Start {
        turn: TurnId::foreground(&thread, "x").unwrap(),
        run: 2,
        attempt: 3,
        agent: AgentId::parse("a1").unwrap(),
        cause: TurnCause::Input(TurnOrigin::PERSON),
        content: "now?".to_owned(),
        metadata: Metadata::EMPTY,
        is_adopted: false,
        waited_ms: None,
        token: TurnToken::received("secret"),
        options: TurnOptions::default(),
        thread,
    }
}

fn rules_of(settings: Value) -> TurnRules {
    rules(settings.as_object().unwrap(), &TurnRules::default())
}

#[test]
fn settings_count_when_they_make_sense() {
    let defaults = TurnRules::default();
    assert_eq!(rules_of(json!({})), defaults);
    let all = json!({"deadline_ms": 100, "backoff_base_ms": 2.0, "backoff_cap_ms": 2_592_000_000_i64, "max_attempts": 4});
    let expected = TurnRules {
        deadline_ms: 100,
        backoff_base_ms: 2,
        backoff_cap_ms: 2_592_000_000,
        max_attempts: Some(4),
        ..defaults
    };
    assert_eq!(rules_of(all), expected);
    let after = rules_of(json!({
        "work_request": true, "memory": true, "follow_ups": {"enabled": true, "min_delay_seconds": 40}
    }));
    assert_eq!((after.work_request, after.memory), (true, true));
    assert_eq!(after.follow_ups, Some(ArmingRules { delay_seconds: (40, 3_600), default: None }));
    let wrong = json!({
        "deadline_ms": 99, "backoff_base_ms": 0, "backoff_cap_ms": "1", "max_attempts": -1, "work_request": 1,
        "memory": "true", "follow_ups": {"enabled": true, "min_delay_seconds": 1}
    });
    assert_eq!(rules_of(wrong), defaults);
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

/// A stored message: message `number` of batch `batch`. `call` is the id of the call that an
/// assistant message makes, or that a tool message answers.
fn stored(batch: i64, number: i32, role: Role, content: &str, call: Option<&str>) -> SharedItem {
    let is_tool = role == Role::Tool;
    let calls = call.filter(|_| !is_tool).map(|id| json!([{"id": id, "name": "look", "arguments": "{}"}]));
    let item = Item {
        position: Position::from_stored(batch + i64::from(number)),
        message_id: MessageId::parse(&format!("m-{batch}-{number}")).unwrap(),
        batch_id: Position::from_stored(batch),
        number: None,
        sequence_num: number,
        batch_type: BatchType::UserRequest,
        role,
        content: content.to_owned(),
        tool_calls: calls,
        tool_call_id: call.filter(|_| is_tool).map(str::to_owned),
        metadata: model::Metadata::EMPTY,
        token_count: None,
        created_at: Timestamp(0),
        started_at: None,
    };
    item.into()
}

fn context_of(start: &Start, found: &StartContext, rules: &ContextRules) -> batches::Context {
    let mut builder = builder(start, found, rules, &batches::EstimatingCounter, Timestamp(0));
    assert_eq!(found.messages.feed(&mut builder), NextRead::Nothing);
    builder.build()
}

fn request_of(start: &Start, messages: Vec<SharedItem>, settings: Value) -> TurnRequest {
    let settings = settings.as_object().unwrap().clone();
    let found = StartContext {
        settings: settings.clone(),
        messages: LastMessages { newest: messages.into_iter().rev().collect(), is_all: true },
        ..StartContext::default()
    };
    let context = context_of(start, &found, &ContextRules::of(&settings).0);
    let (workflow, partitions) = (WorkflowName::parse("w").unwrap(), PartitionCount::new(8).unwrap());
    let rules = TurnRules::default();
    let encoded = shown_messages(&context);
    let encoded = request(start, settings.clone(), &workflow, &rules, &context, encoded, partitions);
    let request =
        request(start, settings, &workflow, &rules, &context, super::messages(&context), partitions);
    assert_eq!(serde_json::to_string(&encoded).unwrap(), serde_json::to_string(&request).unwrap());
    request
}

fn said(request: &TurnRequest) -> Vec<(&str, &str)> {
    request.context.iter().map(|it| (it.role.as_str(), it.content.as_str())).collect()
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
    let settings = json!({"system": "Be brief."});
    let request = request_of(&start(), messages, settings.clone());
    let turn = start().turn;
    let expected =
        [("user", "look"), ("assistant", ""), ("tool", "seen"), ("assistant", "I saw"), ("user", "now?")];
    assert_eq!(said(&request), expected);
    let call = ToolCall { id: "c1".to_owned(), name: "look".to_owned(), arguments: "{}".to_owned() };
    assert_eq!(request.context[1].tool_calls, [call]);
    assert_eq!(request.context[2].tool_call_id.as_deref(), Some("c1"));
    assert_eq!(request.context[4].message_id, turn.input().as_str());
    assert_eq!((request.run, request.attempt, request.deadline_ms), (2, 3, 120_000));
    assert_eq!(request.message_id, turn.answer(2).as_str());
    assert_eq!((request.turn_token.as_str(), request.workflow.as_str()), ("secret", "w"));
    assert_eq!(json!(request.settings), settings);
    assert_eq!((request.task, request.summary, request.correlation_id), (None, None, None));
    assert!(request.context_tokens > 30, "{}", request.context_tokens);
}

#[test]
fn without_room_oldest_turns_are_left_out_not_the_input() {
    let messages = |texts: &[&str]| -> Vec<SharedItem> {
        let turn = |(number, text): (i64, &&str)| {
            [
                stored(number * 10, 0, Role::User, text, None),
                stored(number * 10, 1, Role::Assistant, "yes", None),
            ]
        };
        (1..).zip(texts).flat_map(turn).collect()
    };
    let long = "x".repeat(3_200);
    let request = request_of(&start(), messages(&["one", &long, "three"]), json!({"context_tokens": 500}));
    assert_eq!(said(&request), [("user", "three"), ("assistant", "yes"), ("user", "now?")]);
    let input = Start { content: long.clone(), ..start() };
    let request = request_of(&input, messages(&["one"]), json!({"context_tokens": 500}));
    assert_eq!(said(&request), [("user", long.as_str())]);
}

#[test]
fn an_input_goes_on_with_its_batch() {
    let messages = vec![
        stored(10, 0, Role::User, "first", None),
        stored(10, 1, Role::Assistant, "so far", None),
        stored(20, 0, Role::User, "between", None),
        stored(20, 1, Role::Assistant, "yes", None),
    ];
    let metadata = Metadata::new(json!({"continues": "10"}).as_object().unwrap().clone()).unwrap();
    let input = Start { cause: TurnCause::Input(TurnOrigin::of_person(&metadata)), metadata, ..start() };
    let request = request_of(&input, messages, json!({}));
    let expected = [
        ("user", "between"),
        ("assistant", "yes"),
        ("user", "first"),
        ("assistant", "so far"),
        ("user", "now?"),
    ];
    assert_eq!(said(&request), expected, "what is to be gone on with comes last");
    assert_eq!(request.context[4].metadata["continues"], "10");
}

#[test]
fn a_summary_stands_for_what_was_compacted() {
    let compaction = batches::Compaction {
        id: Position::from_stored(25),
        through: Position::from_stored(20),
        kept: Vec::new(),
        summary: Some("They said hello.".to_owned()),
        strategy: batches::compaction::Strategy::Summarise,
        provenance: batches::compaction::Provenance::default(),
        previous: None,
        counts_from: Position::from_stored(25),
        undone_at: None,
    };
    let newest = vec![
        stored(30, 1, Role::Assistant, "yes", None),
        stored(30, 0, Role::User, "later", None),
        stored(20, 1, Role::Assistant, "hello", None),
        stored(20, 0, Role::User, "hello", None),
    ];
    let messages = LastMessages { newest, is_all: true };
    let found = StartContext { compaction: Some(compaction), messages, ..StartContext::default() };
    let context = context_of(&start(), &found, &ContextRules::default());
    let (workflow, partitions) = (WorkflowName::parse("w").unwrap(), PartitionCount::new(8).unwrap());
    let shown = super::messages(&context);
    let request =
        request(&start(), Map::new(), &workflow, &TurnRules::default(), &context, shown, partitions);
    assert_eq!(request.summary.as_deref(), Some("They said hello."));
    assert_eq!(said(&request), [("user", "later"), ("assistant", "yes"), ("user", "now?")]);
}

#[test]
fn a_spent_budget_keeps_every_turn_from_beginning() {
    let row = |paused, wait_ms, for_ms: Option<i64>| {
        let over_budget_ms = for_ms;
        StartContext { paused, wait_ms, over_budget_ms, ..StartContext::default() }
    };
    assert_eq!(not_now(&row(false, None, None)), None);
    assert_eq!(not_now(&row(false, None, Some(5))), Some(NotNow::Budget { for_ms: 5 }));
    assert_eq!(not_now(&row(false, Some(7), Some(5))), Some(NotNow::Budget { for_ms: 5 }));
    assert_eq!(not_now(&row(true, None, Some(5))), Some(NotNow::Paused));
    assert_eq!(not_now(&row(false, Some(7), None)), Some(NotNow::Backoff { for_ms: 7 }));
}
