//! The effects of values on the chart, beyond the golden manifests.

use std::process::Command;

use devservices::tools;
use testkit::fleet::invoke;

use super::{deploy, read, render, said, value_sets};
use crate::fixture::Fixture;

/// The result of the smallest set of values with these arguments.
fn rendered(more: &[&str]) -> String {
    let output = render(&deploy().join("chart/values/minimal.yaml"), more);
    assert!(output.status.success(), "{more:?}: {}", said(&output));
    String::from_utf8(output.stdout).unwrap()
}

/// The manifest of this kind and name.
fn manifest<'a>(rendered: &'a str, kind: &str, name: &str) -> &'a str {
    let (kind, name) = (format!("\nkind: {kind}\n"), format!("\n  name: {name}\n"));
    let found = rendered.split("\n---\n").find(|text| text.contains(&kind) && text.contains(&name));
    found.unwrap_or_else(|| panic!("no{kind}{name}"))
}

/// The value of this variable in a role's pods, in quotation marks.
fn variable<'a>(rendered: &'a str, role: &str, name: &str) -> Option<&'a str> {
    let deployment = manifest(rendered, "Deployment", &format!("antiphon-{role}"));
    let (_, rest) = deployment.split_once(&format!("- name: {name}\n"))?;
    rest.lines().next()?.trim().strip_prefix("value: ")
}

/// The notes that `helm install` prints at its end.
fn notes() -> String {
    let mut helm = Command::new(tools::helm().unwrap().path);
    helm.args(["install", "antiphon", "--dry-run=client"]).arg(deploy().join("chart/antiphon"));
    helm.arg("--values").arg(deploy().join("chart/values/minimal.yaml"));
    let output = helm.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let text = String::from_utf8(output.stdout).unwrap();
    text.split_once("\nNOTES:\n").expect("no notes").1.to_owned()
}

fn policy<'a>(rendered: &'a str, role: &str) -> &'a str {
    manifest(rendered, "NetworkPolicy", &format!("antiphon-{role}"))
}

#[tokio::test(flavor = "multi_thread")]
async fn first_key_is_made_as_the_notes_say() {
    let notes = notes();
    let (_, command) = notes.split_once(" -- ").expect("no command in a pod");
    let mut words = command.lines().next().unwrap().split_whitespace();
    assert_eq!(words.next(), Some("/antiphon"), "the image has no shell and no PATH");
    let fixture = Fixture::new().await;
    let env = [("DATABASE_URL".to_owned(), fixture.database_url())];
    let made = invoke(&words.collect::<Vec<_>>(), &env).await.unwrap();
    assert_eq!(made.code, Some(0), "{}", made.stderr);
    assert!(made.stdout.starts_with("ant_"), "{}", made.stdout);
}

#[test]
fn env_is_given_as_it_was_written_and_the_role_counts() {
    let all = r#"env={"ANTIPHON_SUBSCRIBER_BUFFER_BYTES":268435456,"ANTIPHON_STREAM_RETAIN_SECONDS":60,"ANTIPHON_JWT_ISSUER":"x"}"#;
    let worker = r#"worker.env={"ANTIPHON_STREAM_RETAIN_SECONDS":0,"ANTIPHON_JWT_ISSUER":""}"#;
    let rendered = rendered(&["--set-json", all, "--set-json", worker]);
    for (role, name, value) in [
        ("gateway", "ANTIPHON_SUBSCRIBER_BUFFER_BYTES", "268435456"),
        ("gateway", "ANTIPHON_STREAM_RETAIN_SECONDS", "60"),
        ("worker", "ANTIPHON_STREAM_RETAIN_SECONDS", "0"),
        ("worker", "ANTIPHON_JWT_ISSUER", ""),
    ] {
        assert_eq!(variable(&rendered, role, name), Some(format!("\"{value}\"").as_str()), "{role} {name}");
    }
}

/// Variables that must be the same in every installation: ports of probes and services, and an
/// engine.
const FIXED: [&str; 4] =
    ["ANTIPHON_METRICS_ADDR", "ANTIPHON_HTTP_ADDR", "ANTIPHON_MCP_ADDR", "ANTIPHON_WORKFLOW_ENGINE"];

#[test]
fn variables_of_the_chart_have_a_value_to_set_them() {
    let (templates, mut count) = (deploy().join("chart/antiphon/templates"), 0);
    let helpers = read(&templates.join("_env.tpl"));
    for template in ["_env.tpl", "gateway.yaml", "worker.yaml", "workflow.yaml", "mcp.yaml"] {
        let text = read(&templates.join(template));
        let names = text.lines().filter_map(|line| line.trim().strip_prefix("- name: "));
        for name in names.filter(|name| name.starts_with(|c: char| c.is_ascii_uppercase())) {
            count += 1;
            assert!(helpers.contains(&format!("  \"{name}\" \"")) != FIXED.contains(&name), "{name}");
        }
    }
    assert!(count > 20, "{count}");
}

#[test]
fn clients_behind_a_proxy_do_not_share_one_bound() {
    let bound = |set: &str| {
        let rendered = rendered(&["--set", set]);
        variable(&rendered, "gateway", "ANTIPHON_MAX_CONNECTIONS_PER_IP").map(str::to_owned)
    };
    let (ingress, route) = (
        "gateway.ingress.enabled=true,gateway.ingress.hosts={a.example}",
        "gateway.httpRoute.enabled=true,gateway.httpRoute.parentRefs[0].name=public",
    );
    assert_eq!(bound("gateway.replicas=2"), None);
    assert_eq!([ingress, route].map(bound), [Some("\"0\"".to_owned()), Some("\"0\"".to_owned())]);
    assert_eq!(bound("gateway.maxConnectionsPerIp=0").as_deref(), Some("\"0\""));
    assert_eq!(bound(&format!("{ingress},gateway.maxConnectionsPerIp=50")).as_deref(), Some("\"50\""));
}

#[test]
fn workflow_pods_may_reach_the_model_and_the_tools() {
    let model = "workflow.enabled=true,workflow.llm.model=m,workflow.llm.baseUrl=";
    let closed = "networkPolicy.httpFrom[0].podSelector.matchLabels.app=web";
    for (url, port) in [("http://vllm.models:8000/v1", 8000), ("http://vllm/v1", 80), ("https://x/v1", 443)] {
        let set = format!("{model}{url},{closed},mcp.enabled=true");
        let rendered = rendered(&["--set", &set]);
        let (workflow, mcp) = (policy(&rendered, "workflow"), policy(&rendered, "mcp"));
        let ports =
            |port: u16| workflow.matches(&format!("- ports: [{{port: {port}, protocol: TCP}}]\n")).count();
        assert_eq!((ports(port), ports(443)), (1, 1), "{url}: {workflow}");
        let (_, egress) = workflow.split_once("\n  egress:\n").unwrap();
        assert!(
            egress.contains("app.kubernetes.io/component: mcp\n      ports: [{port: 8090, protocol: TCP}]")
        );
        let (_, ingress) = mcp.split_once("\n  ingress:\n").unwrap();
        assert!(ingress.contains("app.kubernetes.io/component: workflow\n"), "{ingress}");
    }
    let rendered = rendered(&["--set", &format!("{model}https://x/v1")]);
    assert!(!policy(&rendered, "workflow").contains("8090"), "there is no MCP server");
}

#[test]
fn test_pod_pulls_its_image_and_is_let_in() {
    let closed = "networkPolicy.httpFrom[0].podSelector.matchLabels.app=web";
    let rendered = rendered(&["--set", &format!("{closed},imagePullSecrets[0].name=images")]);
    let pod = manifest(&rendered, "Pod", "antiphon-test");
    assert!(pod.contains("\n  imagePullSecrets:\n    - name: images\n"), "{pod}");
    let label = "app.kubernetes.io/name: antiphon-test";
    assert!(pod.contains(&format!("\n    {label}\n")), "{pod}");
    let gateway = policy(&rendered, "gateway");
    assert!(gateway.contains(&format!("- podSelector: {{matchLabels: {{{label}}}}}\n")), "{gateway}");
}

#[test]
fn pods_of_each_role_get_further_secrets_and_files() {
    let sets = ["worker", "gateway", "workflow", "mcp", "migration"].map(|role| {
        format!(
            "{role}.envFrom[0].secretRef.name=more-of-{role},{role}.extraVolumes[0].name=ca,{role}.extraVolumes[0].secret.secretName=ca,\
             {role}.extraVolumeMounts[0].name=ca,{role}.extraVolumeMounts[0].mountPath=/ca-of-{role}"
        )
    });
    let enabled =
        "mcp.enabled=true,workflow.enabled=true,workflow.llm.model=m,workflow.llm.baseUrl=http://x/v1";
    let rendered = rendered(&["--set", enabled, "--set", &sets.join(",")]);
    for (kind, name, role) in [
        ("Deployment", "antiphon-worker", "worker"),
        ("Deployment", "antiphon-gateway", "gateway"),
        ("Deployment", "antiphon-workflow", "workflow"),
        ("Deployment", "antiphon-mcp", "mcp"),
        ("Job", "antiphon-migrate", "migration"),
    ] {
        let pod = manifest(&rendered, kind, name);
        let names = [format!("more-of-{role}"), format!("/ca-of-{role}"), "secretName: ca".to_owned()];
        assert!(names.iter().all(|name| pod.contains(&format!("{name}\n"))), "{pod}");
    }
}

#[test]
fn pods_that_wait_for_services_are_not_killed() {
    let rendered = rendered(&[]);
    let worker = manifest(&rendered, "Deployment", "antiphon-worker");
    let asked: Vec<_> =
        worker.lines().filter_map(|line| line.trim().strip_prefix("httpGet: {path: ")).collect();
    assert_eq!(
        asked,
        ["/livez, port: metrics}", "/readyz, port: metrics}"],
        "/startupz is not ok while they wait"
    );
}

/// By this label, the manifests are applied without Helm, as the page describes.
#[test]
fn all_but_the_test_pod_have_the_label_of_the_release() {
    for (set, _) in value_sets() {
        let golden = read(&deploy().join("chart/golden").join(set));
        for manifest in golden.split("\n---\n") {
            let is_test = manifest.contains("\nkind: Pod\n");
            let has_label = manifest.contains("\n    app.kubernetes.io/instance: antiphon\n");
            assert!(has_label != is_test, "{manifest}");
        }
    }
}
