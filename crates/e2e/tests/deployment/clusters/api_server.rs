//! The part of a Kubernetes API server that Helm queries when it renders for a cluster: available
//! kinds, and secrets.

use std::{collections::BTreeMap, net::SocketAddr, sync::Arc};

use axum::{Json, Router, extract::State, http::StatusCode, http::Uri};
use base64::{Engine, prelude::BASE64_STANDARD};
use serde_json::{Value, json};
use tokio::net::TcpListener;

/// Groups and their kinds, some of which the smallest set of values renders.
const KINDS: [(&str, &[(&str, &str)]); 5] = [
    (
        "v1",
        &[
            ("secrets", "Secret"),
            ("configmaps", "ConfigMap"),
            ("services", "Service"),
            ("serviceaccounts", "ServiceAccount"),
            ("pods", "Pod"),
        ],
    ),
    ("apps/v1", &[("deployments", "Deployment")]),
    ("batch/v1", &[("jobs", "Job")]),
    ("policy/v1", &[("poddisruptionbudgets", "PodDisruptionBudget")]),
    ("networking.k8s.io/v1", &[("networkpolicies", "NetworkPolicy")]),
];

/// Answers by path; any other path is not found.
type Answers = BTreeMap<String, Value>;

/// A server with these secrets, by name: key and text of each. It answers until the test ends.
pub(super) async fn start(secrets: &[(&str, &[(&str, &str)])]) -> SocketAddr {
    let mut answers = Answers::new();
    answers.insert("/version".to_owned(), json!({"major": "1", "minor": "33", "gitVersion": "v1.33.0"}));
    answers.insert("/api".to_owned(), json!({"kind": "APIVersions", "versions": ["v1"]}));
    let groups = KINDS.iter().filter_map(|(version, _)| Some((version.split_once('/')?.0, version)));
    let groups = groups.map(
        |(name, version)| json!({"name": name, "versions": [{"groupVersion": version, "version": "v1"}]}),
    );
    answers.insert(
        "/apis".to_owned(),
        json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": groups.collect::<Vec<_>>()}),
    );
    for (version, kinds) in KINDS {
        let resources = kinds.iter().map(|(name, kind)| {
            json!({"name": name, "singularName": "", "namespaced": true, "kind": kind, "verbs": ["get"]})
        });
        let path = if version == "v1" { "/api/v1".to_owned() } else { format!("/apis/{version}") };
        let resources = resources.collect::<Vec<_>>();
        answers.insert(
            path,
            json!({"kind": "APIResourceList", "groupVersion": version, "resources": resources}),
        );
    }
    for (name, data) in secrets {
        let data: BTreeMap<_, _> =
            data.iter().map(|(key, text)| (key, BASE64_STANDARD.encode(text))).collect();
        let secret = json!({"apiVersion": "v1", "kind": "Secret", "metadata": {"name": name}, "data": data});
        answers.insert(format!("/api/v1/namespaces/antiphon/secrets/{name}"), secret);
    }
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let router = Router::new().fallback(answer).with_state(Arc::new(answers));
    tokio::spawn(async move { axum::serve(listener, router).await.unwrap() });
    addr
}

async fn answer(State(answers): State<Arc<Answers>>, uri: Uri) -> (StatusCode, Json<Value>) {
    match answers.get(uri.path()) {
        Some(found) => (StatusCode::OK, Json(found.clone())),
        None => {
            let status = json!({"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "NotFound", "code": 404});
            (StatusCode::NOT_FOUND, Json(status))
        }
    }
}
