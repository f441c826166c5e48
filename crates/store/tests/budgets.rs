//! Budgets: which calls count for which budget and since when. Counting in parts must equal
//! counting at once.

use std::sync::Arc;

use model::{BudgetName, CommandId, Price, PriceTable, Tenant};
use scheduling::Zone;
use scheduling::budget::{BudgetPeriod, BudgetUnit};
use store::{
    Budget, BudgetRow, BudgetScope, CleanupKind, CleanupLimit, ContextWanted, ErasedOwner, Gate, Store,
    budget_subject,
};

use crate::fixture::{Database, thread};
use crate::values::agent;

fn name(name: &str) -> BudgetName {
    BudgetName::parse(name).unwrap()
}

fn daily(scope: BudgetScope, limit: u64) -> Budget {
    Budget { scope, unit: BudgetUnit::Tokens, limit, period: BudgetPeriod::Day, zone: Zone::UTC }
}

async fn put(store: &Store, of: &str, budget: &Budget) -> BudgetRow {
    put_of(store, None, of, budget).await
}

async fn put_of(store: &Store, tenant: Option<&Tenant>, of: &str, budget: &Budget) -> BudgetRow {
    let command = CommandId::parse(&format!("{of}-{}", rand::random::<u32>())).unwrap();
    assert!(store.put_budget(tenant, &name(of), budget, &command, "ada").await.unwrap());
    store.budget(tenant, &name(of)).await.unwrap().unwrap()
}

/// Inserts a call with this many tokens; `ago` is a Postgres interval.
async fn call(database: &Database, thread: &str, agent: &str, tokens: i64, ago: &str) {
    let (bucket, id) = (model::Bucket::of_key(thread).get(), rand::random::<u64>());
    database
        .execute(&format!(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
             VALUES (clock_timestamp() - interval '{ago}', {bucket}, '{thread}', 'm{id}', 0, '{agent}', 'turn', 'm', {tokens} - 1, 1, false)"
        ))
        .await;
}

async fn talk(database: &Database, name: &str, user: &str) {
    let bucket = thread(name).bucket().get();
    database
        .execute(&format!(
            "INSERT INTO threads (bucket, thread_id, agent_id, metadata) VALUES ({bucket}, '{name}', 'ann', '{{\"user_id\": \"{user}\"}}')"
        ))
        .await;
}

async fn spent(store: &Store, of: &str) -> u64 {
    store.budget(None, &name(of)).await.unwrap().unwrap().spent
}

/// The names of the budgets that keep turns of these threads and agents from beginning.
async fn over(store: &Store, turns: &[(&str, &str)]) -> Vec<Option<String>> {
    let turns: Vec<_> = turns.iter().map(|(of, by)| (thread(of), agent(by))).collect();
    let turns: Vec<_> = turns.iter().map(|(of, by)| (of, by, None)).collect();
    let found = store.over_budget(&turns).await.unwrap();
    found.into_iter().map(|over| over.map(|over| over.row.name.to_string())).collect()
}

#[tokio::test]
async fn calls_count_for_their_agent_user_and_tenant_alone() {
    let (database, store) = Database::new(1).await;
    for (name, user) in [("t", "u"), ("other", "v")] {
        talk(&database, name, user).await;
    }
    put(&store, "all", &daily(BudgetScope::Tenant, 100)).await;
    put(&store, "ann", &daily(BudgetScope::Agent(agent("ann")), 30)).await;
    put(&store, "u", &daily(BudgetScope::User("u".to_owned()), 20)).await;
    let acme = Tenant::parse("acme").unwrap();
    put_of(&store, Some(&acme), "all", &daily(BudgetScope::Tenant, 10)).await;
    call(&database, "t", "ann", 10, "0").await;
    call(&database, "other", "ann", 7, "0").await;
    call(&database, "ann+memory", "ann+memory", 5, "0").await;
    call(&database, "other", "bob", 3, "0").await;
    call(&database, "acme~t", "acme~ann", 1_000, "0").await;
    call(&database, "t", "anna", 1, "0").await;
    assert_eq!(
        (spent(&store, "all").await, spent(&store, "ann").await, spent(&store, "u").await),
        (26, 22, 11)
    );
    let all = [("t", "ann"), ("other", "bob"), ("acme~t", "acme~bob"), ("ann", "ann")];
    assert_eq!(over(&store, &all).await, [None, None, Some("all".to_owned()), None]);
    // A tenant's budget is invisible to other tenants, and row-level security enforces this too.
    let own = store.for_tenant(Some(acme.clone()));
    assert_eq!(own.budgets(Some(&acme), None, 10).await.unwrap().len(), 1);
    assert_eq!(own.budgets(None, None, 10).await.unwrap().len(), 0);
    call(&database, "t", "bob", 9, "0").await;
    assert_eq!(over(&store, &all).await, [Some("u".to_owned()), None, Some("all".to_owned()), None]);
    call(&database, "ann", "ann", 8, "0").await;
    let spent = Some("ann".to_owned());
    assert_eq!(over(&store, &all[1..]).await, [None, Some("all".to_owned()), spent], "30 of 30");
    // The start context of a turn has the same result, and no budget where there is none.
    let wanted =
        [("other", "ann"), ("other", "bob"), ("acme~t", "acme~ann"), ("foo~t", "foo~ann")].map(|(of, by)| {
            ContextWanted {
                thread: thread(of),
                agent: agent(by),
                gate: Gate::Queue,
                source_thread: None,
                known: None,
            }
        });
    let contexts = store.contexts(&wanted).await.unwrap();
    let waits: Vec<bool> = contexts.iter().map(|context| context.over_budget_ms.is_some()).collect();
    assert_eq!(waits, [true, false, true, false]);
    let left_ms = contexts[0].over_budget_ms.unwrap();
    assert!((1..=86_400_000).contains(&left_ms), "{left_ms}");
}

#[tokio::test]
async fn counting_in_parts_finds_what_counting_at_once_does() {
    let (database, store) = Database::new(1).await;
    let monthly = Budget { period: BudgetPeriod::Month, ..daily(BudgetScope::Tenant, 1) };
    put(&store, "before", &monthly).await;
    // Calls from another month up to now, 41 minutes apart.
    database
        .execute(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
             SELECT clock_timestamp() - n * interval '41 minutes', 1, 't', 'm' || n, 0, 'ann', 'turn', 'm', n, 1, false
             FROM generate_series(0, 2200) AS n",
        )
        .await;
    database.execute("UPDATE budgets SET counted_to = period_start, spent = 0").await;
    let expected = database
        .number("SELECT sum(input_tokens + output_tokens)::bigint FROM usage WHERE created_at >= date_trunc('month', now(), 'UTC')")
        .await
        .unsigned_abs();
    assert_eq!(spent(&store, "before").await, expected, "nothing is counted yet");
    put(&store, "after", &monthly).await;
    let counted =
        "SELECT count(*) FROM budgets WHERE name = 'after' AND counted_to < now() - interval '90 seconds'";
    assert_eq!(database.number(counted).await, 0);
    let mut parts = 0;
    while store.count_budgets(None).await.unwrap() > 0 {
        assert_eq!((spent(&store, "before").await, spent(&store, "after").await), (expected, expected));
        parts += 1;
        assert!(parts < 200);
    }
}

#[tokio::test]
async fn processes_that_count_at_once_count_each_call_once() {
    let (database, store) = Database::new(1).await;
    put(&store, "b", &Budget { period: BudgetPeriod::Month, ..daily(BudgetScope::Tenant, 10_000) }).await;
    database
        .execute(
            "UPDATE budgets SET counted_to = counted_to - interval '120 seconds', period_start = period_start - interval '1 day'",
        )
        .await;
    call(&database, "t", "ann", 1_000, "70 seconds").await;
    // Both have read the ledger from the same time, and wait for the budget's row.
    let mut locks = database.session().await;
    sqlx::raw_sql("BEGIN; SELECT FROM budgets FOR UPDATE").execute(&mut locks).await.unwrap();
    let counting = [0, 1].map(|_| {
        let store = store.clone();
        tokio::spawn(async move { store.count_budgets(None).await.unwrap() })
    });
    let waiting = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'";
    while database.number(waiting).await < 2 {
        tokio::time::sleep(std::time::Duration::from_millis(10)).await;
    }
    sqlx::raw_sql("COMMIT").execute(&mut locks).await.unwrap();
    let mut behind = 0;
    for counted in counting {
        behind += counted.await.unwrap();
    }
    assert_eq!((behind, spent(&store, "b").await), (0, 1_000));
    assert_eq!(
        database.number("SELECT spent::bigint FROM budgets").await,
        1_000,
        "it is counted, and not read each time"
    );
}

#[tokio::test]
async fn a_call_that_becomes_visible_late_counts() {
    let (database, store) = Database::new(1).await;
    put(&store, "b", &daily(BudgetScope::Tenant, 1_000)).await;
    store.count_budgets(None).await.unwrap();
    // A call whose statement took 20 s, so that a concurrent count has not seen it.
    call(&database, "t", "ann", 50, "20 seconds").await;
    assert_eq!(spent(&store, "b").await, 50);
}

#[tokio::test]
async fn a_new_period_begins_with_nothing_spent() {
    let (database, store) = Database::new(1).await;
    let row = put(&store, "b", &daily(BudgetScope::Tenant, 10)).await;
    call(&database, "t", "ann", 12, "0").await;
    assert_eq!(over(&store, &[("t", "ann")]).await, [Some("b".to_owned())]);
    // The state in which the previous day has been counted and the new one has not been noticed.
    database
        .execute(
            "UPDATE usage SET created_at = created_at - interval '1 day';
             UPDATE budgets SET period_start = period_start - interval '1 day', period_end = period_end - interval '1 day',
                                counted_to = counted_to - interval '1 day', spent = 12",
        )
        .await;
    assert_eq!(over(&store, &[("t", "ann")]).await, [None]);
    let now = store.budget(None, &name("b")).await.unwrap().unwrap();
    assert_eq!((now.spent, now.period_start, now.period_end), (0, row.period_start, row.period_end));
}

/// Periods must be counted while no turn runs. Otherwise the first turn after weeks would have to
/// count those weeks.
#[tokio::test]
async fn periods_begin_though_their_budgets_are_not_read() {
    let (database, store) = Database::new(1).await;
    talk(&database, "t", "u").await;
    let put = put(&store, "all", &daily(BudgetScope::Tenant, 100)).await;
    database
        .execute("UPDATE budgets SET spent = 70, period_start = period_start - interval '1 day', period_end = period_end - interval '1 day'")
        .await;
    store.count_budgets(None).await.unwrap();
    let begun = database
        .rows("SELECT spent, extract(epoch FROM period_end)::bigint * 1000 AS ends, counted_to >= period_start AS is_begun FROM budgets")
        .await;
    assert_eq!(begun, [format!(r#"{{"spent":0,"ends":{},"is_begun":true}}"#, put.period_end.0)]);
}

/// If one budget is far behind, the other budgets must not read that part of the ledger too.
#[tokio::test]
async fn one_part_of_the_ledger_is_counted_at_a_time() {
    let (database, store) = Database::new(1).await;
    talk(&database, "t", "u").await;
    for of in ["behind", "current"] {
        put(&store, of, &Budget { period: BudgetPeriod::Month, ..daily(BudgetScope::Tenant, 1_000) }).await;
    }
    call(&database, "t", "ann", 10, "20 hours").await;
    call(&database, "t", "ann", 5, "5 minutes").await;
    let hours = "SELECT name || ' ' || round(extract(epoch FROM now() - counted_to) / 3600) AS at FROM budgets ORDER BY name";
    database
        .execute(
            "UPDATE budgets SET spent = 0, period_start = now() - interval '21 hours', period_end = now() + interval '1 day',
             counted_to = now() - CASE name WHEN 'behind' THEN interval '21 hours' ELSE interval '10 minutes' END",
        )
        .await;
    let mut behind = Vec::new();
    for _ in 0..4 {
        behind.push((store.count_budgets(None).await.unwrap(), database.rows(hours).await));
    }
    let at = |hours: u32, left: u64| {
        (left, vec![format!(r#"{{"at":"behind {hours}"}}"#), r#"{"at":"current 0"}"#.to_owned()])
    };
    assert_eq!(behind, [at(15, 2), at(9, 2), at(3, 2), at(0, 0)]);
    assert_eq!([spent(&store, "behind").await, spent(&store, "current").await], [15, 5]);
}

#[tokio::test]
async fn putting_anew_counts_from_the_start_of_the_period() {
    let (database, store) = Database::new(1).await;
    call(&database, "t", "ann", 12, "0").await;
    let row = put(&store, "b", &daily(BudgetScope::Tenant, 10)).await;
    assert_eq!((row.spent, row.version), (12, 1));
    // The state in which other calls were counted before: raising the limit does not count again.
    database.execute("UPDATE budgets SET spent = 5").await;
    let row = put(&store, "b", &daily(BudgetScope::Tenant, 20)).await;
    assert_eq!((row.spent, row.version, row.budget.limit), (17, 2, 20));
    let row = put(&store, "b", &daily(BudgetScope::Agent(agent("bob")), 10)).await;
    assert_eq!((row.spent, row.version, row.budget.scope), (0, 3, BudgetScope::Agent(agent("bob"))));
    let prices =
        vec![Price { model: "m".to_owned(), from: None, input: 1.0, cached_input: None, output: 10.0 }];
    let priced = store.with_prices(Some(Arc::new(PriceTable { currency: "USD".to_owned(), prices })));
    let cost = Budget { unit: BudgetUnit::Cost, limit: 21_000, ..daily(BudgetScope::Tenant, 0) };
    let row = put(&priced, "b", &cost).await;
    // The cost of 11 input tokens and 1 output token: 0.000021.
    assert_eq!((row.spent, row.unpriced_calls, row.version), (21_000, 0, 4));
    assert_eq!(over(&priced, &[("t", "ann")]).await, [Some("b".to_owned())]);
    assert_eq!(put(&store, "b", &cost).await.unpriced_calls, 1, "without prices nothing has a cost");
}

#[tokio::test]
async fn budgets_are_audited_bounded_and_erased() {
    let (database, store) = Database::new(1).await;
    for (of, scope) in [
        ("all", BudgetScope::Tenant),
        ("ann", BudgetScope::Agent(agent("ann"))),
        ("u", BudgetScope::User("u".to_owned())),
    ] {
        put(&store, of, &daily(scope, 10)).await;
    }
    let log = store.control_log(&budget_subject(None, &name("ann")), None, 10).await.unwrap();
    let log: Vec<_> = log.iter().map(|row| (row.actor.as_str(), row.action.as_str())).collect();
    assert_eq!(log, [("ada", "put_budget")]);
    let command = CommandId::parse("c").unwrap();
    assert!(!store.delete_budget(None, &name("unknown"), &command, "ada").await.unwrap());
    database
        .execute(
            "INSERT INTO budgets (tenant, name, scope, unit, max_amount, period, period_start, period_end, counted_to)
             SELECT '-', 'x' || n, 'tenant', 'tokens', 1, 'day', now(), now(), now() FROM generate_series(4, 1000) AS n",
        )
        .await;
    let more = daily(BudgetScope::Tenant, 1);
    assert!(!store.put_budget(None, &name("one-more"), &more, &command, "ada").await.unwrap());
    assert!(store.delete_budget(None, &name("x4"), &command, "ada").await.unwrap());
    assert!(store.put_budget(None, &name("one-more"), &more, &command, "ada").await.unwrap());
    let user = ErasedOwner::User(None, "u".to_owned());
    assert_eq!(store.erase_owner(&user).await.unwrap()["budgets"], 1);
    let own = [agent("ann").thread()];
    store.mark_erased(&own, "ada", "run", None).await.unwrap();
    while store.erase_some(&own).await.unwrap().values().sum::<u64>() > 0 {}
    assert_eq!(database.number("SELECT count(*) FROM budgets WHERE scope <> 'tenant'").await, 0);
    let all = store.erase_owner(&ErasedOwner::Tenant(None)).await.unwrap();
    assert!(all["budgets"] > 900 && all["audit_log"] == 3, "{all:?}");
    assert_eq!(database.number("SELECT count(*) FROM audit_log WHERE subject_id LIKE '%+budget'").await, 0);
}

/// A call with the maximum tokens of each kind that a row can have.
async fn absurd_call(database: &Database, thread: &str, agent: &str) {
    let (bucket, id) = (model::Bucket::of_key(thread).get(), rand::random::<u64>());
    database
        .execute(&format!(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
             VALUES (clock_timestamp() - interval '70 seconds', {bucket}, '{thread}', 'm{id}', 0, '{agent}', 'turn', 'm', {max}, {max}, false)",
            max = i64::MAX
        ))
        .await;
}

#[tokio::test]
async fn a_ledger_at_the_end_of_its_type_stops_no_turn() {
    let (database, store) = Database::new(1).await;
    let prices =
        vec![Price { model: "m".to_owned(), from: None, input: 1e9, cached_input: None, output: 1e9 }];
    let store = store.with_prices(Some(Arc::new(PriceTable { currency: "USD".to_owned(), prices })));
    let acme = Tenant::parse("acme").unwrap();
    let cost = Budget { unit: BudgetUnit::Cost, limit: 21_000, ..daily(BudgetScope::Tenant, 0) };
    put(&store, "all", &daily(BudgetScope::Tenant, 100)).await;
    put_of(&store, Some(&acme), "all", &daily(BudgetScope::Tenant, u64::MAX - 1)).await;
    put_of(&store, Some(&acme), "costs", &cost).await;
    database
        .execute("UPDATE budgets SET period_start = period_start - interval '1 day', counted_to = counted_to - interval '100 seconds'")
        .await;
    for _ in 0..3 {
        absurd_call(&database, "acme~t", "acme~ann").await;
    }
    call(&database, "t", "ann", 10, "0").await;
    let turns = [("t", "ann"), ("acme~t", "acme~ann"), ("foo~t", "foo~ann")];
    let waits =
        async || over(&store, &turns).await.into_iter().map(|over| over.is_some()).collect::<Vec<_>>();
    // The first round sums on demand and then counts into the budgets; the second round reads the
    // totals.
    for _ in 0..2 {
        assert_eq!(waits().await, [false, true, false]);
        assert_eq!(spent(&store, "all").await, 10);
        let of_acme = store.budgets(Some(&acme), None, 10).await.unwrap();
        assert_eq!(of_acme.iter().map(|row| row.spent).collect::<Vec<_>>(), [u64::MAX, u64::MAX]);
        assert_eq!(store.count_budgets(None).await.unwrap(), 0);
    }
    let counted = "SELECT count(*) FROM budgets WHERE counted_to > now() - interval '60 seconds'";
    assert_eq!(database.number(counted).await, 3);
    // The sums of the API and the daily sums overflow in the same way.
    let (from, to) = (model::Timestamp(0), model::Timestamp(4_000_000_000_000));
    let all = store.usage(from, to, &[], 10).await.unwrap();
    assert_eq!((all[0].calls, all[0].input_tokens, all[0].output_tokens), (4, i64::MAX, i64::MAX));
    database.execute("UPDATE usage SET created_at = created_at - interval '9 days'").await;
    while store
        .clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(std::time::Duration::from_secs(86_400)), 2)
        .await
        .unwrap()
        > 0
    {}
    let all = store.usage(from, to, &[], 10).await.unwrap();
    assert_eq!((all[0].calls, all[0].input_tokens, all[0].output_tokens), (4, i64::MAX, i64::MAX));
}

/// The number of rows that the nodes of the plan handle. It measures the cost of a statement
/// independently of the load of the machine.
async fn handled_rows(database: &Database, tenant: &str, threads: usize) -> f64 {
    let sums = include_str!("../src/budgets/sums.sql");
    let sql = include_str!("../src/budgets/of_turns.sql").replace("{sums}", sums);
    let sql = sql.replace("{columns}", "s.amount");
    let bucket = model::Bucket::of_key(&format!("{tenant}~t")).get();
    let list = |of: String| format!("ARRAY[{}]", vec![of; threads].join(","));
    let values = [
        "ARRAY['m']".to_owned(),
        "ARRAY[NULL]".to_owned(),
        "ARRAY['1']".to_owned(),
        "ARRAY['1']".to_owned(),
        "ARRAY['1']".to_owned(),
        list(bucket.to_string()),
        list(format!("'{tenant}~t'")),
        list(format!("'{tenant}~ann'")),
        list("NULL".to_owned()),
    ];
    let sql = (1..)
        .zip(values)
        .fold(sql, |sql, (place, value)| sql.replace(&format!("${place}::"), &format!("{value}::")));
    let mut session = database.session().await;
    // The settings that sessions of the store have.
    sqlx::raw_sql("SET enable_hashjoin = off; SET enable_mergejoin = off; SET enable_seqscan = off")
        .execute(&mut session)
        .await
        .unwrap();
    let sql = format!("EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}");
    let plan: serde_json::Value =
        sqlx::query_scalar(sqlx::AssertSqlSafe(sql)).fetch_one(&mut session).await.unwrap();
    fn sum(node: &serde_json::Value) -> f64 {
        let number = |name: &str| node[name].as_f64().unwrap_or(0.0);
        let removed: f64 =
            ["Rows Removed by Filter", "Rows Removed by Join Filter"].into_iter().map(number).sum();
        let below = node["Plans"].as_array().into_iter().flatten().map(sum).sum::<f64>();
        (number("Actual Rows") + removed) * number("Actual Loops") + below
    }
    sum(&plan[0]["Plan"])
}

#[tokio::test]
async fn many_budgets_of_a_scope_cost_one_sum() {
    let (database, _) = Database::new(1).await;
    // A thousand calls since each budget was last counted, at a thousand different times.
    database
        .execute(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens, is_partial)
             SELECT now() - n * interval '10 ms', 1, of || '~t', of || n, 0, of || '~ann', 'turn', 'm', n, 1, false
             FROM generate_series(1, 1000) AS n, unnest(ARRAY['one', 'many', 'other']) AS of;
             INSERT INTO budgets (tenant, name, scope, unit, max_amount, period, period_start, period_end, counted_to)
             SELECT of, 'b' || n, 'tenant', CASE n % 2 WHEN 0 THEN 'tokens' ELSE 'cost' END, 1, 'day', now() - interval '1 hour',
                    now() + interval '1 hour', now() - interval '60 s' + n * interval '1 ms'
             FROM unnest(ARRAY['one', 'many'], ARRAY[1, 1000]) AS o (of, most), generate_series(1, o.most) AS n;
             ANALYZE usage; ANALYZE budgets",
        )
        .await;
    let one = handled_rows(&database, "one", 1).await;
    let many = handled_rows(&database, "many", 1).await;
    let of_many_turns = handled_rows(&database, "many", 32).await;
    println!("rows: {one} with a budget, {many} with a thousand, {of_many_turns} for 32 turns");
    // The costs of calls and budgets are added, not multiplied.
    assert!(many <= one + 30.0 * 1_000.0, "{many} rows for a thousand budgets, {one} for one");
    assert!(of_many_turns <= many + 3_000.0, "{of_many_turns} rows for 32 turns, {many} for one");
}

/// Names of budgets and ids of facts may name their user or agent. So the audit entries of both are
/// erased too, including those of budgets and facts deleted long ago.
#[tokio::test]
async fn audit_of_budgets_goes_with_their_user_or_agent() {
    const MARKER: &str = "marker7f3a";
    let (database, store) = Database::new(1).await;
    let acme = Tenant::parse("acme").unwrap();
    let act = |number: usize| CommandId::parse(&format!("c{number}")).unwrap();
    let user = || BudgetScope::User(MARKER.to_owned());
    let agent_id = model::AgentId::of_tenant(Some(&acme), MARKER).unwrap();
    let [of_user, of_agent, kept] = ["monthly", "daily", "kept"].map(|of| name(&format!("{MARKER}-{of}")));
    let mut number = 0;
    for tenant in [None, Some(&acme)] {
        // One budget exists at the erasure, one was deleted before, and one was moved to another
        // scope before.
        for (of, scope) in [(&of_user, user()), (&of_agent, BudgetScope::Agent(agent_id.clone()))] {
            for of in [of.clone(), name(&format!("{of}-gone"))] {
                number += 1;
                store.put_budget(tenant, &of, &daily(scope.clone(), 10), &act(number), "ada").await.unwrap();
            }
            number += 1;
            assert!(
                store.delete_budget(tenant, &name(&format!("{of}-gone")), &act(number), "ada").await.unwrap()
            );
        }
    }
    let changed = name(&format!("{MARKER}-changed"));
    store.put_budget(None, &changed, &daily(user(), 10), &act(90), "ada").await.unwrap();
    store.delete_budget(None, &changed, &act(91), "ada").await.unwrap();
    let of_tenant = daily(BudgetScope::Tenant, 10);
    store.put_budget(None, &kept, &of_tenant, &act(92), "ada").await.unwrap();
    let in_audit = async |tenant: &str| {
        let sql = format!(
            "SELECT count(*) FROM audit_log AS t WHERE strpos(t::text, '{MARKER}') > 0 AND antiphon_tenant_of(subject_id) = '{tenant}'"
        );
        database.number(&sql).await
    };
    assert_eq!((in_audit("-").await, in_audit("acme").await), (9, 6));
    store.erase_owner(&ErasedOwner::User(None, MARKER.to_owned())).await.unwrap();
    // Entries of the agent and the tenant stay. A user with that name in another tenant keeps its
    // own entries.
    assert_eq!((in_audit("-").await, in_audit("acme").await), (4, 6));
    store.erase_owner(&ErasedOwner::User(Some(acme), MARKER.to_owned())).await.unwrap();
    assert_eq!(in_audit("acme").await, 3);
    let own = [agent_id.thread()];
    store.mark_erased(&own, "ada", "run", None).await.unwrap();
    while store.erase_some(&own).await.unwrap().values().sum::<u64>() > 0 {}
    assert_eq!((in_audit("-").await, in_audit("acme").await), (4, 0));
}
