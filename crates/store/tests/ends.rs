//! Ends of the messages of a thread, as sent to subscribers that reconnect.

use std::time::Duration;

use model::{
    AnswerReport, BatchType, ErrorClass, FailedMessage, FinishReason, IdRange, MessageFailure, MessageId,
    Position, Positions, RetryHint, Role, Timestamp, TurnId,
};
use partition::Commit;
use serde_json::{Value, json};
use store::{CleanupKind, CleanupLimit, Committed, EndContent, EndRow, Store, TurnState};

use crate::api::{messages, turn, write};
use crate::fixture::{self, Database, Owner, key, message, metadata, thread};

fn at(position: i64) -> Position {
    Position::from_stored(position)
}

fn failed(message: &str, position: i64, failure: MessageFailure) -> FailedMessage {
    fixture::failed(key("t", message), position, failure)
}

/// The ends in order, each as `position:content`.
async fn ends(store: &Store, (after, through): (i64, i64), limit: u32) -> String {
    let rows = store.ends(&thread("t"), at(after), at(through), limit).await.unwrap().rows;
    let said = |row: &EndRow| match &row.said {
        EndContent::Message { content, .. } => format!("{}:{content}", row.position),
        EndContent::Failure { code, .. } => format!("{}!{code}", row.position),
    };
    rows.iter().map(said).collect::<Vec<_>>().join(" ")
}

struct Ids {
    input: String,
    first: String,
    result: String,
    second: String,
    answer: String,
}

fn ids(turn: &TurnId, run: u32) -> Ids {
    let step = |n| turn.step(run, n).to_string();
    let (input, result) = (turn.input().to_string(), turn.result(run, 0, 0).to_string());
    Ids { input, first: step(0), result, second: step(1), answer: turn.answer(run).to_string() }
}

#[tokio::test]
async fn what_the_system_made_up_is_no_end() {
    let (database, store) = Database::new(2).await;
    messages(
        &database,
        &[
            (10, 10, "bare", "system_trigger", "assistant", "bare"),
            (20, 20, "imported", "system_trigger", "user", "made up"),
            (30, 30, "nearly", "system_trigger", "user", "note"),
            (40, 40, "imported-too", "system_trigger", "user", "made up"),
        ],
    )
    .await;
    let marks = [("imported", "true"), ("nearly", "\"true\""), ("imported-too", "true")];
    for (id, mark) in marks {
        let set =
            format!("UPDATE messages SET metadata = '{{\"synthetic\": {mark}}}' WHERE message_id = '{id}'");
        write(&database, &set).await;
    }
    assert_eq!(ends(&store, (0, i64::MAX), 99).await, "10:bare 30:note");
    let last = async |through: i64| store.last_end(&thread("t"), at(through)).await.unwrap();
    assert_eq!((last(29).await, last(99).await), (Some(at(10)), Some(at(30))));
}

#[tokio::test]
async fn ends_are_in_order_with_their_inputs_and_steps() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let t = thread("t");
    let (x, y, z) = (turn(&t, "x-a7"), turn(&t, "y"), turn(&t, "z"));
    let (xs, ys, zs) = (ids(&x, 0), ids(&y, 12), ids(&z, 1));
    messages(
        &database,
        &[
            (10, 10, "bare", "system_trigger", "assistant", "bare"),
            (20, 20, &xs.input, "user_request", "user", "question"),
            (21, 20, &xs.first, "user_request", "assistant", "one"),
            (22, 20, &xs.result, "user_request", "tool", "result"),
            (23, 20, &xs.second, "user_request", "assistant", "two"),
            (24, 20, &xs.answer, "user_request", "assistant", "three"),
            (30, 30, "note-a", "system_trigger", "user", "note"),
            (40, 40, &ys.input, "agent_to_agent", "user", "task"),
            (41, 40, &ys.answer, "agent_to_agent", "assistant", "done"),
            // A continuation belongs to the batch of the earlier turn.
            (50, 40, &zs.input, "continuation", "user", "go on"),
            (51, 40, &zs.first, "continuation", "assistant", "more"),
            (52, 40, &zs.answer, "continuation", "assistant", "text"),
            // History imported from another system: no subscriber received it live.
            (60, 60, "imported", "user_request", "assistant", "history"),
        ],
    )
    .await;
    let mut commit = owner.empty();
    commit.failed_messages = vec![
        failed("gone", 25, MessageFailure::Stalled),
        failed(z.answer(0).as_str(), 45, MessageFailure::UnknownThread),
        failed("late", 70, MessageFailure::Stalled),
    ];
    owner.commit(&commit).await.unwrap();
    let all = "10:bare 20:question 21:one 22:result 23:two 24:three 25!stalled 30:note 41:done 45!unknown_thread 51:more \
               52:text 70!stalled";
    assert_eq!(ends(&store, (0, i64::MAX), 99).await, all);
    assert_eq!(ends(&store, (24, 45), 99).await, "25!stalled 30:note 41:done 45!unknown_thread");
    assert_eq!(ends(&store, (70, i64::MAX), 99).await, "");
    assert_eq!(ends(&store, (45, 45), 99).await, "");
    // For every limit, a page has the first ends of both kinds.
    let words: Vec<&str> = all.split_whitespace().collect();
    for limit in 1..=words.len() {
        assert_eq!(ends(&store, (0, i64::MAX), limit as u32).await, words[..limit].join(" "));
    }
    // The same holds after a position with a stored row: an answer or a failure.
    for (after, rest) in [(10, &words[1..]), (45, &words[10..])] {
        for limit in 1..=rest.len() {
            assert_eq!(ends(&store, (after, i64::MAX), limit as u32).await, rest[..limit].join(" "));
        }
    }
    let rows = store.ends(&t, at(40), at(41), 9).await.unwrap().rows;
    let row = &rows[0];
    assert_eq!(
        (row.message_id.as_str(), row.role, row.batch_type),
        (&*ys.answer, Role::Assistant, BatchType::AgentToAgent)
    );
    // `has_after` shows whether something is stored at the position itself, an end or not.
    for (after, has_after) in [(0, true), (40, true), (39, false), (41, true), (42, false), (45, true)] {
        let page = store.ends(&t, at(after), Position::MAX, 9).await.unwrap();
        assert_eq!(page.has_after, has_after, "{after}: {page:?}");
        assert!(page.rows.iter().all(|row| row.position > at(after)), "{page:?}");
    }
    assert!(store.ends(&thread("u"), at(0), Position::MAX, 9).await.unwrap().rows.is_empty());

    let last = async |through: i64| store.last_end(&t, at(through)).await.unwrap().map(Position::get);
    for (through, wanted) in [(9, None), (10, Some(10)), (23, Some(10)), (24, Some(24)), (29, Some(25))] {
        assert_eq!(last(through).await, wanted, "through {through}");
    }
    for (through, wanted) in [(44, 41), (49, 45), (51, 45), (69, 52), (70, 70), (i64::MAX, 70)] {
        assert_eq!(last(through).await, Some(wanted), "through {through}");
    }
    assert_eq!(store.last_end(&thread("u"), Position::MAX).await.unwrap(), None);

    let end_of = async |message: &str| {
        store.end_of(&t, &MessageId::parse(message).unwrap()).await.unwrap().map(Position::get)
    };
    assert_eq!(end_of(&xs.answer).await, Some(24));
    assert_eq!(end_of("gone").await, Some(25));
    assert_eq!(end_of(z.answer(0).as_str()).await, Some(45), "its first run");
    assert_eq!(end_of(&zs.answer).await, Some(52));
    assert_eq!(end_of("none").await, None);
    assert_eq!(store.end_of(&thread("u"), &MessageId::parse("gone").unwrap()).await.unwrap(), None);

    let done = |turn: &TurnId, run| {
        let report = AnswerReport { finish_reason: Some(FinishReason::Stop), usage: None };
        Some(TurnState::Done { answer: turn.answer(run), report })
    };
    for (turn, run) in [(&x, 0), (&y, 12), (&z, 1)] {
        assert_eq!(store.turn_state(&t, turn).await.unwrap(), done(turn, run), "{turn}");
    }
}

#[tokio::test]
async fn stored_end_has_all_that_its_text_is_rendered_from() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let calls = json!([{"id": "c", "name": "f", "arguments": "{}"}]);
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "m", 10)];
    commit.messages[0].tool_calls = Some(calls.clone());
    commit.messages[0].metadata = metadata(json!({"reasoning": "so"}));
    commit.messages[0].attempt = u32::MAX;
    owner.commit(&commit).await.unwrap();
    let row = store.ends(&thread("t"), at(0), Position::MAX, 1).await.unwrap().rows.remove(0);
    assert_eq!((row.position, row.attempt), (at(10), u32::MAX));
    let EndContent::Message { content, tool_calls, tool_call_id, metadata, .. } = row.said else {
        panic!("{row:?}")
    };
    assert_eq!((content.as_str(), tool_calls, tool_call_id), ("text of m", Some(calls), None));
    assert_eq!(metadata.get("reasoning"), Some(&Value::from("so")));
}

#[tokio::test]
async fn failure_is_stored_as_it_was_sent() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let missing = vec![IdRange { first: 1, last: 3 }, IdRange { first: 9, last: 9 }];
    let error = |text: &str, class| MessageFailure::ProducerError {
        code: None,
        text: text.to_owned(),
        hint: RetryHint { class, retry_after_ms: Some(9) },
    };
    let failures = [
        MessageFailure::GapTimeout { missing: missing.clone() },
        error("no\0model", ErrorClass::Permanent),
        error("busy", ErrorClass::Transient),
    ];
    let mut commit = owner.empty();
    commit.failed_messages = (0_i64..)
        .zip(failures.clone())
        .map(|(n, failure)| FailedMessage { role: Role::Tool, ..failed(&format!("m{n}"), 10 + n, failure) })
        .collect();
    owner.commit(&commit).await.unwrap();
    let rows = store.ends(&thread("t"), at(0), Position::MAX, 9).await.unwrap().rows;
    let first = &rows[0];
    assert_eq!(
        (first.position, first.message_id.as_str(), first.attempt, first.role, first.batch_type),
        (at(10), "m0", 3, Role::Tool, BatchType::SystemTrigger)
    );
    let said = |n: usize| match &rows[n].said {
        EndContent::Failure { code, text, missing, is_retryable } => {
            (code.as_str(), text.as_str(), missing.as_slice(), *is_retryable)
        }
        other => panic!("{other:?}"),
    };
    let text = failures[0].to_string();
    assert_eq!(said(0), ("gap_timeout", text.as_str(), missing.as_slice(), true));
    // A text that Postgres refuses is stored without the refused characters.
    assert_eq!((said(1).0, said(1).1.contains('\0'), said(1).3), ("producer_error", false, false));
    assert!(said(2).3);
}

#[tokio::test]
async fn a_failure_is_written_once_and_only_under_the_fence() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let with = |failures: Vec<FailedMessage>| Commit { failed_messages: failures, ..owner.empty() };
    let commit = with(vec![failed("m", 10, MessageFailure::Stalled)]);
    assert!(!commit.is_empty());
    for _ in 0..2 {
        assert_eq!(owner.commit(&commit).await.unwrap(), Committed::Applied);
    }
    // The message has ended, and a later failure does not replace its end.
    let again = with(vec![
        failed("m", 20, MessageFailure::UnknownThread),
        failed("other", 10, MessageFailure::UnknownThread),
    ]);
    assert_eq!(owner.commit(&again).await.unwrap(), Committed::Applied);
    assert_eq!(ends(&store, (0, i64::MAX), 9).await, "10!stalled");
    let mut fenced = with(vec![failed("n", 30, MessageFailure::Stalled)]);
    fenced.epoch += 1;
    assert_eq!(owner.commit(&fenced).await.unwrap(), Committed::Fenced);
    assert_eq!(database.number("SELECT count(*) FROM failed_messages").await, 1);
    // In another thread the same id is another message.
    let elsewhere = FailedMessage { key: key("u", "m"), ..failed("m", 10, MessageFailure::Stalled) };
    assert_eq!(owner.commit(&with(vec![elsewhere])).await.unwrap(), Committed::Applied);
    assert_eq!(database.number("SELECT count(*) FROM failed_messages").await, 2);
}

#[tokio::test]
async fn a_run_that_failed_before_an_answer_keeps_its_place() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let asked = turn(&thread("t"), "x");
    let mut commit = owner.empty();
    commit.failed_messages = vec![failed(asked.answer(0).as_str(), 10, MessageFailure::Stalled)];
    owner.commit(&commit).await.unwrap();
    let mut commit = owner.empty();
    commit.messages = vec![message("t", asked.answer(1).as_str(), 20)];
    owner.commit(&commit).await.unwrap();
    assert_eq!(ends(&store, (0, i64::MAX), 9).await, format!("10!stalled 20:text of {}", asked.answer(1)));
}

#[tokio::test]
async fn failures_go_when_they_are_old() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.failed_messages =
        (0..7).map(|n| failed(&format!("m{n}"), 10 + n, MessageFailure::Stalled)).collect();
    owner.commit(&commit).await.unwrap();
    let hour = Duration::from_secs(3_600);
    assert_eq!(store.clean_up(CleanupKind::FailedMessages, CleanupLimit::Age(hour), 10).await.unwrap(), 0);
    write(
        &database,
        "UPDATE failed_messages SET created_at = now() - interval '1 hour 1 second' WHERE position < 15",
    )
    .await;
    assert_eq!(
        store.clean_up(CleanupKind::FailedMessages, CleanupLimit::Age(2 * hour), 10).await.unwrap(),
        0
    );
    assert_eq!(store.clean_up(CleanupKind::FailedMessages, CleanupLimit::Age(hour), 3).await.unwrap(), 3);
    assert_eq!(store.clean_up(CleanupKind::FailedMessages, CleanupLimit::Age(hour), 3).await.unwrap(), 2);
    assert_eq!(ends(&store, (0, i64::MAX), 9).await, "15!stalled 16!stalled");
}

#[tokio::test]
async fn failures_of_other_tenants_are_not_shown() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let own = model::ThreadId::of_tenant(Some(&model::Tenant::parse("acme").unwrap()), "t").unwrap();
    let mut commit = owner.empty();
    let mut of_acme = failed("m", 10, MessageFailure::Stalled);
    of_acme.key.thread = own.clone();
    commit.failed_messages = vec![of_acme];
    owner.commit(&commit).await.unwrap();
    let visible_ends = async |tenant: &str| {
        let store = store.for_tenant(Some(model::Tenant::parse(tenant).unwrap()));
        store.ends(&own, at(0), Position::MAX, 9).await.unwrap().rows.len()
    };
    assert_eq!((visible_ends("acme").await, visible_ends("acm").await), (1, 0));
}

#[tokio::test]
async fn an_erased_thread_keeps_no_failures() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.failed_messages = vec![failed("m", 10, MessageFailure::Stalled)];
    owner.commit(&commit).await.unwrap();
    let rows = store.rows_of_threads(&[thread("t")]).await.unwrap();
    assert_eq!(rows["failed_messages"], 1);
    store.mark_erased(&[thread("t")], "op", "run", None).await.unwrap();
    assert_eq!(store.erase_some(&[thread("t")]).await.unwrap()["failed_messages"], 1);
    let rows = store.rows_of_threads(&[thread("t")]).await.unwrap();
    assert_eq!(rows["failed_messages"], 0);
    let receipt = store.erased(&thread("t")).await.unwrap().unwrap();
    assert_eq!(receipt.counts["failed_messages"], 1);
}

#[tokio::test]
async fn readers_go_back_where_the_store_has_and_not_for_retention() {
    let (database, store) = Database::new(1).await;
    let t = thread("t");
    let now = database.number("SELECT (extract(epoch FROM clock_timestamp()) * 1000)::bigint").await;
    let place =
        |ago_ms: i64| Positions::above(Timestamp(0)).next(t.bucket(), Timestamp(now).plus_ms(-ago_ms)).get();
    let (old, older, young) = (place(61_000), place(120_000), place(30_000));
    let rows = [older, old, young].map(|at| (at, at, format!("m{at}")));
    let rows: Vec<_> = rows
        .iter()
        .map(|(at, batch, id)| (*at, *batch, id.as_str(), "system_trigger", "assistant", "text"))
        .collect();
    messages(&database, &rows).await;
    let back_to =
        async |ago_ms| store.end_to_go_back_to(&t, at(place(ago_ms))).await.unwrap().map(Position::get);
    // The newest end that is older than the lost one even if clocks differ.
    assert_eq!(back_to(0).await, Some(old));
    assert_eq!(back_to(45_000).await, Some(older));
    assert_eq!(back_to(150_000).await, Some(0));
    // Failures of this age are no longer kept.
    assert_eq!(back_to(31 * 86_400_000).await, None);
    // Retention deletes the oldest messages first, so no message before a deleted one is left.
    database
        .execute("INSERT INTO expired_messages (bucket, message_id, thread_id) SELECT bucket, message_id, thread_id FROM messages")
        .await;
    assert_eq!((back_to(150_000).await, back_to(0).await), (None, Some(old)));
}
