//! Pods restart if a secret that they read has changed; other pods do not.

use std::net::SocketAddr;

use chaos::manifests::as_json;
use serde_json::json;

use super::{PODS, api_server, find, pod};
use crate::deployment::{deploy, render, said};

const CHECKSUM: &str = "/metadata/annotations/checksum~1secrets";
/// Names of NATS users and a secret of one role, in addition to the database.
const VALUES: &str = "nats.url=,nats.usersSecret=users,gateway.envFrom[0].secretRef.name=issuer,\
    worker.extraVolumes[0].name=ca,worker.extraVolumes[0].secret.secretName=authority,test.podLabels.a=b";

/// The checksums of the pods, by block of values.
async fn checksums(
    server: Option<SocketAddr>,
    more: &'static [&'static str],
) -> Vec<(&'static str, Option<String>)> {
    let rendered = tokio::task::spawn_blocking(move || {
        let address = server.map(|server| format!("http://{server}"));
        let mut arguments = vec!["--set", VALUES];
        if let Some(address) = &address {
            arguments.extend([
                "--dry-run=server",
                "--disable-openapi-validation",
                "--kube-apiserver",
                address,
            ]);
        }
        arguments.extend(more);
        let output = render(&deploy().join("chart/values/minimal.yaml"), &arguments);
        assert!(output.status.success(), "{}", said(&output));
        as_json(&String::from_utf8(output.stdout).unwrap()).unwrap()
    });
    let documents = rendered.await.unwrap();
    let roles = PODS.into_iter().filter(|(_, _, role)| !["mcp", "workflow"].contains(role));
    let checksum = |(kind, name, role)| {
        (
            role,
            pod(find(&documents, kind, name)).pointer(CHECKSUM).map(|text| text.as_str().unwrap().to_owned()),
        )
    };
    roles.map(checksum).collect()
}

/// The secrets of a fleet, with one of them changed.
async fn fleet(changed: &str) -> SocketAddr {
    let text = |name: &str| if name == changed { "after" } else { "before" };
    let users = [("worker", text("worker")), ("gateway", text("gateway")), ("operator", text("operator"))];
    api_server::start(&[
        ("antiphon-postgres", &[("DATABASE_URL", text("database"))]),
        ("users", &users),
        ("issuer", &[("ANTIPHON_JWT_ISSUER", text("issuer"))]),
        ("authority", &[("ca.crt", text("authority"))]),
        ("of-another", &[("password", text("another"))]),
    ])
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn pods_restart_when_a_secret_that_they_read_has_changed() {
    let before = checksums(Some(fleet("nothing").await), &[]).await;
    assert!(before.iter().all(|(role, sum)| sum.is_some() == (*role != "test")), "{before:?}");
    for (changed, restarted) in [
        ("nothing", &[][..]),
        ("database", &["worker", "gateway", "migration"]),
        ("worker", &["worker"]),
        ("gateway", &["gateway"]),
        ("operator", &["migration"]),
        ("issuer", &["gateway"]),
        ("authority", &["worker"]),
        ("another", &[]),
    ] {
        let after = checksums(Some(fleet(changed).await), &[]).await;
        let differ = before.iter().zip(&after).filter(|(before, after)| before != after);
        assert_eq!(differ.map(|((role, _), _)| *role).collect::<Vec<_>>(), restarted, "{changed}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_are_not_asked_for_where_that_is_not_allowed() {
    let off = checksums(Some(fleet("nothing").await), &["--set", "restartOnSecretChange=false"]).await;
    assert!(off.iter().all(|(_, sum)| sum.is_none()), "{off:?}");
    let without_cluster = checksums(None, &[]).await;
    assert!(without_cluster.iter().all(|(_, sum)| sum.is_none()), "{without_cluster:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn secrets_of_extra_objects_count_without_a_cluster() {
    let sums = |set: &'static [&'static str]| checksums(None, set);
    let before = sums(&["--set-json", r#"extraObjects=[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"issuer"},"stringData":{"a":"1"}}]"#]).await;
    let after = sums(&["--set-json", r#"extraObjects=[{"apiVersion":"v1","kind":"Secret","metadata":{"name":"issuer"},"stringData":{"a":"2"}}]"#]).await;
    let roles = |sums: &[(&'static str, Option<String>)]| {
        sums.iter().filter(|(_, sum)| sum.is_some()).map(|(role, _)| json!(role)).collect::<Vec<_>>()
    };
    assert_eq!((roles(&before), roles(&after)), (vec![json!("gateway")], vec![json!("gateway")]));
    assert_ne!(before, after);
}
