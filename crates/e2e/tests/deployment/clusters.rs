//! The chart in common kinds of clusters: OpenShift, meshes, clouds, tainted pools. The sets of
//! values are in deploy/chart/clusters.

mod api_server;
mod secrets;
mod wrong_values;

use std::{fs, path::PathBuf, thread};

use chaos::manifests::as_json;
use serde_json::{Value, json};

use super::{deploy, render, said};

/// The objects with pods, each with its block of values.
const PODS: [(&str, &str, &str); 6] = [
    ("Deployment", "antiphon-worker", "worker"),
    ("Deployment", "antiphon-gateway", "gateway"),
    ("Deployment", "antiphon-workflow", "workflow"),
    ("Deployment", "antiphon-mcp", "mcp"),
    ("Job", "antiphon-migrate", "migration"),
    ("Pod", "antiphon-test", "test"),
];
/// Values that enable all roles.
const ALL: &str =
    "mcp.enabled=true,workflow.enabled=true,workflow.llm.model=m,workflow.llm.baseUrl=http://x/v1";

/// Sets of values for clusters, by name.
pub(super) fn cluster_sets() -> Vec<(String, PathBuf)> {
    let folder = fs::read_dir(deploy().join("chart/clusters")).unwrap();
    let name = |path: &PathBuf| path.file_stem().unwrap().to_string_lossy().into_owned();
    let mut sets: Vec<_> =
        folder.map(|entry| entry.unwrap().path()).map(|path| (name(&path), path)).collect();
    sets.sort();
    sets
}

/// The rendered sets of clusters, by name.
pub(super) fn rendered_clusters() -> Vec<(String, String)> {
    let render_one = |(name, path): (String, PathBuf)| {
        let output = render(&path, &[]);
        assert!(output.status.success(), "{name}: {}", said(&output));
        (name, String::from_utf8(output.stdout).unwrap())
    };
    // Each rendering takes a third of a second.
    let renders: Vec<_> =
        cluster_sets().into_iter().map(|set| thread::spawn(move || render_one(set))).collect();
    renders.into_iter().map(|render| render.join().unwrap()).collect()
}

/// The documents of the smallest set of values with these arguments.
fn documents(more: &[&str]) -> Vec<Value> {
    let output = render(&deploy().join("chart/values/minimal.yaml"), more);
    assert!(output.status.success(), "{more:?}: {}", said(&output));
    as_json(&String::from_utf8(output.stdout).unwrap()).unwrap()
}

fn find<'a>(documents: &'a [Value], kind: &str, name: &str) -> &'a Value {
    let is_it = |document: &&Value| document["kind"] == kind && document["metadata"]["name"] == name;
    documents.iter().find(is_it).unwrap_or_else(|| panic!("no {kind} {name}"))
}

/// The pod of a Deployment or a Job, or the Pod itself.
fn pod(document: &Value) -> &Value {
    if document["kind"] == "Pod" { document } else { &document["spec"]["template"] }
}

/// The expected results of the sets of clusters.
const EXPECTED: &str = include_str!("clusters/expected.txt");

#[test]
fn clusters_get_what_their_values_say() {
    let rendered = rendered_clusters();
    assert!(rendered.len() >= 20, "{}", rendered.len());
    let text: String = rendered.iter().map(|(_, text)| format!("{text}\n---\n")).collect();
    let documents = as_json(&text).unwrap();
    // Each set begins with a document of the chart. All are converted in one go, because a
    // conversion takes as long as a rendering.
    let mut documents = documents.into_iter().filter(|document| document["kind"].is_string());
    let counts = rendered.iter().map(|(name, text)| (name, text.matches("\n# Source: ").count()));
    let sets: Vec<(&String, Vec<Value>)> =
        counts.map(|(name, count)| (name, documents.by_ref().take(count).collect())).collect();
    assert_eq!(documents.next(), None);
    for (name, _) in &rendered {
        assert!(EXPECTED.contains(&format!("\n{name} | ")), "nothing is expected of {name}");
    }
    let mut wrong = Vec::new();
    for line in EXPECTED.lines().filter(|line| !line.starts_with('#')) {
        let [set, object, pointer, expected] = line.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("four parts: {line}")
        };
        let (_, documents) = sets.iter().find(|(name, _)| *name == set).unwrap_or_else(|| panic!("no {set}"));
        let (kind, name) = object.split_once(' ').unwrap();
        let expected: Value = serde_json::from_str(expected).unwrap();
        let found = find(documents, kind, name).pointer(pointer);
        if found != Some(&expected) {
            wrong.push(format!("{set}: {object} {pointer}: {found:?}, not {expected}"));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

/// A field of values, its value for all pods, its value for one role, its path in a pod, and the
/// expected value for that role.
fn fields() -> Vec<(&'static str, Value, Value, &'static str, Value)> {
    let (all_toleration, own_toleration) =
        (json!({"key": "all", "operator": "Exists"}), json!({"key": "own", "operator": "Exists"}));
    let term = |key: &str| json!({"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [{"topologyKey": key}]}});
    let spread =
        |key: &str| json!([{"maxSkew": 1, "topologyKey": key, "whenUnsatisfiable": "DoNotSchedule"}]);
    let dns = |name: &str| json!({"searches": [name]});
    let host = |name: &str| json!({"ip": "10.0.0.1", "hostnames": [name]});
    vec![
        ("podAnnotations", json!({"a": "1"}), json!({"a": "2"}), "/metadata/annotations/a", json!("2")),
        ("podLabels", json!({"a": "1"}), json!({"a": "2"}), "/metadata/labels/a", json!("2")),
        (
            "nodeSelector",
            json!({"a": "1"}),
            json!({"b": "2"}),
            "/spec/nodeSelector",
            json!({"a": "1", "b": "2"}),
        ),
        (
            "tolerations",
            json!([all_toleration]),
            json!([own_toleration]),
            "/spec/tolerations",
            json!([all_toleration, own_toleration]),
        ),
        ("affinity", term("zone"), term("host"), "/spec/affinity", term("host")),
        (
            "topologySpreadConstraints",
            spread("zone"),
            spread("host"),
            "/spec/topologySpreadConstraints",
            spread("host"),
        ),
        ("priorityClassName", json!("low"), json!("high"), "/spec/priorityClassName", json!("high")),
        ("runtimeClassName", json!("runc"), json!("kata"), "/spec/runtimeClassName", json!("kata")),
        ("schedulerName", json!("one"), json!("two"), "/spec/schedulerName", json!("two")),
        (
            "hostAliases",
            json!([host("a")]),
            json!([host("b")]),
            "/spec/hostAliases",
            json!([host("a"), host("b")]),
        ),
        ("dnsPolicy", json!("Default"), json!("ClusterFirst"), "/spec/dnsPolicy", json!("ClusterFirst")),
        ("dnsConfig", dns("a"), dns("b"), "/spec/dnsConfig", dns("b")),
        (
            "automountServiceAccountToken",
            json!(true),
            json!(false),
            "/spec/automountServiceAccountToken",
            json!(false),
        ),
        (
            "podSecurityContext",
            json!({"runAsUser": 7, "fsGroup": null}),
            json!({"runAsUser": 8, "runAsGroup": null}),
            "/spec/securityContext",
            json!({"runAsNonRoot": true, "runAsUser": 8, "seccompProfile": {"type": "RuntimeDefault"}}),
        ),
        (
            "securityContext",
            json!({"runAsUser": 7, "readOnlyRootFilesystem": null}),
            json!({"runAsUser": 8}),
            "/spec/containers/0/securityContext",
            json!({"allowPrivilegeEscalation": false, "capabilities": {"drop": ["ALL"]}, "runAsUser": 8}),
        ),
    ]
}

#[test]
fn every_pod_and_hook_takes_what_is_set_for_all_and_for_itself() {
    let fields = fields();
    let mut arguments = vec!["--set".to_owned(), ALL.to_owned()];
    let set = |scope: &str, field: &str, value: &Value| {
        ["--set-json".to_owned(), format!("{scope}{field}={value}")]
    };
    let without = documents(&["--set", ALL]);
    arguments.extend(fields.iter().flat_map(|(field, all, ..)| set("", field, all)));
    let of_all = documents(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    for (_, _, role) in PODS {
        arguments.extend(fields.iter().flat_map(|(field, _, own, ..)| set(&format!("{role}."), field, own)));
    }
    let of_both = documents(&arguments.iter().map(String::as_str).collect::<Vec<_>>());
    let mut wrong = Vec::new();
    for (field, _, _, pointer, expected) in &fields {
        for (kind, name, _) in PODS {
            let [before, all, both] = [&without, &of_all, &of_both]
                .map(|documents| pod(find(documents, kind, name)).pointer(pointer));
            if both != Some(expected) {
                wrong.push(format!("{field} of {name}: {both:?}, not {expected}"));
            }
            if all.is_none() || all == before || all == both {
                wrong.push(format!(
                    "{field} of {name}: {before:?}, for all {all:?}, for the role too {both:?}"
                ));
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn sidecars_and_volumes_reach_deployments_and_the_migration() {
    let container = |name: &str| json!([{"name": name, "image": "busybox"}]);
    let set = |scope: &str, field: &str, value: Value| format!("{scope}{field}={value}");
    let arguments = [
        set("", "initContainers", container("init-all")),
        set("", "extraContainers", container("sidecar-all")),
        set("", "extraVolumes", json!([{"name": "all", "emptyDir": {}}])),
        set("", "extraVolumeMounts", json!([{"name": "all", "mountPath": "/all"}])),
        set("", "envFrom", json!([{"secretRef": {"name": "all"}}])),
        set("migration.", "extraContainers", container("sidecar-own")),
        set("test.", "initContainers", container("init-own")),
        set("migration.", "env", json!({"RUST_BACKTRACE": 1})),
    ];
    let mut more = vec!["--set", ALL];
    more.extend(arguments.iter().flat_map(|argument| ["--set-json", argument.as_str()]));
    let documents = documents(&more);
    let names = |pod: &Value, list: &str| {
        let all = pod["spec"][list].as_array().into_iter().flatten();
        all.map(|one| one["name"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    for (kind, name, role) in PODS {
        let pod = pod(find(&documents, kind, name));
        let main = &pod["spec"]["containers"][0];
        let (containers, inits) = (names(pod, "containers"), names(pod, "initContainers"));
        match role {
            "test" => {
                assert_eq!((containers.len(), inits.as_slice()), (1, ["init-own".to_owned()].as_slice()));
                assert!(main["volumeMounts"].is_null() && main["envFrom"].is_null(), "{main}");
                continue;
            }
            // A Job would wait for the end of a sidecar.
            "migration" => {
                assert_eq!(containers, ["migrate", "sidecar-own"]);
                assert!(
                    main["env"]
                        .as_array()
                        .unwrap()
                        .contains(&json!({"name": "RUST_BACKTRACE", "value": "1"}))
                );
            }
            _ => assert_eq!(containers, [role, "sidecar-all"]),
        }
        assert_eq!(inits, ["init-all"], "{name}");
        assert_eq!(main["volumeMounts"], json!([{"name": "all", "mountPath": "/all"}]), "{name}");
        assert_eq!(names(pod, "volumes"), ["all"], "{name}");
        assert_eq!(main["envFrom"], json!([{"secretRef": {"name": "all"}}]), "{name}");
    }
}

#[test]
fn openshift_is_found_by_its_api() {
    let user = |more: &[&str]| {
        pod(find(&documents(more), "Job", "antiphon-migrate"))["spec"]["securityContext"]["runAsUser"].clone()
    };
    let api = ["--api-versions", "security.openshift.io/v1"];
    assert_eq!(user(&[]), json!(65532));
    assert_eq!(user(&api), Value::Null);
    assert_eq!(user(&[api.as_slice(), &["--set", "openshift=false"]].concat()), json!(65532));
    assert_eq!(
        user(&[api.as_slice(), &["--set", "podSecurityContext.runAsUser=1000"]].concat()),
        json!(1000)
    );
}

#[test]
fn certificates_of_clients_are_where_variables_name_them() {
    let set = "nats.clientCertificate.existingSecret=n,database.clientCertificate.existingSecret=p,\
               nats.ca.existingSecret=nc,database.ca.existingSecret=pc,nats.url=tls://nats";
    let documents = documents(&["--set", ALL, "--set", set]);
    let files = ["ANTIPHON_NATS_CA", "ANTIPHON_NATS_CERTIFICATE", "ANTIPHON_NATS_CERTIFICATE_KEY"];
    let postgres = ["PGSSLROOTCERT", "PGSSLCERT", "PGSSLKEY"];
    for (kind, name, role) in PODS.into_iter().filter(|(_, _, role)| *role != "test") {
        let pod = pod(find(&documents, kind, name));
        let container = &pod["spec"]["containers"][0];
        let mounts = container["volumeMounts"].as_array().unwrap();
        let value = |variable: &str| {
            let all = container["env"].as_array().unwrap();
            let found = all.iter().find(|one| one["name"] == variable);
            found.and_then(|one| one["value"].as_str())
        };
        for (variables, is_used) in [(files, role != "mcp"), (postgres, role != "workflow")] {
            for variable in variables {
                let mounted = value(variable).map(|path| {
                    mounts
                        .iter()
                        .any(|mount| path.starts_with(&format!("{}/", mount["mountPath"].as_str().unwrap())))
                });
                assert_eq!(mounted, is_used.then_some(true), "{name} {variable}");
            }
        }
        assert_eq!(value("PGSSLMODE"), (role != "workflow").then_some("verify-full"), "{name}");
    }
}
