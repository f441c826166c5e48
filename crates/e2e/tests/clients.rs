//! The real clients of all protocols on a real fleet, disconnected constantly and in several ways,
//! or behind a slow link. At the end they have exactly what is stored.

use std::{collections::BTreeMap, env, process::Stdio, time::Duration};

use devservices::{npm, workspace};
use serde_json::{Value, json};
use testkit::{db_snapshot::turns::TurnMessage, fleet::FleetOptions};
use tokio::{
    io::{AsyncBufReadExt, AsyncReadExt, BufReader},
    process::{Child, Command},
    time::timeout,
};

use crate::{api_client::scripted, fixture::Fixture};

/// The agent of the threads; its turns with people cause no follow-on tasks.
const AGENT: &str = "talk";
const PROTOCOLS: [&str; 5] = ["native", "ui_message", "agui", "responses", "chat_completions"];
/// The size of the test, from the environment: `cargo xtask reconnect-soak` sets more.
#[derive(Debug, Clone, Copy)]
struct Asked {
    /// Total over all protocols, each of which makes the same share.
    cuts: u64,
    /// Determines where connections are cut; the times depend on the machine.
    seed: u64,
}

impl Asked {
    fn from_environment() -> Self {
        let number = |name| env::var(name).ok().map(|text| text.parse::<u64>().expect(name));
        Self {
            cuts: number("ANTIPHON_SOAK_DISCONNECTS").unwrap_or(1_000),
            seed: number("ANTIPHON_SOAK_SEED").unwrap_or(7),
        }
    }

    /// A limit for clients that are cut about ten times a second, with one complete answer in
    /// between, on a busy machine.
    fn limit(self) -> Duration {
        Duration::from_secs(400) + Duration::from_millis(100) * u32::try_from(self.cuts).unwrap()
    }
}

/// How much longer than the clients' own limit the test waits for them.
const GRACE: Duration = Duration::from_secs(30);

#[tokio::test(flavor = "multi_thread")]
async fn disconnected_clients_have_everything_once() {
    let mut fixture = Fixture::with(two_gateways).await;
    let asked = Asked::from_environment();
    let mut clients = Clients::start(&fixture, asked);
    clients.until_half().await;
    // One gateway is gone permanently, and the only owner restarts: answers in progress continue.
    fixture.fleet.gateways[1].kill().await.unwrap();
    fixture.fleet.workers[0].kill().await.unwrap();
    fixture.fleet.workers[0].spawn().unwrap();
    let report = clients.report().await;
    println!("{}", summary(&report));
    assert!(report["refused"].as_u64().unwrap() > 0, "no client has tried the second gateway");
    for protocol in PROTOCOLS {
        assert!(
            report["cuts"][protocol].as_u64().unwrap() >= asked.cuts / PROTOCOLS.len() as u64,
            "{protocol}: {}",
            report["cuts"]
        );
        assert_eq!(report["mistaken"][protocol], 0, "{protocol} took a part for the whole");
    }
    let faults = compare(&fixture, report["turns"].as_array().unwrap()).await;
    assert!(faults.is_empty(), "{} faults:\n{}", faults.len(), faults.join("\n"));
    stops_are_what_is_stored(&fixture, &report["others"]).await;
    the_rest_is_as_it_should_be(&fixture, &report["others"]).await;
    every_library_shows_why_it_was_refused(&report["others"]["refusals"]);
}

fn two_gateways(options: FleetOptions) -> FleetOptions {
    let mut options = scripted(options);
    options.gateways = 2;
    options
}

/// The program that runs the clients.
struct Clients {
    node: Child,
    lines: BufReader<tokio::process::ChildStdout>,
    limit: Duration,
}

impl Clients {
    fn start(fixture: &Fixture, asked: Asked) -> Self {
        let source = workspace::root().join("crates/protocols/tests/clients");
        // The folder differs from that of the tests of `protocols`, which may run at the same time.
        let installed = workspace::target_dir().join("clients/fleet");
        npm::install(&source, &installed).unwrap();
        let gateways: Vec<_> =
            fixture.fleet.gateway_addrs().iter().map(|addr| format!("http://{addr}")).collect();
        let Asked { cuts, seed } = asked;
        let limit_ms = u64::try_from(asked.limit().as_millis()).unwrap();
        let report =
            json!({"gateways": gateways, "cuts": cuts, "seed": seed, "agent": AGENT, "limit_ms": limit_ms});
        let mut node = Command::new("node");
        node.arg("fleet.mjs").arg(report.to_string()).current_dir(installed);
        node.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        let mut node = node.spawn().unwrap();
        let lines = BufReader::new(node.stdout.take().unwrap());
        Self { node, lines, limit: asked.limit() + GRACE }
    }

    async fn until_half(&mut self) {
        let mut line = String::new();
        timeout(self.limit, self.lines.read_line(&mut line)).await.unwrap().unwrap();
        if line != "half\n" {
            self.panic_with_errors().await;
        }
    }

    async fn report(mut self) -> Value {
        let mut report = String::new();
        timeout(self.limit, self.lines.read_to_string(&mut report)).await.unwrap().unwrap();
        match serde_json::from_str(&report) {
            Ok(report) => report,
            Err(_) => self.panic_with_errors().await,
        }
    }

    async fn panic_with_errors(&mut self) -> ! {
        let mut errors = String::new();
        self.node.stderr.take().unwrap().read_to_string(&mut errors).await.unwrap();
        panic!("the clients gave up: {errors}");
    }
}

fn summary(report: &Value) -> Value {
    let mut report = report.clone();
    report["turns"] = report["turns"].as_array().map(Vec::len).into();
    report["others"].take();
    report
}

/// The history of one turn.
#[derive(Debug, PartialEq, Default)]
struct Spoken {
    input: String,
    text: String,
    /// The texts of its steps as in a chat completion: with a blank line in between.
    paragraphs: String,
    /// Name, arguments and result of each call.
    tools: Vec<Value>,
}

fn turns_of(messages: &[TurnMessage]) -> Vec<Spoken> {
    let result_of = |id: &Value| {
        let mut results = messages.iter().filter(|message| message.tool_call_id.as_deref() == id.as_str());
        results.next().map(|result| result.content.clone())
    };
    let mut turns: Vec<Spoken> = Vec::new();
    for message in messages {
        if message.role == "user" {
            turns.push(Spoken { input: message.content.clone(), ..Spoken::default() });
            continue;
        }
        let turn = turns.last_mut().expect("an input is first");
        if message.role == "assistant" && !message.content.is_empty() {
            let between = if turn.text.is_empty() { "" } else { "\n\n" };
            turn.text.push_str(&message.content);
            turn.paragraphs.push_str(&format!("{between}{}", message.content));
        }
        for call in message.tool_calls.iter().flat_map(|calls| calls.as_array().unwrap()) {
            let arguments: Value = serde_json::from_str(call["arguments"].as_str().unwrap()).unwrap();
            turn.tools.push(json!([call["name"], arguments, result_of(&call["id"])]));
        }
    }
    turns
}

async fn only_turn_of(fixture: &Fixture, thread: &Value) -> Spoken {
    let mut turns = turns_of(&fixture.messages_of(thread.as_str().unwrap()).await);
    assert_eq!(turns.len(), 1, "{thread}");
    turns.remove(0)
}

/// Checks that every turn is stored once, and as its client has it.
async fn compare(fixture: &Fixture, report: &[Value]) -> Vec<String> {
    let mut threads: BTreeMap<&str, Vec<&Value>> = BTreeMap::new();
    for turn in report {
        threads.entry(turn["thread"].as_str().unwrap()).or_default().push(turn);
    }
    let mut faults = Vec::new();
    for (thread, report) in threads {
        let stored = turns_of(&fixture.messages_of(thread).await);
        let inputs = |turn: &&Value| turn["input"].as_str().unwrap().to_owned();
        let said: Vec<_> = report.iter().map(inputs).collect();
        let kept: Vec<_> = stored.iter().map(|turn| turn.input.clone()).collect();
        if said != kept {
            faults.push(format!("{thread}: said {said:?}, stored {kept:?}"));
        }
        for (report, stored) in report.into_iter().zip(&stored) {
            faults.extend(
                faults_of(report, stored).into_iter().map(|fault| format!("{thread}: {fault}: {report}")),
            );
        }
    }
    faults
}

fn faults_of(report: &Value, stored: &Spoken) -> Vec<String> {
    let mut faults = Vec::new();
    let expected = if report["protocol"] == "chat_completions" { &stored.paragraphs } else { &stored.text };
    // If a client shows pieces, all of them together must be the text, too.
    for text in ["text", "pieces"].into_iter().filter_map(|name| report[name].as_str()) {
        if text != expected {
            let what = if text.len() < expected.len() { "lost" } else { "repeated" };
            faults.push(format!("{what}: {text:?} instead of {expected:?}"));
        }
    }
    if report["protocol"] != "chat_completions" && report["tools"] != json!(stored.tools) {
        faults.push(format!("the tools are {:?}", stored.tools));
    }
    if report["wrong"] != json!([]) {
        faults.push("what it had at a cut is no beginning of what it has".to_owned());
    }
    faults
}

async fn stops_are_what_is_stored(fixture: &Fixture, others: &Value) {
    for name in ["stopped", "cancelled"] {
        let report = &others[name];
        let stored = only_turn_of(fixture, &report["thread"]).await;
        assert_eq!(report["text"], stored.text, "{name}");
        let full = format!("Slowly {0} and {0} and {0}", stored.input);
        assert!(stored.text.len() < full.len() && full.starts_with(&stored.text), "{name}: {stored:?}");
    }
    assert_eq!((&others["stopped"]["page"], &others["stopped"]["status"]), (&json!("ready"), &json!(200)));
    let cancelled = &others["cancelled"];
    assert_eq!(cancelled["statuses"], json!(["cancelled", "cancelled", "cancelled"]));
    assert_eq!(cancelled["isSame"], true, "{cancelled}");
}

async fn the_rest_is_as_it_should_be(fixture: &Fixture, others: &Value) {
    let background = &others["background"];
    assert_eq!(background["text"], only_turn_of(fixture, &background["thread"]).await.text);
    let mut statuses: Vec<_> =
        background["statuses"].as_array().unwrap().iter().map(|it| it.as_str().unwrap()).collect();
    statuses.dedup();
    assert_eq!((statuses[0], statuses[1], *statuses.last().unwrap()), ("queued", "in_progress", "completed"));
    // Every gateway shows the options of the request at any time. A request with the same key gets
    // the same response.
    let kept = background["kept"].as_array().unwrap();
    assert!(kept.len() == 1 && kept[0][1].as_i64().unwrap() > 1_700_000_000, "{background}");
    assert_eq!((&kept[0][2], &kept[0][3]), (&json!(true), &json!({"order": "7"})));
    let helper = &background["helper"];
    let helper_events = helper["events"].as_array().unwrap();
    let of = |name: &str| helper_events.iter().filter(|event| event["type"] == name).collect::<Vec<_>>();
    let whole = of("response.output_text.done");
    assert_eq!(
        (whole.len(), &whole[0]["text"], &helper["again"]),
        (1, &background["text"], &background["text"])
    );
    assert_eq!((of("response.output_text.delta").len(), of("response.completed").len()), (0, 1), "{helper}");
    assert!(helper_events.iter().all(|event| event["number"].as_u64().unwrap() > 7), "{helper}");
    let chained = &others["chained"];
    assert_eq!((&chained["threads"][0], &chained["follows"]), (&chained["threads"][1], &json!(true)));
    assert_eq!(chained["isSame"], true, "a response that is asked for again is another one");
    let stored = turns_of(&fixture.messages_of(chained["threads"][0].as_str().unwrap()).await);
    let stored: Vec<_> = stored.iter().map(|turn| json!({"text": turn.text, "tools": turn.tools})).collect();
    assert_eq!(chained["said"], json!(stored));
    assert_eq!(chained["refused"]["status"], 409, "{chained}");
    assert_eq!(chained["refused"]["code"], "not_the_last_response", "{chained}");
    let new = &others["new_thread"];
    assert_eq!(new["text"], only_turn_of(fixture, &new["thread"]).await.text);
}

fn every_library_shows_why_it_was_refused(report: &Value) {
    let page = &report["ui_message"];
    assert_eq!(*page, json!({"page": "error", "message": "`messages[0].parts` has no text"}));
    let agui = &report["agui"];
    let payload = json!({"message": "`messages[0].content` has no text", "code": "empty_input"});
    assert_eq!((&agui["status"], &agui["payload"]), (&json!(400), &payload), "{agui}");
    for (protocol, field) in [("responses", "input"), ("chat_completions", "messages[0].content")] {
        let shown = &report[protocol];
        let expected = (&json!("BadRequestError"), &json!("empty_input"));
        assert_eq!((&shown["name"], &shown["code"]), expected, "{shown}");
        assert_eq!(shown["message"], format!("400 `{field}` has no text"));
    }
}
