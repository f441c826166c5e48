//! Tokens that are signed with a key of a key set.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use ring::signature::{Ed25519KeyPair, KeyPair as _};
use serde_json::{Value, json};
use tokio::time::{Duration, Instant, sleep};

use super::{Gate, claims, read_all};

/// A key set is read again for a token with an unknown key, at most every half minute.
const READ_AGAIN: Duration = Duration::from_secs(45);
/// How long a token is accepted after its expiry, because clocks may differ.
const LEEWAY_S: u64 = 30;

fn pair(seed: u8) -> Ed25519KeyPair {
    Ed25519KeyPair::from_seed_unchecked(&[seed; 32]).unwrap()
}

fn set(kid: &str, key: &Ed25519KeyPair) -> String {
    let x = URL_SAFE_NO_PAD.encode(key.public_key());
    json!({"keys": [{"kty": "OKP", "crv": "Ed25519", "alg": "EdDSA", "use": "sig", "kid": kid, "x": x}]})
        .to_string()
}

fn token(kid: &str, key: &Ed25519KeyPair, changes: Value) -> String {
    let part = |json: Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let signed = format!("{}.{}", part(json!({"alg": "EdDSA", "kid": kid})), part(claims(changes)));
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(key.sign(signed.as_bytes())))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_in_a_file_is_read_again_and_tokens_end_their_streams() {
    let (first, second) = (pair(1), pair(2));
    // These scopes are meant for other services.
    let unread = [("ANTIPHON_JWT_SCOPE_CLAIM", "")];
    let gate = Gate::with_keys("ANTIPHON_JWT_JWKS_FILE", &set("a", &first), &unread).await;
    let ann = gate.caller(&token("a", &first, json!({"scope": "openid profile"})));
    ann.talk("t1").await;
    assert_eq!(gate.token(json!({})).get("/v1/agents").await.status, 401, "signed with a secret");
    assert_eq!(gate.caller(&token("a", &second, json!({}))).get("/v1/agents").await.status, 401);

    let now = claims(json!({}))["iat"].as_u64().unwrap();
    let brief = json!({"iat": now - LEEWAY_S, "exp": now - LEEWAY_S + 4});
    let brief = gate.caller(&token("a", &first, brief));
    let mut stream = brief.open("/v1/threads/t1/events", &[]).await;
    assert_eq!(stream.status, 200);
    let text = read_all(&mut stream, Duration::from_secs(15)).await;
    assert!(text.contains("event: auth_expired") && text.contains("credential_expired"), "{text}");
    assert_eq!(brief.get("/v1/agents").await.status, 401);

    let newer = gate.keys.with_extension("new");
    std::fs::write(&newer, set("b", &second)).unwrap();
    std::fs::rename(&newer, &gate.keys).unwrap();
    let ben = gate.caller(&token("b", &second, json!({})));
    let began = Instant::now();
    while ben.get("/v1/agents").await.status != 200 {
        assert!(began.elapsed() < READ_AGAIN, "the set was not read again");
        sleep(Duration::from_millis(500)).await;
    }
    assert_eq!(ann.get("/v1/agents").await.status, 401, "its key was taken back");
}

#[tokio::test(flavor = "multi_thread")]
async fn claims_have_the_names_and_the_age_that_are_set() {
    let named = [
        ("ANTIPHON_JWT_TENANT_CLAIM", "org"),
        ("ANTIPHON_JWT_ROLE_CLAIM", "access"),
        ("ANTIPHON_JWT_DEFAULT_TENANT", "true"),
        ("ANTIPHON_JWT_MAX_AGE_SECONDS", "60"),
    ];
    let gate = Gate::new(&named).await;
    // The usual claims name another tenant and a higher role.
    let admin = gate.token(json!({"org": "globex", "access": "admin"}));
    admin.talk("t1").await;
    let status = async |claims: Value, method: &str| {
        let body = json!({"content": "hello"});
        let (path, body) = match method {
            "GET" => ("/v1/threads/t1", None),
            _ => ("/v1/threads/t1/messages", Some(&body)),
        };
        gate.token(claims).ask(method, path, body).await.status
    };
    assert_eq!(status(json!({"org": "globex", "access": "viewer"}), "GET").await, 200);
    assert_eq!(status(json!({"org": "globex", "access": "viewer"}), "POST").await, 403);
    assert_eq!(status(json!({"org": "globex"}), "GET").await, 401, "it has no role");
    assert_eq!(status(json!({"access": "viewer"}), "GET").await, 404, "in the default tenant");
    let now = claims(json!({}))["iat"].as_u64().unwrap();
    let old = now - 61 - LEEWAY_S;
    assert_eq!(status(json!({"org": "globex", "access": "viewer", "iat": old}), "GET").await, 401);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_set_behind_a_url_and_its_algorithms_are_those_that_are_set() {
    let key = pair(1);
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/jwks", listener.local_addr().unwrap());
    let served = set("a", &key);
    let router = axum::Router::new().route("/jwks", axum::routing::get(async move || served));
    tokio::spawn(async move { axum::serve(listener, router).await });
    for (algorithms, status) in [("EdDSA", 200), ("ES256,RS256", 401)] {
        let gate = Gate::with_options("ANTIPHON_JWT_JWKS_URL", "", |mut options| {
            options.workers = 0;
            options.workflows.clear();
            options.with_env("ANTIPHON_JWT_JWKS_URL", &url).with_env("ANTIPHON_JWT_ALGORITHMS", algorithms)
        })
        .await;
        let token = token("a", &key, json!({}));
        assert_eq!(gate.caller(&token).get("/v1/agents").await.status, status, "{algorithms}");
    }
}
