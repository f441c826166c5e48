//! A sample request, and how requests are parsed.

use serde_json::json;

use super::*;

pub(crate) fn request() -> Value {
    json!({
        "turn_id": "u0001-x", "run": 2, "attempt": 0, "workflow": "default", "agent_id": "a", "thread_id": "t",
        "message_id": "u0001-x-a2", "turn_token": "secret", "subject": "chunks.0.t", "stop_subject": "stop.u0001-x.2",
        "deadline_ms": 60_000, "context": [{"role": "user", "content": "hello", "message_id": "u0001-x-q"}],
        "settings": {"model": "m"},
    })
}

pub(crate) fn turn() -> TurnAttempt {
    TurnAttempt::read(request().to_string().as_bytes(), 1).unwrap()
}

#[test]
fn each_delivery_is_an_attempt_of_its_own() {
    let payload = request().to_string();
    let attempts = [0, 1, 2, 7].map(|d| TurnAttempt::read(payload.as_bytes(), d).unwrap().attempt);
    assert_eq!(attempts, [0, 0, 1, 6]);
    let mut later = request();
    later["attempt"] = json!(3);
    assert_eq!(TurnAttempt::read(later.to_string().as_bytes(), 2).unwrap().attempt, 4);
    assert_eq!(turn().input(), "hello");
    assert_eq!(turn().text_setting("model"), Some("m"));
    assert_eq!(turn().text_setting("system"), None);
}

#[test]
fn what_is_no_request_says_why() {
    let with = |key: &str, value: Value| {
        let mut request = request();
        request[key] = value;
        TurnAttempt::read(request.to_string().as_bytes(), 1).unwrap_err().to_string()
    };
    assert!(TurnAttempt::read(b"{", 1).unwrap_err().to_string().starts_with("not a turn request: EOF"));
    assert!(
        TurnAttempt::read(b"[]", 1).is_err()
            && TurnAttempt::read(b"\xff", 1).is_err()
            && TurnAttempt::read(b"{}", 1).is_err()
    );
    assert!(with("turn_id", json!("x")).starts_with("turn_id: "));
    assert!(with("thread_id", json!("a b")).starts_with("thread_id: "));
    assert!(with("message_id", json!("")).starts_with("message_id: "));
    assert_eq!(with("context", json!([])), "the context is empty: there is nothing to answer");
    for subject in ["chunks.0.u", "chunks.t.t", "tasks.0.t", "chunks.0.0.t", "chunks.>", "_INBOX.t", ""] {
        assert!(with("subject", json!(subject)).contains("no subject"), "{subject}");
    }
}

#[test]
fn the_plain_subject_is_as_good_as_the_exact_one() {
    let thread = ThreadId::parse("t").unwrap();
    assert!(is_subject_of("chunks.t", &thread) && is_subject_of("chunks.17.t", &thread));
}

#[test]
fn ids_of_facts_are_shown_where_the_model_may_name_them() {
    let fact = || RememberedFact {
        fact_id: "m1-f0".to_owned(),
        text: "Ann lives in Bern".to_owned(),
        kind: "place".to_owned(),
        confidence: 0.9,
        thread_id: None,
        message_id: None,
    };
    let of = |kind: &str| TaskRef { task_id: "k".to_owned(), kind: kind.to_owned() };
    let last_line = |kind: Option<&str>| {
        let text = remembered(kind.map(of).as_ref(), &[fact()]).unwrap();
        text.lines().last().unwrap().to_owned()
    };
    assert_eq!(last_line(None), "- \"Ann lives in Bern\"");
    assert_eq!(last_line(Some("task")), "- \"Ann lives in Bern\"");
    assert_eq!(last_line(Some("memory")), "- \"Ann lives in Bern\" (id m1-f0)");
    assert_eq!(remembered(None, &[]), None);
}
