//! Bad inputs: each is answered once and clearly, and blocks nothing.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use testkit::{
    WAIT_TIMEOUT, db_snapshot,
    fleet::invoke,
    services::{NatsServer, TestDatabase},
};

use crate::fixture::{Fixture, options};

fn json(fields: &str) -> Bytes {
    Bytes::from(format!(r#"{{"session_id":"bad","message_id":"m",{fields}}}"#))
}

/// Description, content type, payload.
fn bad_payloads() -> Vec<(&'static str, Option<&'static str>, Bytes)> {
    let whole = json(r#""chunk_id":0,"chunk":"x","is_final":true"#);
    let deep = format!(
        "\"chunk_id\":0,\"chunk\":\"x\",\"metadata\":{{\"a\":{}1{}}}",
        "[".repeat(200),
        "]".repeat(200)
    );
    let is_json = Some("application/json");
    let is_protobuf = Some("application/x-protobuf");
    vec![
        ("empty", None, Bytes::new()),
        ("one byte", None, Bytes::from_static(b"{")),
        ("truncated JSON", None, whole.slice(..whole.len() - 5)),
        ("trailing garbage", None, Bytes::from([&whole[..], b"x"].concat())),
        ("not an object", is_json, Bytes::from_static(b"42")),
        ("empty array", is_json, Bytes::from_static(b"[]")),
        ("chunk_id is a string", None, json(r#""chunk_id":"a","chunk":"x""#)),
        ("chunk_id is negative", None, json(r#""chunk_id":-1,"chunk":"x""#)),
        ("chunk_id is huge", None, json(r#""chunk_id":99999999999,"chunk":"x""#)),
        ("unknown type", None, json(r#""chunk_id":0,"chunk":"x","chunk_type":"smell""#)),
        ("NUL in text", None, json(r#""chunk_id":0,"chunk":"a\u0000b""#)),
        ("NUL in metadata", None, json(r#""chunk_id":0,"chunk":"x","metadata":{"a":"\u0000"}"#)),
        ("1e999", None, json(r#""chunk_id":0,"chunk":"x","metadata":{"a":1e999}"#)),
        ("depth", None, json(&deep)),
        (
            "tokens_used is null",
            None,
            json(r#""chunk_id":0,"chunk":"x","is_final":true,"metadata":{"tokens_used":null}"#),
        ),
        (
            "tokens_used is negative",
            None,
            json(r#""chunk_id":0,"chunk":"x","is_final":true,"metadata":{"tokens_used":-1}"#),
        ),
        (
            "another session",
            None,
            Bytes::from_static(br#"{"session_id":"other","message_id":"m","chunk_id":0,"chunk":"x"}"#),
        ),
        (
            "message id with a dot",
            None,
            Bytes::from_static(br#"{"session_id":"bad","message_id":"m.n","chunk_id":0,"chunk":"x"}"#),
        ),
        ("chunk too large", None, json(&format!(r#""chunk_id":0,"chunk":"{}""#, "x".repeat(70_000)))),
        (
            "not UTF-8",
            is_json,
            Bytes::from_static(
                b"{\"session_id\":\"bad\",\"message_id\":\"m\",\"chunk_id\":0,\"chunk\":\"\xff\"}",
            ),
        ),
        ("truncated protobuf", is_protobuf, Bytes::from_static(b"\x0a\x50\x0a\x03bad")),
        ("wrong wire type", is_protobuf, Bytes::from_static(b"\x08\x01")),
        ("length of 2^63", is_protobuf, Bytes::from_static(b"\x0a\xff\xff\xff\xff\xff\xff\xff\xff\x7f")),
        ("10,000 nested groups", is_protobuf, Bytes::from(vec![0x0b; 10_000])),
        ("one byte of protobuf", is_protobuf, Bytes::from_static(b"\x0a")),
        ("chunk_id is a float", None, json(r#""chunk_id":0.0,"chunk":"x""#)),
        ("chunk_id is 2^32-1", None, json(r#""chunk_id":4294967295,"chunk":"x""#)),
        ("chunk_id is 2^64", None, json(r#""chunk_id":18446744073709551616,"chunk":"x""#)),
        ("NaN", None, json(r#""chunk_id":0,"metadata":{"a":NaN}"#)),
        ("Infinity", None, json(r#""chunk_id":0,"metadata":{"a":Infinity}"#)),
        ("1e400", None, json(r#""chunk_id":0,"metadata":{"a":1e400}"#)),
        ("1e131071", None, json(r#""chunk_id":0,"metadata":{"a":1e131071}"#)),
        ("depth 129", None, nested(129)),
        ("depth 6,000", None, nested(6_000)),
        ("depth 20,000", None, nested(20_000)),
        ("raw NUL", None, json("\"chunk_id\":0,\"chunk\":\"a\0\"")),
        ("overlong", is_json, raw(b"\xc0\xaf")),
        ("CESU-8", is_json, raw(b"\xed\xa0\x81\xed\xb0\x80")),
        ("half a character", is_json, raw(b"\xf0\x9f")),
        ("byte order mark", None, Bytes::from([b"\xef\xbb\xbf", &whole[..]].concat())),
        ("other names", None, json(r#""chunkId":0,"chunk":"x""#)),
        ("unknown role", None, json(r#""chunk_id":0,"role":"root""#)),
        ("message id of 200 bytes", None, with_id(&"x".repeat(200))),
        ("message id of 64 KiB", None, with_id(&"x".repeat(65_536))),
        ("empty message id", None, with_id("")),
        ("message id ../", None, with_id("../")),
        ("message id of SQL", None, with_id("'; --")),
        ("message id *", None, with_id("*")),
        ("timestamp infinity", None, json(r#""chunk_id":0,"timestamp":"infinity""#)),
        ("year 294277", None, json(r#""chunk_id":0,"timestamp":"+294277-01-01T00:00:00Z""#)),
        (
            "metadata of 500 KB",
            None,
            json(&format!(r#""chunk_id":0,"metadata":{{"a":"{}"}}"#, "x".repeat(500_000))),
        ),
        ("metadata of 50,000 keys", None, json(&format!(r#""chunk_id":0,"metadata":{{{}}}"#, keys(50_000)))),
        ("tokens_used is 2^53+1", None, tokens("9007199254740993")),
        ("tokens_used is a word", None, tokens(r#""many""#)),
        ("2^53+1", None, json(r#""chunk_id":0,"metadata":{"a":9007199254740993}"#)),
        ("25 digits", None, json(r#""chunk_id":0,"metadata":{"a":1234567890123456789012345}"#)),
        ("1e308", None, json(r#""chunk_id":0,"metadata":{"a":1e308}"#)),
        ("synthetic", None, json(r#""chunk_id":0,"is_final":true,"metadata":{"synthetic":true}"#)),
        ("trigger_type", None, json(r#""chunk_id":0,"metadata":{"trigger_type":"check_in"}"#)),
        ("trigger_reason", None, json(r#""chunk_id":0,"metadata":{"trigger_reason":"quiet"}"#)),
        ("headers of 60 KB", Some(LONG_HEADER.as_str()), Bytes::from_static(b"?")),
    ]
}

/// Unusual but valid payloads: accepted, and kept unchanged. Each is a whole message.
fn odd_payloads() -> Vec<(&'static str, String)> {
    let odd = |what: &'static str, text: &str, fields: &str| (what, odd_json(what, text, fields));
    vec![
        odd("U+2028", "a\u{2028}b\u{2029}\u{85}", ""),
        odd("bidi", "\u{202e}abc\u{202c}", ""),
        odd("four bytes", "🎼", ""),
        odd("duplicate keys", "x", r#","metadata":{"a":1,"a":2}"#),
        odd("minus zero", "x", r#","metadata":{"a":-0.0}"#),
        odd("2^53", "x", r#","metadata":{"a":9007199254740992,"b":-9007199254740992}"#),
        odd("1e-308", "x", r#","metadata":{"a":1e-308}"#),
        odd("year 1970", "x", r#","timestamp":"1970-01-01T00:00:00Z""#),
        odd("year 9999", "x", r#","timestamp":"9999-12-31T23:59:59.999Z""#),
        odd("correlation id", "x", r#","correlation_id":"trace 1 ü","metadata":{"n":1}"#),
        odd("offset", "x", r#","timestamp":"2036-01-01T00:00:00+14:00""#),
        odd("nothing but a final", "", ""),
        odd(
            "nulls",
            "x",
            r#","metadata":null,"timestamp":null,"correlation_id":null,"attempt":null,"step":null,"role":null"#,
        ),
        odd("depth 60", "x", &format!(r#","metadata":{{"a":{}1{}}}"#, "[".repeat(60), "]".repeat(60))),
    ]
}

fn odd_json(what: &str, text: &str, fields: &str) -> String {
    let id: String = what.chars().map(|c| if c.is_ascii_alphanumeric() { c } else { '-' }).collect();
    let text = serde_json::Value::from(text);
    format!(
        r#"{{"session_id":"odd","message_id":"{id}","chunk_id":0,"chunk":{text},"is_final":true{fields}}}"#
    )
}

static LONG_HEADER: std::sync::LazyLock<String> = std::sync::LazyLock::new(|| "x".repeat(60_000));

fn nested(depth: usize) -> Bytes {
    json(&format!(r#""chunk_id":0,"metadata":{{"a":{}1{}}}"#, "[".repeat(depth), "]".repeat(depth)))
}

fn raw(text: &[u8]) -> Bytes {
    let (head, tail) = (br#"{"session_id":"bad","message_id":"m","chunk_id":0,"chunk":""#, br#""}"#);
    Bytes::from([&head[..], text, &tail[..]].concat())
}

fn with_id(id: &str) -> Bytes {
    Bytes::from(serde_json::json!({"session_id": "bad", "message_id": id, "chunk_id": 0}).to_string())
}

fn keys(count: usize) -> String {
    (0..count).map(|key| format!(r#""{key}":1"#)).collect::<Vec<_>>().join(",")
}

fn tokens(value: &str) -> Bytes {
    json(&format!(r#""chunk_id":0,"is_final":true,"metadata":{{"tokens_used":{value}}}"#))
}

#[tokio::test(flavor = "multi_thread")]
async fn odd_but_valid_payloads_are_accepted_and_kept_as_they_are() {
    let fixture = Fixture::new().await;
    let subject = fixture.publisher.subject(&model::ThreadId::parse("odd").unwrap());
    let odd = odd_payloads();
    for (_, payload) in &odd {
        fixture.publisher.publish_raw(&subject, None, Bytes::from(payload.clone())).await.unwrap();
    }
    let expected = i64::try_from(odd.len()).unwrap();
    fixture
        .until("all have ended", WAIT_TIMEOUT, async || {
            let (messages, letters) = db_snapshot::ended(&fixture.pool).await.unwrap_or_default();
            messages + letters >= expected
        })
        .await;
    let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
    assert!(letters.is_empty(), "{letters:?}");
    let rows = db_snapshot::messages(&fixture.pool).await.unwrap();
    for (what, payload) in &odd {
        let sent: serde_json::Value = serde_json::from_str(payload).unwrap();
        let row = rows.iter().find(|row| sent["message_id"] == row.message_id.as_str()).expect(what);
        assert_eq!(sent["chunk"], row.content.as_str(), "{what}");
        for name in ["timestamp", "correlation_id"] {
            assert_eq!(
                row.metadata.get(name),
                sent.get(name).filter(|said| !said.is_null()),
                "{what}: {name}"
            );
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_bad_payload_is_exactly_one_dead_letter() {
    let mut fixture = Fixture::new().await;
    let subject = fixture.publisher.subject(&model::ThreadId::parse("bad").unwrap());
    let mut sent = BTreeMap::new();
    for (what, content_type, payload) in bad_payloads() {
        let seq = fixture.publisher.publish_raw(&subject, content_type, payload.clone()).await.unwrap();
        sent.insert(i64::try_from(seq).unwrap(), (what, payload));
    }
    // The next message in the same thread, and so in the same partition, is not delayed.
    fixture.send(&crate::fixture::short("bad", "good", 1)).await;
    let expected = i64::try_from(sent.len()).unwrap();
    let ended = async || db_snapshot::ended(&fixture.pool).await.unwrap_or_default() == (1, expected);
    let began = std::time::Instant::now();
    while !ended().await && began.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let letters = db_snapshot::dead_letters(&fixture.pool).await.unwrap();
    for (seq, (what, payload)) in &sent {
        let of_it: Vec<_> = letters.iter().filter(|letter| letter.stream_seq == *seq).collect();
        let reasons: Vec<_> = of_it.iter().map(|letter| letter.reason.as_str()).collect();
        assert_eq!(of_it.len(), 1, "{what}: {reasons:?}");
        assert_eq!(&of_it[0].raw, payload, "{what}: kept raw");
        println!("{what:<26} {:<18} {}", reasons[0], of_it[0].detail);
    }
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), (1, expected));
    for worker in &mut fixture.fleet.workers {
        assert!(worker.has_ended().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_mapping_leads_to_the_same_partitions() {
    use testkit::publisher::{Addressing, Publisher};
    let nats = NatsServer::start_mapped(crate::fixture::PARTITIONS).await.unwrap();
    let database = TestDatabase::create().await.unwrap();
    let fleet = testkit::fleet::Fleet::start(options(&nats, database.url())).await.unwrap();
    let pool = database.pool().await.unwrap();
    let mut fixture = Fixture::on(fleet, nats, pool, Some(database)).await;
    fixture.publisher = Publisher::connect(fixture.nats.url(), Addressing::Mapped).await.unwrap();
    fixture.send_many("mapped", 40).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    fixture.audit(vec![]).await;
    assert!(db_snapshot::dead_letters(&fixture.pool).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_stops_the_start_with_one_line() {
    let cases = [
        ("worker", "ANTIPHON_LEASE_TTL_SECONDS", "ten"),
        ("worker", "ANTIPHON_LEASE_TTL_SECONDS", "0"),
        ("worker", "ANTIPHON_LEASE_TTL_SECONDS", "-1"),
        ("worker", "ANTIPHON_GAP_TIMEOUT_SECONDS", "10 m"),
        ("worker", "ANTIPHON_PARTITIONS", "3"),
        ("migrate", "ANTIPHON_PARTITIONS", "0"),
        ("worker", "ANTIPHON_METRICS_ADDR", "nowhere"),
        ("gateway", "ANTIPHON_HTTP_ADDR", "127.0.0.1"),
        ("worker", "ANTIPHON_AUTO_CREATE_THREADS", "maybe"),
        ("worker", "ANTIPHON_LOG_FORMAT", "xml"),
        ("worker", "ANTIPHON_WORKER_ID", "a b"),
        ("gateway", "NATS_URL", "http://x"),
        ("gateway", "ANTIPHON_JWT_ISSUER", "https://idp.example"),
        ("gateway", "ANTIPHON_JWT_ALGORITHMS", "none"),
        ("gateway", "ANTIPHON_CORS_ORIGINS", "https://app.example/path"),
        ("gateway", "ANTIPHON_CORS_ORIGINS", "*,https://app.example"),
        ("workflow", "ANTIPHON_MCP_URL", "127.0.0.1:8090"),
        ("workflow", "ANTIPHON_MCP_URL", "localhost:8090/mcp"),
        ("worker", "DATABASE_URL", "mysql://x"),
        ("worker", "DATABASE_URL", ""),
        ("worker", "ANTIPHON_LEASE_TTL_SECOND", "10"),
        ("gateway", "ANTIPHON_MCP_HOST", "localhost"),
        ("gateway", "OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318"),
        ("worker", "OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("worker", "OTEL_EXPORTER_OTLP_HEADERS", "key"),
        ("workflow", "OTEL_TRACES_SAMPLER", "sometimes"),
        ("worker", "OTEL_BSP_MAX_QUEUE_SIZE", "0"),
    ];
    let mut wrong = Vec::new();
    for (command, name, value) in cases {
        let env = [
            ("NATS_URL", "nats://127.0.0.1:9"),
            ("DATABASE_URL", "postgres://127.0.0.1:9/x"),
            ("ANTIPHON_METRICS_ADDR", "127.0.0.1:0"),
            ("ANTIPHON_HTTP_ADDR", "127.0.0.1:0"),
            (name, value),
        ];
        let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
        match invoke(&[command], &env).await {
            Ok(run) => {
                let lines = run.stderr.lines().filter(|line| !line.trim().is_empty()).count();
                if run.code != Some(2) || lines != 1 {
                    wrong.push(format!(
                        "{command} {name}={value:?}: {:?}, {lines} lines: {}",
                        run.code, run.stderr
                    ));
                }
            }
            Err(error) => wrong.push(format!("{command} {name}={value:?}: {error:#}")),
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_with_another_number_of_partitions_refuses_to_start() {
    let fixture = Fixture::new().await;
    let url = sqlx::ConnectOptions::to_url_lossy(&*fixture.pool.connect_options()).to_string();
    let env = [
        ("NATS_URL", fixture.nats.url()),
        ("DATABASE_URL", &url),
        ("ANTIPHON_PARTITIONS", "16"),
        ("ANTIPHON_METRICS_ADDR", "127.0.0.1:0"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let run = invoke(&["worker"], &env).await.unwrap();
    assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
    assert!(run.stderr.contains("16") && run.stderr.contains('8'), "{}", run.stderr);
}
