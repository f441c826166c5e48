//! Erasures: requested once, done by one worker at a time, taken over, tried again, ended.

use std::time::Duration;

use model::{Tenant, ThreadId};
use serde_json::json;
use store::{
    AttemptEnd, ClaimedErasure, ErasedCounts, ErasedData, ErasedOwner, ErasureHold, ErasureId, ErasureRow,
    ErasureState, MAX_OPEN_ERASURES, NewErasure, Store,
};

use crate::fixture::{Database, thread};

const LEASE: Duration = Duration::from_secs(60);

fn id(number: u32) -> ErasureId {
    ErasureId::parse(&format!("{number:032x}")).unwrap()
}

fn new(number: u32, data: ErasedData) -> NewErasure {
    NewErasure { id: id(number), tenant: None, data, is_preview: false, actor: "ada".to_owned() }
}

fn of_user(user: &str) -> ErasedData {
    ErasedData::Owner(ErasedOwner::User(None, user.to_owned()))
}

fn counts(messages: u64) -> ErasedCounts {
    ErasedCounts { threads: 1, tables: [("messages".to_owned(), messages)].into(), ..ErasedCounts::default() }
}

async fn request(store: &Store, number: u32, data: ErasedData) -> ErasureRow {
    store.request_erasure(&new(number, data)).await.unwrap().unwrap()
}

async fn stored(store: &Store, number: u32) -> ErasureRow {
    store.erasure(None, &id(number)).await.unwrap().unwrap()
}

async fn end_leases(database: &Database) {
    database.execute("UPDATE erasures SET due_at = now() - interval '1 second' WHERE ended_at IS NULL").await;
}

#[tokio::test]
async fn one_worker_at_a_time_has_an_erasure() {
    let (database, store) = Database::new(2).await;
    assert_eq!(store.claim_erasure("w1", LEASE).await.unwrap(), None);
    let row = request(&store, 1, ErasedData::Thread(thread("t1"))).await;
    assert_eq!((row.state, row.attempts, row.next_attempt_at), (ErasureState::Queued, 0, None));
    // The same request again is the same erasure.
    assert_eq!(request(&store, 2, ErasedData::Thread(thread("t1"))).await.id, id(1));
    let all: Vec<_> = futures_util::future::join_all((0..8).map(|_| store.claim_erasure("w1", LEASE))).await;
    let mut taken: Vec<_> = all.into_iter().filter_map(|claim| claim.unwrap()).collect();
    assert_eq!(taken.len(), 1, "{taken:?}");
    let first = taken.remove(0);
    assert_eq!((first.attempt, &first.data), (1, &ErasedData::Thread(thread("t1"))));
    assert!(store.renew_erasure(&first, LEASE, &counts(3)).await.unwrap());
    assert_eq!(stored(&store, 1).await.counts, counts(3));

    // Its worker dies: another one takes it over, with what was removed so far.
    end_leases(&database).await;
    let second = store.claim_erasure("w2", LEASE).await.unwrap().unwrap();
    assert_eq!((second.attempt, &second.counts), (2, &counts(3)));
    // The first one was only paused, and changes nothing any more.
    assert!(!store.renew_erasure(&first, LEASE, &counts(9)).await.unwrap());
    let done = AttemptEnd::Done { receipt: json!({}) };
    assert!(!store.end_attempt(&first, &counts(9), &done).await.unwrap());
    assert_eq!(stored(&store, 1).await.state, ErasureState::Running);

    // Something is left: it waits, and is tried again.
    let again = AttemptEnd::Again { error: "left".to_owned(), after: LEASE };
    assert!(store.end_attempt(&second, &counts(4), &again).await.unwrap());
    let row = stored(&store, 1).await;
    assert_eq!((row.state, row.error.as_deref()), (ErasureState::Queued, Some("left")));
    assert!(row.next_attempt_at.is_some());
    assert_eq!(store.claim_erasure("w1", LEASE).await.unwrap(), None);
    end_leases(&database).await;
    let third = store.claim_erasure("w1", LEASE).await.unwrap().unwrap();
    assert!(store.end_attempt(&third, &counts(5), &done).await.unwrap());
    let row = stored(&store, 1).await;
    assert_eq!((row.state, row.attempts, row.error), (ErasureState::Done, 3, None));
    assert_eq!((row.counts, row.receipt), (counts(5), Some(json!({}))));
    // An ended one is not taken, and the next request is another erasure.
    end_leases(&database).await;
    assert_eq!(store.claim_erasure("w1", LEASE).await.unwrap(), None);
    assert_eq!(request(&store, 3, ErasedData::Thread(thread("t1"))).await.id, id(3));
}

#[tokio::test]
async fn the_name_of_an_erased_user_is_not_kept() {
    let (database, store) = Database::new(2).await;
    for (number, end) in [
        (1, AttemptEnd::Failed { error: "left".to_owned(), receipt: None }),
        (2, AttemptEnd::Done { receipt: json!({}) }),
    ] {
        request(&store, number, of_user("bob")).await;
        let held = store.claim_erasure("w1", LEASE).await.unwrap().unwrap();
        assert_eq!(held.data, of_user("bob"));
        if number == 2 {
            store.erase_owner(&ErasedOwner::User(None, "bob".to_owned())).await.unwrap();
        }
        store.end_attempt(&held, &counts(0), &end).await.unwrap();
        let subject = stored(&store, number).await.subject;
        assert_eq!(subject.as_deref(), (number == 1).then_some("bob"), "a failed one is tried by its name");
    }
    assert_eq!(database.number("SELECT count(*) FROM erasures WHERE subject = 'bob'").await, 0);
}

#[tokio::test]
async fn erasures_belong_to_tenants_and_are_bounded() {
    let (database, store) = Database::new(2).await;
    let acme = Tenant::parse("acme").unwrap();
    let (own, default) = (store.for_tenant(Some(acme.clone())), store.for_tenant(None));
    let t1 = ThreadId::of_tenant(Some(&acme), "t1").unwrap();
    let of_acme = NewErasure { tenant: Some(acme.clone()), ..new(1, ErasedData::Thread(t1)) };
    own.request_erasure(&of_acme).await.unwrap().unwrap();
    for number in 2..=5 {
        request(&default, number, of_user(&format!("u{number}"))).await;
    }
    assert_eq!(default.erasure(None, &id(1)).await.unwrap(), None);
    assert_eq!(default.erasure(Some(&acme), &id(1)).await.unwrap(), None, "row-level security hides it");
    let ids = async |state, before: Option<&ErasureId>, limit| {
        let rows = default.erasures(None, state, before, limit).await.unwrap();
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(None, None, 3).await, [id(5), id(4), id(3)], "the newest first");
    assert_eq!(ids(None, Some(&id(3)), 3).await, [id(2)]);
    assert_eq!(ids(Some(ErasureState::Done), None, 3).await, []);
    // Postgres itself refuses what is another's.
    for (tenant, kind, subject) in
        [("acme", "tenant", "other"), ("acme", "thread", "other~t1"), ("-", "thread", "acme~t1")]
    {
        let insert = format!(
            "INSERT INTO erasures (erasure_id, tenant, kind, subject, is_preview, actor) VALUES ('{}', '{tenant}', '{kind}', '{subject}', false, 'x')",
            id(99)
        );
        let refused = sqlx::raw_sql(sqlx::AssertSqlSafe(insert)).execute(&mut database.session().await).await;
        assert!(refused.unwrap_err().to_string().contains("check constraint"), "{tenant} {kind} {subject}");
    }
    database
        .execute(&format!(
            "INSERT INTO erasures (erasure_id, tenant, kind, subject, is_preview, actor)
             SELECT lpad(to_hex(1000 + n), 32, '0'), '-', 'user', 'many' || n, false, 'x' FROM generate_series(5, {MAX_OPEN_ERASURES}) AS n"
        ))
        .await;
    assert_eq!(default.request_erasure(&new(6, of_user("one more"))).await.unwrap(), None);
    let known = default.request_erasure(&new(7, of_user("u2"))).await.unwrap();
    assert_eq!(known.map(|row| row.id), Some(id(2)), "one that is known is found");
    // The erasures of a tenant are erased with it.
    let tenant = ErasedOwner::Tenant(Some(acme));
    assert_eq!(store.erase_owner(&tenant).await.unwrap()["erasures"], 1);
}

fn hold(held: &ClaimedErasure) -> ErasureHold {
    ErasureHold { id: held.id.clone(), attempt: held.attempt }
}

#[tokio::test]
async fn a_thread_that_was_created_after_the_request_is_not_erased() {
    let (database, store) = Database::new(2).await;
    let threads = [thread("t1"), thread("t2")];
    request(&store, 1, of_user("bob")).await;
    let first = store.claim_erasure("w1", LEASE).await.unwrap().unwrap();
    let mark = async |run: &str, held: &ClaimedErasure| {
        let mut marked = store.mark_held(&threads, "ada", run, None, &hold(held)).await.unwrap();
        marked.sort();
        marked
    };
    assert_eq!(mark("r1", &first).await, threads);
    assert_eq!(store.erasing_by(&threads, "r1").await.unwrap().len(), 2);
    store.finish_erasing(&threads, "r1").await.unwrap();
    assert_eq!(store.erasing_by(&threads, "r1").await.unwrap(), [], "its rows are not deleted any more");
    // A client creates one again. The same erasure is tried again, because its end was not stored.
    database
        .execute("UPDATE erased_threads SET recreated_at = clock_timestamp() WHERE thread_id = 't1'")
        .await;
    end_leases(&database).await;
    let second = store.claim_erasure("w2", LEASE).await.unwrap().unwrap();
    assert_eq!(mark("r2", &second).await, [thread("t2")]);
    assert_eq!(store.erasing_by(&threads, "r2").await.unwrap(), [thread("t2")]);
    // The first worker was only paused: it marks nothing.
    assert_eq!(mark("r3", &first).await, []);
    let done = AttemptEnd::Done { receipt: json!({}) };
    assert!(store.end_attempt(&second, &counts(0), &done).await.unwrap());
    assert_eq!(mark("r4", &second).await, [], "it has ended");
    // A later request erases the new thread.
    request(&store, 2, of_user("bob")).await;
    let third = store.claim_erasure("w1", LEASE).await.unwrap().unwrap();
    assert_eq!(mark("r5", &third).await, threads);
}

#[tokio::test]
async fn many_erasures_of_one_tenant_do_not_hold_up_another() {
    let (_database, store) = Database::new(2).await;
    let acme = Tenant::parse("acme").unwrap();
    for number in 1..=3 {
        request(&store, number, of_user(&format!("u{number}"))).await;
    }
    let of_acme = ErasedData::Owner(ErasedOwner::User(Some(acme.clone()), "bob".to_owned()));
    let of_acme = NewErasure { tenant: Some(acme), ..new(4, of_acme) };
    store.request_erasure(&of_acme).await.unwrap().unwrap();
    let mut order = Vec::new();
    while let Some(held) = store.claim_erasure("w1", LEASE).await.unwrap() {
        order.push(held.id.clone());
        store.end_attempt(&held, &counts(0), &AttemptEnd::Done { receipt: json!({}) }).await.unwrap();
    }
    assert_eq!(order, [id(1), id(4), id(2), id(3)]);
}

#[tokio::test]
async fn a_dry_run_of_an_erased_user_does_not_keep_the_name() {
    let (database, store) = Database::new(2).await;
    let preview = NewErasure { is_preview: true, ..new(1, of_user("bob")) };
    store.request_erasure(&preview).await.unwrap().unwrap();
    let held = store.claim_erasure("w1", LEASE).await.unwrap().unwrap();
    store.erase_owner(&ErasedOwner::User(None, "bob".to_owned())).await.unwrap();
    assert!(!store.renew_erasure(&held, LEASE, &counts(0)).await.unwrap());
    assert_eq!(database.number("SELECT count(*) FROM erasures").await, 0);
}
