//! Pages of the discarded log, single messages in full, and requests that create a session once.

use std::time::{Duration, Instant};

use model::{Metadata, ReasoningSessionId, Role};
use reasoning::{DISCARDED_SHOWN_CHARS, NewMessage, ReasoningRole, SUMMARY_SHOWN_CHARS, SessionCall};
use store::{CreatedReasoning, DiscardedCursor, DiscardedLayer, RequestId, Store};

use crate::fixture::{Database, Owner};
use crate::reasoning_sessions::{
    appended, compressed, made, range, result, says, seen, session, source, with_threads,
};
use crate::values::{agent, finishes, turn};

/// All pages in sequence, with the parts of each compression joined.
pub(crate) async fn whole_log(store: &Store, id: &ReasoningSessionId, limit: u32) -> Vec<DiscardedLayer> {
    let mut log: Vec<DiscardedLayer> = Vec::new();
    let mut from = None;
    loop {
        let page = store.discarded_reasoning(id, from, limit).await.unwrap();
        assert!(page.layers.iter().map(|entry| entry.originals.len()).sum::<usize>() <= 100);
        for entry in page.layers {
            match log.last_mut().filter(|last| last.layer.id == entry.layer.id) {
                Some(last) => {
                    assert_eq!(entry.skipped, last.originals.len() as u64);
                    last.layer.replaced.extend(entry.layer.replaced);
                    last.originals.extend(entry.originals);
                }
                None => {
                    assert_eq!(entry.skipped, 0);
                    log.push(entry);
                }
            }
        }
        let Some(next) = page.next else { return log };
        from = Some(next);
    }
}

async fn hundred_times(store: &Store, id: &ReasoningSessionId, hundreds: usize, content: &str) {
    for _ in 0..hundreds {
        appended(store, id, (0..100).map(|_| says(ReasoningRole::User, content)).collect()).await;
    }
}

#[tokio::test]
async fn pages_are_short_and_quick_however_much_was_compressed() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    // With row-level security the planner has fewer choices.
    let scoped = store.for_tenant(None);
    hundred_times(&store, &id, 100, "short").await;
    let shown = seen(&store, &id).await;
    compressed(&store, &shown, &range(1, 10_000, &"s".repeat(60_000))).await.unwrap();
    for store in [&store, &scoped] {
        let mut slowest = Duration::ZERO;
        let (mut from, mut numbers) = (None, Vec::new());
        loop {
            let begun = Instant::now();
            let page = store.discarded_reasoning(&id, from, 20).await.unwrap();
            slowest = slowest.max(begun.elapsed());
            let [entry] = &page.layers[..] else { panic!("{page:?}") };
            assert_eq!((entry.count, entry.skipped), (10_000, numbers.len() as u64));
            assert_eq!((entry.summary.len(), entry.summary_chars), (SUMMARY_SHOWN_CHARS as usize, 60_000));
            numbers.extend(entry.layer.replaced.iter().copied());
            let Some(next) = page.next else { break };
            from = Some(next);
        }
        assert_eq!(numbers, (1..=10_000).collect::<Vec<u64>>());
        assert!(slowest < Duration::from_secs(1), "{slowest:?}");
    }
    // A cursor beyond the end of the layer.
    let page = store.discarded_reasoning(&id, Some(DiscardedCursor { layer: 1, skipped: 20_000 }), 5).await;
    assert!(page.unwrap().layers[0].originals.is_empty());
}

#[tokio::test]
async fn long_texts_are_cut_in_pages_and_whole_by_their_number() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    let long = "\u{e9}".repeat(100_000);
    let call = SessionCall {
        arguments: Some(format!("{{\"q\": \"{long}\"}}")),
        signature: Some("signed".to_owned()),
        ..SessionCall::new("c", "search")
    };
    let asks = NewMessage {
        calls: vec![call.clone(), SessionCall::new("d", "search")],
        thinking: Some(long.clone()),
        signature: Some("thought".to_owned()),
        ..says(ReasoningRole::Assistant, "")
    };
    appended(&store, &id, vec![asks.clone(), result("c", &long), result("d", "nothing")]).await;
    let shown = seen(&store, &id).await;
    compressed(&store, &shown, &range(1, 3, "Searched.")).await.unwrap();
    let page = store.discarded_reasoning(&id, None, 5).await.unwrap();
    let [asked, found, none] = &page.layers[0].originals[..] else { panic!("{page:?}") };
    let cut = "\u{e9}".repeat(DISCARDED_SHOWN_CHARS as usize);
    assert_eq!((found.message.content.as_str(), found.chars), (cut.as_str(), 100_000));
    assert_eq!(none.message.content, "nothing");
    assert_eq!(asked.message.thinking.as_deref(), Some(format!("{cut}\u{2026}").as_str()));
    assert_eq!(asked.message.calls, [SessionCall::new("c", "search"), SessionCall::new("d", "search")]);

    let read = async |number| store.reasoning_message(&id, number).await.unwrap().unwrap();
    let whole = read(1).await.message.unwrap();
    assert_eq!((&whole.thinking, &whole.signature), (&asks.thinking, &asks.signature));
    assert_eq!(whole.calls, asks.calls);
    assert_eq!(read(2).await.message.unwrap().content, long);
    assert_eq!(read(4).await.message.unwrap().content, "Searched.");
    assert_eq!((read(5).await.message, read(5).await.last_number), (None, 4));
    assert_eq!(store.reasoning_message(&session("unknown"), 1).await.unwrap(), None);
    // An export contains everything that is stored.
    let rows = store.reasoning_message_rows(&id, 0, 4).await.unwrap();
    assert_eq!(rows[0]["call_details"][0]["signature"], "signed");
}

#[tokio::test]
async fn arguments_do_not_make_views_longer_to_read() {
    let (database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    for number in 0..128 {
        let call = SessionCall {
            arguments: Some("x".repeat(1_000)),
            ..SessionCall::new(format!("c{number}"), "search")
        };
        let asks = NewMessage { calls: vec![call.clone()], ..says(ReasoningRole::Assistant, "") };
        appended(&store, &id, vec![asks, result(&call.id, "r")]).await;
    }
    let bytes = database.number("SELECT max(octet_length(outline))::bigint FROM reasoning_blocks").await;
    assert!((1..20_000).contains(&bytes), "{bytes}");
    let shown = seen(&store, &id).await;
    assert!(shown.thread.entries.iter().all(|entry| entry.calls.iter().all(|call| call.arguments.is_none())));
}

#[tokio::test]
async fn a_request_makes_a_session_once() {
    let (_database, store) = with_threads().await;
    let id = session("s");
    let request = |digest| Some(RequestId { id: "r", digest });
    let sources = [source("t", None, None)];
    let create =
        async |request| store.create_reasoning(&id, &agent("ann"), &sources, request, "x").await.unwrap();
    let CreatedReasoning::Made(count) = create(request("1")).await else { panic!("it is not made") };
    assert_eq!(create(request("1")).await, CreatedReasoning::Before(count));
    assert_eq!(create(request("2")).await, CreatedReasoning::Reused);
    assert_eq!(create(None).await, CreatedReasoning::Exists);
    let other = Some(RequestId { id: "other", digest: "1" });
    assert_eq!(create(other).await, CreatedReasoning::Exists);
    // After the session was compressed, its number of base messages is the same.
    let shown = seen(&store, &id).await;
    compressed(&store, &shown, &range(1, 2, "AB")).await.unwrap();
    assert_eq!(create(request("1")).await, CreatedReasoning::Before(count));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_same_request_at_once_makes_one_session() {
    let (_database, store) = Database::new(1).await;
    let create = |_| {
        let store = store.clone();
        tokio::spawn(async move {
            let request = Some(RequestId { id: "r", digest: "1" });
            store.create_reasoning(&session("s"), &agent("ann"), &[], request, "x").await.unwrap()
        })
    };
    let mut made = 0;
    for created in (0..20).map(create).collect::<Vec<_>>() {
        match created.await.unwrap() {
            CreatedReasoning::Made(0) => made += 1,
            CreatedReasoning::Before(0) => {}
            other => panic!("{other:?}"),
        }
    }
    assert_eq!(made, 1);
}

#[tokio::test]
async fn thinking_alone_in_a_thread_is_no_base_message() {
    let (_database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    let mut finished = finishes("t", &turn("t", "n1"), 0, 10, None);
    let count = finished.messages.len();
    let last = finished.messages.last_mut().unwrap();
    assert_eq!(last.role, Role::Assistant);
    last.content = " \n".into();
    let thinking = serde_json::json!({ "reasoning": "hm" });
    last.metadata = Metadata::new(thinking.as_object().unwrap().clone()).unwrap();
    commit.turns.push(finished);
    owner.commit(&commit).await.unwrap();
    let created =
        store.create_reasoning(&session("s"), &agent("ann"), &[source("t", None, None)], None, "x").await;
    assert_eq!(created.unwrap(), CreatedReasoning::Made(count as u64 - 1));
    let shown = seen(&store, &session("s")).await;
    assert_eq!(shown.thread.entries.last().unwrap().number, count as u64 - 1);
}
