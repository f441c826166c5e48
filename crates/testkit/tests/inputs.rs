//! Bad inputs: each is answered once and clearly, and stops nothing.

use std::{collections::BTreeMap, time::Duration};

use bytes::Bytes;
use testkit::{
    fleet::invoke,
    services::{NatsServer, TestDatabase},
    tables,
};

use crate::bed::{Bed, options};

fn json(fields: &str) -> Bytes {
    Bytes::from(format!(r#"{{"session_id":"bad","message_id":"m",{fields}}}"#))
}

/// What, content type, payload.
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
        ("lone surrogate", None, json(r#""chunk_id":0,"chunk":"\ud800""#)),
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
        ("group", is_protobuf, Bytes::from_static(b"\x0b\x0b\x0b\x0b")),
    ]
}

#[tokio::test(flavor = "multi_thread")]
async fn each_bad_payload_is_exactly_one_dead_letter() {
    let mut bed = Bed::new().await;
    let subject = bed.publisher.subject(&model::ThreadId::parse("bad").unwrap());
    let mut sent = BTreeMap::new();
    for (what, content_type, payload) in bad_payloads() {
        let seq = bed.publisher.publish_raw(&subject, content_type, payload.clone()).await.unwrap();
        sent.insert(i64::try_from(seq).unwrap(), (what, payload));
    }
    // What follows in the same thread, and so in the same partition, is not held up.
    bed.send(&crate::bed::short("bad", "good", 1)).await;
    let expected = i64::try_from(sent.len()).unwrap();
    let ended = async || tables::ended(&bed.pool).await.unwrap_or_default() == (1, expected);
    let began = std::time::Instant::now();
    while !ended().await && began.elapsed() < Duration::from_secs(20) {
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    let letters = tables::dead_letters(&bed.pool).await.unwrap();
    for (seq, (what, payload)) in &sent {
        let of_it: Vec<_> = letters.iter().filter(|letter| letter.stream_seq == *seq).collect();
        let reasons: Vec<_> = of_it.iter().map(|letter| letter.reason.as_str()).collect();
        assert_eq!(of_it.len(), 1, "{what}: {reasons:?}");
        assert_eq!(&of_it[0].raw, payload, "{what}: kept raw");
        println!("{what:<26} {:<18} {}", reasons[0], of_it[0].detail);
    }
    assert_eq!(tables::ended(&bed.pool).await.unwrap(), (1, expected));
    for worker in &mut bed.fleet.workers {
        assert!(worker.has_ended().is_none());
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_account_mapping_leads_to_the_same_partitions() {
    use testkit::publisher::{Addressing, Publisher};
    let nats = NatsServer::start_mapped(crate::bed::PARTITIONS).await.unwrap();
    let database = TestDatabase::create().await.unwrap();
    let fleet = testkit::fleet::Fleet::start(options(&nats, database.url())).await.unwrap();
    let pool = database.pool().await.unwrap();
    let mut bed = Bed::on(fleet, nats, pool, Some(database)).await;
    bed.publisher = Publisher::connect(bed.nats.url(), Addressing::Mapped).await.unwrap();
    bed.send_many("mapped", 40).await;
    bed.until_ended(Duration::from_secs(20)).await;
    bed.audit(vec![]).await;
    assert!(tables::dead_letters(&bed.pool).await.unwrap().is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_setting_stops_the_start_with_one_line() {
    let cases = [
        ("worker", "ANTIPHON_LEASE_SECONDS", "ten"),
        ("worker", "ANTIPHON_LEASE_SECONDS", "0"),
        ("worker", "ANTIPHON_LEASE_SECONDS", "-1"),
        ("worker", "ANTIPHON_GAP_TIMEOUT_SECONDS", "10 m"),
        ("worker", "ANTIPHON_PARTITIONS", "3"),
        ("migrate", "ANTIPHON_PARTITIONS", "0"),
        ("worker", "ANTIPHON_METRICS_ADDR", "nowhere"),
        ("gateway", "ANTIPHON_HTTP_ADDR", "127.0.0.1"),
        ("worker", "ANTIPHON_CREATE_THREADS", "maybe"),
        ("worker", "ANTIPHON_LOG_FORMAT", "xml"),
        ("worker", "ANTIPHON_WORKER_ID", "a b"),
        ("gateway", "NATS_URL", "http://x"),
        ("worker", "DATABASE_URL", "mysql://x"),
        ("worker", "DATABASE_URL", ""),
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
    let bed = Bed::new().await;
    let url = sqlx::ConnectOptions::to_url_lossy(&*bed.pool.connect_options()).to_string();
    let env = [
        ("NATS_URL", bed.nats.url()),
        ("DATABASE_URL", &url),
        ("ANTIPHON_PARTITIONS", "16"),
        ("ANTIPHON_METRICS_ADDR", "127.0.0.1:0"),
    ];
    let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let run = invoke(&["worker"], &env).await.unwrap();
    assert!(run.code.is_some_and(|code| code != 0), "{run:?}");
    assert!(run.stderr.contains("16") && run.stderr.contains('8'), "{}", run.stderr);
}
