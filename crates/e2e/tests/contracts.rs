//! The contract between owners and workflow services: who may write an answer, which delivery
//! counts, what is refused.

use std::time::Duration;

use serde_json::{Value, json};
use testkit::{
    db_snapshot::{self, turns},
    sse::StreamEvent,
};

use crate::{
    api_client::{SOON, alone, asked_for, events, said, text_seen, until_ended},
    fixture::Fixture,
};

#[tokio::test(flavor = "multi_thread")]
async fn chunks_without_the_turns_own_token_are_refused_and_counted() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let follower = fixture.following("mine").await;
    let yours = fixture.api().say("yours", "hello").await.unwrap();
    let other = asked_for(&manual_workflow, &yours).await;
    let mine = fixture.api().say("mine", "hello").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &mine).await;
    let chunk = |asked: &mut testkit::manual_workflow::DeliveredRequest, token: Value| {
        let mut chunk =
            asked.chunk("intruder", json!({"chunk_id": 0, "is_final": true, "turn_token": token}));
        chunk.as_object_mut().unwrap().retain(|_, value| !value.is_null());
        chunk.to_string().into_bytes()
    };
    let own = asked.request.turn_token.clone();
    let almost = format!("{}0", &own[..own.len() - 1]);
    let almost = if almost == own { format!("{}1", &own[..own.len() - 1]) } else { almost };
    // No token, a guess, one that is almost right, and the right one of another turn.
    let strangers = [Value::Null, json!("00"), json!(almost), json!(other.request.turn_token)];
    for token in &strangers {
        let payload = chunk(&mut asked, token.clone());
        asked.publish(payload).await.unwrap();
    }
    let counted =
        async || fixture.metric("antiphon_worker_unauthorized_chunks_total").await == strangers.len() as f64;
    fixture.until("all of them are counted", SOON, counted).await;
    assert_eq!(events(&follower), [], "they are not shown");
    // Chunk ids are per answer: a message that is no answer does not affect the turn.
    let answer = asked.chunk("mine", json!({"chunk_id": 0, "is_final": true}));
    asked.publish(answer.to_string().into_bytes()).await.unwrap();
    until_ended(&follower, &mine.answer).await;
    assert_eq!(text_seen(&follower, &mine.answer), "mine");
    assert_eq!(said(&fixture.messages_of("mine").await), [("user", "hello"), ("assistant", "mine")]);
    other.answer("yours").await.unwrap();
    assert_eq!(said(&fixture.until_messages("yours", 2).await), [("user", "hello"), ("assistant", "yours")]);
}

#[tokio::test(flavor = "multi_thread")]
async fn ids_of_a_turns_messages_are_reserved_for_the_turn() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let turn = fixture.api().say("talk", "hello").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    // A message without a turn that has the id of the input or of a step would leave this turn
    // stored in part.
    for id in [turn.input.clone(), format!("{}-s0", turn.answer), format!("{}-s0-r0", turn.answer)] {
        let bare =
            json!({"session_id": "talk", "message_id": id, "chunk_id": 0, "chunk": "x", "is_final": true});
        asked.publish(bare.to_string().into_bytes()).await.unwrap();
    }
    asked.say("hi").await.unwrap();
    asked.answer("!").await.unwrap();
    let messages = fixture.until_messages("talk", 2).await;
    assert_eq!(said(&messages), [("user", "hello"), ("assistant", "hi!")]);
    tokio::time::sleep(crate::api_client::A_WHILE).await;
    assert_eq!(fixture.messages_of("talk").await.len(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_for_something_else_than_its_answer_is_a_dead_letter() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let turn = fixture.api().say("talk", "hello").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    let strangers = ["new".to_owned(), turn.input.clone(), format!("{}-s0", turn.answer)];
    for id in &strangers {
        let chunk = asked.chunk("lie", json!({"chunk_id": 0, "message_id": id, "is_final": true}));
        asked.publish(chunk.to_string().into_bytes()).await.unwrap();
    }
    // In another thread the token is equally invalid.
    let elsewhere = model::ThreadId::parse("elsewhere").unwrap();
    let chunk = asked.chunk(
        "lie",
        json!({"chunk_id": 0, "session_id": "elsewhere", "message_id": "new", "is_final": true}),
    );
    let subject = fixture.publisher.subject(&elsewhere);
    fixture.publisher.publish_raw(&subject, None, chunk.to_string().into_bytes().into()).await.unwrap();
    fixture
        .until("each is a dead letter", SOON, async || {
            let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
            letters.len() == strangers.len() + 1
                && letters.iter().all(|letter| (&*letter.kind, &*letter.reason) == ("entry", "turn_mismatch"))
        })
        .await;
    let counted =
        async || fixture.metric("antiphon_worker_dead_letters_total").await == strangers.len() as f64 + 1.0;
    fixture.until("each is counted", SOON, counted).await;
    // The first of these chunks has failed the turn, and later chunks are ignored.
    assert_eq!(fixture.until_failed("talk", 1).await, [("turn_mismatch".to_owned(), 0)]);
    let answer = asked.chunk("true", json!({"chunk_id": 0, "is_final": true}));
    asked.publish(answer.to_string().into_bytes()).await.unwrap();
    assert!(fixture.messages_of("talk").await.is_empty());
    assert!(fixture.messages_of("elsewhere").await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn tool_calls_with_one_id_get_an_id_each() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let turn = fixture.api().say("talk", "hello").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    let arguments = [r#"{"zone":"UTC"}"#, r#"{"zone":"CET"}"#];
    let said =
        |kind: &str| json!({"chunk_type": kind, "metadata": {"tool_call_id": "c", "tool_name": "clock"}});
    for text in arguments {
        asked.say_with(text, said("tool_call")).await.unwrap();
    }
    for text in ["noon", "one"] {
        asked.say_with(text, said("tool_result")).await.unwrap();
    }
    asked.answer("done").await.unwrap();
    let stored = fixture.until_messages("talk", 5).await;
    let calls = stored[1].tool_calls.as_ref().unwrap().as_array().unwrap();
    let of = |call: &Value| (call["id"] == "c", call["arguments"].as_str().unwrap().to_owned());
    assert_eq!(calls.iter().map(of).collect::<Vec<_>>(), arguments.map(|it| (true, it.to_owned())));
    assert_eq!([&*stored[2].content, &*stored[3].content], ["noon", "one"]);
    let counted = async || fixture.metric("antiphon_worker_ambiguous_calls_total").await == 1.0;
    fixture.until("the second is counted", SOON, counted).await;
    // The context for the model is repaired.
    let next = fixture.api().say("talk", "and now?").await.unwrap();
    let asked = asked_for(&manual_workflow, &next).await;
    let context = asked.raw["context"].as_array().unwrap();
    let ids: Vec<_> = context[1]["tool_calls"].as_array().unwrap().iter().map(|call| &call["id"]).collect();
    assert_ne!(ids[0], ids[1]);
    assert_eq!([&context[2]["tool_call_id"], &context[3]["tool_call_id"]], [ids[0], ids[1]]);
    asked.answer("now").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn garbage_among_the_chunks_of_an_answer_is_set_aside() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let turn = fixture.api().say("talk", "hello").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    asked.say("one ").await.unwrap();
    // None of these has the turn's token.
    let mut without_token = |text: &str, more: Value| {
        let mut chunk = asked.chunk(text, more);
        chunk.as_object_mut().unwrap().remove("turn_token");
        chunk.to_string()
    };
    let wrong_kind = without_token("x", json!({"chunk_id": 1, "chunk_type": "shout"}));
    let nul = without_token("x\u{0}y", json!({"chunk_id": 1}));
    let elsewhere = without_token("x", json!({"chunk_id": 1, "session_id": "other"}));
    let garbage = [
        b"not JSON".to_vec(),
        b"{\"session_id\":\"talk\"".to_vec(),
        vec![0xff; 64],
        wrong_kind.into(),
        nul.into(),
        elsewhere.into(),
    ];
    let count = garbage.len();
    for payload in garbage {
        asked.publish(payload).await.unwrap();
    }
    let chunk = asked.chunk("two", json!({"chunk_id": 1, "is_final": true})).to_string();
    asked.publish(chunk.into()).await.unwrap();
    assert_eq!(said(&fixture.until_messages("talk", 2).await), [("user", "hello"), ("assistant", "one two")]);
    fixture
        .until("each is a dead letter", SOON, async || {
            let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
            letters.len() == count && letters.iter().all(|letter| letter.kind == "entry")
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_that_answer_the_same_delivery_make_one_answer() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let follower = fixture.following("talk").await;
    let turn = fixture.api().say("talk", "hello").await.unwrap();
    let mut asked = asked_for(&manual_workflow, &turn).await;
    let pieces = ["a", "b", "c"].map(|text| {
        let is_final = text == "c";
        (asked.chunk(text, json!({"is_final": is_final})), is_final)
    });
    for (chunk, is_final) in &pieces {
        asked.publish(chunk.to_string().into_bytes()).await.unwrap();
        // The other delivery sends the same, and then something else.
        asked.publish(chunk.to_string().into_bytes()).await.unwrap();
        if !is_final {
            let mut other = chunk.clone();
            other["chunk"] = json!("z");
            asked.publish(other.to_string().into_bytes()).await.unwrap();
        }
    }
    until_ended(&follower, &turn.answer).await;
    assert_eq!(text_seen(&follower, &turn.answer), "abc");
    assert_eq!(said(&fixture.until_messages("talk", 2).await), [("user", "hello"), ("assistant", "abc")]);
    fixture
        .until("both contradictions are counted", SOON, async || {
            fixture.metric("antiphon_worker_conflicting_chunks_total").await == 2.0
        })
        .await;
    assert_eq!(events(&follower).iter().filter(|event| event.terminal().is_some()).count(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn redelivered_request_fences_the_attempt_before() {
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow_of("default", Duration::from_secs(1)).await;
    let follower = fixture.following("talk").await;
    let turn = fixture.api().say("talk", "hello").await.unwrap();
    let mut first = asked_for(&manual_workflow, &turn).await;
    first.say("The first ").await.unwrap();
    first.say("says").await.unwrap();
    follower.wait(SOON, |progress| progress.events >= 2).await.unwrap();
    let mut second = asked_for(&manual_workflow, &turn).await;
    assert_eq!((first.attempt, second.attempt, second.request.run), (0, 1, 0));
    second.say("The second").await.unwrap();
    follower.wait(SOON, |progress| progress.events >= 4).await.unwrap();
    first.say(" more").await.unwrap();
    first.finish(" than it may").await.unwrap();
    second.answer(" counts").await.unwrap();
    until_ended(&follower, &turn.answer).await;
    let chunk = |event: &StreamEvent| match event {
        StreamEvent::Chunk(chunk) => format!("{} {}", chunk.attempt, chunk.text),
        StreamEvent::Reset { attempt, .. } => format!("reset {attempt}"),
        StreamEvent::Complete { .. } => "complete".to_owned(),
        StreamEvent::Failed { .. } | StreamEvent::Restart { .. } | StreamEvent::Other { .. } => {
            format!("{event:?}")
        }
    };
    let seen: Vec<_> = events(&follower).iter().map(chunk).collect();
    assert_eq!(seen, ["0 The first ", "0 says", "reset 1", "1 The second", "1  counts", "complete"]);
    let messages = fixture.messages_of("talk").await;
    assert_eq!(said(&messages), [("user", "hello"), ("assistant", "The second counts")]);
    assert_eq!(messages[1].attempt, 1);
    fixture
        .until("what came too late is counted", SOON, async || {
            let fenced = fixture.metric("antiphon_worker_fenced_chunks_total").await;
            (fenced, fixture.metric("antiphon_worker_attempt_resets_total").await) == (2.0, 1.0)
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_turn_of_an_unserved_workflow_waits_and_says_why() {
    let fixture = Fixture::with(alone).await;
    let settings = json!({"deadline_ms": 8_000});
    fixture.api().put_agent("ann", "unserved", settings).await.unwrap();
    let follower = fixture.following("ann").await;
    let turn = fixture.api().say("ann", "hello").await.unwrap();
    fixture
        .until("it says so", SOON, async || {
            fixture.api().agent("ann").await.unwrap()["active_turn"]["waiting"]["reason"] == "no_workflow"
        })
        .await;
    assert_eq!(fixture.until_failed("ann", 1).await, [("no_workflow".to_owned(), 0)]);
    until_ended(&follower, &turn.answer).await;
    // A service starts: a retry is answered, and the request of the failed run is gone.
    let manual_workflow = fixture.manual_workflow_of("unserved", Duration::from_secs(30)).await;
    fixture.no_request_comes(&manual_workflow).await;
    let again = fixture.api().retry_turn("ann", &turn.id).await.unwrap();
    asked_for(&manual_workflow, &again).await.answer("hi").await.unwrap();
    assert_eq!(said(&fixture.until_messages("ann", 2).await), [("user", "hello"), ("assistant", "hi")]);
    assert_eq!(turns::failed_turns(&fixture.pool).await.unwrap().len(), 0);
}

/// Each case is one chunk with the turn's token that breaks a rule, and the code that people see.
#[tokio::test(flavor = "multi_thread")]
async fn a_refused_chunk_of_an_answer_fails_its_turn_at_once() {
    const AT_ONCE: Duration = Duration::from_secs(2);
    let fixture = Fixture::with(alone).await;
    let manual_workflow = fixture.manual_workflow().await;
    let mistakes = [
        ("unknown type", json!({"chunk_type": "text"}), "invalid_chunk"),
        ("metadata that is no object", json!({"metadata": "a string"}), "malformed"),
        ("a field that does not exist", json!({"text": "hello"}), "malformed"),
        (
            "calls that are no list",
            json!({"metadata": {"model_calls": 7}, "is_final": true}),
            "invalid_chunk",
        ),
        ("too large", json!({"chunk": "x".repeat(70_000)}), "chunk_too_large"),
        (
            "a call without an id",
            json!({"chunk_type": "tool_call", "metadata": {"name": "clock"}}),
            "invalid_chunk",
        ),
        ("a negative id", json!({"chunk_id": -1}), "invalid_chunk"),
        ("another message", json!({"message_id": "mine"}), "turn_mismatch"),
        ("another thread", json!({"session_id": "other"}), "session_mismatch"),
    ];
    for (number, (what, more, code)) in mistakes.into_iter().enumerate() {
        let thread = format!("mistake-{number}");
        let follower = fixture.following(&thread).await;
        let turn = fixture.api().say(&thread, "hello").await.unwrap();
        let mut asked = asked_for(&manual_workflow, &turn).await;
        asked.say("it begins well").await.unwrap();
        let chunk = asked.chunk("hello", more);
        let began = std::time::Instant::now();
        asked.publish(chunk.to_string().into_bytes()).await.unwrap();
        until_ended(&follower, &turn.answer).await;
        assert!(began.elapsed() < AT_ONCE * 5, "{what}: {:?}", began.elapsed());
        let failed = events(&follower).into_iter().find_map(|event| match event {
            StreamEvent::Failed { code, .. } => Some(code),
            _ => None,
        });
        assert!(failed.as_deref() == Some(code), "{what}: {failed:?}");
        let rows = turns::failed_turns(&fixture.pool).await.unwrap();
        let row = rows.iter().find(|row| row.thread_id == thread).unwrap();
        let letter = row.text.split("(dead letter ").nth(1).and_then(|rest| rest.strip_suffix(')')).unwrap();
        let kept: Option<String> = sqlx::query_scalar(
            "SELECT reason FROM dead_letters WHERE kind || ':' || bucket || ':' || key = $1",
        )
        .bind(letter)
        .fetch_optional(&fixture.pool)
        .await
        .unwrap();
        assert_eq!(kept, failed, "{what}: the text names the letter that keeps the payload: {}", row.text);
    }
}
