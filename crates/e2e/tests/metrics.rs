//! The metrics of a worker, and its behaviour at its limits.

use devservices::workspace;
use testkit::{
    WAIT_TIMEOUT, db_snapshot,
    fleet::{FleetOptions, invoke},
    http,
    load::PlannedMessage,
    text,
};

use crate::{
    api_client::scripted,
    fixture::{Fixture, short},
};

/// The metrics of row C15 of the requirements, by the names of the README.
const ROW_C15: [&str; 11] = [
    "antiphon_worker_open_messages",
    "antiphon_worker_buffered_chunks",
    "antiphon_worker_buffered_bytes",
    "antiphon_worker_chunks_per_message",
    "antiphon_worker_oldest_message_age_seconds",
    "antiphon_worker_out_of_order_chunks_total",
    "antiphon_worker_gap_timeouts_total",
    "antiphon_worker_duplicate_chunks_total",
    "antiphon_worker_conflicting_chunks_total",
    "antiphon_worker_late_chunks_total",
    "antiphon_worker_fenced_chunks_total",
];

fn one_worker(mut options: testkit::fleet::FleetOptions) -> testkit::fleet::FleetOptions {
    options.workers = 1;
    options
}

fn chunk(message: &str, id: u32, text: &str, more: &str) -> String {
    format!(r#"{{"session_id":"t","message_id":"{message}","chunk_id":{id},"chunk":"{text}"{more}}}"#)
}

#[tokio::test(flavor = "multi_thread")]
async fn every_metric_of_the_buffers_moves() {
    let fixture = Fixture::with(one_worker).await;
    let subject = fixture.publisher.subject(&model::ThreadId::parse("t").unwrap());
    let payloads = [
        chunk("whole", 1, "b", r#","is_final":true"#),
        chunk("whole", 0, "a", ""),
        chunk("whole", 0, "a", ""),
        chunk("open", 0, "a", ""),
        chunk("open", 0, "a", ""),
        chunk("open", 0, "other", ""),
        chunk("open", 0, "a", r#","attempt":1"#),
        chunk("open", 1, "b", ""),
        chunk("gap", 0, "a", ""),
        chunk("gap", 2, "c", ""),
    ];
    for payload in payloads {
        fixture.publisher.publish_raw(&subject, None, payload.into()).await.unwrap();
    }
    let stored = async || db_snapshot::ended(&fixture.pool).await.is_ok_and(|(messages, _)| messages == 1);
    fixture.until("the whole message is stored", WAIT_TIMEOUT, stored).await;
    let late = chunk("whole", 0, "a", "");
    fixture.publisher.publish_raw(&subject, None, late.into()).await.unwrap();
    // Each metric must move, but not all at the same time: the gap's buffer is freed once its
    // timeout is counted.
    let mut unseen = ROW_C15.to_vec();
    fixture
        .until("every metric has moved", WAIT_TIMEOUT, async || {
            let metrics = fixture.fleet.workers[0].metrics().await.unwrap();
            unseen.retain(|name| metrics.sum(name) == 0.0);
            unseen.is_empty()
        })
        .await;
    // A buffer is freed only after its end is committed, which is after its timeout is counted.
    fixture
        .until("the gap's buffer is freed", WAIT_TIMEOUT, async || {
            let metrics = fixture.fleet.workers[0].metrics().await.unwrap();
            metrics.sum("antiphon_worker_open_messages") < 2.0
        })
        .await;
    // The metrics then show one open message, with the one chunk of its last attempt.
    let metrics = fixture.fleet.workers[0].metrics().await.unwrap();
    let exact = [
        ("antiphon_worker_open_messages", 1.0),
        ("antiphon_worker_buffered_chunks", 1.0),
        ("antiphon_worker_chunks_per_message", 1.0),
        ("antiphon_worker_out_of_order_chunks_total", 2.0),
        ("antiphon_worker_gap_timeouts_total", 1.0),
        ("antiphon_worker_duplicate_chunks_total", 2.0),
        ("antiphon_worker_conflicting_chunks_total", 1.0),
        ("antiphon_worker_late_chunks_total", 1.0),
        ("antiphon_worker_fenced_chunks_total", 1.0),
    ];
    for (name, value) in exact {
        assert_eq!(metrics.sum(name), value, "{name}");
    }
}

/// While Postgres is unreachable, a worker that has stopped reading knows only how many entries
/// were unread at that time, often none.
#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_waits_for_commits_says_how_late_it_is() {
    let fixture = Fixture::with(one_worker).await;
    let metric = async |name| fixture.fleet.workers[0].metrics().await.unwrap().sum(name);
    let mut lock = fixture.pool.begin().await.unwrap();
    let statements = "SET LOCAL idle_in_transaction_session_timeout = 0; LOCK TABLE messages";
    sqlx::raw_sql(statements).execute(&mut *lock).await.unwrap();
    // The messages are sent one after the other, so that the worker keeps up while it reads.
    for number in 0..3_000 {
        let message = PlannedMessage::of_text("late", &format!("m-{number}"), "word", 1).unwrap();
        fixture.send_part(&message, 0..1).await;
    }
    fixture
        .until("the worker says that it is late", WAIT_TIMEOUT, async || {
            metric("antiphon_worker_reader_lag_seconds").await > 2.0
        })
        .await;
    assert!(metric("antiphon_worker_reader_lag_entries").await > 0.0);
    assert!(metric("antiphon_worker_pending_commits").await > 0.0);
    lock.rollback().await.unwrap();
    fixture.until_ended(WAIT_TIMEOUT).await;
    fixture
        .until("nothing is late", WAIT_TIMEOUT, async || {
            metric("antiphon_worker_reader_lag_seconds").await == 0.0
                && metric("antiphon_worker_reader_lag_entries").await == 0.0
        })
        .await;
}

/// A series in the form of the reference, `name{label,label}`, without a histogram's suffix; `None`
/// for a bucket.
fn name_and_labels(series: &str) -> Option<[String; 2]> {
    let (name, labels) =
        series.rsplit_once(' ')?.0.split_once('{').unwrap_or((series.split(' ').next()?, ""));
    let histogram = name.strip_suffix("_sum").or(name.strip_suffix("_count")).unwrap_or(name);
    // The text between the values.
    let between = labels.split('"').step_by(2).map(|part| part.trim_matches([',', '=', '}']));
    let labels: Vec<&str> = between.filter(|label| !label.is_empty()).collect();
    if labels.contains(&"le") {
        return None;
    }
    let labels = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
    Some([name, histogram].map(|name| format!("{name}{labels}")))
}

/// The most series of a pod with 32 partitions.
const MOST_SERIES: usize = 450;

#[tokio::test(flavor = "multi_thread")]
async fn a_pod_has_few_series_and_lost_partitions_take_theirs() {
    let fleet = |options| FleetOptions { partitions: 32, ..one_worker(scripted(options)) };
    let mut fixture = Fixture::with(fleet).await;
    let api = fixture.api();
    for number in 0..40 {
        api.say(&format!("thread-{number}"), "hello").await.unwrap();
        api.send("GET", &format!("/v1/threads/thread-{number}"), None, &[]).await.unwrap();
        api.send("GET", &format!("/nowhere/{number}"), None, &[]).await.unwrap();
    }
    fixture.until_messages("thread-39", 2).await;
    let of_partitions =
        |metrics: &testkit::fleet::Metrics| metrics.series("antiphon_worker_read_sequence").count();
    let worker = &fixture.fleet.workers[0];
    fixture
        .until("turns are timed, and every partition and stream shows", WAIT_TIMEOUT, async || {
            let metrics = worker.metrics().await.unwrap();
            // The streams are measured last: one for each partition, and that of the requests.
            let streams = metrics.series("antiphon_worker_stream_fill_ratio").count();
            metrics.sum("antiphon_worker_turn_seconds_count") >= 40.0
                && metrics.sum("antiphon_worker_first_chunk_seconds_count") >= 40.0
                && (of_partitions(&metrics), streams) == (32, 33)
        })
        .await;
    let reference = std::fs::read_to_string(workspace::root().join("deploy/REFERENCE.md")).unwrap();
    let version = invoke(&["--version"], &[]).await.unwrap().stdout;
    let (_, revision) = version.trim().trim_end_matches(')').split_once(" (").unwrap();
    let processes = [&fixture.fleet.workers, &fixture.fleet.gateways].into_iter().flatten();
    for process in processes {
        let text = http::get(process.metrics_addr(), "/metrics").await.unwrap().text;
        let build = text.lines().find(|line| line.starts_with("antiphon_build_info{")).unwrap();
        assert!(build.contains(&format!("revision=\"{revision}\"")), "{build}");
        let series = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty()).count();
        assert!(series > 40 && series <= MOST_SERIES, "{}: {series} series\n{text}", process.name());
        assert!(!text.contains("NaN"), "{}", process.name());
        for series in text.lines().filter(|line| line.starts_with("antiphon_")).filter_map(name_and_labels) {
            let is_there = series.iter().any(|form| reference.contains(&format!("`{form}`")));
            assert!(is_there, "{} is not in deploy/REFERENCE.md", series[0]);
        }
    }
    let gateway = fixture.fleet.gateways[0].metrics().await.unwrap();
    let requests = |route: &str| gateway.sum_where("antiphon_gateway_http_requests_total", "route", route);
    assert_eq!(requests("POST /v1/threads/{thread}/messages"), 40.0);
    assert_eq!(requests("GET /v1/threads/{thread}"), 40.0);
    assert_eq!(requests("other"), 40.0);
    assert!(gateway.sum_where("antiphon_gateway_http_request_seconds_count", "kind", "write") >= 40.0);
    let added = fixture.fleet.add_worker().unwrap();
    fixture.fleet.workers[added].spawn().unwrap();
    let both = &fixture.fleet.workers;
    fixture
        .until("two workers share the series", WAIT_TIMEOUT, async || {
            let mut shown = Vec::new();
            for worker in both {
                shown.push(worker.metrics().await.map_or(0, |metrics| of_partitions(&metrics)));
            }
            shown == [16, 16]
        })
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn worker_holds_10_000_open_messages_and_more_wait() {
    const OPEN: usize = 10_000;
    const MORE: usize = 40;
    let fixture = Fixture::with(one_worker).await;
    let pieces = text::cut(text::LICENSE, 3);
    let planned = |number| PlannedMessage::of_pieces(&format!("open-{number}"), "m", &pieces[..2]).unwrap();
    let all: Vec<_> = (0..OPEN + MORE).map(planned).collect();
    let part = async |id: usize| {
        let publications = all.iter().map(|message| message.publication(id));
        fixture.publisher.publish(publications, &fixture.ack_log).await.unwrap();
    };
    part(0).await;
    let worker = &fixture.fleet.workers[0];
    let sum = async |name: &str| worker.metrics().await.unwrap().sum(name);
    // Each partition reports separately, so for a moment some have deferred chunks before others
    // report theirs.
    fixture
        .until("the worker is full", WAIT_TIMEOUT, async || {
            sum("antiphon_worker_deferred_chunks_total").await > 0.0
                && sum("antiphon_worker_open_messages").await == OPEN as f64
        })
        .await;
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), (0, 0));
    part(1).await;
    fixture.until_ended(WAIT_TIMEOUT).await;
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), ((OPEN + MORE) as i64, 0));
    fixture.audit(vec![]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn at_capacity_new_messages_wait_in_the_stream_and_none_is_lost() {
    let change = |options| one_worker(options).with_env("ANTIPHON_MAX_OPEN_MESSAGES", 4);
    let mut fixture = Fixture::with(change).await;
    // Four messages fill the worker; ten times as many wait behind them, and the four can still
    // progress.
    let first: Vec<_> = (0..4).map(|number| short(&format!("first-{number}"), "m", number)).collect();
    for message in &first {
        fixture.send_part(message, 0..3).await;
    }
    let worker = &fixture.fleet.workers[0];
    let open = async || worker.metrics().await.unwrap().sum("antiphon_worker_open_messages");
    fixture.until("the worker is full", WAIT_TIMEOUT, async || open().await == 4.0).await;
    fixture.send_many("waiting", 40).await;
    let worker = &fixture.fleet.workers[0];
    fixture
        .until("new ones wait", WAIT_TIMEOUT, async || {
            worker.metrics().await.unwrap().sum("antiphon_worker_deferred_chunks_total") > 0.0
        })
        .await;
    assert_eq!(worker.metrics().await.unwrap().sum("antiphon_worker_open_messages"), 4.0);
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), (0, 0));
    for message in &first {
        let rest = 3..message.chunks.len();
        fixture.send_part(message, rest).await;
    }
    fixture.until_ended(WAIT_TIMEOUT).await;
    fixture.audit(vec![]).await;
    assert_eq!(db_snapshot::ended(&fixture.pool).await.unwrap(), (44, 0));
}
