//! Reasoning sessions, compared with the stack in memory.

use std::time::Duration;

use batches::export_import::ReasoningRow;
use batches::retention::BatchSize;
use model::{AgentId, Position, ReasoningSessionId, Tenant, ThreadId};
use rand::rngs::SmallRng;
use rand::{RngExt, SeedableRng};
use reasoning::{
    CompressionRequest, ContextSource, DISCARDED_SHOWN_CHARS, NewMessage, PlanItem, PlanState, Reason,
    ReasoningRole, ReasoningThreadStack, Selection, SessionCall, append, compress, message_id, restorable,
};
use store::{
    Appended, CleanupKind, CleanupLimit, CreatedReasoning, DiscardedMessage, EarlierReturn, ErasedOwner,
    ReasoningThread, RequestId, Store,
};

use crate::fixture::{Database, Owner, thread};
use crate::reasoning_log::whole_log;
use crate::values::{agent, at, finishes, turn};

pub(crate) fn session(id: &str) -> ReasoningSessionId {
    ReasoningSessionId::parse(id).unwrap()
}

pub(crate) fn says(role: ReasoningRole, content: &str) -> NewMessage {
    NewMessage {
        role,
        content: content.to_owned(),
        thinking: None,
        signature: None,
        calls: Vec::new(),
        answers: None,
        tool: None,
    }
}

fn user(content: &str) -> NewMessage {
    says(ReasoningRole::User, content)
}

fn calls(ids: &[&str]) -> NewMessage {
    let call = |id: &&str| SessionCall::new(*id, "search");
    NewMessage { calls: ids.iter().map(call).collect(), ..says(ReasoningRole::Assistant, "") }
}

pub(crate) fn result(id: &str, content: &str) -> NewMessage {
    NewMessage { answers: Some(id.to_owned()), ..says(ReasoningRole::Tool, content) }
}

/// A session of `ann` without base layers.
pub(crate) async fn made(store: &Store, id: &str) -> ReasoningSessionId {
    let id = session(id);
    let owner = AgentId::of_tenant(id.tenant().as_ref(), "ann").unwrap();
    let made = store.create_reasoning(&id, &owner, &[], None, "test").await.unwrap();
    assert_eq!(made, CreatedReasoning::Made(0));
    id
}

pub(crate) async fn appended(store: &Store, id: &ReasoningSessionId, messages: Vec<NewMessage>) -> Appended {
    store.append_reasoning(id, &append(messages).unwrap(), None).await.unwrap()
}

pub(crate) async fn seen(store: &Store, id: &ReasoningSessionId) -> ReasoningThread {
    store.reasoning_thread(id, true, None).await.unwrap().unwrap()
}

pub(crate) fn range(from: i64, to: i64, summary: &str) -> CompressionRequest {
    CompressionRequest { selection: Selection::Range(from, to), summary: summary.to_owned(), token: None }
}

/// Compresses the current state. Returns the layer, or `None` if another change came first.
pub(crate) async fn compressed(
    store: &Store,
    seen: &ReasoningThread,
    request: &CompressionRequest,
) -> Option<u64> {
    let decided = compress(&seen.thread, request).unwrap();
    store.compress_reasoning(seen, &decided, &request.summary, None, "test").await.unwrap()
}

pub(crate) fn source(of: &str, from: Option<i64>, to: Option<i64>) -> ContextSource {
    let position = |position: Option<i64>| position.map(Position::from_stored);
    let thread = thread(of);
    ContextSource { thread, from_batch: position(from), to_batch: position(to), as_of: None, numbers: None }
}

/// Turns in `t` and in `u`: batches 10, 20 and 30 in each.
pub(crate) async fn with_threads() -> (Database, Store) {
    let (database, store) = Database::new(1).await;
    let owner = Owner::new(&store, "a").await;
    let mut commit = owner.empty();
    for of in ["t", "u"] {
        let turn_of = |number: i64| finishes(of, &turn(of, &format!("n{number}")), 0, number * 10, None);
        commit.turns.extend((1..=3).map(turn_of));
    }
    owner.commit(&commit).await.unwrap();
    (database, store)
}

#[tokio::test]
async fn base_messages_are_those_of_the_batches() {
    let (database, store) = with_threads().await;
    let id = session("s");
    let sources = [source("u", Some(20), Some(20)), source("t", None, Some(10))];
    let made = store.create_reasoning(&id, &agent("ann"), &sources, None, "key:1").await.unwrap();
    assert_eq!(made, CreatedReasoning::Made(8));
    let seen = seen(&store, &id).await;
    let numbers: Vec<u64> = seen.thread.entries.iter().map(|entry| entry.number).collect();
    assert_eq!(numbers, (1..=8).collect::<Vec<_>>());
    assert!(seen.thread.entries.iter().all(|entry| !entry.in_temp));
    assert_eq!((&*seen.session.agent.to_string(), &*seen.session.created_by), ("ann", "key:1"));
    assert_eq!(seen.session.sources[0].as_of, Some(Position::from_stored(33)));
    assert_eq!(seen.session.sources[1].to_batch, Some(Position::from_stored(10)));
    let numbers = database
        .rows(
            "SELECT array_agg(DISTINCT v ORDER BY v) AS v FROM (SELECT unnest(ARRAY[min(number), max(number)]) AS v, thread_id
             FROM messages WHERE (thread_id, batch_id) IN (('u', 20), ('t', 10)) GROUP BY thread_id) AS n
             GROUP BY thread_id ORDER BY thread_id DESC",
        )
        .await;
    let shown = seen.session.sources.iter().map(|source| source.numbers.unwrap());
    let shown: Vec<_> = shown.map(|(first, last)| format!(r#"{{"v":[{first},{last}]}}"#)).collect();
    assert_eq!(shown, numbers);
    let from = database.rows("SELECT source_thread AS t, source_position AS p FROM reasoning_messages").await;
    assert_eq!((from[0].as_str(), from[4].as_str()), (r#"{"t":"u","p":20}"#, r#"{"t":"t","p":10}"#));
    // The copy is the same as in the thread: a call with its result.
    let stored = database
        .rows(
            "SELECT role, tool_calls FROM messages WHERE thread_id = 't' AND batch_id = 10 ORDER BY position",
        )
        .await;
    let shown: Vec<_> =
        seen.thread.entries[4..].iter().map(|entry| (entry.role, entry.calls.len())).collect();
    assert_eq!(shown.len(), stored.len());
    for (row, (role, calls)) in stored.iter().zip(shown) {
        let row: serde_json::Value = serde_json::from_str(row).unwrap();
        assert_eq!(row["role"], role.name());
        assert_eq!(row["tool_calls"].as_array().map_or(0, Vec::len), calls);
    }
}

#[tokio::test]
async fn sessions_without_base_messages_are_refused() {
    let (_database, store) = with_threads().await;
    let id = session("s");
    for (wrong, missing) in [
        (source("unknown", None, None), "unknown"),
        (source("t", Some(40), None), "t"),
        (source("t", Some(11), Some(19)), "t"),
    ] {
        let sources = [source("u", None, None), wrong];
        let made = store.create_reasoning(&id, &agent("ann"), &sources, None, "x").await.unwrap();
        assert_eq!(made, CreatedReasoning::Nothing(missing.to_owned()));
    }
    assert_eq!(store.reasoning_thread(&id, true, None).await.unwrap(), None);
    made(&store, "s").await;
    let again = store.create_reasoning(&id, &agent("bob"), &[], None, "x").await.unwrap();
    assert_eq!(again, CreatedReasoning::Exists);
    assert_eq!(seen(&store, &id).await.session.agent, agent("ann"));
}

#[tokio::test]
async fn random_changes_give_what_the_stack_in_memory_has() {
    let (_database, store) = Database::new(1).await;
    for seed in 0..12 {
        let mut random = SmallRng::seed_from_u64(seed);
        let id = made(&store, &format!("s{seed}")).await;
        let mut stack = ReasoningThreadStack::new(id.clone(), Vec::new());
        let mut open: Vec<String> = Vec::new();
        for step in 0..40 {
            match random.random_range(0..10) {
                0..=2 => {
                    both_append(&store, &mut stack, vec![user(&format!("\u{e9}\n[{step}] User:"))]).await
                }
                3 => {
                    let ids = [format!("c{step}"), format!("d{step}")];
                    both_append(&store, &mut stack, vec![calls(&[&ids[0], &ids[1]])]).await;
                    open.extend(ids);
                }
                4 | 5 => {
                    let Some(call) = open.pop() else { continue };
                    let long = "x".repeat(random.random_range(0..400));
                    both_append(&store, &mut stack, vec![result(&call, &long)]).await;
                }
                6 | 7 => {
                    let count = stack.thread().len() as i64;
                    let from = random.random_range(0..=count + 1);
                    let request = range(from, random.random_range(from..=count + 1), "sum");
                    both_compress(&store, &mut stack, &request).await;
                }
                8 => {
                    let seen = store.restorable_reasoning(&id).await.unwrap().unwrap();
                    let undone = stack.undo(None).is_ok();
                    assert_eq!(seen.head > 0, undone);
                    assert!(!undone || store.undo_reasoning(&id, &seen, None, "x").await.unwrap());
                }
                _ => {
                    let name = random.random_range(0..3).to_string();
                    if random.random() {
                        let layer = stack.checkpoint(&name, model::Timestamp(0)).unwrap();
                        let made = store.checkpoint_reasoning(&id, &name).await.unwrap().unwrap();
                        assert_eq!(made, Ok(layer));
                        continue;
                    }
                    let seen = store.restorable_reasoning(&id).await.unwrap().unwrap();
                    let expected = stack.restore(&name);
                    match restorable(&name, &seen.checkpoints) {
                        Ok(layer) => {
                            let count = store.restore_reasoning(&id, &seen, layer, None, "x").await.unwrap();
                            assert_eq!(count, expected.ok());
                        }
                        Err(refusal) => assert_eq!(Err(refusal), expected),
                    }
                }
            }
            let seen = seen(&store, &id).await;
            assert_eq!(seen.view(false), stack.view(), "seed {seed}, step {step}");
            assert_eq!(seen.thread, stack.thread());
        }
        same_log(&store, &id, &stack).await;
    }
}

pub(crate) async fn both_append(store: &Store, stack: &mut ReasoningThreadStack, messages: Vec<NewMessage>) {
    let id = stack.thread().session;
    let number = stack.append(messages.clone()).unwrap();
    assert_eq!(appended(store, &id, messages).await, Appended::Done(number));
}

pub(crate) async fn both_compress(
    store: &Store,
    stack: &mut ReasoningThreadStack,
    request: &CompressionRequest,
) {
    let id = stack.thread().session;
    let seen = store.reasoning_thread(&id, false, None).await.unwrap().unwrap();
    let decided = compress(&seen.thread, request);
    assert_eq!(decided, stack.compress(request));
    if let Ok(decided) = decided {
        let layer = store.compress_reasoning(&seen, &decided, &request.summary, None, "x").await.unwrap();
        assert_eq!(layer, Some(stack.discarded().count() as u64));
    }
}

async fn same_log(store: &Store, id: &ReasoningSessionId, stack: &ReasoningThreadStack) {
    let mut log = whole_log(store, id, 3).await;
    log.reverse();
    let log: Vec<_> =
        log.into_iter().map(|entry| (entry.layer.id, entry.originals, entry.undone.is_some())).collect();
    let original = |number: &u64| {
        let mut message = stack.messages()[*number as usize - 1].clone();
        let chars = message.chars();
        message.content = message.content.chars().take(DISCARDED_SHOWN_CHARS as usize).collect();
        DiscardedMessage { message, chars }
    };
    let originals = |numbers: &[u64]| numbers.iter().map(original).collect::<Vec<_>>();
    let expected: Vec<_> = stack
        .discarded()
        .map(|entry| (entry.layer.id, originals(&entry.layer.replaced), entry.layer.is_undone))
        .collect();
    assert_eq!(log, expected);
}

#[tokio::test]
async fn request_ids_make_a_request_once() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    let new = append(vec![user("A"), user("B"), user("C")]).unwrap();
    let request = |digest| Some(RequestId { id: "r", digest });
    assert_eq!(store.append_reasoning(&id, &new, request("1")).await.unwrap(), Appended::Done(1));
    assert_eq!(store.append_reasoning(&id, &new, request("1")).await.unwrap(), Appended::Before(1));
    let other = store.append_reasoning(&id, &new, request("2")).await.unwrap();
    assert!(matches!(other, Appended::Refused(refusal) if refusal.to_string().contains("another request")));

    let seen = store.reasoning_thread(&id, false, Some("r")).await.unwrap().unwrap();
    assert_eq!(seen.earlier, None);
    let asked = range(2, 3, "BC");
    let decided = compress(&seen.thread, &asked).unwrap();
    let layer = store.compress_reasoning(&seen, &decided, "BC", request("1"), "x").await.unwrap();
    assert_eq!(layer, Some(1));
    let again = store.reasoning_thread(&id, false, Some("r")).await.unwrap().unwrap();
    let earlier = again.earlier.clone().unwrap();
    assert_eq!((earlier.layer, earlier.summary, earlier.digest.as_str()), (1, 4, "1"));
    // The request is sent twice concurrently, and both have seen the same state.
    let twice = compress(&again.thread, &range(1, 2, "ABC")).unwrap();
    assert_eq!(store.compress_reasoning(&again, &twice, "ABC", request("1"), "x").await.unwrap(), None);
    assert_eq!(self::seen(&store, &id).await.thread, again.thread);
}

#[tokio::test]
async fn calls_are_answered_once() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    appended(&store, &id, vec![calls(&["c1", "c2"])]).await;
    for (wrong, text) in [
        (vec![user("fine"), result("c3", "r")], "no call \"c3\" waits for a result"),
        (vec![calls(&["c1"])], "the call \"c1\" waits for its result already"),
    ] {
        let Appended::Refused(refusal) = appended(&store, &id, wrong).await else { panic!("it was taken") };
        assert_eq!(refusal.to_string(), text);
    }
    assert_eq!(appended(&store, &id, vec![result("c2", "r")]).await, Appended::Done(2));
    assert_eq!(appended(&store, &session("unknown"), vec![user("x")]).await, Appended::NoSession);
    let seen = seen(&store, &id).await;
    assert_eq!(seen.waiting.into_iter().collect::<Vec<_>>(), ["c1"]);
    assert!(matches!(appended(&store, &id, vec![result("c2", "r")]).await, Appended::Refused(_)));
}

#[tokio::test]
async fn plan_is_replaced_as_a_whole() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    let item = |text: &str, state| PlanItem { text: text.to_owned(), state };
    let plan =
        reasoning::Plan::new(vec![item("A", PlanState::Done), item("B", PlanState::InProgress)]).unwrap();
    assert!(store.plan_reasoning(&id, &plan).await.unwrap());
    assert!(!store.plan_reasoning(&session("unknown"), &plan).await.unwrap());
    let seen = seen(&store, &id).await;
    assert_eq!(seen.plan, plan);
    assert!(seen.view(true).contains("1. [x] A\n2. [>] B\n") && !seen.view(false).contains("Plan"));
}

#[tokio::test]
async fn other_tenants_sessions_are_not_there() {
    let (_database, store) = Database::new(1).await;
    let tenant = |name| store.for_tenant(Some(Tenant::parse(name).unwrap()));
    let (acme, other) = (tenant("acme"), tenant("other"));
    let id = made(&acme, "acme~s").await;
    appended(&acme, &id, vec![user("A"), user("B")]).await;
    let seen = seen(&acme, &id).await;
    assert_eq!(other.reasoning_thread(&id, true, None).await.unwrap(), None);
    assert_eq!(appended(&other, &id, vec![user("x")]).await, Appended::NoSession);
    assert_eq!(compressed(&other, &seen, &range(1, 2, "AB")).await, None);
    assert_eq!(other.restorable_reasoning(&id).await.unwrap(), None);
    assert_eq!(other.checkpoint_reasoning(&id, "x").await.unwrap(), None);
    assert!(other.discarded_reasoning(&id, None, 10).await.unwrap().layers.is_empty());
    assert!(!other.plan_reasoning(&id, &reasoning::Plan::default()).await.unwrap());
    assert_eq!(compressed(&acme, &seen, &range(1, 2, "AB")).await, Some(1));
}

const LEFT: &str =
    "SELECT (SELECT count(*) FROM reasoning_sessions) + (SELECT count(*) FROM reasoning_messages)
    + (SELECT count(*) FROM reasoning_layers) + (SELECT count(*) FROM reasoning_checkpoints)
    + (SELECT count(*) FROM audit_log WHERE action LIKE 'reasoning%')";

async fn busy(store: &Store, id: &str, owner: &str, sources: &[ContextSource]) {
    let id = session(id);
    store.create_reasoning(&id, &agent(owner), sources, None, "jwt:user").await.unwrap();
    appended(store, &id, vec![user("A"), user("B")]).await;
    let seen = seen(store, &id).await;
    compressed(store, &seen, &range(1, 2, "sum")).await.unwrap();
    store.checkpoint_reasoning(&id, "x").await.unwrap();
}

async fn erase(store: &Store, threads: &[ThreadId]) -> store::ErasedRows {
    store.mark_erased(threads, "test", "run", None).await.unwrap();
    let erased = store.erase_some(threads).await.unwrap();
    assert!(store.erase_some(threads).await.unwrap().is_empty());
    erased
}

#[tokio::test]
async fn erasing_reaches_sessions() {
    let (database, store) = with_threads().await;
    // A thread whose messages the session has copied is erased.
    busy(&store, "s1", "ann", &[source("t", None, None), source("u", None, None)]).await;
    busy(&store, "s2", "bob", &[]).await;
    let erased = erase(&store, &[thread("t")]).await;
    assert_eq!((erased["reasoning_sessions"], erased["reasoning_messages"]), (1, 27));
    assert_eq!(
        (erased["reasoning_layers"], erased["reasoning_checkpoints"], erased["audit_log_of_reasoning"]),
        (1, 1, 2)
    );
    assert_eq!(database.number("SELECT count(*) FROM reasoning_sessions").await, 1);
    assert_eq!(store.reasoning_thread(&session("s1"), true, None).await.unwrap(), None);
    // An agent is erased.
    erase(&store, &[thread("bob")]).await;
    assert_eq!(database.number(LEFT).await, 0);
    // A tenant is erased.
    busy(&store, "acme~s", "acme~ann", &[]).await;
    let owner = ErasedOwner::Tenant(Some(Tenant::parse("acme").unwrap()));
    let threads = store.threads_to_erase(&owner).await.unwrap();
    assert_eq!(threads, [thread("acme~ann")]);
    erase(&store, &threads).await;
    assert_eq!(database.number(LEFT).await, 0);
    let of_forgotten = "INSERT INTO audit_log (bucket, subject_id, command_id, actor, action)
                        VALUES (1, 'acme~gone+reasoning', 'x', 'jwt:user', 'reasoning_undo')";
    database.execute(of_forgotten).await;
    store.erase_owner(&owner).await.unwrap();
    assert_eq!(database.number(LEFT).await, 0);
    // Erased messages cannot be copied again.
    let again =
        store.create_reasoning(&session("s1"), &agent("ann"), &[source("t", None, None)], None, "x").await;
    assert_eq!(again.unwrap(), CreatedReasoning::Nothing("t".to_owned()));
}

#[tokio::test]
async fn erasing_a_user_takes_the_name_out() {
    let (database, store) = Database::new(1).await;
    busy(&store, "s", "ann", &[]).await;
    let seen = store.restorable_reasoning(&session("s")).await.unwrap().unwrap();
    store.undo_reasoning(&session("s"), &seen, None, "jwt:user").await.unwrap();
    store.erase_owner(&ErasedOwner::User(None, "user".to_owned())).await.unwrap();
    let actors =
        "SELECT count(*) FROM (SELECT created_by AS name FROM reasoning_sessions UNION ALL SELECT undone_by
                  FROM reasoning_layers UNION ALL SELECT actor FROM audit_log) AS a WHERE name LIKE '%user%'";
    assert_eq!(database.number(actors).await, 0);
}

#[tokio::test]
async fn copies_do_not_outlive_what_is_retired() {
    let (database, store) = with_threads().await;
    busy(&store, "old", "ann", &[source("t", None, Some(10))]).await;
    busy(&store, "new", "ann", &[source("t", Some(20), None)]).await;
    busy(&store, "other", "ann", &[source("u", None, None)]).await;
    let head = store.retained_threads(thread("t").bucket(), "", 10).await.unwrap()[0].head;
    let batch = |id: i64, last: i64| BatchSize {
        id: Position::from_stored(id),
        last: Position::from_stored(last),
        messages: 4,
        bytes: 1,
        last_at: model::Timestamp(0),
    };
    assert_eq!(store.delete_batches(&thread("t"), head, &[batch(10, 13)]).await.unwrap(), Some(4));
    let left = database.rows("SELECT session_id AS s FROM reasoning_sessions ORDER BY 1").await;
    assert_eq!(left, [r#"{"s":"new"}"#, r#"{"s":"other"}"#]);
    assert_eq!(database.number("SELECT count(*) FROM audit_log WHERE subject_id = 'old+reasoning'").await, 0);
    assert_eq!(database.number("SELECT count(*) FROM audit_log WHERE subject_id = 'new+reasoning'").await, 2);
}

#[tokio::test]
async fn sessions_that_rest_for_long_are_forgotten() {
    let (database, store) = Database::new(1).await;
    busy(&store, "s1", "ann", &[]).await;
    busy(&store, "s2", "ann", &[]).await;
    let day = Duration::from_secs(86_400);
    assert_eq!(store.clean_up(CleanupKind::ReasoningSessions, CleanupLimit::Age(day), 10).await.unwrap(), 0);
    database.execute("UPDATE reasoning_sessions SET changed_at = changed_at - interval '2 days'").await;
    assert_eq!(store.clean_up(CleanupKind::ReasoningSessions, CleanupLimit::Age(day), 1).await.unwrap(), 1);
    assert_eq!(store.clean_up(CleanupKind::ReasoningSessions, CleanupLimit::Age(day), 10).await.unwrap(), 1);
    assert_eq!(database.number("SELECT count(*) FROM reasoning_messages").await, 0);
    assert_eq!(database.number(LEFT).await, 0);
}

#[tokio::test]
async fn an_undo_that_is_sent_twice_takes_one_back() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "acme~s").await;
    appended(&store, &id, (0..4).map(|_| user("x")).collect()).await;
    for summary in ["first", "second", "third"] {
        compressed(&store, &seen(&store, &id).await, &range(1, 2, summary)).await.unwrap();
    }
    let restorable = async || store.restorable_reasoning(&id).await.unwrap().unwrap();
    let before = restorable().await;
    assert_eq!(store.earlier_return(&id, "r").await.unwrap(), None);
    assert!(store.undo_reasoning(&id, &before, Some("r"), "test").await.unwrap());
    assert!(!store.undo_reasoning(&id, &before, Some("r"), "test").await.unwrap(), "at the same moment");
    let earlier = EarlierReturn { is_undo: true, oldest: Some("rm-7".to_owned()) };
    assert_eq!(store.earlier_return(&id, "r").await.unwrap(), Some(earlier));
    assert!(!store.undo_reasoning(&id, &restorable().await, Some("r"), "test").await.unwrap());
    assert_eq!(restorable().await.head, before.previous);
    // This also holds for a restore that has nothing to undo.
    let now = restorable().await;
    let restored = async || store.restore_reasoning(&id, &now, now.head, Some("c"), "test").await.unwrap();
    assert_eq!((restored().await, restored().await), (Some(0), None));
    let earlier = EarlierReturn { is_undo: false, oldest: None };
    assert_eq!(store.earlier_return(&id, "c").await.unwrap(), Some(earlier));
}

#[tokio::test]
async fn the_newest_compression_is_undone_once_for_each_request() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    appended(&store, &id, (0..4).map(|_| user("x")).collect()).await;
    for summary in ["first", "second"] {
        compressed(&store, &seen(&store, &id).await, &range(1, 2, summary)).await.unwrap();
    }
    let undo = async |wanted, request| {
        let undone = store.undo_newest_reasoning(&id, wanted, request, "test").await.unwrap().unwrap();
        undone.map(|undone| (undone.summary_id, undone.is_repeated, undone.now.head)).map_err(|it| it.reason)
    };
    assert_eq!(undo(Some("rm-5"), None).await, Err(Reason::NotNewest("rm-5".to_owned())));
    let (summary, is_repeated, head) = undo(Some("rm-6"), Some("r")).await.unwrap();
    assert_eq!((summary.as_str(), is_repeated), ("rm-6", false));
    for wanted in [None, Some("rm-6")] {
        assert_eq!(undo(wanted, Some("r")).await, Ok(("rm-6".to_owned(), true, head)));
    }
    assert_eq!(undo(Some("rm-5"), Some("r")).await, Err(Reason::RequestReused("r".to_owned())));
    assert_eq!(undo(None, Some("q")).await, Ok(("rm-5".to_owned(), false, 0)));
    assert_eq!(undo(None, None).await, Err(Reason::NothingToUndo));
    assert_eq!(store.undo_newest_reasoning(&session("none"), None, None, "test").await.unwrap(), None);
}

#[tokio::test]
async fn summary_ids_lead_back_to_numbers() {
    let (_database, store) = Database::new(1).await;
    let id = made(&store, "s").await;
    appended(&store, &id, vec![user("A"), user("B")]).await;
    let first = seen(&store, &id).await;
    compressed(&store, &first, &range(1, 2, "AB")).await.unwrap();
    let restorable = store.restorable_reasoning(&id).await.unwrap().unwrap();
    assert_eq!(restorable.summary.map(message_id).as_deref(), Some("rm-3"));
    // The compression did not see an append that came in between.
    let second = seen(&store, &id).await;
    appended(&store, &id, vec![user("C")]).await;
    let single = CompressionRequest { selection: Selection::Last(1), ..range(0, 0, "") };
    assert!(compress(&second.thread, &single).is_err());
    assert_eq!(compressed(&store, &second, &range(1, 1, "x")).await, None);
}

/// All stored rows of sessions, except the times of changes.
async fn all_rows(database: &Database) -> Vec<String> {
    let mut rows = database
        .rows("SELECT to_jsonb(s) - 'changed_at' AS s FROM reasoning_sessions AS s ORDER BY session_id")
        .await;
    for (table, order) in [("messages", "number"), ("layers", "layer_id"), ("checkpoints", "name")] {
        rows.extend(
            database.rows(&format!("SELECT * FROM reasoning_{table} ORDER BY session_id, {order}")).await,
        );
    }
    rows
}

#[tokio::test]
async fn sessions_come_back_from_an_export_as_they_were() {
    let (database, store) = with_threads().await;
    let id = session("s");
    store
        .create_reasoning(&id, &agent("ann"), &[source("t", None, Some(at(10).get()))], None, "key:1")
        .await
        .unwrap();
    store.set_reasoning_thread(&id, &thread("t")).await.unwrap();
    appended(
        &store,
        &id,
        vec![user("a \" ü"), calls(&["c"]), result("c", "found"), user("b"), calls(&["open"])],
    )
    .await;
    compressed(&store, &seen(&store, &id).await, &range(6, 7, "searched")).await.unwrap();
    store.checkpoint_reasoning(&id, "here").await.unwrap().unwrap().unwrap();
    compressed(&store, &seen(&store, &id).await, &range(5, 6, "again")).await.unwrap();
    let restorable = store.restorable_reasoning(&id).await.unwrap().unwrap();
    assert!(store.undo_reasoning(&id, &restorable, None, "test").await.unwrap());
    made(&store, "empty").await;
    let before = all_rows(&database).await;

    let ids = store.reasoning_ids(None, None, 10).await.unwrap();
    assert_eq!(ids.len(), 2);
    assert_eq!(store.reasoning_ids(Some(&[thread("t")]), None, 10).await.unwrap(), [session("s")]);
    assert_eq!(store.reasoning_ids(Some(&[thread("u")]), None, 10).await.unwrap(), []);
    let (other, to) = Database::new(1).await;
    for id in &ids {
        let rows = store.reasoning_rows(id).await.unwrap().unwrap();
        let messages = store.reasoning_message_rows(id, 0, rows.last_number).await.unwrap();
        assert!(to.begin_reasoning_import(id, &rows.session).await.unwrap());
        to.import_reasoning_rows(id, ReasoningRow::Layer, rows.layers.clone()).await.unwrap();
        // The import is interrupted here and begun again. Nothing can be appended in the meantime.
        assert_eq!(appended(&to, id, vec![user("x")]).await, Appended::NoSession);
        assert!(to.begin_reasoning_import(id, &rows.session).await.unwrap());
        assert_eq!(to.import_reasoning_rows(id, ReasoningRow::Layer, rows.layers).await.unwrap(), 0);
        to.import_reasoning_rows(id, ReasoningRow::Checkpoint, rows.checkpoints).await.unwrap();
        let count = messages.len() as u64;
        assert_eq!(to.import_reasoning_rows(id, ReasoningRow::Message, messages).await.unwrap(), count);
        to.finish_reasoning_import(id, &rows.session).await.unwrap();
        assert!(!to.begin_reasoning_import(id, &rows.session).await.unwrap(), "it is there");
    }
    assert_eq!(all_rows(&other).await, before);
    assert_eq!(seen(&to, &id).await.view(true), seen(&store, &id).await.view(true));
    assert_eq!(seen(&to, &id).await.waiting, ["open".to_owned()].into());
}
