//! The list of threads: what writes it, its order and filters, and changes by clients.

use batches::retention::{BatchAssembler, BatchSize};
use model::{AgentId, MessageTimes, Metadata, Position, Role, Tenant, ThreadTitle, Timestamp, TitleSource};
use partition::Commit;
use serde_json::json;
use store::{
    CleanupKind, CleanupLimit, Listing, NewThread, PatchOutcome, Store, ThreadFilter, ThreadImport,
    ThreadListPage, ThreadPatch,
};

use crate::fixture::{Database, Owner, import_batches, metadata, thread};
use crate::values::{failed_turn, finishes, turn};

const THEN: i64 = 1_767_225_600_000;

/// A turn of `thread` whose last message was written at `at`, in ms since 1970.
async fn commit_turn(owner: &Owner, name: &str, position: i64, at: i64, question: &str) {
    owner.commit(&turn_commit(owner, name, position, at, question)).await.unwrap();
}

fn turn_commit(owner: &Owner, name: &str, position: i64, at: i64, question: &str) -> Commit {
    let mut turn = finishes(name, &turn(name, &format!("n{position}")), 0, position, None);
    turn.messages[0].content = question.to_owned();
    for message in &mut turn.messages {
        message.times = MessageTimes { created_at: Some(Timestamp(at)), ..MessageTimes::default() };
    }
    let mut commit = owner.empty();
    commit.turns = vec![turn];
    commit
}

async fn listing(store: &Store, name: &str) -> Listing {
    store.thread(&thread(name)).await.unwrap().unwrap().listing.unwrap()
}

/// The text of the title.
fn text(listing: &Listing) -> Option<&str> {
    listing.title.as_ref().map(|title| &*title.text)
}

async fn page(store: &Store, filter: &ThreadFilter, limit: u32) -> ThreadListPage {
    store.list_threads(None, filter, limit).await.unwrap()
}

/// The names of the threads of all pages.
async fn names(store: &Store, filter: &ThreadFilter, limit: u32) -> Vec<String> {
    let (mut names, mut filter) = (Vec::new(), filter.clone());
    loop {
        let page = page(store, &filter, limit).await;
        names.extend(page.threads.iter().map(|listed| listed.thread.to_string()));
        match page.next {
            Some(next) => filter.after = Some(next),
            None => return names,
        }
    }
}

async fn name(store: &Store, id: &str, agent: Option<&str>, values: serde_json::Value) {
    let agent = agent.map(|id| AgentId::parse(id).unwrap());
    let new = NewThread { thread: thread(id), agent, policy: None, metadata: metadata(values) };
    store.upsert_thread(&new).await.unwrap();
}

#[tokio::test]
async fn the_first_turn_names_the_agent_of_its_thread() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let helper = AgentId::parse("helper").unwrap();
    let answered = async |name: &str, position: i64, by: Option<&str>| {
        let mut commit = turn_commit(&owner, name, position, THEN, "Hello");
        commit.turns[0].answered_by = by.map(|agent| AgentId::parse(agent).unwrap());
        owner.commit(&commit).await.unwrap();
    };
    let agent = async |name: &str| {
        let named = store.thread(&thread(name)).await.unwrap().unwrap().named.agent;
        let filter = ThreadFilter { agent: named.clone(), ..ThreadFilter::default() };
        assert!(named.is_none() || names(&store, &filter, 10).await.contains(&name.to_owned()), "{name}");
        named
    };
    store.note_activity(&thread("begun"), &helper, "Hello").await.unwrap();
    assert_eq!(store.listing(&thread("begun")).await.unwrap().unwrap().agent, Some(helper.clone()));
    for name in ["begun", "new"] {
        answered(name, 10, Some("helper")).await;
        answered(name, 20, Some("other")).await;
        answered(name, 30, None).await;
        assert_eq!(agent(name).await, Some(helper.clone()), "{name}");
    }
    answered("own", 40, Some("own")).await;
    answered("own", 50, Some("helper")).await;
    assert_eq!(agent("own").await.unwrap().as_str(), "own", "its own agent has answered first");
    // A message without a turn decides nothing.
    answered("noted", 51, None).await;
    assert_eq!(agent("noted").await, None);
    answered("noted", 56, Some("helper")).await;
    assert_eq!(agent("noted").await, Some(helper.clone()));
    // Two turns in one commit.
    let mut both = turn_commit(&owner, "both", 53, THEN, "Hello");
    both.turns.extend(turn_commit(&owner, "both", 57, THEN, "Again").turns);
    for (turn, by) in both.turns.iter_mut().zip(["both", "helper"]) {
        turn.answered_by = Some(AgentId::parse(by).unwrap());
    }
    owner.commit(&both).await.unwrap();
    assert_eq!(agent("both").await.unwrap().as_str(), "both");
    // The first message names an agent, its turn fails, and another one answers the next.
    store.note_activity(&thread("failed"), &AgentId::parse("other").unwrap(), "Hello").await.unwrap();
    answered("failed", 58, Some("helper")).await;
    assert_eq!(agent("failed").await, Some(helper.clone()));
    // What a client has named stays; a thread that was created without an agent gets one.
    self::name(&store, "named", Some("other"), json!({})).await;
    self::name(&store, "created", None, json!({})).await;
    store.note_activity(&thread("created"), &helper, "Hello").await.unwrap();
    for name in ["named", "created"] {
        answered(name, 60, Some("helper")).await;
    }
    let (named, created) = (agent("named").await, agent("created").await);
    assert_eq!((named.unwrap().as_str(), created.unwrap()), ("other", helper));
}

#[tokio::test]
async fn turns_list_their_thread_once_a_minute() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let version = || database.number("SELECT xmin::text::bigint FROM thread_list");
    commit_turn(&owner, "t", 10, THEN, " How is\n the  weather? ").await;
    let first = listing(&store, "t").await;
    assert_eq!((text(&first), first.active_us), (Some("How is the weather?"), THEN * 1_000));
    let written = version().await;
    commit_turn(&owner, "t", 20, THEN + 60_000, "And tomorrow?").await;
    assert_eq!((version().await, listing(&store, "t").await), (written, first.clone()), "within the minute");
    commit_turn(&owner, "t", 30, THEN + 60_001, "And then?").await;
    let later = Listing { active_us: (THEN + 60_001) * 1_000, ..first };
    assert_eq!(listing(&store, "t").await, later, "the title stays");
    // The clock of a worker that is ahead does not keep a thread at the top.
    let now = store.database_time().await.unwrap().0;
    commit_turn(&owner, "t", 40, now + 3_600_000, "Hello").await;
    let ahead = listing(&store, "t").await.active_us / 1_000;
    assert!((now..now + 60_000).contains(&ahead), "{ahead} {now}");
}

#[tokio::test]
async fn titles_come_from_inputs_then_workflows_then_clients() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let titled = async |position: i64, question: &str, given: serde_json::Value, synthetic: bool| {
        let mut turn = finishes("t", &turn("t", &format!("n{position}")), 0, position, None);
        turn.messages[0].content = question.to_owned();
        turn.messages[0].metadata = metadata(json!({ "synthetic": synthetic }));
        let last = turn.messages.last_mut().unwrap();
        assert_eq!(last.role, Role::Assistant);
        last.metadata = metadata(given);
        let mut commit = owner.empty();
        commit.turns = vec![turn];
        owner.commit(&commit).await.unwrap();
        text(&listing(&store, "t").await).map(str::to_owned)
    };
    assert_eq!(titled(10, "a timer is due", json!({}), true).await, None, "no person has written");
    let question = "x".repeat(70);
    assert_eq!(titled(20, &question, json!({}), false).await, Some("x".repeat(60)));
    let from_workflow = json!({ "thread_title": " The weather " });
    assert_eq!(titled(30, "b", from_workflow, false).await.as_deref(), Some("The weather"));
    assert_eq!(titled(40, "c", json!({ "thread_title": "Rain" }), false).await.as_deref(), Some("Rain"));
    assert_eq!(titled(50, "d", json!({ "thread_title": 7 }), false).await.as_deref(), Some("Rain"));
    let lines = json!({ "thread_title": "Two\n\u{7}lines" });
    assert_eq!(titled(55, "d", lines, false).await.as_deref(), Some("Two lines"));
    let patch =
        |title: Option<&str>| ThreadPatch { title: Some(title.map(str::to_owned)), ..ThreadPatch::default() };
    assert_eq!(store.patch_thread(&thread("t"), &patch(Some("Mine"))).await.unwrap(), PatchOutcome::Done);
    assert_eq!(titled(60, "e", json!({ "thread_title": "Snow" }), false).await.as_deref(), Some("Mine"));
    assert_eq!(store.patch_thread(&thread("t"), &patch(None)).await.unwrap(), PatchOutcome::Done);
    assert_eq!(listing(&store, "t").await.title, None);
    assert_eq!(titled(70, "f", json!({ "thread_title": "Hail" }), false).await.as_deref(), Some("Hail"));
}

#[tokio::test]
async fn lists_have_an_order_pages_and_filters() {
    let (database, store) = Database::new(2).await;
    name(&store, "bob1", Some("ann"), json!({ "user_id": "bob", "project": "x", "n": 1 })).await;
    name(&store, "bob2", None, json!({ "user_id": "bob", "project": "y" })).await;
    name(&store, "eve1", Some("ann"), json!({ "user_id": "eve", "project": "x" })).await;
    name(&store, "ann", None, json!({})).await;
    name(&store, "acme~t", Some("acme~ann"), json!({ "user_id": "bob" })).await;
    database
        .execute(
            "UPDATE thread_list SET title = 'A 100% trip to ' || thread_id, title_by = 'client';
             UPDATE thread_list SET active_at = to_timestamp(CASE thread_id WHEN 'bob1' THEN 10 WHEN 'ann' THEN 30 ELSE 20 END)",
        )
        .await;
    let all = ThreadFilter::default();
    for limit in [1, 2, 3, 10] {
        assert_eq!(names(&store, &all, limit).await, ["ann", "eve1", "bob2", "bob1"], "{limit}");
    }
    assert!(page(&store, &all, 4).await.next.is_none(), "the last page");
    let store = &store;
    let of = |filter: ThreadFilter| async move { names(store, &filter, 1).await };
    let user = Some("bob".to_owned());
    assert_eq!(of(ThreadFilter { user: user.clone(), ..all.clone() }).await, ["bob2", "bob1"]);
    let agent = Some(AgentId::parse("ann").unwrap());
    assert_eq!(of(ThreadFilter { agent: agent.clone(), ..all.clone() }).await, ["ann", "eve1", "bob1"]);
    assert_eq!(of(ThreadFilter { agent, user, ..all.clone() }).await, ["bob1"]);
    let like = |value: serde_json::Value| ThreadFilter { metadata: Some(metadata(value)), ..all.clone() };
    assert_eq!(of(like(json!({ "project": "x" }))).await, ["eve1", "bob1"]);
    assert_eq!(of(like(json!({ "project": "x", "n": 1 }))).await, ["bob1"]);
    assert_eq!(of(like(json!({ "n": "1" }))).await, [""; 0]);
    let words = |words: &[&str]| {
        let words = words.iter().map(|word| (*word).to_owned()).collect();
        ThreadFilter { words, ..all.clone() }
    };
    assert_eq!(of(words(&["TRIP", "ob"])).await, ["bob2", "bob1"]);
    assert_eq!(of(words(&["100%"])).await.len(), 4);
    assert_eq!(of(words(&["1%"])).await, [""; 0], "a word is no pattern");
    assert_eq!(of(words(&["b_b"])).await, [""; 0]);
    let among = |names: &[&str]| {
        let among = names.iter().map(|name| thread(name)).collect();
        ThreadFilter { among: Some(among), ..all.clone() }
    };
    assert_eq!(of(among(&["bob1", "ann", "acme~t", "none"])).await, ["ann", "bob1"], "of the tenant");
    assert_eq!(of(among(&[])).await, [""; 0]);
    let tenant = Tenant::parse("acme").unwrap();
    let acme = store.for_tenant(Some(tenant.clone()));
    let listed = acme.list_threads(Some(&tenant), &all, 10).await.unwrap().threads;
    assert_eq!(listed.iter().map(|listed| listed.thread.as_str()).collect::<Vec<_>>(), ["acme~t"]);
    assert!(acme.list_threads(None, &all, 10).await.unwrap().threads.is_empty(), "row security");
}

#[tokio::test]
async fn listed_threads_come_with_what_they_last_said() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    commit_turn(&owner, "t", 10, THEN, "Hello").await;
    store.note_activity(&thread("begun"), &thread("begun").agent(), " First\nquestion ").await.unwrap();
    let listed = page(&store, &ThreadFilter::default(), 10).await.threads;
    let [begun, t] = &listed[..] else { panic!("{listed:?}") };
    assert_eq!((begun.thread.as_str(), begun.row.as_ref()), ("begun", None));
    assert_eq!(text(&begun.listing), Some("First question"));
    let row = t.row.as_ref().unwrap();
    assert_eq!((row.messages, row.head), (4, Some(Position::from_stored(13))));
    let (role, text) = t.preview.as_ref().unwrap();
    assert_eq!((*role, text.is_empty(), t.last_message_at), (Role::Assistant, false, Some(Timestamp(THEN))));
    assert!(!t.has_failed);
    let failed = ThreadFilter { failed: true, ..ThreadFilter::default() };
    assert_eq!(names(&store, &failed, 1).await, [""; 0]);
    let mut commit = owner.empty();
    commit.failed_turns = vec![failed_turn("t", &turn("t", "y"), 0)];
    owner.commit(&commit).await.unwrap();
    assert_eq!(names(&store, &failed, 1).await, ["t"]);
    let now = store.database_time().await.unwrap().0 + 1_000;
    commit_turn(&owner, "t", 30, now, "Once more").await;
    assert_eq!(names(&store, &failed, 1).await, [""; 0], "a message came after the failure");
}

#[tokio::test]
async fn a_patch_changes_what_it_names_if_the_version_is_right() {
    let (database, store) = Database::new(2).await;
    name(&store, "t", None, json!({ "a": 1 })).await;
    let revision = || database.number("SELECT revision::bigint FROM threads WHERE thread_id = 't'");
    let t = thread("t");
    let archived = ThreadPatch { archived: Some(true), version: Some(0), ..ThreadPatch::default() };
    assert_eq!(store.patch_thread(&t, &archived).await.unwrap(), PatchOutcome::Done);
    assert_eq!(store.patch_thread(&t, &archived).await.unwrap(), PatchOutcome::Changed);
    assert_eq!(revision().await, 0, "its owner has nothing to read again");
    let agent = Some(AgentId::parse("ann").unwrap());
    let patch = ThreadPatch {
        metadata: Some(metadata(json!({ "user_id": "bob" }))),
        agent: Some(agent.clone()),
        version: Some(1),
        ..ThreadPatch::default()
    };
    assert_eq!(store.patch_thread(&t, &patch).await.unwrap(), PatchOutcome::Done);
    let row = store.thread(&t).await.unwrap().unwrap();
    assert_eq!((row.named.agent.as_ref(), row.named.metadata.get("a")), (agent.as_ref(), None));
    let listing = row.listing.unwrap();
    assert_eq!((listing.version, listing.is_archived, revision().await), (2, true, 1));
    let of_bob =
        ThreadFilter { archived: true, user: Some("bob".to_owned()), agent, ..ThreadFilter::default() };
    assert_eq!(names(&store, &of_bob, 10).await, ["t"]);
    assert_eq!(names(&store, &ThreadFilter::default(), 10).await, [""; 0]);
    let own = ThreadPatch { agent: Some(None), ..ThreadPatch::default() };
    assert_eq!(store.patch_thread(&t, &own).await.unwrap(), PatchOutcome::Done);
    assert_eq!(store.thread(&t).await.unwrap().unwrap().named.agent, None);
    assert_eq!(store.patch_thread(&thread("none"), &own).await.unwrap(), PatchOutcome::Unknown);
    // Of concurrent changes with one version, one is done.
    let racing = ThreadPatch { archived: Some(false), version: Some(3), ..ThreadPatch::default() };
    let outcomes = futures_util::future::join_all((0..8).map(|_| store.patch_thread(&t, &racing))).await;
    let done = outcomes.into_iter().filter(|outcome| outcome.as_ref().unwrap() == &PatchOutcome::Done);
    assert_eq!(done.count(), 1);
}

#[tokio::test]
async fn copies_and_imports_are_listed_and_erased_threads_are_not() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    commit_turn(&owner, "t", 10, THEN, "Hello").await;
    let act = model::CommandId::parse("c-1").unwrap();
    let copied = store.fork(&thread("t"), &thread("copy"), Position::from_stored(10), &act, "anna").await;
    assert_eq!(copied.unwrap(), Some(4));
    let range = store::Range { with_synthetic: true, ..store::Range::default() };
    let rows = store.history(&thread("t"), range, 100).await.unwrap().unwrap();
    let items: Vec<batches::Item> = rows.into_iter().map(batches::Item::from).collect();
    import_batches(&store, &thread("imported"), &items, &[]).await;
    for name in ["copy", "imported"] {
        let listing = listing(&store, name).await;
        assert_eq!((text(&listing), listing.active_us), (Some("Hello"), THEN * 1_000), "{name}");
    }
    let named = NewThread { thread: thread("moved"), agent: None, policy: None, metadata: Metadata::EMPTY };
    let mut import = ThreadImport {
        title: Some(ThreadTitle { text: "Mine".to_owned(), by: TitleSource::Client }),
        archived: true,
        ..ThreadImport::new(thread("moved"), Some(named), items)
    };
    store.import_thread(&import, None).await.unwrap();
    let moved = listing(&store, "moved").await;
    assert_eq!((text(&moved), moved.is_archived), (Some("Mine"), true));
    // A refused import changes nothing, and times of other systems are kept within bounds.
    let mut refused = ThreadImport { items: import.items[..2].to_vec(), ..import.clone() };
    refused.items[0].content = "other".to_owned();
    refused.title = Some(ThreadTitle { text: "Refused".to_owned(), by: TitleSource::Client });
    let outcome = store.import_thread(&refused, None).await.unwrap();
    assert!(matches!(outcome, store::ImportOutcome::Refused(_)), "{outcome:?}");
    assert_eq!(listing(&store, "moved").await, moved);
    for (name, at) in [("ancient", -62_000_000_000_000), ("future", 32_503_680_000_000)] {
        let mut items = import.items.clone();
        items.iter_mut().for_each(|item| item.created_at = Timestamp(at));
        import_batches(&store, &thread(name), &items, &[]).await;
        let now_us = store.database_time().await.unwrap().0 * 1_000;
        assert!((0..=now_us + 60_000_000).contains(&listing(&store, name).await.active_us), "{name}");
    }
    (import.title, import.archived) = (None, false);
    store.import_thread(&import, None).await.unwrap();
    assert_eq!(listing(&store, "moved").await, moved, "it keeps its own");
    store.fork(&thread("moved"), &thread("branch"), Position::from_stored(10), &act, "anna").await.unwrap();
    let branch = listing(&store, "branch").await;
    assert_eq!((text(&branch), branch.is_archived), (Some("Mine"), false));
    database
        .execute(&format!(
            "INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ({}, 'gone', 'anna')",
            thread("gone").bucket().get()
        ))
        .await;
    store.note_activity(&thread("gone"), &thread("gone").agent(), "Hello").await.unwrap();
    assert!(!names(&store, &ThreadFilter::default(), 10).await.contains(&"gone".to_owned()));
    let counts = store.rows_of_threads(&[thread("t")]).await.unwrap();
    assert_eq!(counts["thread_list"], 1);
}

/// All batches of `t`, newest first.
async fn batches_of_t(store: &Store) -> Vec<BatchSize> {
    let mut assembler = BatchAssembler::default();
    let index = store.retention_index(&thread("t"), Position::MAX, 1_000).await.unwrap();
    let mut batches: Vec<BatchSize> = index.into_iter().flat_map(|place| assembler.push(place)).collect();
    batches.extend(assembler.finish());
    batches
}

/// A title is a copy of a message: it goes with it.
#[tokio::test]
async fn titles_do_not_outlive_the_messages_that_they_come_from() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    commit_turn(&owner, "t", 10, THEN, "My secret").await;
    commit_turn(&owner, "t", 20, THEN, "Hello").await;
    let batches = batches_of_t(&store).await;
    assert_eq!(batches.len(), 2);
    let head = Some(Position::from_stored(23));
    assert_eq!(store.delete_batches(&thread("t"), head, &batches[1..]).await.unwrap(), Some(4));
    assert_eq!(listing(&store, "t").await.title, None, "of the first message");
    let set = async |by: &str| {
        let sql = format!("UPDATE thread_list SET title = 'T', title_by = '{by}' WHERE thread_id = 't'");
        database.execute(&sql).await;
    };
    commit_turn(&owner, "t", 30, THEN + 120_000, "More").await;
    set("workflow").await;
    let head = Some(Position::from_stored(33));
    let batches = batches_of_t(&store).await;
    assert_eq!(store.delete_batches(&thread("t"), head, &batches[1..]).await.unwrap(), Some(4));
    assert_eq!(text(&listing(&store, "t").await), Some("T"), "messages are left");
    assert_eq!(store.delete_batches(&thread("t"), head, &batches[..1]).await.unwrap(), Some(4));
    assert_eq!(listing(&store, "t").await.title, None, "no message is left");
    commit_turn(&owner, "t", 40, THEN + 240_000, "Again").await;
    set("client").await;
    let batches = batches_of_t(&store).await;
    let head = Some(Position::from_stored(43));
    assert_eq!(store.delete_batches(&thread("t"), head, &batches).await.unwrap(), Some(4));
    assert_eq!(text(&listing(&store, "t").await), Some("T"), "a client has chosen it");
}

/// `antiphon migrate` lists what a build before this table has written, and removes what such a
/// build has erased.
#[tokio::test]
async fn migrating_again_lists_threads_of_earlier_builds() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    commit_turn(&owner, "t", 10, THEN, "Hello").await;
    commit_turn(&owner, "gone", 20, THEN, "Secret").await;
    commit_turn(&owner, "erased", 30, THEN, "Secret").await;
    let named = listing(&store, "t").await;
    let mark = |name: &str| {
        let bucket = thread(name).bucket().get();
        format!("INSERT INTO erased_threads (bucket, thread_id, actor) VALUES ({bucket}, '{name}', 'anna');")
    };
    let sql = "DELETE FROM thread_list WHERE thread_id IN ('t', 'erased');
               DELETE FROM messages WHERE thread_id = 'gone'; DELETE FROM threads WHERE thread_id = 'gone'";
    database.execute(&format!("{}{}{sql}", mark("gone"), mark("erased"))).await;
    for _ in 0..2 {
        store::migrate(&database.url, model::PartitionCount::new(2).unwrap()).await.unwrap();
        assert_eq!(names(&store, &ThreadFilter::default(), 10).await, ["t"]);
        assert_eq!(listing(&store, "t").await, named);
    }
}

#[tokio::test]
async fn a_failed_thread_is_listed_as_long_as_its_failure_is_kept() {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    commit_turn(&owner, "t", 10, THEN, "Hello").await;
    for name in ["t", "lost"] {
        store.note_activity(&thread(name), &thread(name).agent(), "Secret").await.unwrap();
        let mut commit = owner.empty();
        commit.failed_turns = vec![failed_turn(name, &turn(name, "y"), 0)];
        owner.commit(&commit).await.unwrap();
    }
    database
        .execute("UPDATE failed_turns SET failed_at = failed_at + interval '1 second' - interval '9 days'")
        .await;
    database.execute("UPDATE thread_list SET active_at = active_at - interval '9 days'").await;
    let week = CleanupLimit::Age(std::time::Duration::from_secs(7 * 86_400));
    assert_eq!(store.clean_up(CleanupKind::FailedTurns, week, 10).await.unwrap(), 2);
    assert_eq!(names(&store, &ThreadFilter::default(), 10).await, ["t"]);
}
