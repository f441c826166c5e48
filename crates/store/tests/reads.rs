//! Look-ups and history.

use model::{AgentId, MessageFailure, Position, TaskId, TimerId};
use partition::{CommandKey, Lookup};
use serde_json::json;
use store::{Applied, QueueRead, Range, StoreError};

use crate::fixture::{Database, Owner, dead_message, key, message, metadata, thread};
use crate::values::{finishes, turn};

#[tokio::test]
async fn a_look_up_tells_ended_from_absent_from_no_thread() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "done", 1)];
    commit.dead_letters = vec![dead_message(key("u", "failed"), 2, MessageFailure::Stalled)];
    owner.commit(&commit).await.unwrap();
    let keys = [key("v", "new"), key("t", "done"), key("u", "failed"), key("t", "new"), key("t", "done")];
    let answer = async |create| {
        let known = store.lookup(None, &keys, create).await.unwrap();
        assert!(known.iter().zip(&keys).all(|((key, _), asked)| key == asked));
        known.into_iter().map(|(_, known)| known).collect::<Vec<_>>()
    };
    use Lookup::{Absent, Ended, NoThread};
    assert_eq!(answer(true).await, [Absent, Ended, Ended, Absent, Ended]);
    assert_eq!(answer(false).await, [NoThread, Ended, Ended, Absent, Ended]);
    assert!(store.create_thread(&thread("v")).await.unwrap());
    assert!(!store.create_thread(&thread("v")).await.unwrap());
    assert_eq!(answer(false).await, [Absent, Ended, Ended, Absent, Ended]);
    assert_eq!(store.lookup(None, &[], false).await.unwrap(), []);
    // Only the stored owner gets an answer.
    let mine = Applied::from(&owner.grant);
    assert_eq!(store.lookup(Some(mine), &keys, true).await.unwrap().len(), keys.len());
    let before = Applied { epoch: mine.epoch - 1, ..mine };
    let refused = store.lookup(Some(before), &keys, true).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotOwner), "{refused}");
    let task = [CommandKey::Task(AgentId::parse("a").unwrap(), TaskId::parse("t").unwrap(), None)];
    assert_eq!(store.check(Some(mine), &task, true).await.unwrap().len(), 1);
    let refused = store.check(Some(before), &task, true).await.unwrap_err();
    assert!(matches!(refused, StoreError::NotOwner), "{refused}");
    // An owner whose lease was taken is refused too. A store that goes back in time may return the
    // lease to it and undo what it has read.
    store.renounce(&[mine.partition]).await.unwrap();
    let refused = [
        store.lookup(Some(mine), &keys, true).await.unwrap_err(),
        store.check(Some(mine), &task, true).await.unwrap_err(),
        store.load_tasks(mine, &[queue_read()]).await.unwrap_err(),
        store.due_timers(Some(mine), &[timer()]).await.unwrap_err(),
    ];
    assert!(refused.iter().all(|error| matches!(error, StoreError::NotOwner)), "{refused:?}");
}

fn queue_read() -> QueueRead {
    QueueRead { agent: AgentId::parse("a").unwrap(), after: Position::from_stored(0), limit: 1 }
}

fn timer() -> TimerId {
    TimerId::follow_up(&thread("t"), Position::from_stored(1))
}

#[tokio::test]
async fn history_pages_forwards_and_backwards() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = (1..=9).map(|n| message("t", &format!("m{n}"), n * 10)).collect();
    owner.commit(&commit).await.unwrap();
    store.create_thread(&thread("empty")).await.unwrap();
    let page = async |id, after: Option<i64>, before: Option<i64>, limit| {
        let at = |position: Option<i64>| position.map(Position::from_stored);
        let range = Range { after: at(after), before: at(before), with_synthetic: false };
        let page = store.history(&thread(id), range, limit).await.unwrap();
        page.map(|all| all.iter().map(|message| message.position.get()).collect::<Vec<_>>())
    };
    assert_eq!(page("t", None, None, 3).await, Some(vec![10, 20, 30]));
    assert_eq!(page("t", Some(30), None, 3).await, Some(vec![40, 50, 60]));
    assert_eq!(page("t", None, Some(90), 3).await, Some(vec![60, 70, 80]));
    assert_eq!(page("t", Some(20), Some(60), 2).await, Some(vec![30, 40]));
    assert_eq!(page("t", Some(90), None, 3).await, Some(vec![]));
    assert_eq!(page("empty", None, None, 3).await, Some(vec![]));
    assert_eq!(page("unknown", None, None, 3).await, None);
}

#[tokio::test]
async fn only_what_is_synthetic_by_the_boolean_is_hidden() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let values = [json!(true), json!("true"), json!(1), json!(null), json!(false), json!([true])];
    let mut commit = owner.empty();
    for (value, number) in values.into_iter().zip(1..) {
        let mut one = message("t", &format!("m{number}"), number * 10);
        one.metadata = metadata(json!({ "synthetic": value }));
        commit.messages.push(one);
    }
    owner.commit(&commit).await.unwrap();
    let page = async |range| {
        let page = store.history(&thread("t"), range, 9).await.unwrap().unwrap();
        page.iter().map(|message| message.position.get()).collect::<Vec<_>>()
    };
    assert_eq!(page(Range::default()).await, [20, 30, 40, 50, 60]);
    let before = Some(Position::from_stored(60));
    assert_eq!(page(Range { before, ..Range::default() }).await, [20, 30, 40, 50]);
    assert_eq!(page(Range { with_synthetic: true, ..Range::default() }).await, [10, 20, 30, 40, 50, 60]);
}

#[tokio::test]
async fn rows_of_an_answer_stay_in_its_steps() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let [x, y] = ["x", "y"].map(|unique| turn("u", unique));
    let mut commit = owner.empty();
    commit.turns = vec![finishes("u", &x, 1, 10, None), finishes("u", &y, 0, 20, None)];
    // The second turn continues the batch of the first, but is not part of the first answer.
    for (message, number) in commit.turns[1].messages.iter_mut().zip(4..) {
        (message.placement.batch_id, message.placement.sequence_num) = (Position::from_stored(10), number);
    }
    owner.commit(&commit).await.unwrap();
    let history = store.history(&thread("u"), Range::default(), 100).await.unwrap().unwrap();
    assert_eq!(history[3].content, format!("text of {}", x.answer(1)));
    assert_eq!(history[2].tool_call_id.as_deref(), Some("c1"));
}
