//! API keys as operators handle them.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use tokio::time::{Duration, Instant, sleep};

use super::Gate;

/// A key that is revoked counts no longer than this.
const WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_the_command_line_are_shown_once_and_end_in_seconds() {
    let gate = Gate::new(&[]).await;
    let made = gate.run(&["keys", "create", "the web shop", "--role", "admin", "--tenant", "acme"]).await;
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    // Nothing else: a shell takes it as it is.
    let key = made.stdout.strip_suffix('\n').unwrap().to_owned();
    let (id, secret) = key.strip_prefix("ant_").unwrap().split_once('_').unwrap();
    assert_eq!((id.len(), secret.len(), made.stderr.contains(secret)), (16, 64, false));
    let caller = gate.caller(&key);
    let second = caller.ask("POST", "/v1/keys", Some(&json!({"name": "k", "role": "viewer"}))).await;
    let second = second.json().unwrap()["key"].as_str().unwrap().to_owned();
    let sql = "SELECT row_to_json(k)::text FROM api_keys AS k";
    let rows: Vec<String> = sqlx::query_scalar(sql).fetch_all(&gate.fixture.pool).await.unwrap();
    assert_eq!(rows.len(), 2);
    let stored = rows.concat().to_lowercase();
    for key in [&key, &second] {
        let digest: String = Sha256::digest(key).iter().map(|byte| format!("{byte:02x}")).collect();
        assert!(stored.contains(&digest), "{stored}");
        let secret = key.rsplit_once('_').unwrap().1;
        let as_bytes: String = secret.bytes().map(|byte| format!("{byte:02x}")).collect();
        assert!(!stored.contains(secret) && !stored.contains(&as_bytes), "{stored}");
    }
    let listed = gate.run(&["keys", "list", "--tenant", "acme"]).await;
    assert!(listed.stdout.contains(id) && listed.stdout.contains("the web shop"), "{}", listed.stdout);
    assert!(!listed.stdout.contains(secret), "{}", listed.stdout);
    let of_another = gate.run(&["keys", "list"]).await;
    assert!(of_another.code == Some(0) && !of_another.stdout.contains(id), "{}", of_another.stdout);

    assert_eq!(caller.get("/v1/agents").await.status, 200);
    let revoked = gate.run(&["keys", "revoke", id]).await;
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    let began = Instant::now();
    while caller.get("/v1/agents").await.status != 401 {
        assert!(began.elapsed() < WITHIN, "it counts still");
        sleep(Duration::from_millis(100)).await;
    }
    let listed = gate.command(&["keys", "list", "--tenant", "acme"]).await;
    let ended = listed["keys"].as_array().unwrap().iter().find(|key| key["key_id"] == *id).unwrap();
    assert_eq!((&ended["revoked_by"], ended["revoked_at"] == Value::Null), (&json!("cli"), false));
    let unknown = gate.run(&["keys", "revoke", "0123456789abcdef"]).await;
    assert_eq!((unknown.code, unknown.stderr.contains("there is no key")), (Some(1), true));
}
