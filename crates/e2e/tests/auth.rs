//! Authorization: every route with every kind of credential, on a fleet that requires them and a
//! database with row-level security.

pub(crate) mod database_roles;
mod erased_tenants;
mod keys;
mod rights;
mod tenants;
mod tokens;

use std::{path::PathBuf, time::Duration};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use devservices::services::ScratchDir;
use hmac::{Hmac, KeyInit, Mac};
use serde_json::{Value, json};
use sha2::Sha256;
use testkit::{
    api::Api,
    fleet::{FleetOptions, Invocation, invoke},
    http::{self, TextResponse},
};
use tokio::time::{Instant, sleep, timeout};

use crate::{
    api_client::{SOON, scripted},
    fixture::{Fixture, api_url},
};
use rights::{ROLES, matches_the_description, routes};

const SECRET: &str = "a secret of both sides that has more than 32 bytes";
const ISSUER: &str = "https://idp.example";

/// A fleet that requires credentials, and the means to create them.
struct Gate {
    fixture: Fixture,
    database_url: String,
    /// The file with the keys of tokens.
    keys: PathBuf,
    _folder: ScratchDir,
}

#[derive(Clone)]
struct Caller {
    api: Api,
    credential: String,
}

impl Gate {
    async fn new(more: &[(&str, &str)]) -> Self {
        Self::with_keys("ANTIPHON_JWT_SECRET_FILE", &format!("{SECRET}\n"), more).await
    }

    /// `setting` is the variable for a file with these token keys.
    async fn with_keys(setting: &str, text: &str, more: &[(&str, &str)]) -> Self {
        Self::with_options(setting, text, |options| {
            more.iter().fold(options, |options, (name, value)| options.with_env(name, value))
        })
        .await
    }

    async fn with_options(
        setting: &str,
        text: &str,
        change: impl FnOnce(FleetOptions) -> FleetOptions,
    ) -> Self {
        let folder = ScratchDir::new("access").unwrap();
        let keys = folder.path().join("keys");
        std::fs::write(&keys, text).unwrap();
        let mut url = String::new();
        let fixture = Fixture::with(|options| {
            url = options.database_url.clone();
            let options = scripted(options)
                .with_env("ANTIPHON_INSECURE", "false")
                .with_env("ANTIPHON_JWT_ISSUER", ISSUER)
                .with_env("ANTIPHON_JWT_AUDIENCE", "antiphon")
                .with_env(setting, keys.display());
            change(options)
        });
        let fixture = fixture.await;
        Self { fixture, database_url: url, keys, _folder: folder }
    }

    fn caller(&self, credential: &str) -> Caller {
        Caller { api: self.fixture.api(), credential: credential.to_owned() }
    }

    async fn run(&self, words: &[&str]) -> Invocation {
        let env = [("DATABASE_URL".to_owned(), self.database_url.clone())];
        invoke(words, &env).await.unwrap()
    }

    /// A command of the API, with the credential of a caller.
    async fn run_as(&self, caller: &Caller, words: &[&str]) -> Invocation {
        let url = api_url(self.fixture.fleet.gateways[0].http_addr());
        invoke(words, &[url, ("ANTIPHON_API_KEY".to_owned(), caller.credential.clone())]).await.unwrap()
    }

    async fn command(&self, words: &[&str]) -> Value {
        let done = self.run(&[words, &["-o", "json"]].concat()).await;
        assert_eq!(done.code, Some(0), "{words:?}: {}", done.stderr);
        serde_json::from_str(&done.stdout).unwrap()
    }

    /// Creates a key as an operator does.
    async fn key(&self, tenant: Option<&str>, role: &str, scopes: Option<&str>) -> Caller {
        let mut words = vec!["keys", "create-first", "for a test", "--role", role];
        words.extend(tenant.iter().flat_map(|tenant| ["--tenant", tenant]));
        words.extend(scopes.iter().flat_map(|scopes| ["--scopes", scopes]));
        let made = self.command(&words).await;
        self.caller(made["key"].as_str().unwrap())
    }

    /// The remaining lifetime of a key.
    async fn seconds_left(&self, key: &str) -> i64 {
        let sql = "SELECT extract(epoch FROM expires_at - clock_timestamp())::bigint FROM api_keys WHERE key_id = $1";
        sqlx::query_scalar(sql).bind(key).fetch_one(&self.fixture.pool).await.unwrap()
    }

    /// Creates a token as the identity provider does.
    fn token(&self, changes: Value) -> Caller {
        self.caller(&signed(&json!({"alg": "HS256", "typ": "JWT"}), &claims(changes), SECRET))
    }
}

fn claims(changes: Value) -> Value {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs();
    let mut claims = json!({
        "iss": ISSUER, "aud": "antiphon", "sub": "ann", "tenant": "acme", "role": "admin",
        "iat": now, "exp": now + 600,
    });
    for (name, value) in changes.as_object().unwrap() {
        claims[name] = value.clone();
    }
    claims
}

fn signed(header: &Value, claims: &Value, secret: &str) -> String {
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let signed = format!("{}.{}", part(header), part(claims));
    let mut mac = Hmac::<Sha256>::new_from_slice(secret.as_bytes()).unwrap();
    mac.update(signed.as_bytes());
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(mac.finalize().into_bytes()))
}

/// The same credential with another last character.
fn another(credential: &str) -> String {
    let (rest, last) = credential.split_at(credential.len() - 1);
    format!("{rest}{}", if last == "0" { '1' } else { '0' })
}

impl Caller {
    /// Opens an event stream, which lasts until it is dropped.
    async fn open(&self, path: &str, more: &[(&str, &str)]) -> http::Response {
        let bearer = format!("Bearer {}", self.credential);
        let headers = [&[("authorization", bearer.as_str())], more].concat();
        http::open(self.api.0, path, &headers).await.unwrap()
    }

    async fn ask(&self, method: &str, path: &str, body: Option<&Value>) -> TextResponse {
        if path.ends_with("/events") {
            let begun = self.open(path, &[]).await;
            return TextResponse { status: begun.status, headers: begun.headers, text: String::new() };
        }
        let bearer = format!("Bearer {}", self.credential);
        self.api.send(method, path, body, &[("authorization", &bearer)]).await.unwrap()
    }

    async fn get(&self, path: &str) -> TextResponse {
        self.ask("GET", path, None).await
    }

    /// Sends a message and waits until the answer is in the history.
    async fn talk(&self, thread: &str) -> Value {
        let path = format!("/v1/threads/{thread}/messages");
        let said = self.ask("POST", &path, Some(&json!({"content": "hello"}))).await;
        assert_eq!(said.status, 202, "{}", said.text);
        let began = Instant::now();
        loop {
            let history = self.get(&format!("/v1/threads/{thread}/history")).await;
            if history.status == 200 && history.json().unwrap()["messages"].as_array().unwrap().len() >= 2 {
                return said.json().unwrap();
            }
            assert!(began.elapsed() < SOON, "{}", history.text);
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn every_route_authenticates_and_checks_scopes() {
    let gate = Gate::new(&[]).await;
    matches_the_description(gate.fixture.api()).await;
    let admin = gate.key(Some("acme"), "admin", None).await;
    admin.talk("t1").await;
    let revoked = gate.key(Some("acme"), "admin", None).await;
    assert_eq!(gate.run_as(&admin, &["keys", "revoke", &revoked.credential[4..20]]).await.code, Some(0));
    let ticket = admin.ask("POST", "/v1/threads/t1/tickets", Some(&json!({}))).await.json().unwrap();
    let ticket = ticket["ticket"].as_str().unwrap().to_owned();
    let other_secret = signed(&json!({"alg": "HS256"}), &claims(json!({})), &SECRET.replace('a', "b"));
    let unsigned = signed(&json!({"alg": "none"}), &claims(json!({})), SECRET);
    let strangers = [
        gate.caller(""),
        gate.caller("nonsense"),
        gate.caller(&admin.credential[..20]),
        gate.caller(&admin.credential.to_uppercase()),
        gate.caller(&another(&admin.credential)),
        revoked,
        gate.caller(&ticket),
        gate.caller(&other_secret),
        gate.caller(&unsigned),
        gate.caller(unsigned.rsplit_once('.').unwrap().0),
        gate.token(json!({"exp": 1})),
        gate.token(json!({"nbf": 9_999_999_999_u64})),
        gate.token(json!({"aud": "another"})),
        gate.token(json!({"aud": null})),
        gate.token(json!({"iss": "https://elsewhere.example"})),
        gate.token(json!({"tenant": null})),
        gate.token(json!({"tenant": "Acme~x"})),
        gate.token(json!({"role": "root"})),
    ];
    let mut wrong = Vec::new();
    for (method, path, scope, body) in routes() {
        for (number, stranger) in strangers.iter().enumerate() {
            let answer = stranger.ask(method, path, body.as_ref()).await;
            if answer.status != 401 || answer.header("www-authenticate").is_none() {
                wrong.push(format!("stranger {number}: {method} {path}: {}", answer.status));
            }
        }
        let bare = gate.fixture.api().send(method, path, body.as_ref(), &[]).await.unwrap();
        if bare.status != 401 {
            wrong.push(format!("without a credential: {method} {path}: {}", bare.status));
        }
        for (role, scopes) in ROLES {
            let may = scopes.contains(&scope);
            let answers = [
                gate.token(json!({"role": role})).ask(method, path, body.as_ref()).await,
                gate.token(json!({"role": "admin", "scope": if may { scope } else { "openid" }}))
                    .ask(method, path, body.as_ref())
                    .await,
            ];
            for answer in answers {
                // Operations on the installation need more than a scope, and these callers belong
                // to a tenant.
                let is_of_installation = answer.text.contains("default_tenant_only");
                let passed = answer.status != 401 && (answer.status != 403 || is_of_installation);
                if passed != may || answer.status >= 500 {
                    wrong.push(format!("{role}: {method} {path}: {} {}", answer.status, answer.text));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let logs: String =
        gate.fixture.fleet.gateways.iter().map(|it| std::fs::read_to_string(it.log()).unwrap()).collect();
    for secret in [&admin.credential[21..], &ticket, SECRET] {
        assert!(!logs.contains(secret), "a secret is in the log");
    }
}

/// Reads a stream until it ends or is cut, for at most `limit`.
async fn read_all(response: &mut http::Response, limit: Duration) -> String {
    let mut bytes = Vec::new();
    let reading = async { while response.body.read(&mut bytes).await.unwrap_or(0) > 0 {} };
    let ended = timeout(limit, reading).await.is_ok();
    assert!(ended, "the stream goes on: {}", String::from_utf8_lossy(&bytes));
    String::from_utf8_lossy(&bytes).into_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn tickets_open_one_stream_and_end() {
    let gate = Gate::new(&[]).await;
    let key = gate.key(Some("acme"), "operator", None).await;
    key.talk("t1").await;
    let addr = gate.fixture.fleet.gateways[0].http_addr();
    let made = key.ask("POST", "/v1/threads/t1/tickets", Some(&json!({"lifetime_s": 3}))).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let url = made.json().unwrap()["events_url"].as_str().unwrap().to_owned();
    let mut stream = http::open(addr, &url, &[]).await.unwrap();
    assert_eq!(stream.status, 200);
    let other = http::get(addr, &url.replace("/threads/t1/", "/threads/t2/")).await.unwrap();
    assert_eq!((other.status, other.text.contains("insufficient_scope")), (403, true));
    let history = http::get(addr, &url.replace("/events?", "/history?")).await.unwrap();
    assert_eq!(history.status, 401);
    let forged = url[..url.len() - 1].to_owned() + if url.ends_with('A') { "B" } else { "A" };
    assert_eq!(http::get(addr, &forged).await.unwrap().status, 401);
    let text = read_all(&mut stream, Duration::from_secs(15)).await;
    assert!(text.contains("event: auth_expired") && text.contains("credential_expired"), "{text}");
    assert!(!text.contains("acme~"), "{text}");
    assert_eq!(http::get(addr, &url).await.unwrap().status, 401);
    for lifetime in [0, 901] {
        let refused = key.ask("POST", "/v1/threads/t1/tickets", Some(&json!({"lifetime_s": lifetime}))).await;
        assert_eq!(refused.status, 400, "{}", refused.text);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_that_is_revoked_ends_its_streams_and_its_tickets() {
    let gate = Gate::new(&[]).await;
    let admin = gate.key(Some("acme"), "admin", None).await;
    let made = admin.ask("POST", "/v1/keys", Some(&json!({"name": "k", "role": "viewer"}))).await;
    assert_eq!(made.status, 201, "{}", made.text);
    let made = made.json().unwrap();
    let key = gate.caller(made["key"].as_str().unwrap());
    assert_eq!(made["created_by"], json!(format!("key:{}", &admin.credential[4..20])));
    admin.talk("t1").await;
    let ticket = key.ask("POST", "/v1/threads/t1/tickets", Some(&json!({}))).await.json().unwrap();
    let addr = gate.fixture.fleet.gateways[0].http_addr();
    let bearer = format!("Bearer {}", key.credential);
    let headers = [("authorization", bearer.as_str())];
    let mut by_key = http::open(addr, "/v1/threads/t1/events", &headers).await.unwrap();
    let mut by_ticket = http::open(addr, ticket["events_url"].as_str().unwrap(), &[]).await.unwrap();
    let mut others = http::open(
        addr,
        "/v1/threads/t1/events",
        &[("authorization", &format!("Bearer {}", admin.credential))],
    )
    .await
    .unwrap();
    assert_eq!((by_key.status, by_ticket.status, others.status), (200, 200, 200));
    let path = format!("/v1/keys/{}", made["key_id"].as_str().unwrap());
    let revoked = admin.ask("DELETE", &path, None).await;
    assert_eq!(revoked.status, 200, "{}", revoked.text);
    for stream in [&mut by_key, &mut by_ticket] {
        let text = read_all(stream, Duration::from_secs(20)).await;
        assert!(text.contains("credential_revoked"), "{text}");
    }
    assert_eq!(key.get("/v1/threads/t1").await.status, 401);
    let mut first = Vec::new();
    others.body.read(&mut first).await.unwrap();
    let goes_on = timeout(Duration::from_millis(300), async {
        while !String::from_utf8_lossy(&first).contains("auth_expired") {
            others.body.read(&mut first).await.unwrap();
        }
    });
    assert!(goes_on.await.is_err(), "another key's stream has ended");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_grants_no_more_than_its_creator_has() {
    let gate = Gate::new(&[]).await;
    let narrow = gate.key(Some("acme"), "admin", Some("keys:manage,threads:read")).await;
    let make = async |body: Value| narrow.ask("POST", "/v1/keys", Some(&body)).await.status;
    assert_eq!(make(json!({"name": "k", "role": "admin"})).await, 403);
    assert_eq!(make(json!({"name": "k", "role": "viewer"})).await, 403);
    assert_eq!(make(json!({"name": "k", "role": "viewer", "scopes": ["threads:read"]})).await, 201);
    assert_eq!(make(json!({"name": "k", "role": "viewer", "scopes": ["threads:write"]})).await, 400);
    assert_eq!(make(json!({"name": "k", "role": "viewer", "scopes": ["everything"]})).await, 400);
    assert_eq!(make(json!({"name": "", "role": "viewer"})).await, 400);
    assert_eq!(make(json!({"name": "k", "role": "viewer", "tenant": "other"})).await, 400);
    // A new key must not last longer than its creator's own credential either.
    let brief = gate.token(json!({}));
    for body in [
        json!({"name": "k", "role": "viewer"}),
        json!({"name": "k", "role": "viewer", "expires_in_s": 9_000}),
    ] {
        let made = brief.ask("POST", "/v1/keys", Some(&body)).await.json().unwrap();
        let ends = gate.seconds_left(made["key_id"].as_str().unwrap()).await;
        assert!((1..=631).contains(&ends), "{ends}");
    }
    let unexpected = narrow.ask("DELETE", "/v1/keys/0123456789abcdef", Some(&json!({"why": "x"}))).await;
    assert_eq!(unexpected.status, 400, "{}", unexpected.text);
    // An operator that acts for another person names that actor; its own name stays in the audit.
    let operator = gate.key(Some("acme"), "operator", None).await;
    let bearer = format!("Bearer {}", operator.credential);
    let headers = [("authorization", bearer.as_str()), ("x-antiphon-actor", "ann")];
    operator.ask("POST", "/v1/agents/a1/tasks", Some(&json!({"content": "x"}))).await;
    let paused = operator.api.send("POST", "/v1/agents/a1/pause", None, &headers).await.unwrap();
    assert_eq!(paused.status, 200, "{}", paused.text);
    let audit = operator.get("/v1/agents/a1/audit").await.json().unwrap();
    assert_eq!(audit["entries"][0]["actor"], json!(format!("key:{}/ann", &operator.credential[4..20])));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_tenant_over_its_limit_gets_retry_after() {
    let limits = [
        ("ANTIPHON_TENANT_MAX_WRITES_PER_SECOND", "2"),
        ("ANTIPHON_TENANT_MAX_READS_PER_SECOND", "20"),
        ("ANTIPHON_TENANT_MAX_STREAMS", "2"),
        ("ANTIPHON_CORS_ORIGINS", "https://app.example"),
    ];
    let gate = Gate::new(&limits).await;
    let (acme, other) = (gate.token(json!({})), gate.token(json!({"tenant": "other"})));
    let mut refused = None;
    for _ in 0..30 {
        let answer = acme.ask("POST", "/v1/threads", Some(&json!({}))).await;
        if answer.status == 429 {
            refused = Some(answer);
            break;
        }
        assert_eq!(answer.status, 201, "{}", answer.text);
    }
    let refused = refused.expect("nothing was too much");
    let seconds: u64 = refused.header("retry-after").unwrap().parse().unwrap();
    let problem = refused.json().unwrap();
    assert_eq!((&problem["code"], &problem["retryable"]), (&json!("rate_limited"), &json!(true)));
    assert_eq!(other.ask("POST", "/v1/threads", Some(&json!({}))).await.status, 201, "others are not slowed");
    sleep(Duration::from_secs(seconds)).await;
    assert_eq!(acme.ask("POST", "/v1/threads", Some(&json!({}))).await.status, 201);
    // A client of another protocol gets the refusal in that protocol's form.
    let mut spoken = acme.ask("POST", "/v1/responses", Some(&json!({}))).await;
    for _ in 0..30 {
        if spoken.status == 429 {
            break;
        }
        spoken = acme.ask("POST", "/v1/responses", Some(&json!({}))).await;
    }
    assert_eq!((spoken.status, spoken.header("retry-after")), (429, Some("1")), "{}", spoken.text);
    let error = spoken.json().unwrap()["error"].clone();
    assert_eq!(error["code"], "rate_limited", "{error}");
    assert!(error["message"].is_string() && error["type"].is_string(), "{error}");
    // Streams count while they are open.
    let addr = gate.fixture.fleet.gateways[0].http_addr();
    let bearer = format!("Bearer {}", acme.credential);
    let headers = [("authorization", bearer.as_str())];
    let open = async || http::open(addr, "/v1/threads/t1/events", &headers).await.unwrap();
    let (first, second, third) = (open().await, open().await, open().await);
    assert_eq!((first.status, second.status, third.status), (200, 200, 429));
    assert!(third.header("retry-after").is_some());
    drop(first);
    let began = Instant::now();
    while open().await.status != 200 {
        assert!(began.elapsed() < SOON, "the place was not given back");
        sleep(Duration::from_millis(100)).await;
    }
    // Pages of another origin.
    let page = |origin| {
        [
            ("origin", origin),
            ("access-control-request-method", "POST"),
            ("access-control-request-headers", "authorization"),
        ]
    };
    let preflight =
        acme.api.send("OPTIONS", "/v1/threads", None, &page("https://app.example")).await.unwrap();
    assert_eq!(
        (preflight.status, preflight.header("access-control-allow-origin")),
        (204, Some("https://app.example"))
    );
    let evil = acme.api.send("OPTIONS", "/v1/threads", None, &page("https://evil.example")).await.unwrap();
    assert_eq!((evil.status, evil.header("access-control-allow-origin")), (403, None));
    let unauthenticated =
        acme.api.send("GET", "/v1/agents", None, &page("https://app.example")[..1]).await.unwrap();
    assert_eq!(
        unauthenticated.header("access-control-allow-origin"),
        Some("https://app.example"),
        "errors are read too"
    );
}

#[tokio::test]
async fn an_insecure_gateway_stays_on_loopback() {
    let env = [
        ("DATABASE_URL", "postgres://127.0.0.1:9/x"),
        ("ANTIPHON_METRICS_ADDR", "127.0.0.1:0"),
        ("ANTIPHON_HTTP_ADDR", "0.0.0.0:0"),
        ("ANTIPHON_INSECURE", "true"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let run = invoke(&["gateway"], &env).await.unwrap();
    assert_eq!((run.code, run.stderr.contains("for loopback only")), (Some(2), true), "{}", run.stderr);
}
