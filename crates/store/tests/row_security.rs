//! Row-level security between tenants: the rows that Postgres itself returns and accepts.

use model::{AgentId, Metadata, Tenant, ThreadId, Timestamp};
use sqlx::Row;
use store::{NewThread, Store, StoreConfig, StoreError, TenantScope, UsageGroup};

use crate::fixture::Database;

fn tenant(name: &str) -> Tenant {
    Tenant::parse(name).unwrap()
}

fn thread_of(name: Option<&str>, thread: &str) -> ThreadId {
    ThreadId::of_tenant(name.map(tenant).as_ref(), thread).unwrap()
}

async fn name(store: &Store, thread: &ThreadId) -> Result<bool, StoreError> {
    let (thread, metadata) = (thread.clone(), Metadata::EMPTY);
    let named = store.upsert_thread(&NewThread { thread, agent: None, policy: None, metadata }).await?;
    Ok(named == store::NamedThread::New)
}

/// Every table with rows of tenants, and the column that determines the tenant.
const OWNED: [(&str, &str); 31] = [
    ("threads", "thread_id"),
    ("thread_list", "thread_id"),
    ("feedback", "thread_id"),
    ("messages", "thread_id"),
    ("spilled_messages", "thread_id"),
    ("failed_turns", "thread_id"),
    ("failed_messages", "thread_id"),
    ("spilled_turns", "thread_id"),
    ("idempotency_keys", "thread_id"),
    ("responses", "thread_id"),
    ("usage", "thread_id"),
    ("usage_days", "agent_id"),
    ("compactions", "thread_id"),
    ("erased_threads", "thread_id"),
    ("erasures", "tenant"),
    ("dead_letters", "thread_id"),
    ("agents", "agent_id"),
    ("agent_settings", "agent_id"),
    ("agent_aliases", "agent_id"),
    ("timers", "agent_id"),
    ("schedules", "agent_id"),
    ("facts", "agent_id"),
    ("budgets", "tenant"),
    ("tasks", "agent_id"),
    ("task_ids", "agent_id"),
    ("failed_tasks", "agent_id"),
    ("reasoning_sessions", "session_id"),
    ("reasoning_messages", "session_id"),
    ("reasoning_blocks", "session_id"),
    ("reasoning_layers", "session_id"),
    ("reasoning_checkpoints", "session_id"),
];

#[tokio::test]
async fn a_tenant_sees_and_writes_what_is_its_own() {
    let (_database, store) = Database::new(2).await;
    let (acme, other, default) = (
        store.for_tenant(Some(tenant("acme"))),
        store.for_tenant(Some(tenant("acm"))),
        store.for_tenant(None),
    );
    let all = [(&acme, Some("acme")), (&other, Some("acm")), (&default, None)];
    for (own, whose) in all {
        assert!(name(own, &thread_of(whose, "t")).await.unwrap());
    }
    for (own, whose) in all {
        for (_, another) in all {
            let found = own.thread(&thread_of(another, "t")).await.unwrap();
            assert_eq!(found.is_some(), whose == another, "{whose:?} {another:?}");
            if whose != another {
                let refused = name(own, &thread_of(another, "new")).await.unwrap_err();
                assert!(refused.to_string().contains("row-level security"), "{refused}");
            }
        }
    }
    // A failed statement must not leave a transaction open, nor its scope in the session.
    assert!(store.thread(&thread_of(Some("acm"), "t")).await.unwrap().is_some());
    assert!(acme.thread(&thread_of(Some("acme"), "t")).await.unwrap().is_some());
}

/// Every statement in the scope of a tenant either ends before the mark is written, or is refused.
#[tokio::test(flavor = "multi_thread")]
async fn a_marked_tenant_reads_and_writes_nothing() {
    let (database, store) = Database::new(2).await;
    let acme = tenant("acme");
    let scoped = store.for_tenant(Some(acme.clone()));
    let before = thread_of(Some("acme"), "before");
    assert!(name(&scoped, &before).await.unwrap());
    let mut writers = Vec::new();
    for writer in 0..4 {
        let scoped = scoped.clone();
        writers.push(tokio::spawn(async move {
            let mut written = 0;
            for number in 0.. {
                match name(&scoped, &thread_of(Some("acme"), &format!("t{writer}-{number}"))).await {
                    Ok(_) => written += 1,
                    Err(StoreError::TenantErased) => break,
                    Err(error) => panic!("{error}"),
                }
            }
            written
        }));
    }
    tokio::time::sleep(std::time::Duration::from_millis(300)).await;
    store.mark_tenant_erased(Some(&acme), "ada", "run").await.unwrap();
    // None of the writers' rows is written after the mark.
    let count = "SELECT count(*) FROM threads WHERE thread_id LIKE 'acme~t%'";
    let there = database.number(count).await;
    let mut written = 0;
    for writer in writers {
        written += writer.await.unwrap();
    }
    assert!(there > 0 && written == there, "{written} {there}");
    assert!(matches!(scoped.thread(&before).await, Err(StoreError::TenantErased)));
    // Other tenants and the fleet itself are not affected.
    for other in [store.for_tenant(Some(tenant("acm"))), store.for_tenant(None), store.clone()] {
        assert_eq!(other.thread(&thread_of(None, "x")).await.unwrap(), None);
    }
    assert_eq!(reopen(&store, &acme).await, store::ReopenedTenant::BeingErased);
    store.finish_erasing_tenant(Some(&acme), "another run").await.unwrap();
    assert!(store.erased_tenant(Some(&acme)).await.unwrap().unwrap().is_being_erased);
    store.finish_erasing_tenant(Some(&acme), "run").await.unwrap();
    assert_eq!(reopen(&store, &acme).await, store::ReopenedTenant::Reopened);
    assert_eq!(reopen(&store, &acme).await, store::ReopenedTenant::Unmarked);
    assert!(scoped.thread(&before).await.unwrap().is_some());
}

#[tokio::test]
async fn a_session_that_says_nothing_sees_nothing() {
    let (database, store) = Database::new(2).await;
    name(&store, &thread_of(None, "t")).await.unwrap();
    let config = StoreConfig {
        tenant_scope: TenantScope::Nothing,
        read_connections: 1,
        ..StoreConfig::new(&database.url)
    };
    let blind = Store::connect(&config).await.unwrap();
    let thread = thread_of(None, "t");
    assert_eq!(blind.thread(&thread).await.unwrap(), None);
    let count = sqlx::query("SELECT partitions FROM installation")
        .fetch_all(&mut blind_session(&database).await)
        .await;
    assert!(count.unwrap().is_empty());
    // One connection serves all of these statements in turn: the scope of one must not carry over
    // to the next.
    assert!(blind.for_tenant(None).thread(&thread).await.unwrap().is_some());
    assert_eq!(blind.thread(&thread).await.unwrap(), None);
    assert!(blind.unscoped().thread(&thread).await.unwrap().is_some());
    assert_eq!(blind.thread(&thread).await.unwrap(), None);
    assert!(!blind.bypasses_rls().await.unwrap());
}

/// A session of the owner without a scope.
async fn blind_session(database: &Database) -> sqlx::PgConnection {
    let mut session = database.session().await;
    sqlx::raw_sql("SET antiphon.tenant = ''").execute(&mut session).await.unwrap();
    session
}

/// The reverse case: lists without an id in the request are limited to a tenant even for a role
/// that bypasses row-level security.
#[tokio::test]
async fn usage_and_dead_letters_are_own_for_a_superuser_too() {
    let (database, _store) = Database::new(2).await;
    for owner in ["t", "acme~t", "acm~t"] {
        let bucket = model::Bucket::of_key(owner).get();
        let tenant = owner.split_once('~').map_or("-", |(tenant, _)| tenant);
        let insert = format!(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
             VALUES ('2026-03-01T00:00Z', {bucket}, '{owner}', 'm', 0, '{owner}', 'turn', 'm', 1, 1, false);
             INSERT INTO usage_days (day_at, tenant, agent_id, kind, model, calls, partial_calls, input_tokens, output_tokens,
                                     cached_tokens, cached_input_tokens, reasoning_tokens)
             VALUES ('2026-02-01T00:00Z', '{tenant}', '{owner}', 'turn', 'm', 1, 0, 1, 1, 0, 0, 0);
             INSERT INTO dead_letters (bucket, kind, key, partition_id, stream_seq, subject, reason, detail, raw)
             VALUES (0, 'entry', '{owner}', 0, 1, 'tasks.0.{owner}', 'malformed', '{{}}', '')"
        );
        database.execute(&insert).await;
    }
    let all = Store::connect(&StoreConfig::new(database.superuser_url())).await.unwrap();
    assert!(all.bypasses_rls().await.unwrap());
    let (from, to) = (Timestamp(0), Timestamp(i64::from(u32::MAX) * 1_000));
    let seen = async |store: &Store| {
        let sums = store.usage(from, to, &[UsageGroup::Agent], 10).await.unwrap();
        let usage: Vec<_> = sums.into_iter().map(|sum| (sum.of[1].clone().unwrap(), sum.calls)).collect();
        let letters = store.list_dead_letters(None, None, 10).await.unwrap();
        let letters: Vec<_> = letters.iter().map(|letter| letter.owner.clone().unwrap()).collect();
        (usage, letters, store.usage_details_from().await.unwrap())
    };
    for owner in ["t", "acme~t", "acm~t"] {
        let of = owner.split_once('~').map(|(name, _)| tenant(name));
        let (usage, letters, details_from) = seen(&all.for_tenant(of)).await;
        assert_eq!(usage, [(owner.to_owned(), 2)]);
        assert_eq!(letters, [owner]);
        assert_eq!(details_from.as_deref(), Some("2026-02-02"));
    }
    assert_eq!(seen(&all.for_tenant(Some(tenant("ac")))).await, (vec![], vec![], None));
    let (usage, letters, _) = seen(&all).await;
    assert_eq!((usage.len(), letters.len()), (3, 3));
}

/// Row-level security does not depend on the conditions of our statements.
#[tokio::test]
async fn every_table_has_its_wall() {
    let (database, _store) = Database::new(2).await;
    let mut session = database.session().await;
    let sql = "SELECT relname::text AS name, relrowsecurity AND relforcerowsecurity AS in_tenant_transaction,
                      EXISTS (SELECT FROM pg_policy WHERE polrelid = pg_class.oid) AS ruled
               FROM pg_class WHERE relnamespace = 'public'::regnamespace AND relkind IN ('r', 'p')";
    let tables = sqlx::query(sql).fetch_all(&mut session).await.unwrap();
    for table in &tables {
        let name: String = table.get("name");
        let is_secured = table.get::<bool, _>("in_tenant_transaction") && table.get::<bool, _>("ruled");
        assert!(is_secured || name == "_sqlx_migrations", "{name} has no row-level security");
    }
    assert!(tables.len() > OWNED.len() + 4);
    for (table, id) in OWNED {
        let sql = format!("SELECT antiphon_tenant_of({id}) FROM {table}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut session).await.unwrap();
    }
}

#[tokio::test]
async fn agents_of_others_are_not_listed() {
    let (database, store) = Database::new(2).await;
    for agent in ["acme~a", "acme~b", "other~a", "plain"] {
        let bucket = model::Bucket::of_key(agent).get();
        let insert = format!(
            "INSERT INTO tasks (bucket, agent_id, position, task_id, kind, content)
             SELECT {bucket}, '{agent}', n, 't' || n, 'task', 'x' FROM generate_series(1, 3) AS n"
        );
        database.execute(&insert).await;
    }
    let listed = async |store: &Store, after: Option<&AgentId>| -> Vec<String> {
        let rows = store.agents(None, after, 10).await.unwrap();
        rows.iter().map(|row| row.agent.to_string()).collect()
    };
    let mut acme = listed(&store.for_tenant(Some(tenant("acme"))), None).await;
    acme.sort();
    assert_eq!(acme, ["acme~a", "acme~b"]);
    assert_eq!(listed(&store.for_tenant(None), None).await, ["plain"]);
    assert_eq!(listed(&store, None).await.len(), 4);
    assert!(listed(&store.for_tenant(Some(tenant("unknown"))), None).await.is_empty());
}

#[tokio::test]
async fn who_loses_interest_leaves_no_transaction_open() {
    let (database, store) = Database::new(2).await;
    let acme = store.for_tenant(Some(tenant("acme")));
    for n in 0..200_u64 {
        let thread = thread_of(Some("acme"), &format!("t{n}"));
        let named = name(&acme, &thread);
        tokio::time::timeout(std::time::Duration::from_micros(n * 7), named).await.ok();
    }
    let stuck = "SELECT count(*) FROM pg_stat_activity
                 WHERE datname = current_database() AND state LIKE 'idle in transaction%'";
    for _ in 0..100 {
        if database.number(stuck).await == 0 {
            return;
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    }
    panic!("a transaction is open");
}

/// Any role may set `antiphon.tenant`. The value `*` is accepted only after the function has also
/// checked that the role may see all tenants.
#[tokio::test]
async fn no_policy_believes_the_setting_alone() {
    let (database, _) = Database::new(2).await;
    let direct = database
        .rows(
            "SELECT tablename FROM pg_policies
             WHERE schemaname = 'public' AND coalesce(qual, '') || coalesce(with_check, '') LIKE '%current_setting%'
             ORDER BY 1",
        )
        .await;
    assert_eq!(direct, Vec::<String>::new());
    assert!(database.number("SELECT count(*) FROM pg_policies WHERE schemaname = 'public'").await > 30);
}

async fn reopen(store: &Store, tenant: &Tenant) -> store::ReopenedTenant {
    let command = model::CommandId::parse(&format!("{:016x}", rand::random::<u64>())).unwrap();
    store.reopen_tenant(Some(tenant), &command, "ann").await.unwrap()
}

#[tokio::test]
async fn threads_of_a_tenant_come_in_pages_without_those_of_others() {
    let (_database, store) = Database::new(1).await;
    let tenants = [None, Some("a"), Some("acme"), Some("acme-2")];
    for of in tenants {
        for number in 0..40 {
            name(&store, &thread_of(of, &format!("t{number}"))).await.unwrap();
        }
    }
    for of in tenants {
        let of = of.map(tenant);
        for store in [store.clone(), store.for_tenant(of.clone())] {
            let mut listed: Vec<ThreadId> = Vec::new();
            loop {
                let page = store.thread_ids_of_tenant(of.as_ref(), listed.last(), 7).await.unwrap();
                if page.is_empty() {
                    break;
                }
                listed.extend(page);
            }
            let each: std::collections::BTreeSet<_> = listed.iter().map(ThreadId::as_str).collect();
            assert_eq!((listed.len(), each.len()), (40, 40), "{of:?}");
            assert!(listed.iter().all(|thread| thread.tenant() == of), "{of:?}: {listed:?}");
        }
    }
}
