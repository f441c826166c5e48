//! Reads and writes of the HTTP API.

use model::{AgentId, BusyPolicy, CommandId, Position, TaskId, ThreadId, TurnId, WorkflowName};
use serde_json::json;
use store::{
    AgentAdmission, AgentWaiting, AskedResponse, CleanupKind, CleanupLimit, NewThread, PositionLookup,
    PutAgent, PutAgentOutcome, RunFailure, Store, TaskStatus, TurnState,
};

use crate::fixture::{Database, Owner, failed, key, message, metadata, thread};

fn agent(id: &str) -> AgentId {
    AgentId::parse(id).unwrap()
}

pub(crate) fn turn(thread: &ThreadId, unique: &str) -> TurnId {
    TurnId::foreground(thread, unique).unwrap()
}

/// Runs a statement in which `$b(<key>)` is replaced by the bucket of a key.
pub(crate) async fn write(database: &Database, statement: &str) {
    let mut parts = statement.split("$b(");
    let mut sql = parts.next().unwrap().to_owned();
    for part in parts {
        let (key, rest) = part.split_once(')').unwrap();
        sql.push_str(&format!("{}{rest}", model::Bucket::of_key(key).get()));
    }
    database.execute(&sql).await;
}

#[tokio::test]
async fn a_thread_is_named_once() {
    let (_database, store) = Database::new(2).await;
    let new = NewThread {
        thread: thread("t"),
        agent: Some(agent("otto")),
        policy: Some(BusyPolicy::Rollback),
        metadata: metadata(json!({"a": 1})),
    };
    assert_eq!(store.thread(&new.thread).await.unwrap(), None);
    assert_eq!(store.upsert_thread(&new).await.unwrap(), store::NamedThread::New);
    let other = NewThread { agent: None, policy: None, ..new.clone() };
    assert_eq!(store.upsert_thread(&other).await.unwrap(), store::NamedThread::Known);
    let row = store.thread(&new.thread).await.unwrap().unwrap();
    assert_eq!((row.named, row.messages, row.head), (new, 0, None));
    store.create_thread(&thread("bare")).await.unwrap();
    let bare = store.thread(&thread("bare")).await.unwrap().unwrap().named;
    assert_eq!((bare.agent, bare.policy, bare.metadata.is_empty()), (None, None, true));
}

#[tokio::test]
async fn a_key_belongs_to_the_first_who_takes_it() {
    let (_database, store) = Database::new(2).await;
    let (t, u) = (thread("t"), thread("u"));
    assert_eq!(store.key_claim(&t, "k").await.unwrap(), None);
    let claims = (0..20).map(|n| {
        let (store, t) = (store.clone(), t.clone());
        async move { store.claim_key(&t, "k", &[n], &turn(&t, &format!("x{n}"))).await.unwrap() }
    });
    let claims = futures_util::future::join_all(claims).await;
    assert!(claims.iter().all(|claim| *claim == claims[0]), "{claims:?}");
    assert_eq!(store.key_claim(&t, "k").await.unwrap().as_ref(), Some(&claims[0]));
    let other = store.claim_key(&u, "k", b"d", &turn(&u, "y")).await.unwrap();
    assert_eq!((other.turn, other.digest), (turn(&u, "y"), b"d".to_vec()));
}

#[tokio::test]
async fn keys_go_when_they_are_old() {
    let (database, store) = Database::new(2).await;
    let t = thread("t");
    for n in 0..7 {
        store.claim_key(&t, &format!("k{n}"), &[n], &turn(&t, "x")).await.unwrap();
    }
    let hour = std::time::Duration::from_secs(3_600);
    assert_eq!(store.clean_up(CleanupKind::IdempotencyKeys, CleanupLimit::Age(hour), 10).await.unwrap(), 0);
    let age = "UPDATE idempotency_keys SET created_at = now() - interval '1 hour 1 second' WHERE key < 'k5'";
    database.execute(age).await;
    assert_eq!(
        store.clean_up(CleanupKind::IdempotencyKeys, CleanupLimit::Age(2 * hour), 10).await.unwrap(),
        0
    );
    assert_eq!(store.clean_up(CleanupKind::IdempotencyKeys, CleanupLimit::Age(hour), 3).await.unwrap(), 3);
    assert_eq!(store.clean_up(CleanupKind::IdempotencyKeys, CleanupLimit::Age(hour), 3).await.unwrap(), 2);
    let left = database.rows("SELECT key FROM idempotency_keys ORDER BY 1").await;
    assert_eq!(left, [r#"{"key":"k5"}"#, r#"{"key":"k6"}"#]);
}

/// Inserts messages of the thread `t`: position, batch, id, batch type, role, content.
pub(crate) async fn messages(database: &Database, rows: &[(i64, i64, &str, &str, &str, &str)]) {
    let row = |(position, batch, id, kind, role, content): &(i64, i64, &str, &str, &str, &str)| {
        format!(
            "($b(t), 't', {position}, '{id}', {batch}, {}, '{kind}', '{role}', '{content}')",
            position - batch
        )
    };
    let rows: Vec<_> = rows.iter().map(row).collect();
    let sql = format!(
        "INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, sequence_num, batch_type, role, content)
         VALUES {}",
        rows.join(", ")
    );
    write(database, &sql).await;
}

async fn insert_failed(database: &Database, turn: &TurnId, run: u32) {
    let sql = format!(
        "INSERT INTO failed_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, options, code, text,
                                   is_retryable)
         VALUES ($b(t), 't', '{turn}', 'otto', {run}, 'question', '{{\"k\": 1}}',
                 '{{\"busy_policy\": \"reject\", \"work_request\": true, \"correlation_id\": \"trace\"}}', 'deadline', 'no progress', true)"
    );
    write(database, &sql).await;
}

#[tokio::test]
async fn failed_turns_are_paged_by_their_ids() {
    let (database, store) = Database::new(2).await;
    let t = thread("t");
    assert_eq!(store.failed_turns(&t, None, 9).await.unwrap(), None);
    store.create_thread(&t).await.unwrap();
    assert_eq!(store.failed_turns(&t, None, 9).await.unwrap(), Some(vec![]));
    for unique in ["a", "b", "c"] {
        insert_failed(&database, &turn(&t, unique), 2).await;
    }
    let page = async |after: Option<&str>, limit| {
        let after = after.map(|unique| turn(&t, unique));
        let page = store.failed_turns(&t, after.as_ref(), limit).await.unwrap().unwrap();
        page.into_iter().map(|row| row.opened.turn).collect::<Vec<_>>()
    };
    assert_eq!(page(None, 2).await, [turn(&t, "a"), turn(&t, "b")]);
    assert_eq!(page(Some("b"), 2).await, [turn(&t, "c")]);
    assert_eq!(page(Some("c"), 2).await, []);
    let row = store.failed_turn(&t, &turn(&t, "b")).await.unwrap().unwrap();
    let opened = &row.opened;
    assert_eq!(
        (opened.agent.as_str(), opened.run, opened.options.busy_policy),
        ("otto", 2, BusyPolicy::Reject)
    );
    assert_eq!(opened.options.correlation_id.as_deref(), Some("trace"));
    assert_eq!((opened.content.as_str(), opened.metadata.to_value()), ("question", json!({"k": 1})));
    assert_eq!((row.code.as_str(), row.text.as_str(), row.is_retryable), ("deadline", "no progress", true));
    assert_eq!(store.failed_turn(&t, &turn(&t, "z")).await.unwrap(), None);
    assert_eq!(store.failed_turn(&thread("u"), &turn(&t, "b")).await.unwrap(), None);
    write(&database, "DELETE FROM threads").await;
    assert_eq!(page(None, 9).await.len(), 3, "its first turn may have failed");
}

#[tokio::test]
async fn turn_state_follows_the_turn_through_its_life() {
    let (database, store) = Database::new(2).await;
    let t = thread("t");
    let x = turn(&t, "x");
    let state = async || store.turn_state(&t, &x).await.unwrap();
    let failure = async |run| store.run_failure(&t, &x, run).await.unwrap();
    assert_eq!((state().await, failure(0).await), (None, None));
    insert_failed(&database, &x, 1).await;
    assert_eq!(state().await, Some(TurnState::Failed { run: 1 }));
    let expected = RunFailure { code: "deadline".into(), text: "no progress".into(), is_retryable: true };
    assert_eq!(
        (failure(0).await, failure(1).await, failure(2).await),
        (Some(expected.clone()), Some(expected), None)
    );
    let columns = database
        .rows(
            "SELECT 1 FROM information_schema.columns
        WHERE table_name = 'spilled_turns' AND column_name = 'incarnation'",
        )
        .await;
    let (name, value) = if columns.is_empty() { ("", "") } else { (", incarnation", ", 's'") };
    write(&database, &format!(
        "INSERT INTO spilled_turns (bucket, thread_id, turn_id, agent_id, run, content, metadata, stream_seq{name})
         VALUES ($b(t), 't', '{x}', 'otto', 2, 'question', '{{}}', 7{value})"
    )).await;
    assert_eq!(state().await, Some(TurnState::Open { run: 2 }));
    assert_eq!(store.thread_of_open_turn(&x).await.unwrap(), Some(t.clone()));
    assert_eq!(store.thread_of_open_turn(&turn(&t, "y")).await.unwrap(), None);
    write(&database, "DELETE FROM spilled_turns; DELETE FROM failed_turns").await;
    assert_eq!(state().await, None);
    write(
        &database,
        &format!(
            "INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, error) VALUES
         ($b(t), 't', 'a1', 'mia', 'drop_failed_turn', '{x}', 'no such turn'),
         ($b(t), 't', 'a2', 'mia', 'stop_turn', '{x}', NULL)"
        ),
    )
    .await;
    assert_eq!(state().await, None);
    write(&database, "UPDATE audit_log SET error = NULL").await;
    assert_eq!(state().await, Some(TurnState::Dropped));
}

fn ids(rows: &[store::TaskRow]) -> String {
    let short = rows.iter().map(|row| format!("{}{}", row.task, &row.status.name()[..1]));
    short.collect::<Vec<_>>().join(" ")
}

async fn queue(database: &Database) {
    write(
        database,
        "INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content)
         SELECT $b(a), 'a', n * 10, 'k' || n, 'task', 'text' FROM generate_series(1, 6) AS n;
         INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content)
         VALUES ($b(other), 'other', 5, 'k1', 'memory', 'text');
         INSERT INTO failed_tasks (bucket, agent_id, position, code, text)
         VALUES ($b(a), 'a', 10, 'stopped', 'no'), ($b(a), 'a', 40, 'dropped', 'x'), ($b(a), 'a', 50, 'x', 'y');
         INSERT INTO agents (bucket, agent_id, head_position, head_run, backoff_attempt_count, backoff_next_run_at,
                             error_code, error_text)
         VALUES ($b(a), 'a', 30, 2, 2, clock_timestamp() + interval '1 hour', 'deadline', 'no progress')",
    )
    .await;
}

#[tokio::test]
async fn tasks_are_listed_with_their_states() {
    let (database, store) = Database::new(2).await;
    queue(&database).await;
    let a = agent("a");
    let list = async |status, after: i64, limit| {
        ids(&store.tasks(&a, status, Position::from_stored(after), limit).await.unwrap())
    };
    assert_eq!(list(None, i64::MIN, 9).await, "k1f k2c k3c k4f k5f k6p");
    assert_eq!(list(None, 20, 2).await, "k3c k4f");
    assert_eq!(list(Some(TaskStatus::Pending), i64::MIN, 9).await, "k6p");
    assert_eq!(list(Some(TaskStatus::Pending), 60, 9).await, "");
    assert_eq!(list(Some(TaskStatus::Completed), i64::MIN, 1).await, "k2c");
    assert_eq!(list(Some(TaskStatus::Completed), 20, 9).await, "k3c");
    assert_eq!(list(Some(TaskStatus::Failed), i64::MIN, 2).await, "k1f k4f");
    assert_eq!(list(Some(TaskStatus::Failed), 40, 2).await, "k5f");
    let other =
        store.tasks(&agent("other"), Some(TaskStatus::Pending), Position::from_stored(0), 9).await.unwrap();
    assert_eq!(ids(&other), "k1p", "an agent without a row of its own");
    let task = |id: &str| TaskId::parse(id).unwrap();
    let failed = store.task(&a, &task("k4")).await.unwrap().unwrap();
    let failure = failed.failure.unwrap();
    assert_eq!((failure.code.as_str(), failure.text.as_str()), ("dropped", "x"));
    assert_eq!(store.task(&a, &task("k7")).await.unwrap(), None);
    assert_eq!(store.task_digest(&a, &task("k4")).await.unwrap(), None);
    write(
        &database,
        "INSERT INTO task_ids (bucket, agent_id, task_id, position, digest)
                      VALUES ($b(a), 'a', 'k4', 40, -2)",
    )
    .await;
    assert_eq!(store.task_digest(&a, &task("k4")).await.unwrap(), Some(u64::MAX - 1));
}

#[tokio::test]
async fn runs_of_tasks_fail_by_their_marks_or_by_the_next_run() {
    let (database, store) = Database::new(2).await;
    queue(&database).await;
    let a = agent("a");
    let failure = async |position, run| {
        let turn = TurnId::of_task(&a, Position::from_stored(position));
        let failure = store.run_failure(&a.thread(), &turn, run).await.unwrap();
        failure.map(|failure| (failure.code, failure.is_retryable))
    };
    assert_eq!(failure(40, 0).await, Some(("dropped".to_owned(), false)));
    assert_eq!(failure(60, 0).await, Some(("deadline".to_owned(), true)));
    assert_eq!(failure(60, 1).await, Some(("deadline".to_owned(), true)));
    assert_eq!(failure(60, 2).await, None, "the run that is next or under way");
    assert_eq!((failure(20, 0).await, failure(70, 0).await), (None, None));
}

fn put(id: &str, act: &str, settings: serde_json::Value) -> PutAgent {
    PutAgent {
        agent: agent(id),
        workflow: WorkflowName::parse("research").unwrap(),
        settings: settings.as_object().unwrap().clone(),
        act: CommandId::parse(act).unwrap(),
        actor: "mia".to_owned(),
    }
}

#[tokio::test]
async fn an_agent_is_its_settings_and_its_queue() {
    let (database, store) = Database::new(2).await;
    queue(&database).await;
    let a = agent("a");
    assert_eq!(store.agent(&agent("unknown")).await.unwrap(), None);
    let row = store.agent(&a).await.unwrap().unwrap();
    assert_eq!((row.settings, row.pending, row.failed, row.paused), (None, 1, 3, false));
    assert_eq!(row.head, Some((TaskId::parse("k6").unwrap(), Position::from_stored(60))));
    assert_eq!((row.backoff_attempt_count, row.error.unwrap().code.as_str()), (2, "deadline"));
    assert!((3_500_000..=3_600_000).contains(&row.backoff_left_ms.unwrap()), "{:?}", row.backoff_left_ms);
    assert_eq!(
        store.put_agent(&put("a", "act-1", json!({"x": [1, "é"]}))).await.unwrap(),
        PutAgentOutcome::Stored(1)
    );
    assert_eq!(
        store.put_agent(&put("a", "act-2", json!({"x": 2}))).await.unwrap(),
        PutAgentOutcome::Stored(2)
    );
    let settings = store.agent(&a).await.unwrap().unwrap().settings.unwrap();
    assert_eq!((settings.workflow.as_str(), settings.version), ("research", 2));
    assert_eq!(serde_json::Value::Object(settings.settings), json!({"x": 2}));
    let memory = store.agent(&a.queue_of(model::TaskKind::Memory)).await.unwrap().unwrap();
    assert_eq!((memory.agent.as_str(), memory.pending, memory.backoff_attempt_count), ("a+memory", 0, 0));
    assert_eq!(memory.settings.unwrap().workflow.as_str(), "research", "its agent's");
    let standing = store.agent_admission(&a).await.unwrap();
    assert_eq!((standing.settings.get("x"), standing.backoff_left_ms.is_some()), (Some(&json!(2)), true));
    assert_eq!(store.agent_admission(&agent("unknown")).await.unwrap(), AgentAdmission::default());
    store.put_agent(&put("b", "act-3", json!({"y": 1}))).await.unwrap();
    let standing = store.agent_admission(&agent("b")).await.unwrap();
    assert_eq!((standing.settings.get("y"), standing.backoff_left_ms), (Some(&json!(1)), None));
    write(&database, "UPDATE agents SET backoff_next_run_at = clock_timestamp() - interval '1 s'").await;
    let row = store.agent(&a).await.unwrap().unwrap();
    assert_eq!((row.backoff_left_ms, row.backoff_next_run_at.is_some()), (None, true));
    assert_eq!(store.agent_admission(&a).await.unwrap().backoff_left_ms, None);
}

#[tokio::test]
async fn an_alias_belongs_to_one_agent_of_a_tenant() {
    let (_database, store) = Database::new(2).await;
    let aliases = |id: &str, act: &str, aliases: serde_json::Value| put(id, act, json!({"aliases": aliases}));
    let agent_with = async |alias: &str| {
        let found = store.agent_with_alias(None, alias).await.unwrap();
        found.map(|agent| agent.to_string())
    };
    let stored = PutAgentOutcome::Stored;
    let first = aliases("a", "act-1", json!(["gpt-4.1", "openai/gpt-4o"]));
    assert_eq!(store.put_agent(&first).await.unwrap(), stored(1));
    assert_eq!(agent_with("openai/gpt-4o").await.as_deref(), Some("a"));
    let taken = PutAgentOutcome::AliasTaken { alias: "gpt-4.1".to_owned(), agent: agent("a") };
    let second = aliases("b", "act-2", json!(["new", "gpt-4.1"]));
    assert_eq!(store.put_agent(&second).await.unwrap(), taken);
    assert_eq!((agent_with("new").await, store.agent(&agent("b")).await.unwrap()), (None, None));
    // Another tenant has names of its own, and sees no other.
    let acme = model::Tenant::parse("acme").unwrap();
    assert_eq!(store.put_agent(&aliases("acme~a", "act-3", json!(["gpt-4.1"]))).await.unwrap(), stored(1));
    let scoped = store.for_tenant(Some(acme.clone()));
    assert_eq!(scoped.agent_with_alias(Some(&acme), "gpt-4.1").await.unwrap(), Some(agent("acme~a")));
    assert_eq!(scoped.agent_with_alias(None, "gpt-4.1").await.unwrap(), None);
    // An alias that is left out is free again.
    assert_eq!(store.put_agent(&aliases("a", "act-4", json!(["openai/gpt-4o"]))).await.unwrap(), stored(2));
    assert_eq!(store.put_agent(&second).await.unwrap(), stored(1));
    assert_eq!(agent_with("gpt-4.1").await.as_deref(), Some("b"));
    // Of two agents that take an alias at the same time one gets it.
    let racing = [("c", "act-5"), ("d", "act-6")].map(|(id, act)| aliases(id, act, json!(["raced"])));
    let [one, other] = &racing;
    let (one, other) = tokio::join!(store.put_agent(one), store.put_agent(other));
    let outcomes = [one.unwrap(), other.unwrap()];
    assert_eq!(outcomes.iter().filter(|outcome| **outcome == stored(1)).count(), 1, "{outcomes:?}");
}

async fn listed(store: &Store, waiting: Option<AgentWaiting>, limit: u32) -> Vec<String> {
    let mut all: Vec<String> = Vec::new();
    loop {
        let after = all.last().map(|id| agent(id));
        let page = store.agents(waiting, after.as_ref(), limit).await.unwrap();
        if page.is_empty() {
            return all;
        }
        all.extend(page.iter().map(|row| row.agent.to_string()));
    }
}

#[tokio::test]
async fn agents_are_listed_whatever_is_stored_of_them() {
    let (database, store) = Database::new(2).await;
    queue(&database).await;
    for n in 0..5 {
        store.put_agent(&put(&format!("s{n}"), &format!("act-{n}"), json!({}))).await.unwrap();
    }
    write(&database, "INSERT INTO agents (bucket, agent_id, paused) VALUES ($b(s2), 's2', true)").await;
    let whole = listed(&store, None, 100).await;
    let mut sorted = whole.clone();
    sorted.sort();
    assert_eq!(sorted.join(" "), "a other s0 s1 s2 s3 s4");
    for limit in 1..4 {
        assert_eq!(listed(&store, None, limit).await, whole, "pages of {limit}");
    }
    assert_eq!(listed(&store, Some(AgentWaiting::Backoff), 1).await, ["a"]);
    assert_eq!(listed(&store, Some(AgentWaiting::Paused), 1).await, ["s2"]);
}

#[tokio::test]
async fn the_audit_is_read_from_its_end() {
    let (database, store) = Database::new(2).await;
    let act = |id: &str| CommandId::parse(id).unwrap();
    assert_eq!(store.control_outcome("a", &act("x")).await.unwrap(), None);
    for n in 1..=3 {
        store.put_agent(&put("a", &format!("act-{n}"), json!({}))).await.unwrap();
    }
    write(
        &database,
        "INSERT INTO audit_log (bucket, subject_id, command_id, actor, action, target, error, created_at)
         SELECT bucket, 'a', id, 'tom', 'drop_task', 'k1', 'no such task', max(created_at)
         FROM audit_log, (VALUES ('act-4'), ('act-5')) AS v (id) GROUP BY bucket, id",
    )
    .await;
    let page = async |before: Option<&str>, limit| {
        let acts = store.control_log("a", before.map(act).as_ref(), limit).await.unwrap();
        acts.iter().map(|row| row.command_id.to_string()[4..].to_owned()).collect::<String>()
    };
    assert_eq!((page(None, 9).await.as_str(), page(None, 2).await.as_str()), ("54321", "54"));
    assert_eq!((page(Some("act-5"), 2).await.as_str(), page(Some("act-2"), 2).await.as_str()), ("43", "1"));
    assert_eq!(page(Some("act-9"), 9).await, "", "an act that is not there has none before it");
    let row = store.control_outcome("a", &act("act-4")).await.unwrap().unwrap();
    assert_eq!(
        (row.actor.as_str(), row.action.as_str(), row.target.as_deref()),
        ("tom", "drop_task", Some("k1"))
    );
    assert_eq!(row.error.as_deref(), Some("no such task"));
    assert_eq!(store.control_outcome("b", &act("act-4")).await.unwrap(), None);
}

#[tokio::test]
async fn what_a_response_was_asked_for_with_stays_as_it_was_first() {
    let (database, store) = Database::new(2).await;
    let (t, first) = (thread("t"), turn(&thread("t"), "x"));
    assert_eq!(store.response(&t, &first).await.unwrap(), None);
    let asked = |model: &str| AskedResponse {
        model: model.to_owned(),
        background: true,
        previous_response_id: Some("resp_a".to_owned()),
        metadata: metadata(json!({"order": "7"})),
        options: metadata(json!({"temperature": 0.5, "instructions": "Be brief."})),
    };
    let rows = (0..10).map(|n| {
        let (store, t, first, asked) = (store.clone(), t.clone(), first.clone(), asked(&format!("m{n}")));
        async move { store.put_response(&t, &first, &asked).await.unwrap() }
    });
    let rows = futures_util::future::join_all(rows).await;
    assert!(rows.iter().all(|row| *row == rows[0]), "{rows:?}");
    assert_eq!(rows[0].asked, asked(&rows[0].asked.model));
    assert!(rows[0].created_at.0 > 1_700_000_000_000);
    assert_eq!(store.response(&t, &first).await.unwrap().as_ref(), Some(&rows[0]));
    assert_eq!(store.response(&thread("u"), &first).await.unwrap(), None);
    let (hour, others) = (std::time::Duration::from_secs(3_600), ["y", "z"].map(|name| turn(&t, name)));
    for other in &others {
        store.put_response(&t, other, &asked("m")).await.unwrap();
    }
    assert_eq!(store.clean_up(CleanupKind::Responses, CleanupLimit::Age(hour), 10).await.unwrap(), 0);
    let age = "UPDATE responses SET created_at = now() - interval '1 hour 1 second' WHERE model = 'm'";
    database.execute(age).await;
    assert_eq!(store.clean_up(CleanupKind::Responses, CleanupLimit::Age(2 * hour), 10).await.unwrap(), 0);
    assert_eq!(store.clean_up(CleanupKind::Responses, CleanupLimit::Age(hour), 1).await.unwrap(), 1);
    assert_eq!(store.clean_up(CleanupKind::Responses, CleanupLimit::Age(hour), 10).await.unwrap(), 1);
    assert_eq!(store.response(&t, &first).await.unwrap().as_ref(), Some(&rows[0]));
}

#[tokio::test]
async fn a_position_is_that_of_an_end_or_ahead_or_nowhere() {
    let (_database, store) = Database::new(2).await;
    let owner = Owner::new(&store, "a").await;
    let t = thread("t");
    let placed = async |position| store.find_position(&t, Position::from_stored(position)).await.unwrap();
    assert_eq!(placed(1).await, PositionLookup::Ahead, "there is no such thread");
    store.create_thread(&t).await.unwrap();
    assert_eq!(placed(1).await, PositionLookup::Ahead, "nothing was said there");
    let mut commit = owner.empty();
    commit.messages = vec![message("t", "first", 10), message("t", "second", 20), message("u", "other", 15)];
    commit.failed_messages = vec![
        failed(key("t", "failed"), 17, model::MessageFailure::Stalled),
        failed(key("t", "last"), 30, model::MessageFailure::Stalled),
    ];
    owner.commit(&commit).await.unwrap();
    for (position, wanted) in [
        (9, PositionLookup::Missing),
        (10, PositionLookup::Found),
        (15, PositionLookup::Missing),
        (17, PositionLookup::Found),
        (20, PositionLookup::Found),
        (21, PositionLookup::Missing),
        (30, PositionLookup::Found),
        (31, PositionLookup::Ahead),
        (i64::MAX, PositionLookup::Ahead),
    ] {
        assert_eq!(placed(position).await, wanted, "{position}");
    }
}
