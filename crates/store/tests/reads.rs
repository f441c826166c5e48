//! Look-ups, outcomes, history.

use model::{Failure, IdRange, Position, Role};
use partition::Known;
use store::{Range, StoredOutcome};

use crate::fixture::{Database, Owner, dead_message, key, message, thread};

#[tokio::test]
async fn a_look_up_tells_ended_from_absent_from_no_thread() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "done", 1)];
    commit.dead_letters = vec![dead_message(key("u", "failed"), 2, Failure::Stalled)];
    owner.commit(&commit).await.unwrap();
    let keys = [key("v", "new"), key("t", "done"), key("u", "failed"), key("t", "new"), key("t", "done")];
    let answer = async |create| {
        let known = store.look_up(&keys, create).await.unwrap();
        assert!(known.iter().zip(&keys).all(|((key, _), asked)| key == asked));
        known.into_iter().map(|(_, known)| known).collect::<Vec<_>>()
    };
    use Known::{Absent, Ended, NoThread};
    assert_eq!(answer(true).await, [Absent, Ended, Ended, Absent, Ended]);
    assert_eq!(answer(false).await, [NoThread, Ended, Ended, Absent, Ended]);
    assert!(store.create_thread(&thread("v")).await.unwrap());
    assert!(!store.create_thread(&thread("v")).await.unwrap());
    assert_eq!(answer(false).await, [Absent, Ended, Ended, Absent, Ended]);
    assert_eq!(store.look_up(&[], false).await.unwrap(), []);
}

#[tokio::test]
async fn an_outcome_is_what_was_committed() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let missing = vec![IdRange { first: 1, last: 3 }, IdRange { first: 9, last: 9 }];
    let failure = Failure::GapTimeout { missing: missing.clone() };
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "done", 77)];
    commit.messages[0].attempt = u32::MAX;
    commit.dead_letters = vec![dead_message(key("t", "failed"), 2, failure.clone())];
    owner.commit(&commit).await.unwrap();
    let outcomes = store.outcome_of(&[key("t", "failed"), key("t", "open"), key("t", "done")]).await.unwrap();
    let failed = StoredOutcome::Failed {
        code: "gap_timeout".to_owned(),
        text: failure.to_string(),
        missing,
        attempt: 3,
    };
    let complete = StoredOutcome::Complete {
        position: Position::from_stored(77),
        role: Role::Assistant,
        content: "text of done".to_owned(),
        attempt: u32::MAX,
    };
    assert_eq!(outcomes, [(key("t", "failed"), failed), (key("t", "done"), complete)]);
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
        let range = Range { after: at(after), before: at(before) };
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
