//! API keys as operators use them.

use serde_json::{Value, json};
use sha2::{Digest, Sha256};
use testkit::fleet::FleetOptions;
use testkit::http;
use tokio::time::{Duration, Instant, sleep};

use super::{Caller, Gate};

/// A revoked key stops working within this time.
const WITHIN: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_the_command_line_are_shown_once_and_end_in_seconds() {
    let gate = Gate::new(&[]).await;
    let made =
        gate.run(&["keys", "create-first", "the web shop", "--role", "admin", "--tenant", "acme"]).await;
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    // Only the key is printed, so that a shell can use the output directly.
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
    let listed = gate.run_as(&caller, &["keys", "list"]).await;
    assert!(listed.stdout.contains(id) && listed.stdout.contains("the web shop"), "{}", listed.stdout);
    assert!(!listed.stdout.contains(secret), "{}", listed.stdout);
    let other = gate.key(Some("beta"), "admin", None).await;
    let of_another = gate.run_as(&other, &["keys", "list"]).await;
    assert!(of_another.code == Some(0) && !of_another.stdout.contains(id), "{}", of_another.stdout);
    // A further key is made over the API, and shown alone as well.
    let words = ["keys", "create", "a colleague", "--role", "admin", "--expires-in-s", "600"];
    let colleague = gate.run_as(&caller, &words).await;
    assert_eq!(colleague.code, Some(0), "{}", colleague.stderr);
    let colleague = gate.caller(colleague.stdout.strip_suffix('\n').unwrap());
    assert_eq!(colleague.get("/v1/agents").await.status, 200);

    assert_eq!(caller.get("/v1/agents").await.status, 200);
    let foreign = gate.run_as(&other, &["keys", "revoke", id]).await;
    assert_eq!((foreign.code, foreign.stderr.contains("unknown_key")), (Some(1), true), "{}", foreign.stderr);
    let revoked = gate.run_as(&caller, &["keys", "revoke", id, "--actor", "ann"]).await;
    assert_eq!(revoked.code, Some(0), "{}", revoked.stderr);
    let began = Instant::now();
    while caller.get("/v1/agents").await.status != 401 {
        assert!(began.elapsed() < WITHIN, "it counts still");
        sleep(Duration::from_millis(100)).await;
    }
    let late = gate.run_as(&caller, &["keys", "list"]).await;
    assert_eq!(late.code, Some(1));
    assert!(
        late.stderr.contains("unauthenticated") && late.stderr.contains("ANTIPHON_API_KEY"),
        "{}",
        late.stderr
    );
    let listed = gate.run_as(&colleague, &["keys", "list", "--json"]).await.stdout;
    let listed: Value = serde_json::from_str(&listed).unwrap();
    let ended = listed["keys"].as_array().unwrap().iter().find(|key| key["key_id"] == *id).unwrap();
    let by = format!("key:{id}/ann");
    assert_eq!((&ended["revoked_by"], ended["revoked_at"] == Value::Null), (&json!(by), false));
    let narrow = gate.key(Some("acme"), "viewer", None).await;
    let refused = gate.run_as(&narrow, &["keys", "list"]).await;
    assert_eq!((refused.code, refused.stderr.contains("keys:manage")), (Some(1), true), "{}", refused.stderr);
}

#[tokio::test(flavor = "multi_thread")]
async fn making_and_ending_keys_is_in_the_audit_log() {
    let gate = Gate::new(&[]).await;
    let admin = gate.key(Some("acme"), "admin", None).await;
    let creator = format!("key:{}", &admin.credential[4..20]);
    let body = json!({"name": "k", "role": "operator", "scopes": ["threads:read", "tasks:write"]});
    let made = admin.ask("POST", "/v1/keys", Some(&body)).await.json().unwrap();
    let id = made["key_id"].as_str().unwrap();
    let path = format!("/v1/keys/{id}");
    for _ in 0..2 {
        assert_eq!(admin.ask("DELETE", &path, None).await.status, 200);
    }
    let audit = admin.get(&format!("{path}/audit")).await.json().unwrap();
    let entries: Vec<_> = audit["entries"].as_array().unwrap().iter().collect();
    let said = |entry: &Value| {
        ["actor", "action", "target", "detail", "status"].map(|key| entry[key].as_str().unwrap().to_owned())
    };
    let detail = "role operator, scopes threads:read tasks:write";
    assert_eq!(audit["subject_id"], json!(id));
    assert_eq!(
        entries.into_iter().map(said).collect::<Vec<_>>(),
        [[&creator, "revoke_key", id, detail, "done"], [&creator, "make_key", id, detail, "done"]],
        "ending it again changes nothing"
    );
    // Keys that were created on the command line.
    let by_command = gate.key(Some("acme"), "viewer", None).await;
    assert_eq!(gate.run_as(&admin, &["keys", "revoke", &by_command.credential[4..20]]).await.code, Some(0));
    let audit = admin.get(&format!("/v1/keys/{}/audit", &by_command.credential[4..20])).await.json().unwrap();
    let entries: Vec<_> = audit["entries"].as_array().unwrap().iter().map(said).collect();
    assert!(entries.iter().all(|entry| entry[3] == "role viewer"), "{entries:?}");
    assert_eq!((&entries[0][0], entries[1][0].as_str()), (&creator, "cli"));
    assert_eq!(entries.iter().map(|entry| entry[1].as_str()).collect::<Vec<_>>(), ["revoke_key", "make_key"]);
    // The audit log contains no secret, and another tenant sees nothing of the log.
    let sql = "SELECT string_agg(a::text, ' ') FROM audit_log AS a";
    let log: String = sqlx::query_scalar(sql).fetch_one(&gate.fixture.pool).await.unwrap();
    for credential in [made["key"].as_str().unwrap(), &by_command.credential, &admin.credential] {
        assert!(log.contains(&credential[4..20]) && !log.contains(&credential[21..]), "{log}");
    }
    let other = gate.key(Some("beta"), "admin", None).await;
    for key in [id, "0123456789abcdef"] {
        assert_eq!(other.get(&format!("/v1/keys/{key}/audit")).await.status, 404);
    }
    assert_eq!(admin.get("/v1/keys/0123/audit").await.status, 400);
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_outlive_a_rotation_and_end_when_their_key_is_dropped() {
    let gate = Gate::new(&[]).await;
    let admin = gate.key(Some("acme"), "admin", None).await;
    admin.talk("t1").await;
    let addr = gate.fixture.fleet.gateways[0].http_addr();
    let ticket = async || {
        let made = admin.ask("POST", "/v1/threads/t1/tickets", Some(&json!({}))).await.json().unwrap();
        made["events_url"].as_str().unwrap().to_owned()
    };
    let status = async |url: &str| http::open(addr, url, &[]).await.unwrap().status;
    let before = ticket().await;
    let default = gate.key(None, "admin", None).await;
    let rotate = ["signing-keys", "rotate", "tickets"];
    let of_tenant = gate.run_as(&admin, &rotate).await;
    assert!(of_tenant.stderr.contains("default_tenant_only"), "{}", of_tenant.stderr);
    let rotated = gate.run_as(&default, &[rotate.as_slice(), &["-o", "json"]].concat()).await;
    let rotated: Value = serde_json::from_str(&rotated.stdout).unwrap();
    assert_eq!(rotated, json!({"rotated": "tickets", "previous_valid_for_s": 3_600}));
    // Covers two moments: the gateway learns of the new key, and later it begins to sign with that
    // key.
    let began = Instant::now();
    while began.elapsed() < Duration::from_secs(22) {
        let now = ticket().await;
        assert_eq!((status(&before).await, status(&now).await), (200, 200), "{:?}", began.elapsed());
        sleep(Duration::from_secs(1)).await;
    }
    let again = gate.run_as(&default, &rotate).await;
    assert_eq!((again.code, again.stderr.contains("drop_previous")), (Some(1), true), "{}", again.stderr);
    let since = ticket().await;
    let words = [rotate.as_slice(), &["--drop-previous", "--actor", "ann"]].concat();
    let dropped = gate.run_as(&default, &words).await;
    assert_eq!(dropped.code, Some(0), "{}", dropped.stderr);
    let rotations = default.get("/v1/signing-keys/tickets/audit").await.json().unwrap();
    let entries = rotations["entries"].as_array().unwrap().iter();
    let seen: Vec<_> =
        entries.map(|entry| ["target", "actor", "detail"].map(|key| entry[key].clone())).collect();
    let valid_for = |seconds: u32| format!("the previous key is valid for {seconds} s");
    let by = |rest: &str| format!("key:{}{rest}", &default.credential[4..20]);
    let expected = json!([["tickets", by("/ann"), valid_for(0)], ["tickets", by(""), valid_for(3_600)]]);
    assert_eq!(json!(seen), expected);
    let began = Instant::now();
    while (status(&before).await, status(&since).await) != (401, 401) {
        assert!(began.elapsed() < WITHIN, "they count still");
        sleep(Duration::from_millis(200)).await;
    }
    assert_eq!(status(&ticket().await).await, 200);
}

/// The secret before a rotation works for its overlap, and with `overlap_s` 0 no earlier one does.
#[tokio::test(flavor = "multi_thread")]
async fn rotated_key_has_two_secrets_for_a_while() {
    let gate = Gate::with_options("ANTIPHON_JWT_SECRET_FILE", super::SECRET, |options| FleetOptions {
        gateways: 2,
        ..options
    })
    .await;
    let admin = gate.key(Some("acme"), "admin", None).await;
    admin.talk("t1").await;
    let made = admin.ask("POST", "/v1/keys", Some(&json!({"name": "k", "role": "operator"}))).await;
    let first = gate.caller(made.json().unwrap()["key"].as_str().unwrap());
    let id = first.credential[4..20].to_owned();
    let path = format!("/v1/keys/{id}/rotate");
    let other_gateway = testkit::api::Api(gate.fixture.fleet.gateways[1].http_addr());
    let status_there = async |caller: &Caller| {
        let bearer = format!("Bearer {}", caller.credential);
        let headers = [("authorization", bearer.as_str())];
        other_gateway.send("GET", "/v1/agents", None, &headers).await.unwrap().status
    };
    assert_eq!(status_there(&first).await, 200);
    let rotated = gate.run_as(&admin, &["keys", "rotate", &id, "--overlap-s", "8", "--actor", "ann"]).await;
    assert_eq!(rotated.code, Some(0), "{}", rotated.stderr);
    let second = gate.caller(rotated.stdout.strip_suffix('\n').unwrap());
    assert!(second.credential[4..20] == *id && second.credential != first.credential);
    // The other gateway has the key with its first secret in its cache.
    assert_eq!((status_there(&second).await, status_there(&first).await), (200, 200));
    let again = admin.ask("POST", &path, None).await;
    assert_eq!((again.status, again.text.contains("key_not_rotatable")), (409, true), "{}", again.text);
    let keys = admin.get("/v1/keys").await.json().unwrap();
    let shown = keys["keys"].as_array().unwrap().iter().find(|key| key["key_id"] == *id).unwrap().clone();
    assert!(shown["rotated_at"].is_string() && shown["previous_valid_until"].is_string(), "{shown}");
    let ticket = first.ask("POST", "/v1/threads/t1/tickets", Some(&json!({}))).await.json().unwrap();
    let addr = gate.fixture.fleet.gateways[0].http_addr();
    let mut stream = first.open("/v1/threads/t1/events", &[]).await;
    let text = super::read_all(&mut stream, Duration::from_secs(25)).await;
    assert!(text.contains("auth_expired"), "{text}");
    assert_eq!((first.get("/v1/agents").await.status, second.get("/v1/agents").await.status), (401, 200));
    assert_eq!(http::get(addr, ticket["events_url"].as_str().unwrap()).await.unwrap().status, 401);

    // A secret that is stolen ends at once, with its streams and its tickets.
    let ticket = second.ask("POST", "/v1/threads/t1/tickets", Some(&json!({}))).await.json().unwrap();
    let url = ticket["events_url"].as_str().unwrap();
    let mut by_ticket = http::open(addr, url, &[]).await.unwrap();
    let mut by_key = second.open("/v1/threads/t1/events", &[]).await;
    assert_eq!((by_ticket.status, by_key.status), (200, 200));
    let third = admin.ask("POST", &path, Some(&json!({"overlap_s": 0}))).await.json().unwrap();
    let third = gate.caller(third["key"].as_str().unwrap());
    for stream in [&mut by_ticket, &mut by_key] {
        let text = super::read_all(stream, Duration::from_secs(20)).await;
        assert!(text.contains("credential_revoked"), "{text}");
    }
    assert_eq!(http::get(addr, url).await.unwrap().status, 401);
    assert_eq!((status_there(&second).await, status_there(&third).await), (401, 200));
    let audit = admin.get(&format!("/v1/keys/{id}/audit")).await.json().unwrap();
    let entries: Vec<_> = audit["entries"].as_array().unwrap().iter().collect();
    let said =
        |entry: &&Value| ["actor", "action", "detail"].map(|key| entry[key].as_str().unwrap().to_owned());
    let by = |rest: &str| format!("key:{}{rest}", &admin.credential[4..20]);
    let valid_for = |seconds: u32| format!("role operator; the previous key is valid for {seconds} s");
    assert_eq!(said(&entries[0]), [by(""), "rotate_key".to_owned(), valid_for(0)]);
    assert_eq!(said(&entries[1]), [by("/ann"), "rotate_key".to_owned(), valid_for(8)]);
    // A rotation grants neither scopes nor time, and reaches no key of another tenant.
    let narrow = gate.key(Some("acme"), "admin", Some("keys:manage,threads:read")).await;
    let other = gate.key(Some("beta"), "admin", None).await;
    let brief = gate.token(json!({}));
    for (caller, status) in [(&narrow, 403), (&other, 404), (&brief, 403), (&third, 403)] {
        let refused = caller.ask("POST", &path, None).await;
        assert_eq!(refused.status, status, "{}", refused.text);
    }
    assert_eq!(admin.ask("POST", &path, Some(&json!({"overlap_s": 604_801}))).await.status, 400);
    assert_eq!(admin.ask("DELETE", &format!("/v1/keys/{id}"), None).await.status, 200);
    assert_eq!(admin.ask("POST", &path, None).await.status, 409);
}
