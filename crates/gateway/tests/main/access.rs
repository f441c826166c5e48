//! Which requests are refused before any handler: hosts, origins, credentials.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use auth::jwt::JwtRules;
use auth::{AccessRole, CorsRules, StoredKey, TenantLimits, TenantName};
use futures_util::{StreamExt, stream};
use gateway::{AccessConfig, GatewayLimits, TokenConfig, TokenKeys};
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
    // A client of a protocol is refused in its form, wherever that happens.
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

/// The statuses of requests with these keys, fifty at a time, from one address of this machine.
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

async fn stored(fixture: &Fixture) -> String {
    let new = gateway::new_key();
    let key = StoredKey {
        id: new.id(),
        digest: new.digest(),
        tenant: TenantName::default(),
        role: AccessRole::Viewer,
        scopes: None,
        name: "of a test".to_owned(),
        expires_at: None,
        revoked_at: None,
    };
    fixture.store.unscoped().add_key(&key, "test").await.unwrap();
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
    // The thread has nothing of the kind, which a look would show.
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
    // Guesses are granted again meanwhile, so that any one of them may be the next that is answered.
    let (mut guessed, began) = (Vec::new(), Instant::now());
    while guessed.last() != Some(&429) && guessed.len() < 30_000 {
        let guesses: Vec<_> = (0..1_500).map(|_| gateway::new_key().text().to_owned()).collect();
        guessed.extend(statuses(fixture.gateways[0], [127, 0, 0, 2], &guesses).await);
    }
    assert!(guessed.iter().all(|status| [401, 429].contains(status)), "{guessed:?}");
    assert_eq!(guessed.last(), Some(&429));
    // 200 at once and 50 a second.
    let most = 201 + began.elapsed().as_millis() / 20;
    let answered = guessed.iter().filter(|status| **status == 401).count() as u128;
    assert!((200..=most).contains(&answered), "{answered} of {}, at most {most}", guessed.len());
    // The first use of a key that was there at the start, even from the same address, and of a new one from another.
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
    // As long as the provider is waited for, and the pause before.
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
