//! Requests that are refused before any handler: hosts, origins, credentials.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use auth::jwt::JwtRules;
use auth::{AccessRole, CorsRules, StoredKey, TenantLimits, TenantName};
use futures_util::{StreamExt, stream};
use gateway::{GatewayConfig, GatewayLimits};
use http_server::{AccessConfig, HttpLimits, TokenConfig, TokenKeys, TrustedProxies};
use testkit::http;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};

use crate::fixture::Fixture;
use crate::sending::exchange;

const ORIGIN: &str = "https://app.example";

async fn fixture() -> Fixture {
    let mut fixture = Fixture::with(GatewayLimits::default(), 0).await;
    let cors = CorsRules::parse([ORIGIN]).unwrap();
    fixture.open_for(AccessConfig { cors, ..AccessConfig::insecure() }, GatewayLimits::default()).await;
    fixture
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_read_why_they_are_refused() {
    let fixture = fixture().await;
    for (host, status) in [("", 400), ("host: evil.example\r\n", 421)] {
        let head = format!("GET /v1/agents HTTP/1.1\r\n{host}origin: {ORIGIN}\r\nconnection: close\r\n\r\n");
        let refused = exchange(fixture.gateways[0], head.as_bytes()).await;
        let allowed = refused.header("access-control-allow-origin");
        assert_eq!((refused.status, allowed), (status, Some(ORIGIN)), "{host}");
    }
    // A client of a protocol gets its refusal in that protocol's form, wherever the refusal comes
    // from.
    let head = "POST /v1/chat/completions HTTP/1.1\r\nhost: evil.example\r\nconnection: close\r\ncontent-length: 0\r\n\r\n";
    let refused = exchange(fixture.gateways[0], head.as_bytes()).await;
    assert_eq!(
        (refused.status, &refused.json()["error"]["code"]),
        (421, &serde_json::json!("host_not_allowed"))
    );
    let head = "POST /v1/agents/a1/pause HTTP/1.1\r\nhost: localhost\r\norigin: https://evil.example\r\n\
        connection: close\r\ncontent-length: 0\r\n\r\n";
    let refused = exchange(fixture.gateways[0], head.as_bytes()).await;
    assert_eq!(refused.problem(), (403, "origin_not_allowed".to_owned(), false));
}

#[tokio::test(flavor = "multi_thread")]
async fn pages_read_that_a_gateway_is_about_to_stop() {
    let fixture = fixture().await;
    let mut stream = TcpStream::connect(fixture.gateways[0]).await.unwrap();
    stream.write_all(b"GET /v1/threads/t1/events HTTP/1.1\r\nhost: localhost\r\n").await.unwrap();
    tokio::time::sleep(Duration::from_millis(100)).await;
    fixture.drain.cancel();
    tokio::time::sleep(Duration::from_millis(100)).await;
    stream.write_all(format!("origin: {ORIGIN}\r\n\r\n").as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains(&format!("access-control-allow-origin: {ORIGIN}")), "{answer}");
}

/// The statuses of requests with these keys, fifty at a time, from one local address.
async fn statuses(gateway: SocketAddr, from: [u8; 4], keys: &[String]) -> Vec<u16> {
    let asked = keys.iter().map(|key| async move {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((from, 0))).unwrap();
        let mut stream = socket.connect(gateway).await.unwrap();
        let head = format!(
            "GET /v1/agents HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {key}\r\nconnection: close\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer.split(' ').nth(1).unwrap().parse::<u16>().unwrap()
    });
    stream::iter(asked).buffered(50).collect().await
}

/// The status of a request that a proxy at this address forwards with these headers.
async fn forwarded(gateway: SocketAddr, proxy: [u8; 4], headers: &[&str], key: &str) -> u16 {
    let socket = TcpSocket::new_v4().unwrap();
    socket.bind(SocketAddr::from((proxy, 0))).unwrap();
    let mut stream = socket.connect(gateway).await.unwrap();
    let headers: String = headers.iter().map(|value| format!("x-forwarded-for: {value}\r\n")).collect();
    let head = format!(
        "GET /v1/agents HTTP/1.1\r\nhost: x\r\n{headers}authorization: Bearer {key}\r\nconnection: close\r\n\r\n"
    );
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.unwrap();
    answer.split(' ').nth(1).unwrap().parse().unwrap()
}

const PROXY: [u8; 4] = [127, 0, 0, 9];

async fn behind_a_proxy(limits: HttpLimits) -> Fixture {
    let mut fixture = Fixture::with(GatewayLimits::default(), 0).await;
    let mut config = GatewayConfig::new("127.0.0.1:0".parse().unwrap(), AccessConfig::keys_only());
    config.http.limits = limits;
    config.http.trusted_proxies = TrustedProxies::parse(["127.0.0.9/32", "fd00::/8"]).unwrap();
    fixture.open_as(config).await;
    fixture
}

/// Guesses keys until the address, as these headers name it, has used up its budget: more than 100
/// guesses are refused. The budget grows by 50 a second meanwhile, so a slow machine needs more.
async fn has_used_up_its_budget(
    gateway: SocketAddr,
    proxy: [u8; 4],
    headers: impl Fn(usize) -> Vec<String>,
) -> bool {
    let mut refused = 0;
    for _ in 0..20 {
        refused += guess(gateway, proxy, &headers).await;
        if refused > 100 {
            return true;
        }
    }
    false
}

/// Guesses 400 keys, and returns how many guesses were refused.
async fn guess(gateway: SocketAddr, proxy: [u8; 4], headers: impl Fn(usize) -> Vec<String>) -> usize {
    let keys: Vec<String> = (0..400).map(|_| http_server::new_key().text().to_owned()).collect();
    let asked = keys.iter().enumerate().map(async |(n, key)| {
        let headers = headers(n);
        let headers: Vec<&str> = headers.iter().map(String::as_str).collect();
        forwarded(gateway, proxy, &headers, key).await
    });
    let all: Vec<u16> = stream::iter(asked).buffered(20).collect().await;
    all.iter().filter(|status| **status == 429).count()
}

#[tokio::test(flavor = "multi_thread")]
async fn guesses_behind_a_proxy_are_counted_by_client() {
    let fixture = behind_a_proxy(HttpLimits::default()).await;
    let gateway = fixture.gateways[0];
    let new = stored(&fixture).await;
    // One client guesses, and writes arbitrary entries to the left of the address that the proxy
    // appends.
    let spoofed =
        |n: usize| vec![format!("10.0.0.{}, 198.51.100.{}", n % 200, n % 250), "203.0.113.5".to_owned()];
    assert!(has_used_up_its_budget(gateway, PROXY, spoofed).await, "every guess counts for the client");
    // The key is new to the gateway. From the client that guesses it would count as one more guess;
    // from other clients it does not.
    assert_eq!(forwarded(gateway, PROXY, &["203.0.113.6"], &new).await, 200);
    let at_once: Vec<u16> = stream::iter((0..20).map(|n| {
        let client = format!("2001:db8:0:{n}::1");
        let key = http_server::new_key();
        async move { forwarded(gateway, PROXY, &[&client], key.text()).await }
    }))
    .buffered(20)
    .collect()
    .await;
    assert_eq!(at_once, [401; 20], "others may still be wrong");
    // An untrusted peer counts as itself, whatever it sends.
    let spoofed = |n: usize| vec![format!("198.51.100.{}", n % 250)];
    assert!(has_used_up_its_budget(gateway, [127, 0, 0, 8], spoofed).await);
    // Unreadable entries count as the proxy.
    assert!(has_used_up_its_budget(gateway, PROXY, |n| vec![format!("garbage-{n}")]).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_of_a_proxy_count_as_those_of_its_clients() {
    let limits = HttpLimits { connections_per_peer: 2, ..HttpLimits::default() };
    let fixture = behind_a_proxy(limits).await;
    let (gateway, key) = (fixture.gateways[0], stored(&fixture).await);
    let open = async |client: &str| {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((PROXY, 0))).unwrap();
        let mut stream = socket.connect(gateway).await.unwrap();
        let head = format!(
            "GET /v1/threads/t1/events HTTP/1.1\r\nhost: x\r\nx-forwarded-for: {client}\r\nauthorization: Bearer {key}\r\n\r\n"
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        let mut line = [0; 12];
        stream.read_exact(&mut line).await.unwrap();
        (stream, String::from_utf8_lossy(&line).into_owned())
    };
    let (first, status) = open("203.0.113.5").await;
    assert_eq!(status, "HTTP/1.1 200");
    let (_second, status) = open("203.0.113.5").await;
    assert_eq!(status, "HTTP/1.1 200");
    assert_eq!(open("6.6.6.6, 203.0.113.5").await.1, "HTTP/1.1 429", "its third stream");
    let (_others, status) = open("203.0.113.6").await;
    assert_eq!(status, "HTTP/1.1 200", "the proxy has more connections than one client may");
    drop(first);
    let began = Instant::now();
    while open("203.0.113.5").await.1 != "HTTP/1.1 200" {
        assert!(began.elapsed() < Duration::from_secs(10), "a stream that has ended gives its place back");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

async fn stored(fixture: &Fixture) -> String {
    let new = http_server::new_key();
    let key = StoredKey {
        id: new.id(),
        digest: new.digest(),
        previous: None,
        tenant: TenantName::default(),
        role: AccessRole::Viewer,
        scopes: None,
        name: "of a test".to_owned(),
        expires_at: None,
        revoked_at: None,
    };
    let command = model::CommandId::parse("test-key").unwrap();
    fixture.store.unscoped().add_key(&key, &command, "test").await.unwrap();
    new.text().to_owned()
}

#[tokio::test(flavor = "multi_thread")]
async fn all_requests_at_once_with_a_key_that_was_never_used_pass() {
    let mut fixture = Fixture::with(GatewayLimits::default(), 0).await;
    fixture.open_for(AccessConfig::keys_only(), GatewayLimits::default()).await;
    let key = stored(&fixture).await;
    assert_eq!(statuses(fixture.gateways[0], [127, 0, 0, 1], &vec![key; 20]).await, [200; 20]);
}

#[tokio::test(flavor = "multi_thread")]
async fn stream_without_a_place_reads_nothing() {
    let mut fixture = Fixture::with(GatewayLimits::default(), 0).await;
    let key = stored(&fixture).await;
    let limits = TenantLimits { streams: Some(1), ..TenantLimits::default() };
    fixture.open_for(AccessConfig { limits, ..AccessConfig::keys_only() }, GatewayLimits::default()).await;
    let authorization = format!("Bearer {key}");
    let open = async |query: &str| {
        let path = format!("/v1/threads/t1/events{query}");
        http::open(fixture.gateways[0], &path, &[("authorization", authorization.as_str())]).await.unwrap()
    };
    let first = open("").await;
    assert_eq!(first.status, 200);
    // The thread has neither this position nor this message. A request that read the store would
    // report that instead.
    for query in ["?after=7", "?message=none"] {
        assert_eq!(open(query).await.status, 429, "{query}");
    }
    drop(first);
    tokio::time::sleep(Duration::from_millis(300)).await;
    assert_eq!(open("?after=7").await.status, 404, "it is of another bucket");
}

#[tokio::test(flavor = "multi_thread")]
async fn guessing_keys_locks_out_no_other_client() {
    let mut fixture = Fixture::with(GatewayLimits::default(), 0).await;
    let known = stored(&fixture).await;
    fixture.open_for(AccessConfig::keys_only(), GatewayLimits::default()).await;
    // The budget refills meanwhile, so any of the guesses may be the next that is answered.
    let (mut guessed, began) = (Vec::new(), Instant::now());
    while guessed.last() != Some(&429) && guessed.len() < 30_000 {
        let guesses: Vec<_> = (0..1_500).map(|_| http_server::new_key().text().to_owned()).collect();
        guessed.extend(statuses(fixture.gateways[0], [127, 0, 0, 2], &guesses).await);
    }
    assert!(guessed.iter().all(|status| [401, 429].contains(status)), "{guessed:?}");
    assert_eq!(guessed.last(), Some(&429));
    // 200 at once and 50 a second.
    let most = 201 + began.elapsed().as_millis() / 20;
    let answered = guessed.iter().filter(|status| **status == 401).count() as u128;
    assert!((200..=most).contains(&answered), "{answered} of {}, at most {most}", guessed.len());
    // A key that existed at the start is used for the first time from the same address, and a new
    // key from another address.
    let new = stored(&fixture).await;
    assert_eq!(statuses(fixture.gateways[0], [127, 0, 0, 2], &[known]).await, [200]);
    assert_eq!(statuses(fixture.gateways[0], [127, 0, 0, 1], &[new]).await, [200]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_provider_that_hangs_makes_no_gateway_look_dead() {
    let provider = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let keys = TokenKeys::Url(format!("http://{}/jwks", provider.local_addr().unwrap()));
    let rules = JwtRules::new("https://idp.example", "antiphon");
    let mut fixture = Fixture::with(GatewayLimits::default(), 0).await;
    let tokens = Some(TokenConfig { rules, keys });
    let health =
        fixture.open_for(AccessConfig { tokens, ..AccessConfig::insecure() }, GatewayLimits::default()).await;
    let asked = tokio::time::timeout(Duration::from_secs(10), provider.accept()).await;
    let (_silent, _) = asked.expect("the provider is asked").unwrap();
    let began = Instant::now();
    // Covers the timeout of the request to the provider, and the pause before it.
    while began.elapsed() < Duration::from_secs(12) {
        assert!(health.livez().ok, "{}", health.livez().body);
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_is_too_large_is_refused_before_it_is_sent() {
    let fixture = fixture().await;
    let mut stream = TcpStream::connect(fixture.gateways[0]).await.unwrap();
    let head = "POST /v1/threads/t1/messages HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n\
        expect: 100-continue\r\ncontent-length: 1000000000\r\n\r\n";
    stream.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 64];
    let read = tokio::time::timeout(Duration::from_secs(5), stream.read_exact(&mut answer)).await;
    read.expect("an answer without a byte of the body").unwrap();
    let answer = String::from_utf8_lossy(&answer).into_owned();
    assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
}
