//! Clients that are generated from the description of the API, in TypeScript and in Python: they
//! compile, and send every field of every request to a real gateway, which takes them.

mod requests;

use std::{fmt::Write as _, fs, path::Path, process::Stdio, time::Duration};

use devservices::{npm, pip, workspace};
use serde_json::{Map, Value, json};
use testkit::http;
use tokio::{process::Command, time::timeout};

use crate::{api_client::scripted, fixture::Fixture, timers::in_seconds};
use requests::{Call, Description};

/// Limit of one program: a compiler may take minutes on a busy machine.
const LIMIT: Duration = Duration::from_secs(240);

/// Refusals of a whole request, although each of its fields is known: operation, and what it says.
const REFUSED: &[(&str, &str)] =
    // Only a failed turn is tried again.
    &[("postChat", "an answer that is in the history stays there")];

/// Runs a program to its end and returns its output.
async fn run(command: &mut Command) -> String {
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
    let output = timeout(LIMIT, command.output()).await.expect("the program does not end").unwrap();
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    let (said, errors) = (text(&output.stdout), text(&output.stderr));
    assert!(output.status.success(), "{command:?}: {}\n{said}\n{errors}", output.status);
    said
}

/// A fleet with a thread `hello`, the description of its API, and calls of all operations.
async fn described(folder: &Path) -> (Fixture, Vec<Call>) {
    fs::create_dir_all(folder).unwrap();
    let prices = folder.join("prices.json");
    let table = json!({"currency": "USD", "prices": [{"model": "m-1", "input": 1, "output": 2}]});
    fs::write(&prices, table.to_string()).unwrap();
    let fixture =
        Fixture::with(|options| scripted(options).with_env("ANTIPHON_PRICES_FILE", prices.display())).await;
    fixture.settle("ann", json!({"client_instructions": "append"})).await;
    fixture.api().say("hello", "hello").await.unwrap();
    fixture.until_messages("hello", 2).await;
    let api = http::get_json(fixture.api().0, "/openapi.json").await.unwrap();
    fs::write(folder.join("openapi.json"), api.to_string()).unwrap();
    let soon = in_seconds(&fixture, 86_400.0).await;
    let calls = Description { api: &api, soon: &soon }.calls();
    (fixture, calls)
}

/// Compares the answers with the description: each success is one of it, and no field is refused.
/// The tests of the description itself hold which refusals an operation gives.
fn check(calls: &[Call], answers: &str) {
    let answers: Vec<Value> =
        serde_json::from_str(answers).unwrap_or_else(|error| panic!("{error}: {answers}"));
    assert_eq!(answers.len(), calls.len());
    let mut faults = String::new();
    for (call, answer) in calls.iter().zip(&answers) {
        assert_eq!(answer["operation"], json!(call.operation));
        let (status, text) = (answer["status"].as_u64().unwrap(), answer["text"].as_str().unwrap());
        let is_known = REFUSED.iter().any(|(of, why)| *of == call.operation && text.contains(why));
        let is_described = status >= 400 || call.statuses.contains(&status);
        if !is_described || (matches!(status, 400 | 422 | 500..) && !is_known) {
            let body = call.body.as_ref().map(Value::to_string).unwrap_or_default();
            writeln!(faults, "{} {} {}: {status} {text}\n  {body}", call.operation, call.method, call.path)
                .unwrap();
        }
    }
    assert!(faults.is_empty(), "{faults}");
    let accepted = |answer: &&Value| answer["status"].as_u64().is_some_and(|status| status < 300);
    let count = answers.iter().filter(accepted).count();
    println!("{} calls, {count} accepted", answers.len());
    assert!(count * 2 > answers.len(), "{count} of {} calls were accepted", answers.len());
}

/// The calls as TypeScript with literal values, which the compiler compares with the schemas.
fn typescript(calls: &[Call]) -> String {
    let mut source =
        "import type { Client } from \"openapi-fetch\";\n\nimport type { paths } from \"./schema.js\";\n\n\
        type Call = (client: Client<paths>) => Promise<{ response: Response; error?: unknown }>;\n\n\
        export const calls: [string, Call][] = [\n"
            .to_owned();
    for Call { operation, method, path, of_path, of_query, body, lines, .. } in calls {
        let mut params = json!({});
        for (place, parameters) in [("path", of_path), ("query", of_query)] {
            if !parameters.is_empty() {
                params[place] = Value::Object(parameters.clone());
            }
        }
        let mut body = body.as_ref().map(|body| format!("body: {body}, ")).unwrap_or_default();
        if let Some((kind, text)) = lines {
            let headers = json!({"content-type": kind});
            write!(body, "body: {text:?}, bodySerializer: (body) => body, headers: {headers}, ").unwrap();
        }
        let options = format!("{{ params: {params}, {body}parseAs: \"stream\" }}");
        writeln!(source, "  [{operation:?}, (client) => client.{method}({path:?}, {options})],").unwrap();
    }
    source + "];\n"
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_typescript_compiles_and_sends_every_field() {
    let source = workspace::root().join("crates/e2e/tests/generated_clients/typescript");
    let folder = workspace::target_dir().join("clients/generated-typescript");
    npm::install(&source, &folder).unwrap();
    let (fixture, calls) = described(&folder).await;
    fs::write(folder.join("calls.ts"), typescript(&calls)).unwrap();
    let node = |program: &str, arguments: &[&str]| {
        let mut command = Command::new("node");
        command.arg(program).args(arguments).current_dir(&folder);
        command
    };
    let generate = ["openapi.json", "--output", "schema.ts"];
    run(&mut node("node_modules/openapi-typescript/bin/cli.js", &generate)).await;
    run(&mut node("node_modules/typescript/bin/tsc", &["--project", "."])).await;
    check(&calls, &run(&mut node("dist/run.js", &[&format!("http://{}", fixture.api().0)])).await);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_in_python_compiles_and_sends_every_field() {
    let source = workspace::root().join("crates/e2e/tests/generated_clients/python");
    let folder = workspace::target_dir().join("clients/generated-python");
    let packages = pip::install(&source.join("requirements.txt"), &folder).unwrap();
    let (fixture, calls) = described(&folder).await;
    // Its calls end with the answer, and these do not end.
    let calls: Vec<Call> = calls.into_iter().filter(|call| !call.is_endless).collect();
    fs::write(folder.join("calls.json"), python(&calls).to_string()).unwrap();
    let python = |arguments: &[&str]| {
        let mut command = Command::new("python3");
        command.args(arguments).current_dir(&folder).env("PYTHONPATH", path(&[&packages, &folder]));
        command
    };
    let config = source.join("config.yaml").display().to_string();
    let generate = ["-m", "openapi_python_client", "generate", "--overwrite", "--meta", "none"];
    let places = ["--path", "openapi.json", "--output-path", "antiphon_client", "--config", &config];
    let said = run(&mut python(&[&generate[..], &places].concat())).await;
    // Streams are read with a library for events, and not with this client.
    let warnings = said.lines().filter(|line| line.contains("WARNING") || line.contains("Cannot parse"));
    let others: Vec<_> =
        warnings.filter(|line| !line.contains("WARNING") && !line.contains("text/event-stream")).collect();
    assert!(others.is_empty(), "the generator left something out: {others:?}\n{said}");
    run(&mut python(&["-m", "mypy", "antiphon_client"])).await;
    let program = source.join("run.py").display().to_string();
    let url = format!("http://{}", fixture.api().0);
    check(&calls, &run(&mut python(&[&program, &url, "calls.json"])).await);
}

fn python(calls: &[Call]) -> Value {
    let call = |call: &Call| {
        let parameters = call.of_path.iter().chain(&call.of_query);
        let parameters: Map<_, _> = parameters.map(|(name, value)| (name.clone(), value.clone())).collect();
        let mut written = json!({"operation": call.operation, "tag": call.tag, "parameters": parameters});
        if let Some(body) = &call.body {
            written["body"] = body.clone();
        }
        if let Some((_, text)) = &call.lines {
            written["lines"] = json!(text);
        }
        written
    };
    calls.iter().map(call).collect()
}

fn path(folders: &[&Path]) -> String {
    folders.iter().map(|folder| folder.display().to_string()).collect::<Vec<_>>().join(":")
}
