//! `antiphon doctor`: what prevents a fleet from working, and what to do.

use std::time::Duration;

use serde_json::Value;
use testkit::fleet;

use crate::{
    api_client::SOON,
    fixture::{self, Fixture},
};

impl Fixture {
    /// The exit code, and state, subject and detail of each finding.
    pub(crate) async fn diagnosed(&self, env: &[(&str, &str)]) -> (Option<i32>, Vec<String>) {
        let more = env.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
        let env: Vec<_> = self.command_env().into_iter().chain(more).collect();
        let said = fleet::invoke(&["doctor", "-o", "json"], &env).await.unwrap();
        let report: Value =
            serde_json::from_str(&said.stdout).unwrap_or_else(|error| panic!("{error}: {}", said.stderr));
        let line = |finding: &Value| {
            ["state", "what", "detail"].map(|field| finding[field].as_str().unwrap().to_owned()).join(" ")
        };
        (said.code, report["findings"].as_array().unwrap().iter().map(line).collect())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_that_works_has_no_problem() {
    let fixture = Fixture::new().await;
    let workflow = fixture.manual_workflow().await;
    fixture.api().send_task("ann", "k", "work").await.unwrap();
    let asked = workflow.next(SOON).await.unwrap();
    let (code, mut findings) = fixture.diagnosed(&[]).await;
    let id: String = sqlx::query_scalar("SELECT installation_id FROM installation")
        .fetch_one(&fixture.pool)
        .await
        .unwrap();
    assert_eq!(findings.remove(1), format!("ok installation {id}"));
    let expected = [
        "ok workers 8 partitions, 2 workers",
        "ok streams 11 as they are to be",
        "ok workflow default: 0 requests wait, 1 are being answered",
    ];
    assert_eq!((code, findings), (Some(0), expected.map(str::to_owned).to_vec()));
    asked.answer("done").await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_fleet_from_working_is_named() {
    let mut fixture = Fixture::new().await;
    fixture.api().put_agent("ann", "nowhere", serde_json::json!({})).await.unwrap();
    fixture.api().send_task("ann", "k", "work").await.unwrap();
    fixture.send_entry("bob", b"no task".to_vec()).await;
    let dead = async || fixture.letters("").await["dead_letters"].as_array().unwrap().len() == 1;
    fixture.until("the entry is a dead letter", SOON, dead).await;
    let request = async || fixture.diagnosed(&[]).await.1.iter().any(|line| line.contains("nowhere"));
    fixture.until("the request is stored", SOON, request).await;
    for worker in &mut fixture.fleet.workers {
        worker.kill().await.unwrap();
    }
    tokio::time::sleep(fixture::LEASE + Duration::from_secs(1)).await;
    let (code, mut findings) = fixture.diagnosed(&[]).await;
    findings.retain(|line| !line.starts_with("ok installation"));
    assert_eq!(code, Some(1));
    let reason = fixture.letters("").await["dead_letters"][0]["reason"].as_str().unwrap().to_owned();
    let expected = [
        "problem workers no worker owns any of 8 partitions: nothing is answered".to_owned(),
        "problem workflow nowhere: 1 requests wait, and no service of it has ever run".to_owned(),
        format!("warning dead letters 1 of reason {reason} within a day"),
        "ok streams 11 as they are to be".to_owned(),
        "ok workflow default: 0 requests wait, 0 are being answered".to_owned(),
    ];
    assert_eq!(findings, expected);

    // Unreachable servers are reported first, and the findings of the other server are still
    // reported.
    let (code, findings) = fixture.diagnosed(&[("NATS_URL", "nats://127.0.0.1:9")]).await;
    assert_eq!((code, findings.len()), (Some(1), 3), "{findings:?}");
    assert!(findings[0].starts_with("problem nats no answer within"), "{findings:?}");
    let away = "postgres://postgres@127.0.0.1:9/x?sslmode=disable";
    let (code, findings) = fixture.diagnosed(&[("DATABASE_URL", away)]).await;
    assert_eq!(code, Some(1), "{findings:?}");
    assert!(findings[0].starts_with("problem postgres "), "{findings:?}");
    assert!(findings.contains(&"ok streams 3 as they are to be".to_owned()), "{findings:?}");

    let stream = wire::subject::stream_name(model::PartitionId(3));
    let context = async_nats::jetstream::new(async_nats::connect(fixture.nats.url()).await.unwrap());
    context.delete_stream(stream.clone()).await.unwrap();
    let (_, findings) = fixture.diagnosed(&[]).await;
    assert!(findings.contains(&format!("problem stream {stream} is not there")), "{findings:?}");

    // Of many incidents the newest are shown, and that there are more.
    for (stream, count) in [("one", 20), ("two", 1)] {
        sqlx::query(
            "INSERT INTO incidents (partition_id, incarnation, first_seq, kind, detail)
             SELECT 0, $1, n, 'entries_gone', 'gone' FROM generate_series(1, $2) AS n",
        )
        .bind(stream)
        .bind(count)
        .execute(&fixture.pool)
        .await
        .unwrap();
        let (_, mut findings) = fixture.diagnosed(&[]).await;
        findings.retain(|line| line.starts_with("problem incident"));
        let more = "problem incident there are more than the 20 newest incidents above".to_owned();
        let is_bounded = findings.len() == 20 + usize::from(stream == "two");
        assert!(is_bounded && findings.contains(&more) == (stream == "two"), "{findings:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn mappings_of_another_number_of_partitions_are_named() {
    let nats = testkit::services::NatsServer::start_mapped(fixture::PARTITIONS).await.unwrap();
    let database = testkit::services::TestDatabase::create().await.unwrap();
    let fleet = fleet::Fleet::start(fixture::options(&nats, database.url())).await.unwrap();
    let pool = database.pool().await.unwrap();
    let fixture = Fixture::on(fleet, nats, pool, Some(database)).await;
    let mapping = async || -> Vec<String> {
        let findings = fixture.diagnosed(&[]).await.1;
        findings.into_iter().filter(|line| line.contains("mappings")).collect()
    };
    assert!(mapping().await.is_empty());
    fixture.nats.map_to(4).await.unwrap();
    let expected = "problem mappings the NATS account maps chunks.* to 4 partitions, and the database has 8";
    assert_eq!(mapping().await, [expected]);
    let said = fleet::invoke(&["migrate"], &fixture.command_env()).await.unwrap();
    assert_eq!(said.code, Some(0));
    let warning =
        "the NATS account maps `chunks.*` to 4 partitions: put 8 into all `mappings`, and reload the servers";
    assert!(said.stderr.contains(warning), "{}", said.stderr);
    // The requests of the check are stored in no stream.
    let context = async_nats::jetstream::new(async_nats::connect(fixture.nats.url()).await.unwrap());
    for partition in 0..fixture::PARTITIONS {
        let name = wire::subject::stream_name(model::PartitionId(partition));
        assert_eq!(context.get_stream(name).await.unwrap().cached_info().state.last_sequence, 0);
    }
}

/// Each set-up has one defect: that part is named, and the other part is still examined.
#[tokio::test(flavor = "multi_thread")]
async fn each_part_is_examined_whatever_the_others_say() {
    let fixture = Fixture::new().await;
    let url = fixture.database_url();
    let (_, rest) = url.split_once('@').unwrap();
    let (unknown_role, no_file) = (
        format!("postgres://no_such_role@{rest}"),
        format!("{url}&sslmode=verify-full&sslrootcert=/nowhere/ca.crt"),
    );
    let cases = [
        ("DATABASE_URL", unknown_role.as_str(), "postgres", "no_such_role", "ok streams 3"),
        ("DATABASE_URL", &no_file, "postgres", "/nowhere/ca.crt", "ok streams 3"),
        ("NATS_URL", "http://127.0.0.1:4222", "nats", "NATS_URL", "ok workers 8 partitions"),
        (
            "ANTIPHON_NATS_CREDENTIALS",
            "/nowhere/user.creds",
            "nats",
            "/nowhere/user.creds",
            "ok workers 8 partitions",
        ),
        ("ANTIPHON_NATS_CA", "/etc/hosts", "nats", "/etc/hosts", "ok workers 8 partitions"),
    ];
    for (variable, value, part, named, other) in cases {
        let (code, findings) = fixture.diagnosed(&[(variable, value)]).await;
        assert_eq!(code, Some(1), "{variable}: {findings:?}");
        let of_part = findings.iter().find(|line| line.starts_with(&format!("problem {part} "))).unwrap();
        assert!(of_part.contains(named) && !of_part.contains(" at line "), "{variable}: {of_part}");
        assert!(findings.iter().any(|line| line.starts_with(other)), "{variable}: {findings:?}");
    }
}
