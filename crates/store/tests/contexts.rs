//! Reads from which contexts are built.

use batches::check::Change;
use batches::compaction::{Provenance, Strategy};
use batches::context::{Builder, ContextRules, LastMessages, Older};
use batches::retention::BatchSize;
use batches::{Compaction, Context, EstimatingCounter, Item};
use model::{BatchType, Position, Timestamp};
use serde_json::json;
use store::{ContextWanted, Gate, Range, RowRepair, StartContext, Store, ThreadVersion};

use crate::fixture::{Database, Owner, import_batches, message, thread};
use crate::values::{agent, at, finishes, turn};

/// Stores turns of four messages each in `t`: batches 10, 20, …
async fn with_turns(count: i64) -> (Database, Store) {
    let (database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let all: Vec<i64> = (1..=count).collect();
    for part in all.chunks(50) {
        let mut commit = owner.empty();
        let turn_of = |number: &i64| finishes("t", &turn("t", &format!("n{number}")), 0, number * 10, None);
        commit.turns = part.iter().map(turn_of).collect();
        owner.commit(&commit).await.unwrap();
    }
    (database, store)
}

async fn context(store: &Store, rules: &ContextRules, compaction: Option<Compaction>) -> Context {
    let request = rules.request(None, compaction, Timestamp(0));
    let mut builder = Builder::new(request, &EstimatingCounter);
    store.fill(&thread("t"), &LastMessages::default(), &mut builder).await.unwrap();
    builder.build()
}

fn ids(context: &Context) -> Vec<i64> {
    context.batches.iter().map(|batch| batch.id().get()).collect()
}

fn budget(tokens: u64) -> ContextRules {
    ContextRules { tokens, ..ContextRules::default() }
}

fn compaction(through: i64, kept: &[i64]) -> Compaction {
    Compaction {
        id: at(through + 9),
        through: at(through),
        kept: kept.iter().copied().map(at).collect(),
        summary: Some("They talked.".to_owned()),
        strategy: Strategy::Summarise,
        provenance: Provenance { batches: vec![at(10)], messages: 4, tokens_before: 9, tokens_after: 5 },
        previous: None,
        counts_from: at(through + 9),
        undone_at: None,
    }
}

async fn keep(database: &Database, compaction: &Compaction) {
    let kept: Vec<_> = compaction.kept.iter().map(Position::to_string).collect();
    let sql = format!(
        "INSERT INTO compactions (bucket, thread_id, compaction_id, through_position, kept_positions, summary, strategy, provenance, valid_from_position,
                                  undone_at_position)
         VALUES ({}, 't', {}, {}, '{{{}}}', 'They talked.', 'summarise', '{}', {}, {})",
        thread("t").bucket().get(),
        compaction.id,
        compaction.through,
        kept.join(","),
        serde_json::to_string(&compaction.provenance).unwrap(),
        compaction.counts_from,
        compaction.undone_at.map_or("NULL".to_owned(), |at| at.to_string()),
    );
    database.execute(&sql).await;
}

#[tokio::test]
async fn turn_start_reads_settings_compactions_and_thread_end() {
    let (database, store) = with_turns(30).await;
    let bucket = model::Bucket::of_key("kind").get();
    let settings = format!(
        "INSERT INTO agent_settings (bucket, agent_id, workflow, settings)
         VALUES ({bucket}, 'kind', 'w', '{{\"system\": \"Be kind.\"}}')"
    );
    database.execute(&settings).await;
    let undone = Compaction { undone_at: Some(at(99)), ..compaction(80, &[]) };
    for one in [compaction(50, &[20]), undone] {
        keep(&database, &one).await;
    }
    let wanted = [("t", "kind"), ("empty", "kind"), ("t", "unknown")].map(|(id, of)| ContextWanted {
        thread: thread(id),
        agent: agent(of),
        gate: Gate::Background,
        source_thread: None,
        known: None,
    });
    let contexts = store.contexts(&wanted).await.unwrap();
    let positions = |context: &StartContext| -> Vec<i64> {
        context.messages.newest.iter().map(|message| message.position.get()).collect()
    };
    let all = (1..=30).flat_map(|turn| (0..4).map(move |number| turn * 10 + number));
    let newest: Vec<i64> = all.rev().take(64).collect();
    assert_eq!(positions(&contexts[0]), newest);
    assert_eq!((positions(&contexts[1]), positions(&contexts[2])), (vec![], newest));
    let first = &contexts[0];
    assert_eq!((first.workflow.as_deref(), &first.settings["system"]), (Some("w"), &json!("Be kind.")));
    assert_eq!((contexts[2].workflow.as_deref(), contexts[2].settings.len()), (None, 0));
    let unread = Compaction { provenance: Provenance::default(), ..compaction(50, &[20]) };
    assert_eq!(first.compaction, Some(unread), "the newest that is not undone");
    assert_eq!(contexts[1].compaction, None);
    let all = store.compactions(&thread("t")).await.unwrap();
    assert_eq!(all.iter().map(|one| one.compaction.id.get()).collect::<Vec<_>>(), [59, 89]);
    assert_eq!((all[1].compaction.undone_at, all[1].actor.as_str()), (Some(at(99)), "system"));
    assert_eq!(store.contexts(&[]).await.unwrap(), []);
}

/// The start context of a turn in `t` with this known version, and the positions that were read,
/// newest first.
async fn start_knowing(store: &Store, known: Option<ThreadVersion>) -> (Vec<i64>, StartContext) {
    let wanted = ContextWanted {
        thread: thread("t"),
        agent: agent("any"),
        gate: Gate::Background,
        source_thread: None,
        known,
    };
    let found = store.contexts(&[wanted]).await.unwrap().remove(0);
    (found.messages.newest.iter().map(|item| item.position.get()).collect(), found)
}

#[tokio::test]
async fn only_what_is_not_known_of_a_thread_is_read() {
    let (database, store) = Database::new(1).await;
    let nothing = LastMessages { newest: vec![], is_all: true };
    assert_eq!(
        start_knowing(&store, None).await.1,
        StartContext { messages: nothing, ..StartContext::default() }
    );
    let owner = Owner::new(&store, "a").await;
    let write = async |positions: &[i64]| {
        let mut commit = owner.empty();
        let turn_of = |position: &i64| finishes("t", &turn("t", &format!("n{position}")), 0, *position, None);
        commit.turns = positions.iter().map(turn_of).collect();
        owner.commit(&commit).await.unwrap();
    };
    write(&[10, 20]).await;
    let (all, first) = start_knowing(&store, None).await;
    assert_eq!(
        (all, first.messages.is_all, first.goes_on),
        (vec![23, 22, 21, 20, 13, 12, 11, 10], true, false)
    );
    let (none, same) = start_knowing(&store, first.version).await;
    assert_eq!((none, same.goes_on, same.version), (vec![], true, first.version));
    write(&[40]).await;
    let (new, next) = start_knowing(&store, first.version).await;
    assert_eq!((new, next.goes_on), (vec![43, 42, 41, 40], true));
    // The clock of an earlier owner was ahead: a new message has a lower position than known ones.
    write(&[30]).await;
    let (all, behind) = start_knowing(&store, next.version).await;
    assert_eq!((all.len(), behind.goes_on, behind.messages.is_all), (16, false, true));
    // There are more new messages than are read at once.
    write(&(5..22).map(|turn| turn * 10).collect::<Vec<_>>()).await;
    let (newest, far) = start_knowing(&store, behind.version).await;
    assert_eq!((newest.len(), newest[0], far.goes_on, far.messages.is_all), (64, 213, false, false));
    // A wrong version: it lacks one message that was written before its head. The thread also has
    // new messages.
    let believed = far.version.unwrap();
    let believed = ThreadVersion { messages: believed.messages - 1, ..believed };
    write(&[220]).await;
    let (all, not_so) = start_knowing(&store, Some(believed)).await;
    assert_eq!((all.len(), all[0], not_so.goes_on), (64, 223, false));
    // The store has gone back to before the known version.
    database.execute("DELETE FROM messages WHERE position > 210").await;
    database.execute("UPDATE threads SET head_position = 203, message_count = message_count - 8").await;
    assert!(!start_knowing(&store, far.version).await.1.goes_on);
}

#[tokio::test]
async fn what_is_known_of_a_thread_ends_with_every_other_change() {
    let (database, store) = with_turns(3).await;
    let known = start_knowing(&store, None).await.1.version;
    let is_false = async |known: Option<ThreadVersion>| {
        let (read, found) = start_knowing(&store, known).await;
        assert!(known.is_some() && !found.goes_on, "{known:?} {found:?}");
        (read, found.version)
    };
    assert!(start_knowing(&store, known).await.1.goes_on);
    // A batch is deleted by retention.
    let whole = store.history(&thread("t"), Range::default(), 100).await.unwrap().unwrap();
    let oldest = BatchSize { id: at(10), last: at(13), messages: 4, bytes: 1, last_at: Timestamp(0) };
    assert_eq!(store.delete_batches(&thread("t"), Some(at(33)), &[oldest]).await.unwrap(), Some(4));
    let (read, _): (Vec<i64>, _) = is_false(known).await;
    assert_eq!(read, [33, 32, 31, 30, 23, 22, 21, 20]);
    // A batch is imported into the middle of the thread, between messages of another batch.
    database.execute("UPDATE messages SET position = 40 WHERE position = 33").await;
    database.execute("UPDATE threads SET head_position = 40").await;
    let before = start_knowing(&store, None).await.1.version;
    let moved = |item: Item| Item { position: at(item.position.get() + 25), batch_id: at(35), ..item };
    let items: Vec<_> = whole.into_iter().map(Item::from).take(4).map(moved).collect();
    let outcome = import_batches(&store, &thread("t"), &items, &[at(30)]).await;
    assert_eq!(outcome, 4);
    let (read, now) = is_false(before).await;
    assert_eq!(read, [40, 38, 37, 36, 35, 32, 31, 30, 23, 22, 21, 20]);
    // A message is repaired.
    let place = |batch_type| Change { batch_id: at(20), sequence_num: 0, batch_type };
    let repair = RowRepair {
        position: at(20),
        old: place(items[0].batch_type),
        new: place(BatchType::SystemTrigger),
        is_apart: false,
        said: None,
    };
    assert!(store.repair_messages(&thread("t"), &[repair], "me").await.unwrap());
    let (_, now) = is_false(now).await;
    // The thread is erased and created again, with as many messages.
    store.mark_erased(&[thread("t")], "me", "run", None).await.unwrap();
    store.erase_some(&[thread("t")]).await.unwrap();
    database.execute("DELETE FROM erased_threads").await;
    assert!(start_knowing(&store, now).await.0.is_empty());
    let remade = format!(
        "INSERT INTO threads (bucket, thread_id, head_position, message_count, revision) VALUES ({}, 't', 40, 12, 3)",
        thread("t").bucket().get()
    );
    database.execute(&remade).await;
    is_false(now).await;
}

#[tokio::test]
async fn compaction_is_written_only_beside_its_planned_message() {
    let (database, store) = with_turns(3).await;
    let add = async |id: i64, previous: Option<i64>| {
        let one = Compaction { id: at(id), previous: previous.map(at), ..compaction(10, &[]) };
        let planned = start_knowing(&store, None).await.1.version.unwrap();
        let stale = ThreadVersion { revision: planned.revision - 1, ..planned };
        let again = ThreadVersion { created_us: planned.created_us - 1, ..planned };
        for other in [stale, again] {
            assert!(!store.add_compaction(&thread("t"), &one, other, None, "system").await.unwrap());
        }
        store.add_compaction(&thread("t"), &one, planned, None, "system").await.unwrap()
    };
    assert!(!add(50, None).await, "the store has gone back to before message 49");
    assert!(add(34, None).await);
    assert!(!add(34, None).await, "two that are planned from the same state");
    assert!(!add(24, None).await, "there is a newer one");
    database.execute("DELETE FROM messages WHERE position = 33").await;
    assert!(!add(34, Some(34)).await);
    assert_eq!(store.compactions(&thread("t")).await.unwrap().len(), 1);
}

#[tokio::test]
async fn a_context_reads_no_more_than_what_has_room() {
    let (_database, store) = with_turns(400).await;
    let whole = context(&store, &budget(1_000_000), None).await;
    assert_eq!((ids(&whole).len(), whole.older), (400, Older::Nothing));
    let newest = whole.decisions.iter().rev().take(4).map(|decision| decision.tokens).sum();
    let some = context(&store, &budget(newest), None).await;
    assert_eq!(ids(&some), [3970, 3980, 3990, 4000]);
    let read: usize = some.decisions.iter().map(|decision| decision.messages).sum();
    assert!(read <= 64, "{read} messages of 1,600 were read");
    assert!(matches!(some.older, Older::Unread { .. }), "{:?}", some.older);
}

#[tokio::test]
async fn what_is_compacted_is_not_read_but_for_what_was_kept() {
    let (database, store) = with_turns(400).await;
    let compaction = compaction(3_900, &[20, 1_000]);
    let shown = context(&store, &budget(1_000_000), Some(compaction.clone())).await;
    let newest: Vec<i64> = (391..=400).map(|number| number * 10).collect();
    assert_eq!(ids(&shown), [vec![20, 1_000], newest].concat());
    assert_eq!(shown.summary.as_deref(), Some("They talked."));
    // A later turn continues an earlier batch.
    let owner = Owner::new(&store, "b").await;
    let mut commit = owner.empty();
    let mut more = finishes("t", &turn("t", "more"), 0, 5_000, None);
    for message in &mut more.messages {
        message.placement.batch_id = at(30);
        message.placement.batch_type = BatchType::Continuation;
    }
    commit.turns = vec![more];
    owner.commit(&commit).await.unwrap();
    assert_eq!(database.number("SELECT count(*) FROM messages WHERE out_of_range").await, 4);
    let batch = store.batches(&thread("t"), &[at(30), at(40), at(7)]).await.unwrap();
    let places: Vec<_> =
        batch.iter().map(|it| (it.batch_id.get(), it.sequence_num, it.position.get())).collect();
    let before = (0..4).map(|number| (30, number, 30 + i64::from(number)));
    let after = (4..8).map(|number| (30, number, 4_996 + i64::from(number)));
    let other = (0..4).map(|number| (40, number, 40 + i64::from(number)));
    assert_eq!(places, before.chain(after).chain(other).collect::<Vec<_>>());
    let shown = context(&store, &budget(1_000_000), Some(compaction)).await;
    assert_eq!(ids(&shown)[..3], [20, 30, 1_000], "it says something that nothing stands for");
}

#[tokio::test]
async fn batches_are_listed_by_their_first_messages() {
    let (_database, store) = with_turns(5).await;
    let page = async |before: Option<i64>, most| {
        let found = store.batch_ids(&thread("t"), before.map(at), most).await.unwrap();
        found.map(|ids| ids.iter().map(|id| id.get()).collect::<Vec<_>>())
    };
    assert_eq!(page(None, 3).await, Some(vec![50, 40, 30]));
    assert_eq!(page(Some(30), 3).await, Some(vec![20, 10]));
    assert_eq!(page(Some(10), 3).await, Some(vec![]));
    assert_eq!(store.batch_ids(&thread("unknown"), None, 3).await.unwrap(), None);
    assert_eq!(store.batches(&thread("t"), &[]).await.unwrap(), []);
}

#[tokio::test]
async fn a_message_without_a_turn_is_a_batch_of_its_own() {
    let (_database, store) = with_turns(1).await;
    let owner = Owner::new(&store, "b").await;
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "bare", 20)];
    owner.commit(&commit).await.unwrap();
    assert_eq!(ids(&context(&store, &budget(1_000), None).await), [10, 20]);
}

#[tokio::test]
async fn only_what_stands_before_known_messages_is_read() {
    let (database, store) = with_turns(40).await;
    let fill = async |known: &LastMessages, tokens: u64| {
        let request = budget(tokens).request(None, None, Timestamp(0));
        let mut builder = Builder::new(request, &EstimatingCounter);
        let older = store.fill(&thread("t"), known, &mut builder).await.unwrap();
        (ids(&builder.build()).len(), older)
    };
    let known = start_knowing(&store, None).await.1.messages;
    let (batches, older) = fill(&known, 1_000_000).await;
    assert_eq!((known.newest.len(), batches, older.newest.len(), older.is_all), (64, 40, 96, true));
    let mut all = known.clone();
    all.extend(older);
    let (batches, older) = fill(&LastMessages::default(), 1_000_000).await;
    assert_eq!((batches, &older), (40, &all));
    // The known messages are used without reading them, whatever is stored now.
    database.execute("DELETE FROM messages").await;
    assert_eq!(fill(&all, 1_000_000).await, (40, LastMessages::default()));
    assert_eq!(fill(&known, 1_000_000).await, (16, LastMessages { newest: vec![], is_all: true }));
    assert_eq!(fill(&known, 100).await.1, LastMessages::default());
}
