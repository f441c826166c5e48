//! A fleet whose gateway and worker use the roles of deploy/postgres-roles.sql.

use serde_json::{Value, json};
use sqlx::{AssertSqlSafe, Connection, PgConnection};
use testkit::fleet::invoke;

use super::{Gate, SECRET, routes};
use crate::api_client::SOON;
use crate::timers::in_seconds;

const ROLES: &str = include_str!("../../../../deploy/postgres-roles.sql");
const PASSWORD: &str = "of-a-test";

/// Runs the shipped file, without the parts that `psql` replaces, and without roles that another
/// test has created.
pub(crate) async fn make_roles() {
    let url = std::env::var("DATABASE_URL").unwrap();
    let mut session = PgConnection::connect(&url).await.unwrap();
    let statements = ROLES.lines().filter(|line| !line.starts_with("--")).collect::<Vec<_>>().join("\n");
    for statement in statements.split(';').map(str::trim).filter(|statement| !statement.is_empty()) {
        let roles = ["gateway", "worker", "operator"];
        let statement = roles.iter().fold(statement.to_owned(), |sql, role| {
            sql.replace(&format!(":'{role}_password'"), &format!("'{PASSWORD}'"))
        });
        let once = format!(
            "DO $$ BEGIN {statement}; EXCEPTION WHEN duplicate_object OR unique_violation THEN NULL; END $$"
        );
        sqlx::raw_sql(AssertSqlSafe(once)).execute(&mut session).await.unwrap();
    }
}

pub(crate) fn as_role(url: &str, role: &str) -> String {
    let (front, _) = url.split_once('?').unwrap();
    front.replacen("antiphon:antiphon", &format!("antiphon_{role}_login:{PASSWORD}"), 1)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_works_under_the_shipped_roles() {
    make_roles().await;
    let gate = Gate::with_options("ANTIPHON_JWT_SECRET_FILE", &format!("{SECRET}\n"), |options| {
        let (gateway, worker) =
            (as_role(&options.database_url, "gateway"), as_role(&options.database_url, "worker"));
        options.with_role_env("gateway", "DATABASE_URL", gateway).with_role_env(
            "worker",
            "DATABASE_URL",
            worker,
        )
    })
    .await;
    let users: Vec<String> = sqlx::query_scalar(
        "SELECT DISTINCT usename::text FROM pg_stat_activity WHERE datname = current_database() AND application_name = 'antiphon' ORDER BY 1",
    )
    .fetch_all(&gate.fixture.pool)
    .await
    .unwrap();
    assert_eq!(users, ["antiphon_gateway_login", "antiphon_worker_login"], "no process has more rights");
    // Operators' commands under their role.
    let env = [("DATABASE_URL".to_owned(), as_role(&gate.database_url, "operator"))];
    let words = ["keys", "create-first", "k", "--role", "admin", "--tenant", "acme", "-o", "json"];
    let made = invoke(&words, &env).await.unwrap();
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    let made: Value = serde_json::from_str(&made.stdout).unwrap();
    let acme = gate.caller(made["key"].as_str().unwrap());
    let beta = gate.key(Some("beta"), "admin", None).await;
    // The role of gateways makes no keys.
    let env = [("DATABASE_URL".to_owned(), as_role(&gate.database_url, "gateway"))];
    let first = invoke(&["keys", "create-first", "first", "--role", "admin"], &env).await.unwrap();
    assert_eq!((first.code, first.stdout.as_str()), (Some(1), ""));
    assert!(first.stderr.contains("antiphon_operator_login"), "{}", first.stderr);

    let said = acme.talk("t1").await;
    assert_eq!(acme.get("/v1/threads/t1").await.status, 200);
    assert_eq!(beta.get("/v1/threads/t1").await.status, 404);
    let again = acme.ask("POST", "/v1/threads", Some(&json!({"thread_id": "t2", "agent_id": "a1"}))).await;
    assert_eq!(again.status, 201, "{}", again.text);
    let ok = async |method: &str, path: &str, body: Value| {
        let body = Some(&body).filter(|body| !body.is_null()).cloned();
        let answer = acme.ask(method, path, body.as_ref()).await;
        assert!((200..300).contains(&answer.status), "{method} {path}: {} {}", answer.status, answer.text);
        answer.json().unwrap_or_default()
    };
    ok("PUT", "/v1/agents/a1", json!({"workflow": "default", "settings": {"memory": true}})).await;
    ok("POST", "/v1/agents/a1/tasks", json!({"task_id": "k", "content": "hello"})).await;
    let forked = ok("POST", "/v1/threads/t1/fork", json!({"thread_id": "t1-copy"})).await;
    assert_eq!(forked["message_count"], json!(2), "{forked}");
    // An export with another id of its thread, which is new here.
    let text = acme.get("/v1/threads/t1/export").await.text.replace("acme~t1", "acme~imported");
    let lines: Vec<String> = text.lines().map(str::to_owned).collect();
    let folder = devservices::services::ScratchDir::new("imported").unwrap();
    let file = folder.path().join("t1.jsonl").display().to_string();
    std::fs::write(&file, crate::commands::imports_over_api::resealed(&lines)).unwrap();
    let imported = gate.run_as(&acme, &["import", "--file", &file, "--json"]).await;
    assert_eq!(imported.code, Some(0), "{}", imported.stderr);
    let imported: Value = serde_json::from_str(&imported.stdout).unwrap();
    assert_eq!(imported["new_messages"], json!(2), "{imported}");
    acme.talk("imported").await;
    let copy = acme.get("/v1/threads/t1-copy/history").await.json().unwrap();
    assert_eq!(copy["messages"].as_array().unwrap().len(), 2);
    assert_eq!(
        beta.ask("POST", "/v1/threads/t1/fork", Some(&json!({"thread_id": "mine"}))).await.status,
        404
    );
    let default = gate.key(None, "admin", None).await;
    for (caller, status) in [(&acme, 403), (&default, 200)] {
        assert_eq!(caller.get("/v1/incidents").await.status, status);
        let all = json!({"partition": "all"});
        assert_eq!(caller.ask("POST", "/v1/incidents/acknowledge", Some(&all)).await.status, status);
    }
    let named = ok("PATCH", "/v1/threads/t1", json!({"title": "Mine", "user_id": "ann"})).await;
    let listed = ok("GET", "/v1/threads?user_id=ann&state=idle", Value::Null).await;
    assert_eq!((&listed["threads"][0]["title"], &named["version"]), (&json!("Mine"), &json!(1)), "{listed}");
    let tomorrow = in_seconds(&gate.fixture, 86_400.0).await;
    ok("POST", "/v1/agents/a1/tasks", json!({"task_id": "later", "content": "x", "not_before": tomorrow}))
        .await;
    ok("DELETE", "/v1/agents/a1/delayed-tasks/later", Value::Null).await;
    ok("PUT", "/v1/agents/a1/schedules/daily", json!({"cron": "0 9 * * *", "content": "x"})).await;
    ok("DELETE", "/v1/agents/a1/schedules/daily", Value::Null).await;
    let fact =
        ok("POST", "/v1/agents/a1/memory", json!({"text": "Ann lives in Bern", "user_id": "ann"})).await;
    let fact = format!("/v1/agents/a1/memory/{}", fact["fact_id"].as_str().unwrap());
    let changed = ok("PATCH", &fact, json!({"text": "Ann lives in Basel"})).await;
    ok("DELETE", &format!("/v1/agents/a1/memory/{}", changed["fact_id"].as_str().unwrap()), Value::Null)
        .await;
    ok("PUT", "/v1/budgets/monthly", json!({"tokens": 1_000_000, "period": "month"})).await;
    ok("GET", "/v1/budgets/monthly", Value::Null).await;
    acme.talk("t3").await;
    ok("DELETE", "/v1/budgets/monthly", Value::Null).await;
    let key = ok("POST", "/v1/keys", json!({"name": "k", "role": "viewer"})).await;
    let key = format!("/v1/keys/{}", key["key_id"].as_str().unwrap());
    ok("DELETE", &key, Value::Null).await;
    assert_eq!(ok("GET", &format!("{key}/audit"), Value::Null).await["entries"].as_array().unwrap().len(), 2);
    ok("POST", "/v1/agents/a1/pause", Value::Null).await;
    ok("POST", "/v1/agents/a1/resume", Value::Null).await;
    ok("GET", &format!("/v1/turns/{}", said["turn_id"].as_str().unwrap()), Value::Null).await;
    let agents = ok("GET", "/v1/agents", Value::Null).await;
    assert_eq!(agents["agents"][0]["agent_id"], json!("a1"));
    assert_eq!(beta.get("/v1/agents").await.json().unwrap()["agents"], json!([]));
    let chat = json!({"model": "a1", "messages": [{"role": "user", "content": "hello"}]});
    ok("POST", "/v1/chat/completions", chat).await;
    let response = ok("POST", "/v1/responses", json!({"model": "a1", "input": "hello"})).await;
    ok("GET", &format!("/v1/responses/{}", response["id"].as_str().unwrap()), Value::Null).await;
    // No other operation needs more rights: each of them works, even if it answers that an object
    // is missing.
    for (method, path, _, body) in routes() {
        if path.ends_with("/events") || path.ends_with("/stream") {
            continue;
        }
        let answer = acme.ask(method, path, body.as_ref()).await;
        assert!(answer.status < 500, "{method} {path}: {} {}", answer.status, answer.text);
    }
    gate.fixture
        .until("the task is done", SOON, async || {
            acme.get("/v1/agents/a1/tasks/k").await.json().unwrap()["status"] == json!("completed")
        })
        .await;
    let logs = gate.fixture.fleet.log_tails();
    assert!(!logs.contains("permission denied"), "{logs}");
}
