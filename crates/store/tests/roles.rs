//! The roles of deploy/postgres-roles.sql: the rights that each has, and above all those that it
//! must not have.

use auth::{AccessRole, StoredKey, TenantName};
use batches::Item;
use batches::compaction::{Compaction, Provenance, Strategy};
use model::{
    AgentId, BatchType, CommandId, MessageId, Metadata, PartitionCount, Position, Role, Tenant, ThreadId,
    Timestamp,
};
use sqlx::{AssertSqlSafe, Connection, PgConnection, Row};
use store::{
    DeadLetterId, ImportAct, ImportOutcome, ImportRefusal, ImportedRows, NewThread, RefusalReason,
    RefusedItem, ReplayClaim, SigningKey, Store, StoreConfig, TenantScope, ThreadImport,
};

use crate::fixture::Database;

const ROLES: &str = include_str!("../../../deploy/postgres-roles.sql");
const PASSWORD: &str = "of-a-test";

/// Runs the shipped file, without the variables that `psql` replaces and without roles that another
/// test has made.
pub(crate) async fn make_roles(database: &Database) {
    let statements = ROLES.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
    for statement in statements.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        let statement = ["gateway", "worker", "operator"].iter().fold(statement.to_owned(), |sql, role| {
            sql.replace(&format!(":'{role}_password'"), &format!("'{PASSWORD}'"))
        });
        let once = format!(
            "DO $$ BEGIN {statement}; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        );
        database.execute_as_superuser(&once).await;
    }
}

/// The database URL for the login role of a group.
fn url_of(database: &Database, role: &str) -> String {
    let (front, _) = database.url.split_once('?').unwrap();
    front.replacen("antiphon:antiphon", &format!("antiphon_{role}_login:{PASSWORD}"), 1)
}

async fn session(database: &Database, role: &str) -> PgConnection {
    PgConnection::connect(&url_of(database, role)).await.unwrap()
}

async fn connected(database: &Database, role: &str, tenant_scope: TenantScope) -> Store {
    let config = StoreConfig { tenant_scope, ..StoreConfig::new(url_of(database, role)) };
    Store::connect(&config).await.unwrap()
}

/// A database with a thread of each of two tenants, and a key of the second one.
async fn laid_out() -> (Database, Store) {
    let database = Database::empty().await;
    make_roles(&database).await;
    store::migrate(&database.url, PartitionCount::new(2).unwrap()).await.unwrap();
    let store = Store::connect(&StoreConfig::new(&database.url)).await.unwrap();
    for tenant in ["acme", "beta"] {
        let thread = ThreadId::of_tenant(Some(&Tenant::parse(tenant).unwrap()), "t").unwrap();
        store
            .upsert_thread(&NewThread { thread, agent: None, policy: None, metadata: Metadata::EMPTY })
            .await
            .unwrap();
        database
            .execute(&format!(
                "INSERT INTO agent_settings (bucket, agent_id, workflow) VALUES ({}, '{tenant}~a', 'w')",
                model::Bucket::of_key(&format!("{tenant}~a")).get()
            ))
            .await;
    }
    let new = gateway_key();
    store.add_key(&new, &CommandId::parse("k").unwrap(), "test").await.unwrap();
    (database, store)
}

fn gateway_key() -> StoredKey {
    let new = auth::NewKey::from_random(rand::random(), rand::random());
    StoredKey {
        id: new.id(),
        digest: new.digest(),
        previous: None,
        tenant: TenantName::parse("beta").unwrap(),
        role: AccessRole::Admin,
        scopes: None,
        name: "k".to_owned(),
        expires_at: None,
        revoked_at: None,
    }
}

async fn refused(session: &mut PgConnection, sql: &str) {
    let done = sqlx::raw_sql(AssertSqlSafe(sql.to_owned())).execute(&mut *session).await;
    let error = done.map(|done| done.rows_affected()).expect_err(sql);
    let code = error.as_database_error().and_then(|error| error.code().map(|code| code.into_owned()));
    // The role has no privilege, is not the owner, or the policy refuses the row. A cast of `*`
    // does not bypass the policy either.
    assert_eq!(code.as_deref(), Some("42501"), "{sql}: {error}");
}

async fn count(session: &mut PgConnection, sql: &str) -> i64 {
    sqlx::query(AssertSqlSafe(format!("SELECT count(*) FROM ({sql}) AS q")))
        .fetch_one(session)
        .await
        .unwrap()
        .get(0)
}

#[tokio::test]
async fn a_gateway_sees_one_tenant_at_a_time_and_never_all() {
    let (database, _owner) = laid_out().await;
    let mut session = session(&database, "gateway").await;
    for setting in ["*", "", "@", "acme*", "%", "**", "* ", "beta~", "acme,beta"] {
        sqlx::query("SELECT set_config('antiphon.tenant', $1, false)")
            .bind(setting)
            .execute(&mut session)
            .await
            .unwrap();
        for table in ["threads", "agent_settings", "messages", "facts", "usage", "audit_log"] {
            let rows = count(&mut session, &format!("SELECT FROM {table}")).await;
            assert_eq!(rows, 0, "{table} with {setting:?}");
        }
        let page = "SELECT FROM antiphon_agents_page('all', -1::smallint, '', 10::bigint, NULL)";
        assert_eq!(count(&mut session, page).await, 0, "{setting:?}");
    }
    // The function reads tables as its owner, so a role's temporary tables must not replace them.
    let own = "CREATE TEMPORARY TABLE tasks AS SELECT 0::smallint AS bucket, 'acme~forged' AS agent_id";
    sqlx::raw_sql(own).execute(&mut session).await.unwrap();
    let page = "SELECT agent_id FROM antiphon_agents_page('all', -1::smallint, '', 10::bigint, 'acme')";
    let forged = format!("SELECT FROM ({page}) AS p WHERE agent_id = 'acme~forged'");
    assert_eq!((count(&mut session, page).await, count(&mut session, &forged).await), (1, 0));
    for tenant in ["acme", "beta"] {
        sqlx::query("SELECT set_config('antiphon.tenant', $1, false)")
            .bind(tenant)
            .execute(&mut session)
            .await
            .unwrap();
        let seen: String = sqlx::query("SELECT string_agg(thread_id, ',') FROM threads")
            .fetch_one(&mut session)
            .await
            .unwrap()
            .get(0);
        assert_eq!(seen, format!("{tenant}~t"));
    }
}

#[tokio::test]
async fn a_gateway_changes_no_rights_and_reads_no_turn_token_key() {
    let (database, _owner) = laid_out().await;
    let mut session = session(&database, "gateway").await;
    sqlx::raw_sql("SET antiphon.tenant = '*'").execute(&mut session).await.unwrap();
    for sql in [
        "ALTER TABLE threads DISABLE ROW LEVEL SECURITY",
        "ALTER TABLE threads NO FORCE ROW LEVEL SECURITY",
        "ALTER TABLE threads OWNER TO antiphon_gateway",
        "ALTER TABLE threads ADD COLUMN x integer",
        "DROP POLICY tenant_isolation ON threads",
        "CREATE POLICY mine ON threads USING (true)",
        "ALTER POLICY tenant_isolation ON threads USING (true)",
        "DROP TABLE threads",
        "TRUNCATE threads",
        "CREATE TABLE mine (x integer)",
        "CREATE FUNCTION mine() RETURNS boolean LANGUAGE sql RETURN true",
        "CREATE OR REPLACE FUNCTION antiphon_scope() RETURNS text LANGUAGE sql STABLE RETURN '*'",
        "GRANT EXECUTE ON FUNCTION antiphon_all_tenants() TO antiphon_gateway_login",
        "GRANT antiphon_worker TO antiphon_gateway_login",
        "SELECT antiphon_all_tenants()",
        "SET ROLE antiphon",
        "SET ROLE antiphon_worker",
        "SET SESSION AUTHORIZATION antiphon",
        "ALTER ROLE antiphon_gateway_login BYPASSRLS",
        "CREATE ROLE mine",
        "SELECT token_key FROM installation",
        "SELECT previous_token_key FROM installation",
        "SELECT * FROM installation",
        "UPDATE installation SET ticket_key = ticket_key",
        "SELECT FROM workers",
        "SELECT FROM partitions",
        "UPDATE partitions SET epoch = epoch + 1",
        "SELECT FROM outbox",
        "DELETE FROM incidents",
        "UPDATE incidents SET detail = 'x'",
        "DELETE FROM threads",
        "DELETE FROM audit_log",
        "UPDATE audit_log SET actor = 'x'",
        "DELETE FROM api_keys",
        "INSERT INTO messages SELECT * FROM messages",
        "UPDATE messages SET content = 'x'",
        "DELETE FROM messages",
        "INSERT INTO tasks SELECT * FROM tasks",
        "DELETE FROM usage",
        "INSERT INTO dead_letters SELECT * FROM dead_letters",
        "UPDATE dead_letters SET raw = ''",
        "INSERT INTO _sqlx_migrations SELECT * FROM _sqlx_migrations",
        "COPY threads TO PROGRAM 'cat'",
        "INSERT INTO threads (bucket, thread_id) VALUES (1, 'beta~x')",
    ] {
        refused(&mut session, sql).await;
    }
}

#[tokio::test]
async fn a_gateway_does_its_work_under_its_role() {
    let (database, _owner) = laid_out().await;
    let store = connected(&database, "gateway", TenantScope::Nothing).await;
    assert!(!store.bypasses_rls().await.unwrap());
    store.check_partition_count(PartitionCount::new(2).unwrap()).await.unwrap();
    let installation = store.of_installation();
    assert_eq!(installation.ticket_keys().await.unwrap().len(), 1);
    let keys = installation.recent_keys(10).await.unwrap();
    assert_eq!(keys.len(), 1, "a key is found before its tenant is known");
    installation.touch_keys(&[keys[0].key.id]).await.unwrap();
    assert!(installation.key(keys[0].key.id).await.unwrap().unwrap().last_used_at.is_some());
    for tenant in ["acme", "beta"] {
        let own = store.for_tenant(Some(Tenant::parse(tenant).unwrap()));
        let agents = own.agents(None, None, 10).await.unwrap();
        assert_eq!(agents.iter().map(|row| row.agent.as_str()).collect::<Vec<_>>(), [format!("{tenant}~a")]);
        assert!(own.agent(&AgentId::parse("acme~a").unwrap()).await.unwrap().is_some() == (tenant == "acme"));
    }
    // The role can copy threads within a tenant, but can write no message in another way.
    let of =
        |tenant: &str, name: &str| ThreadId::of_tenant(Some(&Tenant::parse(tenant).unwrap()), name).unwrap();
    let acme = store.for_tenant(Some(Tenant::parse("acme").unwrap()));
    for (from, to, copied) in
        [("acme", "acme", Some(0)), ("beta", "beta", None), ("beta", "acme", None), ("acme", "beta", None)]
    {
        let made = acme.fork(&of(from, "t"), &of(to, "copy"), Position::MAX, &command(), "ann").await;
        assert_eq!(made.unwrap(), copied, "{from} {to}");
    }
    // Only the default tenant can see and acknowledge the incidents of the installation.
    database
        .execute("INSERT INTO incidents (partition_id, incarnation, first_seq, kind, detail) VALUES (1, 's', 1, 'entries_gone', '')")
        .await;
    assert!(acme.incidents(true, 100).await.unwrap().is_empty());
    assert_eq!(acme.acknowledge_incidents(None, &command(), "ann").await.unwrap(), 0);
    let default = store.for_tenant(None);
    assert_eq!(default.incidents(false, 100).await.unwrap().len(), 1);
    assert_eq!(default.acknowledge_incidents(None, &command(), "ann").await.unwrap(), 1);
    // A dead letter whose subject names no thread belongs to the default tenant.
    database
        .execute(
            "INSERT INTO dead_letters (bucket, kind, key, partition_id, stream_seq, subject, reason, detail, raw)
             VALUES (0, 'entry', 's:1', 0, 1, 'chunks.0.user:42', 'invalid_subject', '{}', '')",
        )
        .await;
    let letter = DeadLetterId { bucket: 0, kind: "entry".to_owned(), key: "s:1".to_owned() };
    assert!(acme.list_dead_letters(None, None, 10).await.unwrap().is_empty());
    assert!(acme.dead_letter(&letter).await.unwrap().is_none());
    let listed = default.list_dead_letters(None, None, 10).await.unwrap();
    assert_eq!((listed[0].id.clone(), listed[0].tenant()), (letter.clone(), None));
    assert_eq!(default.claim_replay(&letter).await.unwrap(), ReplayClaim::Claimed);
    assert!(default.drop_dead_letter(&listed[0], &command(), "ann").await.unwrap());
    // This also holds for a session that asks for all tenants, as at the start of a process.
    let all = connected(&database, "gateway", TenantScope::All).await;
    assert_eq!(all.partition_count().await.unwrap(), PartitionCount::new(2).ok());
    assert!(all.agents(None, None, 10).await.unwrap().is_empty());
}

/// A batch of one message.
fn item() -> Item {
    Item {
        position: Position::from_stored(10),
        message_id: MessageId::parse("m1").unwrap(),
        batch_id: Position::from_stored(10),
        number: Some(1),
        sequence_num: 0,
        batch_type: BatchType::SystemTrigger,
        role: Role::Assistant,
        content: "text".to_owned(),
        tool_calls: None,
        tool_call_id: None,
        metadata: Metadata::EMPTY,
        token_count: None,
        created_at: Timestamp(1_704_067_200_000),
        started_at: None,
    }
}

#[tokio::test]
async fn a_gateway_imports_only_into_its_tenant_and_says_who() {
    let (database, _owner) = laid_out().await;
    let store = connected(&database, "gateway", TenantScope::Nothing).await;
    let acme = store.for_tenant(Some(Tenant::parse("acme").unwrap()));
    let of = |tenant: &str, agent: Option<&str>| {
        let thread = ThreadId::of_tenant(Some(&Tenant::parse(tenant).unwrap()), "new").unwrap();
        let agent = agent.map(|agent| AgentId::parse(agent).unwrap());
        let named = NewThread { thread: thread.clone(), agent, policy: None, metadata: Metadata::EMPTY };
        ThreadImport::new(thread, Some(named), vec![item()])
    };
    let act = ImportAct { command: command(), actor: "ann".to_owned() };
    for (what, act) in
        [(of("beta", None), Some(&act)), (of("acme", Some("beta~a")), Some(&act)), (of("acme", None), None)]
    {
        let refused = acme.import_thread(&what, act).await.unwrap_err();
        assert!(refused.to_string().contains("a tenant imports only into itself"), "{refused}");
    }
    assert_eq!(database.number("SELECT count(*) FROM messages").await, 0);
    for new in [1, 0] {
        let stored = ImportedRows { is_new_thread: new > 0, messages: new, ..ImportedRows::default() };
        let outcome = acme.import_thread(&of("acme", None), Some(&act)).await.unwrap();
        assert_eq!(outcome, ImportOutcome::Stored(stored));
    }
    let log = "SELECT count(*) FROM audit_log WHERE action = 'import_thread' AND actor = 'ann' AND subject_id = 'acme~new'";
    assert_eq!(database.number(log).await, 1);
    // The functions that it consists of have the rights of their caller.
    let mut session = session(&database, "gateway").await;
    sqlx::raw_sql("SET antiphon.tenant = 'acme'").execute(&mut session).await.unwrap();
    let compaction = "SELECT antiphon_import_compaction(0::smallint, 'acme~new', 5, 5, '{}', NULL, 'age', '{}', NULL, NULL, 5)";
    for sql in
        [compaction, "INSERT INTO messages SELECT * FROM messages", "UPDATE messages SET content = 'x'"]
    {
        refused(&mut session, sql).await;
    }
}

/// What is refused leaves nothing of its thread behind.
#[tokio::test]
async fn a_refused_import_writes_nothing() {
    let (database, store) = Database::new(1).await;
    let compaction = |id: i64| Compaction {
        id: Position::from_stored(id),
        through: Position::from_stored(10),
        kept: Vec::new(),
        summary: None,
        strategy: Strategy::Age,
        provenance: Provenance::default(),
        previous: None,
        counts_from: Position::from_stored(id),
        undone_at: None,
    };
    let thread = ThreadId::parse("t").unwrap();
    let named = NewThread { thread: thread.clone(), agent: None, policy: None, metadata: Metadata::EMPTY };
    let import = |compactions| ThreadImport {
        last_number: Some(7),
        compactions,
        ..ThreadImport::new(thread.clone(), Some(named.clone()), vec![item()])
    };
    let future = Position::from_stored(i64::MAX - 1);
    for (compactions, at, why) in [
        (vec![compaction(20), compaction(15)], Position::from_stored(15), RefusalReason::Before),
        (vec![compaction(20), compaction(i64::MAX - 1)], future, RefusalReason::Future),
    ] {
        let outcome = store.import_thread(&import(compactions), None).await.unwrap();
        let refusal = ImportRefusal { item: RefusedItem::Compaction(at), why };
        assert_eq!(outcome, ImportOutcome::Refused(refusal));
        for table in ["threads", "messages", "compactions"] {
            assert_eq!(database.number(&format!("SELECT count(*) FROM {table}")).await, 0, "{table}");
        }
    }
    let stored = ImportedRows { is_new_thread: true, messages: 1, compactions: 1, ..ImportedRows::default() };
    let outcome = store.import_thread(&import(vec![compaction(20)]), None).await.unwrap();
    assert_eq!(outcome, ImportOutcome::Stored(stored));
    assert_eq!(database.number("SELECT last_number FROM threads").await, 7);
    database.execute("INSERT INTO erased_threads (bucket, thread_id, actor) SELECT bucket, thread_id, 'x' FROM threads").await;
    let outcome = store.import_thread(&import(Vec::new()), None).await.unwrap();
    let batch = RefusedItem::Batch { batch: Position::from_stored(10), message: None };
    let refusal = ImportRefusal { item: batch, why: RefusalReason::Erased };
    assert_eq!(outcome, ImportOutcome::Refused(refusal));
}

#[tokio::test]
async fn workers_and_operators_see_all_and_change_no_tables() {
    let (database, _owner) = laid_out().await;
    for role in ["worker", "operator"] {
        let store = connected(&database, role, TenantScope::All).await;
        assert_eq!(store.agents(None, None, 10).await.unwrap().len(), 2, "{role}");
        assert!(!store.bypasses_rls().await.unwrap());
        store.token_keys().await.unwrap();
        let mut session = session(&database, role).await;
        sqlx::raw_sql("SET antiphon.tenant = '*'").execute(&mut session).await.unwrap();
        assert_eq!(count(&mut session, "SELECT FROM threads").await, 2, "{role}");
        for sql in [
            "DROP TABLE threads",
            "ALTER TABLE threads DISABLE ROW LEVEL SECURITY",
            "CREATE TABLE mine (x integer)",
            "DELETE FROM _sqlx_migrations",
        ] {
            refused(&mut session, sql).await;
        }
        if role == "worker" {
            for sql in ["SELECT FROM api_keys", "UPDATE installation SET token_key = token_key"] {
                refused(&mut session, sql).await;
            }
        } else {
            assert!(store.rotate_signing_key(SigningKey::TurnTokens, true, &command(), "ann").await.unwrap());
        }
    }
}

#[tokio::test]
async fn rights_are_granted_again_after_each_migration() {
    let (database, _owner) = laid_out().await;
    database.execute("CREATE TABLE later (x integer); REVOKE ALL ON threads FROM antiphon_gateway").await;
    let count = PartitionCount::new(2).unwrap();
    let (one, other) =
        tokio::join!(store::migrate(&database.url, count), store::migrate(&database.url, count));
    one.and(other).unwrap();
    let mut gateway = session(&database, "gateway").await;
    sqlx::raw_sql("SELECT FROM threads; SELECT FROM later").execute(&mut gateway).await.unwrap();
    refused(&mut gateway, "INSERT INTO later VALUES (1)").await;
    let mut worker = session(&database, "worker").await;
    sqlx::raw_sql("INSERT INTO later VALUES (1)").execute(&mut worker).await.unwrap();
}

#[tokio::test]
async fn keys_are_rotated_with_an_overlap_and_without() {
    let (database, store) = Database::new(1).await;
    let first = store.ticket_keys().await.unwrap();
    assert!(store.rotate_signing_key(SigningKey::Tickets, true, &command(), "ann").await.unwrap());
    // Tickets are signed with the key that all gateways know, until they know the new one.
    let fresh = store.ticket_keys().await.unwrap();
    assert_eq!((fresh.len(), &fresh[0]), (2, &first[0]));
    database
        .execute(
            "UPDATE installation SET ticket_key_changed_at = ticket_key_changed_at - interval '1 minute'",
        )
        .await;
    let known = store.ticket_keys().await.unwrap();
    assert_eq!(known, [fresh[1].clone(), fresh[0].clone()]);
    assert!(
        !store.rotate_signing_key(SigningKey::Tickets, true, &command(), "ann").await.unwrap(),
        "a third key would have to count"
    );
    assert!(store.rotate_signing_key(SigningKey::Tickets, false, &command(), "ann").await.unwrap());
    let dropped = store.ticket_keys().await.unwrap();
    assert!(dropped.len() == 1 && !known.contains(&dropped[0]));
    assert!(store.rotate_signing_key(SigningKey::Tickets, true, &command(), "ann").await.unwrap());
    database
        .execute("UPDATE installation SET ticket_key_changed_at = ticket_key_changed_at - interval '2 hours'")
        .await;
    assert_eq!(store.ticket_keys().await.unwrap().len(), 1, "the overlap has passed");

    let first = store.token_keys().await.unwrap();
    assert!(store.rotate_signing_key(SigningKey::TurnTokens, true, &command(), "ann").await.unwrap());
    let second = store.token_keys().await.unwrap();
    let (thread, turn) = (
        ThreadId::parse("t").unwrap(),
        model::TurnId::foreground(&ThreadId::parse("t").unwrap(), "x").unwrap(),
    );
    assert!(second.is_newer_than(&first) && !first.is_newer_than(&second));
    assert!(second.accepts(&thread, &turn, 0, &first.token(&thread, &turn, 0)));
    assert!(!first.accepts(&thread, &turn, 0, &second.token(&thread, &turn, 0)));
    assert!(!store.rotate_signing_key(SigningKey::TurnTokens, true, &command(), "ann").await.unwrap());
    database
        .execute("UPDATE installation SET token_key_changed_at = token_key_changed_at - interval '25 hours'")
        .await;
    let later = store.token_keys().await.unwrap();
    assert!(!later.accepts(&thread, &turn, 0, &first.token(&thread, &turn, 0)));
    assert!(store.rotate_signing_key(SigningKey::TurnTokens, false, &command(), "ann").await.unwrap());
    let third = store.token_keys().await.unwrap();
    assert!(!third.accepts(&thread, &turn, 0, &second.token(&thread, &turn, 0)));
    // The audit log has each completed rotation and no other one.
    for (kind, details) in
        [(SigningKey::Tickets, [3_600, 0, 3_600].as_slice()), (SigningKey::TurnTokens, &[0, 86_400])]
    {
        let log = store.control_log(&kind.audit_subject(), None, 10).await.unwrap();
        let mut seen: Vec<_> = log.iter().map(|row| row.detail.clone().unwrap()).collect();
        let mut expected: Vec<_> =
            details.iter().map(|s| format!("the previous key is valid for {s} s")).collect();
        seen.sort();
        expected.sort();
        assert_eq!(seen, expected);
        assert!(log.iter().all(|row| (row.actor.as_str(), row.action.as_str()) == ("ann", "rotate_key")));
    }
}

fn command() -> CommandId {
    CommandId::parse(&format!("{:016x}", rand::random::<u64>())).unwrap()
}

/// What gateways may not write, two functions do for the default tenant, and they return no key.
#[tokio::test]
async fn gateways_rotate_and_reopen_for_the_default_tenant_only() {
    let (database, owner) = laid_out().await;
    let acme = Tenant::parse("acme").unwrap();
    owner.mark_tenant_erased(Some(&acme), "ada", "run").await.unwrap();
    owner.finish_erasing_tenant(Some(&acme), "run").await.unwrap();
    let gateway = connected(&database, "gateway", TenantScope::Nothing).await;
    let (default, beta) =
        (gateway.for_tenant(None), gateway.for_tenant(Some(Tenant::parse("beta").unwrap())));
    for store in [&beta, &gateway, &gateway.of_installation()] {
        for kind in SigningKey::ALL {
            store.rotate_signing_key(kind, false, &command(), "ann").await.unwrap_err();
        }
        store.reopen_tenant(Some(&acme), &command(), "ann").await.unwrap_err();
    }
    let before = owner.token_keys().await.unwrap();
    for kind in SigningKey::ALL {
        assert!(default.rotate_signing_key(kind, true, &command(), "ann").await.unwrap());
        assert!(!default.rotate_signing_key(kind, true, &command(), "ann").await.unwrap());
        assert_eq!(default.control_log(&kind.audit_subject(), None, 10).await.unwrap().len(), 1);
    }
    assert!(owner.token_keys().await.unwrap().is_newer_than(&before));
    let reopened = default.reopen_tenant(Some(&acme), &command(), "ann").await.unwrap();
    assert_eq!(reopened, store::ReopenedTenant::Reopened);
    let log = default.control_log(&store::tenant_subject(Some(&acme)), None, 10).await.unwrap();
    assert_eq!((log.len(), log[0].action.as_str(), log[0].actor.as_str()), (1, "reopen_tenant", "ann"));
    let rotate = "SELECT antiphon_rotate_signing_key('tickets', interval '0', 0::smallint, 'x', 'x', 'x')";
    let statements = ["UPDATE installation SET ticket_key = ticket_key", "DELETE FROM erased_tenants"];
    for sql in statements.iter().chain(&["SELECT token_key FROM installation"]) {
        let mut session = session(&database, "gateway").await;
        sqlx::raw_sql("SET antiphon.tenant = '-'").execute(&mut session).await.unwrap();
        refused(&mut session, sql).await;
    }
    refused(&mut session(&database, "worker").await, rotate).await;
}

#[tokio::test]
async fn api_key_has_at_most_two_secrets() {
    let (_database, store) = laid_out().await;
    let (first, second, third) = (gateway_key(), [2; 32], [3; 32]);
    store.add_key(&first, &command(), "ann").await.unwrap();
    let day = std::time::Duration::from_secs(86_400);
    let key = async || store.key(first.id).await.unwrap().unwrap().key;
    assert!(store.rotate_api_key(&first, second, day, &command(), "ann").await.unwrap());
    let rotated = key().await;
    assert_eq!(
        (rotated.digest, rotated.previous.map(|previous| previous.digest)),
        (second, Some(first.digest))
    );
    assert!(!store.rotate_api_key(&first, third, day, &command(), "ann").await.unwrap());
    let none = std::time::Duration::ZERO;
    assert!(store.rotate_api_key(&first, third, none, &command(), "ann").await.unwrap());
    assert_eq!((key().await.digest, key().await.previous), (third, None));
    store.revoke_key(first.id, &first.tenant, &command(), "ann").await.unwrap();
    assert!(!store.rotate_api_key(&first, second, none, &command(), "ann").await.unwrap());
    let log =
        store.control_log(&store::key_subject(first.tenant.tenant(), first.id), None, 10).await.unwrap();
    let details: Vec<_> =
        log.iter().filter(|row| row.action == "rotate_key").map(|row| &row.detail).collect();
    assert_eq!(details.len(), 2, "{details:?}");
}
