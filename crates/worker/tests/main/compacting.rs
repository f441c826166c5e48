//! Threads whose contexts become large are compacted and continue.

use model::ThreadId;
use serde_json::{Value, json};
use wire::work::TurnRequest;

use crate::fixture::{Fixture, next, until};

fn thread() -> ThreadId {
    ThreadId::parse("a1").unwrap()
}

/// A text of 30 tokens.
fn text(number: usize) -> String {
    format!("{number:0>96}")
}

/// Runs task `number`, and every summary requested meanwhile. Returns the request of the task, and
/// those for summaries.
async fn run(fixture: &Fixture, number: usize) -> (TurnRequest, Vec<TurnRequest>) {
    fixture.send_task("a1", &format!("k{number}"), &text(number)).await;
    let mut work = fixture.work("default");
    let mut summaries = Vec::new();
    loop {
        let (item, request) = next(&mut work).await;
        let is_summary = request.task.as_ref().is_some_and(|task| task.kind == "compaction");
        let answer = if is_summary { "They counted.".to_owned() } else { text(number) };
        fixture.answer(&request, &[&answer]).await;
        item.ack().await.unwrap();
        let turn = request.turn_id.clone();
        until("the turn is committed", async || {
            fixture
                .history(&request.thread_id)
                .await
                .iter()
                .any(|message| message.message_id.as_str() == format!("{turn}-a"))
        })
        .await;
        if is_summary {
            summaries.push(request);
        } else {
            return (request, summaries);
        }
    }
}

async fn compactions(fixture: &Fixture) -> usize {
    fixture.store.compactions(&thread()).await.unwrap().len()
}

fn said(request: &TurnRequest) -> Vec<&str> {
    request.context.iter().map(|message| message.content.as_str()).collect()
}

fn settings(compaction: Value) -> Value {
    json!({"context_tokens": 400, "compaction": compaction, "system": "Be brief."})
}

#[tokio::test]
async fn a_context_begins_the_same_until_a_compaction_moves_it() {
    let fixture = Fixture::new().await;
    fixture.put("a1", settings(json!({"strategy": "drop_oldest"}))).await;
    let (mut before, mut moves, mut done): (Vec<String>, usize, usize) = (Vec::new(), 0, 0);
    for number in 1..=14 {
        let (request, _) = run(&fixture, number).await;
        assert!(request.context_tokens <= 400, "{}", request.context_tokens);
        let now: Vec<String> = said(&request).iter().map(|text| (*text).to_owned()).collect();
        let same = &before[..before.len().saturating_sub(1)];
        if !now.starts_with(same) {
            moves += 1;
            assert!(now.len() < before.len(), "room for many turns is made at once");
        }
        assert_eq!(now.last(), Some(&text(number)));
        before = now;
        // The compaction started by a turn finishes before the next turn.
        if request.context_tokens > 360 {
            until("the thread is compacted", async || compactions(&fixture).await > done).await;
            done = compactions(&fixture).await;
        }
    }
    // The last turn may have started one more compaction, which only another turn would show.
    assert!(moves >= 2 && (moves..=moves + 1).contains(&done), "{moves} moves, {done} compactions");
    let stored = fixture.store.compactions(&thread()).await.unwrap();
    assert_eq!(stored[1].compaction.previous, Some(stored[0].compaction.id));
    assert_eq!(fixture.history("a1").await.len(), 28, "nothing is destroyed");
    fixture.end().await;
}

#[tokio::test]
async fn a_summary_stands_for_what_leaves_until_it_is_undone() {
    let fixture = Fixture::new().await;
    fixture.put("a1", settings(json!({"strategy": "summarise", "summary_tokens": 20}))).await;
    let mut asked = Vec::new();
    let mut number = 0;
    let summarised = loop {
        number += 1;
        assert!(number < 20, "nothing was summarised");
        let (request, summaries) = run(&fixture, number).await;
        asked.extend(summaries);
        if request.summary.is_some() {
            break request;
        }
        if asked.is_empty() && request.context_tokens > 360 {
            until("a summary is wanted", async || compactions(&fixture).await == 1).await;
        }
    };
    let (wanted, task) = (&asked[0], asked[0].task.as_ref().unwrap());
    assert_eq!(
        task.task_id,
        format!("compaction-{}", fixture.store.compactions(&thread()).await.unwrap()[0].compaction.id)
    );
    assert_eq!((wanted.context.len(), wanted.summary.as_deref()), (1, None));
    assert!(wanted.context[0].content.starts_with("Summarise"), "{}", wanted.context[0].content);
    assert!(wanted.context[0].content.contains(&text(1)));
    assert_eq!((wanted.settings.get("system"), &wanted.settings["tools"]), (None, &json!([])));
    assert_eq!(summarised.summary.as_deref(), Some("They counted."));
    let texts = said(&summarised);
    assert!(!texts.contains(&text(1).as_str()), "it has left: {texts:?}");
    assert!(
        !texts.iter().any(|text| text.contains("They counted.")),
        "the fleet's own work is no part of the thread"
    );
    let undone = fixture.store.undo_compaction(&thread(), "anna").await.unwrap();
    assert_eq!(undone, Some(fixture.store.compactions(&thread()).await.unwrap()[0].compaction.id));
    let (request, _) = run(&fixture, number + 1).await;
    assert_eq!(request.summary, None);
    assert_eq!(fixture.store.undo_compaction(&thread(), "anna").await.unwrap(), None, "once");
    fixture.end().await;
}
