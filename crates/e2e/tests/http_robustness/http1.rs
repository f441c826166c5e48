//! HTTP/1.1 on plain sockets.

use std::time::Instant;

use futures_util::future::join_all;
use serde_json::Value;
use testkit::http::HttpRequest;
use tokio::{sync::watch, time::sleep};

use super::*;

/// Name, bytes to send, and the allowed statuses; 0 is a cut.
type Case = (String, Vec<u8>, &'static [u16]);

const JSON: &str = "content-type: application/json\r\n";
const MESSAGES: &str = "/v1/threads/rough/messages";

fn heads() -> Vec<Case> {
    let case = |name: &str, bytes: &str, statuses: &'static [u16]| {
        (name.to_owned(), bytes.as_bytes().to_vec(), statuses)
    };
    let of_body = |name: &str, headers: &str, body: &str, statuses: &'static [u16]| {
        let bytes = format!(
            "POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{JSON}{headers}\r\n{body}"
        );
        (name.to_owned(), bytes.into_bytes(), statuses)
    };
    let chunked = "transfer-encoding: chunked\r\n";
    vec![
        ("101 headers".into(), get("/livez", &"x-a: 1\r\n".repeat(101)), &[431]),
        ("a header of 1 MB".into(), get("/livez", &format!("x-a: {}\r\n", "a".repeat(1 << 20))), &[431, 0]),
        ("an address of 70 KB".into(), get(&format!("/{}", "a".repeat(70_000)), ""), &[414, 431, 0]),
        ("two hosts".into(), get("/v1/threads/a", "host: y\r\n"), &[400]),
        case("no host", "GET /v1/threads/a HTTP/1.1\r\nconnection: close\r\n\r\n", &[400]),
        ("NUL in a header".into(), get("/livez", "x-a: a\0b\r\n"), &[400]),
        ("a folded header".into(), get("/livez", "x-a: a\r\n b\r\n"), &[400]),
        ("a blank before the colon".into(), get("/livez", "x-a : a\r\n"), &[400]),
        ("a header without a name".into(), get("/livez", ": a\r\n"), &[400]),
        case("HTTP/0.9", "GET /livez\r\n\r\n", &[400, 0]),
        case("HTTP/3.0", "GET /livez HTTP/3.0\r\nhost: localhost\r\n\r\n", &[400, 0]),
        case("half a preface", "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n", &[400, 0]),
        (
            "the hello of TLS".into(),
            [b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03".to_vec(), vec![7; 500]].concat(),
            &[400, 0],
        ),
        case("nothing but ends of lines", &"\r\n".repeat(2_000), &[400, 0]),
        case(
            "CONNECT",
            "CONNECT localhost:80 HTTP/1.1\r\nhost: localhost:80\r\nconnection: close\r\n\r\n",
            &[400, 404, 405],
        ),
        case("TRACE", "TRACE /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n", &[405]),
        case(
            "OPTIONS *",
            "OPTIONS * HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            &[400, 404, 405],
        ),
        case(
            "an unknown method",
            "JUMP /livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            &[405],
        ),
        case(
            "the absolute form",
            "GET http://localhost/livez HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n",
            &[200],
        ),
        case(
            "an upgrade to h2c",
            "GET /livez HTTP/1.1\r\nhost: localhost\r\nconnection: upgrade, http2-settings, close\r\nupgrade: h2c\r\nhttp2-settings: AAMAAABkAAQAoAAAAAIAAAAA\r\n\r\n",
            &[200],
        ),
        of_body("two lengths", "content-length: 2\r\ncontent-length: 3\r\n", "{}}", &[400]),
        of_body("a negative length", "content-length: -1\r\n", "{}", &[400]),
        of_body("a length of 2^64", "content-length: 18446744073709551616\r\n", "{}", &[400]),
        of_body("an unknown encoding", "transfer-encoding: gzip\r\n", "{}", &[400]),
        of_body("chunks that do not come last", "transfer-encoding: chunked, gzip\r\n", "0\r\n\r\n", &[400]),
        of_body("a size that is none", chunked, "zz\r\n{}\r\n0\r\n\r\n", &[400, 0]),
        of_body("a size of 2^68", chunked, "fffffffffffffffff\r\n{}\r\n0\r\n\r\n", &[400, 0]),
        of_body(
            "an extension of 1 MB",
            chunked,
            &format!("2;{}\r\n{{}}\r\n0\r\n\r\n", "a".repeat(1 << 20)),
            &[400, 0],
        ),
        of_body(
            "trailers of 1 MB",
            chunked,
            &format!("2\r\n{{}}\r\n0\r\nx-a: {}\r\n\r\n", "a".repeat(1 << 20)),
            &[400, 431, 0],
        ),
        case(
            "chunks in HTTP/1.0",
            "POST /v1/threads/a/messages HTTP/1.0\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
            &[400],
        ),
    ]
}

fn addresses() -> Vec<Case> {
    let paths = [
        ("%zz", 400),
        ("%", 400),
        ("%ff", 400),
        ("%c0%af", 400),
        ("a%00", 400),
        ("..%2fa", 400),
        ("a%20b", 400),
        ("%E2%80%A8", 400),
        ("';--", 400),
        ("", 404),
    ];
    let of_path = |(id, status): (&str, u16)| {
        let statuses: &[u16] = if status == 404 { &[404, 400] } else { &[400] };
        (format!("thread {id:?}"), get(&format!("/v1/threads/{id}/history"), ""), statuses)
    };
    let queries = [
        "limit=0",
        "limit=-1",
        "limit=9223372036854775808",
        "limit=",
        "limit=1e1",
        "limit=1&limit=2",
        "after=-1",
        "after=9223372036854775808",
        "after=",
        "after=%00",
        "after=%zz",
        "after=1'--",
        "before=x",
        "after=10&before=5",
        "synthetic=perhaps",
        "after=%ff",
    ];
    let of_query = |query: &&str| {
        (format!("history?{query}"), get(&format!("/v1/threads/rough/history?{query}"), ""), &[400_u16][..])
    };
    paths.into_iter().map(of_path).chain(queries.iter().map(of_query)).collect()
}

fn bodies() -> Vec<Case> {
    let body = r#"{"content":"x"}"#;
    let typed = |kind: &str| {
        (format!("type {kind:?}"), post(MESSAGES, &format!("content-type: {kind}\r\n"), body), &[415_u16][..])
    };
    let keyed = |name: &str, headers: &str| {
        (format!("key: {name}"), post(MESSAGES, &format!("{JSON}{headers}"), body), &[400_u16][..])
    };
    let sent = |name: &str, body: &str, statuses: &'static [u16]| {
        (name.to_owned(), post(MESSAGES, JSON, body), statuses)
    };
    let endless = || {
        let mut bytes = format!(
            "POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n{JSON}transfer-encoding: chunked\r\n\r\n"
        );
        let chunk = format!("10000\r\n{}\r\n", "a".repeat(0x10000));
        (0..1_024).for_each(|_| bytes.push_str(&chunk));
        bytes.into_bytes()
    };
    vec![
        typed("text/plain"),
        typed("application/json; charset=latin1"),
        typed("application/json; charset=utf-16"),
        typed("application/x-www-form-urlencoded"),
        typed(""),
        ("no type".into(), post(MESSAGES, "", body), &[415]),
        ("two types".into(), post(MESSAGES, &format!("{JSON}{JSON}"), body), &[415]),
        keyed("twice", "idempotency-key: a\r\nidempotency-key: a\r\n"),
        keyed("empty", "idempotency-key: \r\n"),
        keyed("NUL", "idempotency-key: a\0b\r\n"),
        keyed("256 bytes", &format!("idempotency-key: {}\r\n", "a".repeat(256))),
        keyed("not ASCII", "idempotency-key: \u{e9}\r\n"),
        sent("3 MB", &format!(r#"{{"content":"{}"}}"#, "x".repeat(3 << 20)), &[413]),
        sent("20 MB", &format!(r#"{{"content":"{}"}}"#, "x".repeat(20 << 20)), &[413, 0]),
        ("64 MB in chunks".into(), endless(), &[413, 0]),
        sent("not JSON", "{", &[400]),
        sent("empty", "", &[400]),
        sent("depth 100,000", &"[".repeat(100_000), &[400]),
        sent("a field too many", r#"{"content":"x","role":"system"}"#, &[400]),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn bad_requests_are_refused_and_harm_no_other_client() {
    let fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    // The first round includes one-time costs of a process.
    for round in 0..2 {
        let before = Held::by(&fixture.fleet.gateways[0]);
        let began = Instant::now();
        let cases: Vec<Case> = heads().into_iter().chain(addresses()).chain(bodies()).collect();
        let answers = join_all(cases.iter().map(|(_, bytes, _)| shout(addr, bytes))).await;
        for ((name, _, statuses), said) in cases.iter().zip(answers) {
            judge(name, &said, statuses);
        }
        println!("{} requests took {:?}", cases.len(), began.elapsed());
        unharmed(&fixture, before, if round == 0 { 200 } else { 32 }).await;
    }
    let refused = fixture.fleet.gateways[0].metrics().await.unwrap();
    assert!(refused.sum("antiphon_gateway_http_errors_total") >= 50.0);
}

fn judge(name: &str, said: &Said, statuses: &[u16]) {
    let shown = said.text.chars().take(300).collect::<String>();
    let status = said.status().unwrap_or(0);
    assert!(statuses.contains(&status), "{name}: {shown}");
    assert!(said.answers() <= 1, "{name}: {shown}");
    // If hyper cannot parse a request, it refuses the request without a body.
    if status >= 400 && !said.body().is_empty() {
        assert!(said.has("content-type: application/problem+json"), "{name}: {shown}");
        let problem: Value = serde_json::from_str(said.body()).unwrap();
        assert!(problem["code"].is_string() && problem["status"] == status, "{name}: {shown}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_slow_are_not_waited_for() {
    let fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let before = Held::by(&fixture.fleet.gateways[0]);
    let silent = async || {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        let (began, said) = (Instant::now(), rest(&mut stream).await);
        assert!(said.text.is_empty() && began.elapsed() < HEAD_TIMEOUT * 3, "{:?}", began.elapsed());
    };
    let drips = async |first: &str, every: &[u8], statuses: &[u16]| {
        let (mut reader, mut writer) = TcpStream::connect(addr).await.unwrap().into_split();
        writer.write_all(first.as_bytes()).await.unwrap();
        let began = Instant::now();
        let drip = async {
            loop {
                sleep(Duration::from_millis(50)).await;
                if writer.write_all(every).await.is_err() {
                    std::future::pending::<()>().await;
                }
            }
        };
        let said = tokio::select! { said = rest(&mut reader) => said, () = drip => unreachable!() };
        assert!(statuses.contains(&said.status().unwrap_or(0)), "{said:?}");
        assert!(began.elapsed() < HEAD_TIMEOUT * 4, "{first:?}: {:?}", began.elapsed());
    };
    let body =
        format!("POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\n{JSON}content-length: 100000\r\n\r\n{{");
    tokio::join!(
        silent(),
        drips("GET /livez HTTP/1.1\r\nhost: localhost\r\n", b"", &[0, 408]),
        drips("GET /livez HTTP/1.1\r\nhost: localhost\r\nx-a: ", b"a", &[0, 408]),
        drips("PRI * HT", b"", &[0, 400, 408]),
        drips(&body, b" ", &[408]),
        drips("GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n", b"", &[200]),
    );
    unharmed(&fixture, before, 64).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_that_takes_nothing_is_cut_and_its_lag_is_small() {
    let fixture =
        Fixture::with(|options| impatient(options).with_env("ANTIPHON_SUBSCRIBER_BUFFER_BYTES", 65_536))
            .await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let socket = tokio::net::TcpSocket::new_v4().unwrap();
    socket.set_recv_buffer_size(4_096).unwrap();
    let mut slow = socket.connect(addr).await.unwrap();
    slow.write_all(&get("/v1/threads/slow/events", "")).await.unwrap();
    let quick = fixture.following("slow").await;
    let metrics = async || fixture.fleet.gateways[0].metrics().await.unwrap();
    let mut sent = 0;
    while metrics().await.sum_where("antiphon_gateway_subscribers_aborted_total", "reason", "lag") == 0.0 {
        let message =
            testkit::load::PlannedMessage::of_pieces("slow", &format!("m-{sent}"), &["x".repeat(16_000)]);
        fixture.send_part(&message.unwrap(), 0..1).await;
        sent += 1;
        quick.wait(WAIT_TIMEOUT, |progress| progress.terminals == sent).await.unwrap();
    }
    println!("cut after {} KB", sent * 16);
    // 64 KiB of lag, 64 KiB in the buffers of hyper and the kernel, and 16 KiB more in flight.
    assert!(sent * 16 <= 400, "{sent} messages of 16 KB");
    let said = rest(&mut slow).await;
    assert!(!said.text.ends_with("0\r\n\r\n"), "a clean end");
    fixture.audit(vec![quick]).await;
}

/// The viewer reconnects with its cursor, and has lost and repeated nothing; other clients are not
/// affected.
#[tokio::test(flavor = "multi_thread")]
async fn a_viewer_that_is_cut_for_its_lag_goes_on_where_it_was() {
    let fixture =
        Fixture::with(|options| scripted(options).with_env("ANTIPHON_SUBSCRIBER_BUFFER_BYTES", 65_536)).await;
    let gateways = fixture.fleet.gateway_addrs();
    let (reading, reads) = watch::channel(true);
    let options = FollowOptions { reads: Some(reads), ..FollowOptions::default() };
    let slow = Follower::start(&gateways, "slow", options);
    slow.opened().await.unwrap();
    let quick = fixture.following("slow").await;
    let cuts = async || {
        let metrics = fixture.fleet.gateways[0].metrics().await.unwrap();
        metrics.sum_where("antiphon_gateway_subscribers_aborted_total", "reason", "lag")
    };
    reading.send_replace(false);
    let mut sent = 0;
    while cuts().await == 0.0 {
        assert!(sent < 2_000, "it is never cut");
        let (id, text) = (format!("m-{sent}"), "x".repeat(16_000));
        let message = PlannedMessage::of_pieces("slow", &id, &[text]);
        fixture.send_part(&message.unwrap(), 0..1).await;
        sent += 1;
        quick.wait(WAIT_TIMEOUT, |progress| progress.terminals == sent).await.unwrap();
    }
    reading.send_replace(true);
    slow.wait(WAIT_TIMEOUT, |progress| progress.terminals == sent).await.unwrap();
    println!("{sent} messages, cut {} times", cuts().await);
    assert!(slow.progress().ended > 0, "it was cut");
    assert_eq!(quick.progress().opened, 1);
    fixture.audit(vec![slow, quick]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_standard_allows_works() {
    let fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    fixture.until_owned("none").await;
    // Three requests at once are answered in order.
    let live = "GET /livez HTTP/1.1\r\nhost: localhost\r\n\r\n";
    let three = format!("{live}GET /v1/threads/none HTTP/1.1\r\nhost: localhost\r\n\r\n{live}");
    let said = shout(addr, three.as_bytes()).await;
    let statuses: Vec<_> = said.text.split("HTTP/1.1 ").skip(1).map(|part| part[..3].to_owned()).collect();
    assert_eq!(statuses, ["200", "404", "200"], "{said:?}");
    // If a request has both a length and chunks, the chunks count. The bytes after them are not
    // read as a request.
    let both = format!(
        "POST {MESSAGES} HTTP/1.1\r\nhost: localhost\r\n{JSON}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n{live}"
    );
    let said = shout(addr, both.as_bytes()).await;
    assert_eq!((said.status(), said.answers()), (Some(400), 1), "{said:?}");
    assert!(said.has("connection: close"), "{said:?}");
    // A client that expects `100 Continue` gets it.
    let (head, body) = (format!("{JSON}expect: 100-continue\r\n"), r#"{"content":"hello"}"#);
    let mut stream = TcpStream::connect(addr).await.unwrap();
    let whole = post(MESSAGES, &head, body);
    let (head, body) = whole.split_at(whole.len() - body.len());
    stream.write_all(head).await.unwrap();
    let mut first = [0; 25];
    timeout(LIMIT, stream.read_exact(&mut first)).await.unwrap().unwrap();
    assert_eq!(&first, b"HTTP/1.1 100 Continue\r\n\r\n");
    stream.write_all(body).await.unwrap();
    assert_eq!(rest(&mut stream).await.status(), Some(202));
    // A client that closes its sending half after the request is treated as gone, or gets its
    // answer; nothing hangs.
    for path in ["/livez", "/v1/threads/rough/events"] {
        let mut stream = TcpStream::connect(addr).await.unwrap();
        stream.write_all(&get(path, "")).await.unwrap();
        stream.shutdown().await.unwrap();
        let said = rest(&mut stream).await;
        assert!(matches!(said.status(), None | Some(200)) && !said.text.ends_with("0\r\n\r\n"), "{said:?}");
    }
    same_key_other_body(&fixture).await;
}

async fn same_key_other_body(fixture: &Fixture) {
    let api = fixture.api();
    let key = [("idempotency-key", "k-1")];
    let first = api.say_with("keyed", &serde_json::json!({"content": "one"}), &key).await.unwrap();
    let again = api.say_with("keyed", &serde_json::json!({"content": "one"}), &key).await.unwrap();
    let other = api.say_with("keyed", &serde_json::json!({"content": "two"}), &key).await.unwrap();
    let turn = |answer: &http::TextResponse| answer.json().unwrap()["turn_id"].clone();
    assert_eq!((first.status, again.status, other.status), (202, 202, 422));
    assert_eq!(turn(&first), turn(&again));
    assert_eq!(other.json().unwrap()["code"], "idempotency_key_reused");
}

#[tokio::test(flavor = "multi_thread")]
async fn streams_pass_proxies_as_they_are() {
    let fixture = Fixture::with(impatient).await;
    let addr = fixture.fleet.gateway_addrs()[0];
    let accept = ("accept-encoding", "gzip, br, zstd, deflate");
    let native = http::open(addr, "/v1/threads/rough/events", &[accept]).await.unwrap();
    let body = br#"{"content":"slowly 1"}"#;
    let headers = [accept, ("accept", "text/event-stream"), ("content-type", "application/json")];
    let in_line = HttpRequest { method: "POST", path: MESSAGES, headers: &headers, body };
    let in_line = http::begin(addr, in_line).await.unwrap();
    let said = br#"{"id":"rough-2","messages":[{"role":"user","id":"m","parts":[{"type":"text","text":"slowly 2"}]}]}"#;
    let adapted = HttpRequest { method: "POST", path: "/api/chat", headers: &headers, body: said };
    let adapted = http::begin(addr, adapted).await.unwrap();
    for response in [&native, &in_line, &adapted] {
        assert_eq!(response.status, 200, "{response:?}");
        for (name, value) in [
            ("content-type", Some("text/event-stream; charset=utf-8")),
            ("cache-control", Some("no-cache, no-store, no-transform")),
            ("x-accel-buffering", Some("no")),
            ("x-content-type-options", Some("nosniff")),
            ("content-encoding", None),
        ] {
            assert_eq!(response.header(name), value, "{name}: {response:?}");
        }
    }
    for mut response in [native, in_line, adapted] {
        let mut bytes = Vec::new();
        timeout(LIMIT, response.body.read(&mut bytes)).await.unwrap().unwrap();
        assert!(bytes.starts_with(b": open\n"), "what proxies pass the head on for: {bytes:?}");
    }
}
