//! The usage of model calls, over HTTP.

use std::time::{Duration, Instant};
use store::{CleanupKind, CleanupLimit};

use futures_util::future::join_all;
use serde_json::json;
use testkit::http;

use crate::fixture::Fixture;
use crate::sending::bare;

#[tokio::test(flavor = "multi_thread")]
async fn usage_is_summed_by_what_is_asked_for() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    fixture
        .write(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens,
                                cached_tokens, is_partial, is_estimated)
             VALUES ('2026-11-22T10:00Z', $bucket(t1), 't1', 'a', 0, 'ann', 'turn', 'm', 7, 3, 5, false, false),
                    ('2026-11-22T10:00Z', $bucket(t1), 't1', 'a', 1, 'ann', 'turn', 'm', 10, 20, NULL, true, true),
                    ('2026-11-23T10:00Z', $bucket(t2), 't2', 'b', 0, 'bob', 'follow_up', NULL, 1, 2, NULL, false, false)",
        )
        .await;
    let usage = async |query: &str| {
        let path = format!("/v1/usage?from=2026-11-22T00:00:00Z&{query}");
        http::get_json(gateway, &path).await.unwrap()["usage"].clone()
    };
    let of = |day: Option<&str>, agent: Option<&str>, counts: [u64; 5]| {
        json!({"day": day, "agent_id": agent, "thread_id": null, "user_id": null, "model": null, "kind": null, "finish_reason": null,
               "calls": counts[0], "partial_calls": counts[1], "estimated_calls": counts[1], "input_tokens": counts[2], "output_tokens": counts[3],
               "cached_tokens": counts[4], "reasoning_tokens": 0, "cost": null, "unpriced_calls": counts[0]})
    };
    assert_eq!(usage("to=2026-11-24T00:00:00Z").await, json!([of(None, None, [3, 1, 18, 25, 5])]));
    assert_eq!(
        usage("to=2026-11-24T00:00:00Z&group_by=day,agent").await,
        json!([
            of(Some("2026-11-22"), Some("ann"), [2, 1, 17, 23, 5]),
            of(Some("2026-11-23"), Some("bob"), [1, 0, 1, 2, 0]),
        ])
    );
    assert_eq!(usage("to=2026-11-23T10:00:00Z&group_by=model").await[0]["model"], "m", "before `to` alone");
    let csv = bare(
        gateway,
        "GET",
        "/v1/usage?from=2026-11-22T00:00:00Z&to=2026-11-23T10:00:00Z&group_by=model,agent&format=csv",
    )
    .await;
    assert_eq!(csv.header("content-type"), Some("text/csv; charset=utf-8"));
    assert_eq!(
        csv.text,
        "day,agent_id,thread_id,user_id,model,kind,finish_reason,calls,partial_calls,estimated_calls,input_tokens,output_tokens,cached_tokens,reasoning_tokens,cost,\
         unpriced_calls,currency,details_from\r\n,\"ann\",,,\"m\",,,2,1,1,17,23,5,0,,2,,\r\n"
    );
    let until_now = bare(gateway, "GET", "/v1/usage?from=2026-11-22T00:00:00Z").await;
    assert_eq!(until_now.status, 200, "{}", until_now.text);
    for query in [
        "group_by=week",
        "to=tomorrow",
        "to=2026-11-24T00:00:00Z&group_by=week",
        "to=2026-11-24T00:00:00Z&format=xml",
        "to=2026-11-24T00:00:00Z&x=1",
    ] {
        let refused = bare(gateway, "GET", &format!("/v1/usage?from=2026-11-22T00:00:00Z&{query}")).await;
        assert_eq!(refused.problem(), (400, "invalid_query".to_owned(), false), "{query}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn reports_leave_connections_to_other_requests() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    let pool = fixture.database.pool().await.unwrap();
    let mut lock = pool.begin().await.unwrap();
    sqlx::raw_sql("LOCK TABLE usage").execute(&mut *lock).await.unwrap();
    let path = "/v1/usage?from=2026-11-22T00:00:00Z&to=2026-11-24T00:00:00Z";
    // More reports than there are database connections.
    let reports = join_all((0..12).map(|_| bare(gateway, "GET", path)));
    let other = async {
        tokio::time::sleep(Duration::from_millis(500)).await;
        let began = Instant::now();
        let answered = bare(gateway, "GET", "/v1/agents").await;
        (answered.status, began.elapsed())
    };
    let (reports, (status, time)) = tokio::join!(reports, other);
    assert_eq!(status, 200);
    assert!(time < Duration::from_secs(1), "{time:?}");
    let busy = ("database_busy".to_owned(), true);
    let refused = reports.iter().filter(|report| {
        let (status, code, is_retryable) = report.problem();
        status == 503 && (code, is_retryable) == busy
    });
    assert!(refused.count() >= 6);
    lock.rollback().await.unwrap();
    assert_eq!(bare(gateway, "GET", path).await.status, 200);
}

#[tokio::test(flavor = "multi_thread")]
async fn calls_in_sums_of_days_have_no_thread_and_the_same_totals() {
    let fixture = Fixture::with(gateway::GatewayLimits::default(), 1).await;
    let gateway = fixture.gateways[0];
    fixture
        .write(
            "INSERT INTO usage (created_at, bucket, thread_id, message_id, call, agent_id, kind, model, input_tokens, output_tokens,
                                cached_tokens, is_partial, is_estimated)
             VALUES ('2020-02-28T23:59:59Z', $bucket(t1), 't1', 'a', 0, 'ann', 'turn', 'm', 7, 3, 5, false, false),
                    ('2020-02-28T10:00Z', $bucket(t2), 't2', 'b', 0, 'ann', 'turn', 'm', 10, 20, NULL, true, true),
                    (now(), $bucket(t2), 't2', 'c', 0, 'ann', 'turn', 'm', 1, 2, NULL, false, false)",
        )
        .await;
    let get = async |query: &str| {
        let path = format!("/v1/usage?from=2020-02-28T00:00:00Z&to=2100-01-01T00:00:00Z&{query}");
        (
            http::get_json(gateway, &path).await.unwrap(),
            bare(gateway, "GET", &format!("{path}&format=csv")).await.text,
        )
    };
    let (all, lines) = get("group_by=agent,model,kind").await;
    assert_eq!((&all["details_from"], &all["usage"][0]["calls"]), (&json!(null), &json!(3)));
    assert_eq!(
        fixture
            .store
            .clean_up(CleanupKind::ModelCalls, CleanupLimit::Age(Duration::from_secs(86_400)), 10)
            .await
            .unwrap(),
        2
    );
    let (after, lines_after) = get("group_by=agent,model,kind").await;
    assert_eq!((&after["details_from"], &after["usage"]), (&json!("2020-02-29"), &all["usage"]));
    let last = lines.rfind(",\r\n").unwrap();
    assert_eq!(
        lines_after,
        format!("{},\"2020-02-29\"\r\n", &lines[..last]),
        "the last column alone is another"
    );
    let (by_thread, _) = get("group_by=thread").await;
    let threads: Vec<_> =
        by_thread["usage"].as_array().unwrap().iter().map(|of| (&of["thread_id"], &of["calls"])).collect();
    assert_eq!(threads, [(&json!("t2"), &json!(1)), (&json!(null), &json!(2))]);
}
