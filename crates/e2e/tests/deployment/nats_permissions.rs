//! The users of deploy/nats.conf on a real server: each has exactly the rights that it needs.

mod fleet;
mod forged;

use std::{
    fs,
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use devservices::{
    services::{Port, ScratchDir},
    tools,
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{deploy, read};
use crate::api_client::SOON;

/// Users of the unchanged file.
const USERS: [&str; 6] = ["worker", "gateway", "workflow", "publisher", "integrator", "operator"];
/// Users that the file contains as examples.
const EXAMPLES: [&str; 3] = ["research", "tickets", "recorder"];

/// A process that is killed when this is dropped.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with the shipped configuration, on its own port.
struct ShippedNats {
    port: Port,
    log: PathBuf,
    _process: Killed,
    _folder: ScratchDir,
}

impl ShippedNats {
    async fn start() -> Self {
        Self::with(&read(&deploy().join("nats.conf"))).await
    }

    /// A server that also has the example users of the file: lines that begin with `#|`.
    async fn with_examples() -> Self {
        let shipped = read(&deploy().join("nats.conf"));
        let used: Vec<String> = shipped.lines().map(|line| line.replacen("#| ", "", 1)).collect();
        assert!(shipped.matches("#| ").count() >= 15, "the examples are gone");
        Self::with(&used.join("\n")).await
    }

    async fn with(config: &str) -> Self {
        let folder = ScratchDir::new("shipped-nats").unwrap();
        let (port, monitor, log) =
            (Port::reserve().unwrap(), Port::reserve().unwrap(), folder.path().join("nats.log"));
        let file = folder.path().join("nats.conf");
        fs::write(&file, config).unwrap();
        let mut nats = Command::new(tools::nats_server().unwrap().path);
        nats.arg("--config").arg(file).args(["--addr", "127.0.0.1"]);
        nats.args(["--port", &port.number().to_string(), "--http_port", &monitor.number().to_string()]);
        nats.env("ANTIPHON_NATS_NAME", "shipped").env("ANTIPHON_NATS_STORE", folder.path().join("jetstream"));
        for user in USERS.iter().chain(&EXAMPLES).chain(&["admin"]) {
            nats.env(format!("ANTIPHON_NATS_{}_PASSWORD", user.to_uppercase()), password(user));
        }
        let output = File::create(&log).unwrap();
        let process = nats.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn().unwrap();
        let server = Self { port, log, _process: Killed(process), _folder: folder };
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", server.port.number())).await.is_err() {
            assert!(began.elapsed() < SOON, "{}", read(&server.log));
            sleep(Duration::from_millis(20)).await;
        }
        server
    }

    fn options(&self, user: &str) -> async_nats::ConnectOptions {
        let options = async_nats::ConnectOptions::new().custom_inbox_prefix(format!("_INBOX_{user}"));
        options.user_and_password(user.to_owned(), password(user))
    }

    fn address(&self) -> String {
        format!("nats://127.0.0.1:{}", self.port.number())
    }

    /// A connection as a user, which receives answers on its own subjects.
    async fn connect(&self, user: &str) -> async_nats::Client {
        self.options(user).connect(self.address()).await.unwrap()
    }

    fn url(&self, role: &str) -> String {
        format!("nats://{role}:{}@127.0.0.1:{}", password(role), self.port.number())
    }

    /// The violations that the server has logged so far.
    fn violations(&self) -> Vec<String> {
        read(&self.log).lines().filter(|line| line.contains("Violation")).map(str::to_owned).collect()
    }

    /// The protocol lines that the server refuses for a user.
    async fn refused(&self, user: &str, operations: &[String]) -> Vec<String> {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", self.port.number())).await.unwrap());
        let connect = format!(r#"CONNECT {{"verbose":false,"user":"{user}","pass":"{}"}}"#, password(user));
        // A line in the same packet as the connect is not mapped yet.
        stream.write_all(format!("{connect}\r\n").as_bytes()).await.unwrap();
        let mut refused = Vec::new();
        for operation in std::iter::once(&String::new()).chain(operations) {
            let line = if operation.is_empty() { String::new() } else { format!("{operation}\r\n") };
            stream.write_all(format!("{line}PING\r\n").as_bytes()).await.unwrap();
            let mut is_refused = false;
            loop {
                let mut line = String::new();
                let read = timeout(SOON, stream.read_line(&mut line)).await.expect("an answer").unwrap();
                assert!(read > 0, "{user} {operation}: the server closes the connection");
                match line.split_whitespace().next() {
                    Some("PONG") => break,
                    Some("-ERR") if line.contains("Permissions Violation") => is_refused = true,
                    Some("-ERR") => panic!("{user} {operation}: {line}"),
                    _ => {}
                }
            }
            if is_refused {
                refused.push(operation.clone());
            }
        }
        refused
    }
}

fn password(role: &str) -> String {
    format!("of-the-{role}")
}

/// The publish and subscribe rights of a user according to the book's page of NATS users; `*` is
/// any one token, and
/// `operator` has all rights. In an account with mappings, the right is checked after a plain
/// subject is mapped. So a user with the right to publish to one of the two subjects can publish to
/// the other.
fn rights(user: &str) -> (Vec<String>, Vec<String>) {
    let fixed: (&[&str], &[&str]) = match user {
        "worker" => (
            &[
                "live.*",
                "work.*",
                "turns.*",
                "stop.*.*",
                "commands.*",
                "commands.*.*",
                "_INBOX_gateway.*",
                "$JS.API.STREAM.INFO.*",
                "$JS.API.STREAM.PURGE.PARTITION_3",
                "$JS.API.STREAM.MSG.GET.PARTITION_3",
                "$JS.API.STREAM.MSG.DELETE.WORK",
                // For erasures.
                "$JS.API.STREAM.MSG.GET.WORK",
                "$JS.API.STREAM.PURGE.TURNS",
                "$JS.API.STREAM.PURGE.TOOL_CALLS",
                "$JS.API.CONSUMER.NAMES.*",
                "$JS.API.CONSUMER.CREATE.PARTITION_3.*",
                "$JS.API.CONSUMER.CREATE.PARTITION_3.*.*.*",
                "$JS.API.CONSUMER.DELETE.PARTITION_3.*",
                "$JS.API.CONSUMER.MSG.NEXT.PARTITION_3.*",
                "$JS.API.CONSUMER.INFO.WORK.*",
                "$JS.API.CONSUMER.LEADER.STEPDOWN.WORK.*",
                // Streams that a fleet does not have.
                "$JS.API.STREAM.PURGE.OTHER",
                "$JS.API.STREAM.MSG.GET.OTHER",
                "$JS.API.CONSUMER.CREATE.OTHER.*",
                "$JS.API.CONSUMER.CREATE.OTHER.*.*.*",
                "$JS.API.CONSUMER.DELETE.OTHER.*",
                "$JS.API.CONSUMER.MSG.NEXT.OTHER.*",
            ],
            &["query.*"],
        ),
        "gateway" => (
            &[
                "chunks.*",
                "chunks.*.*",
                "messages.*",
                "messages.*.*",
                "commands.*",
                "commands.*.*",
                "tasks.*",
                "tasks.*.*",
                "query.*",
                "$JS.API.STREAM.INFO.*",
                "tool_incidents.*.*.*.*",
                "$JS.API.DIRECT.GET.TOOL_CALLS.tool_incidents.*.*.*.*",
            ],
            &["live.*"],
        ),
        "workflow" | "research" => (&["chunks.*", "chunks.*.*", "$JS.API.STREAM.INFO.WORK"], &["stop.*.*"]),
        "publisher" => (&["chunks.*", "chunks.*.*", "tasks.*", "tasks.*.*"], &[]),
        "tickets" => (&["tasks.*", "tasks.*.*"], &[]),
        "recorder" => (&["messages.*", "messages.*.*"], &[]),
        "integrator" => (&[], &["turns.*"]),
        other => panic!("{other}"),
    };
    let (publish, subscribe) = fixed;
    let mut publish: Vec<String> = publish.iter().map(|right| (*right).to_owned()).collect();
    let workflow = match user {
        "workflow" => Some("WORKFLOW_default"),
        "research" => Some("WORKFLOW_research"),
        _ => None,
    };
    if let Some(consumer) = workflow {
        publish.push(format!("$JS.API.CONSUMER.INFO.WORK.{consumer}"));
        publish.push(format!("$JS.API.CONSUMER.MSG.NEXT.WORK.{consumer}"));
        publish.push(format!("$JS.ACK.WORK.{consumer}.*.*.*.*.*"));
        publish.push(format!("$JS.ACK.*.*.WORK.{consumer}.*.*.*.*.*"));
        let workflow = consumer.trim_start_matches("WORKFLOW_");
        for class in ["tool_calls", "tool_incidents"] {
            publish.push(format!("{class}.{workflow}.*.*.*"));
            publish.push(format!("$JS.API.DIRECT.GET.TOOL_CALLS.{class}.{workflow}.*.*.*"));
        }
    }
    if user == "integrator" {
        publish.push("antiphon.API.CONSUMER.INFO.TURNS.INTEGRATOR_default".to_owned());
        publish.push("antiphon.API.CONSUMER.MSG.NEXT.TURNS.INTEGRATOR_default".to_owned());
        publish.push("$JS.ACK.TURNS.INTEGRATOR_default.*.*.*.*.*".to_owned());
        publish.push("$JS.ACK.*.*.TURNS.INTEGRATOR_default.*.*.*.*.*".to_owned());
    }
    let mut subscribe: Vec<String> = subscribe.iter().map(|right| (*right).to_owned()).collect();
    subscribe.push(format!("_INBOX_{user}.*"));
    (publish, subscribe)
}

fn covers(rights: &[String], subject: &str) -> bool {
    let matches = |right: &String| {
        let (right, subject) = (right.split('.').collect::<Vec<_>>(), subject.split('.').collect::<Vec<_>>());
        right.len() == subject.len()
            && right.iter().zip(&subject).all(|(right, token)| *right == "*" || right == token)
    };
    rights.iter().any(matches)
}

/// Every subject that could have an effect: what is stored, what is sent, and each JetStream API
/// call for each stream and consumer, including those of others.
fn published() -> Vec<String> {
    let text = |subject: &str| subject.to_owned();
    let mut all: Vec<String> = ["chunks", "commands", "messages", "tasks"]
        .iter()
        .flat_map(|class| [format!("{class}.key"), format!("{class}.3.key")])
        .collect();
    all.extend(["live.gateway-1", "live.owners", "work.default", "work.research", "turns.thread"].map(text));
    all.extend(["stop.turn.0", "query.3", "moving.chunks.3.key", "anything.else"].map(text));
    all.extend(USERS.iter().chain(&EXAMPLES).map(|user| format!("_INBOX_{user}.x")));
    all.extend(["_INBOX.x", "_R_.x"].map(text));
    all.extend(["$SYS.REQ.SERVER.PING", "$SYS.REQ.ACCOUNT.APP.CONNZ", "$SYS.REQ.USER.INFO"].map(text));
    all.extend(["INFO", "PURGE.APP"].map(|call| format!("$JS.API.ACCOUNT.{call}")));
    all.extend(["STREAM.NAMES", "STREAM.LIST", "META.LEADER.STEPDOWN"].map(|call| format!("$JS.API.{call}")));
    for class in ["tool_calls", "tool_incidents"] {
        for workflow in ["default", "research"] {
            let subject = format!("{class}.{workflow}.thread.turn.call");
            all.push(format!("$JS.API.DIRECT.GET.TOOL_CALLS.{subject}"));
            all.push(subject);
        }
    }
    for stream in ["PARTITION_3", "WORK", "TURNS", "TOOL_CALLS", "OTHER"] {
        let calls = [
            "STREAM.CREATE",
            "STREAM.UPDATE",
            "STREAM.DELETE",
            "STREAM.INFO",
            "STREAM.PURGE",
            "STREAM.MSG.GET",
            "STREAM.MSG.DELETE",
            "STREAM.SNAPSHOT",
            "STREAM.RESTORE",
            "STREAM.LEADER.STEPDOWN",
            "STREAM.PEER.REMOVE",
            "DIRECT.GET",
            "CONSUMER.NAMES",
            "CONSUMER.LIST",
            "CONSUMER.CREATE",
        ];
        all.extend(calls.map(|call| format!("$JS.API.{call}.{stream}")));
        for consumer in ["WORKFLOW_default", "WORKFLOW_research", "INTEGRATOR_default", "INTEGRATOR_other"] {
            let calls = [
                "CREATE",
                "DURABLE.CREATE",
                "INFO",
                "DELETE",
                "MSG.NEXT",
                "LEADER.STEPDOWN",
                "PAUSE",
                "UNPIN",
            ];
            all.extend(calls.map(|call| format!("$JS.API.CONSUMER.{call}.{stream}.{consumer}")));
            all.push(format!("$JS.API.CONSUMER.CREATE.{stream}.{consumer}.work.default"));
            all.push(format!("$JS.ACK.{stream}.{consumer}.1.1.1.1.0"));
            all.push(format!("$JS.ACK.hub.hash.{stream}.{consumer}.1.1.1.1.0"));
            all.extend(
                ["INFO", "MSG.NEXT", "DELETE"]
                    .map(|call| format!("antiphon.API.CONSUMER.{call}.{stream}.{consumer}")),
            );
        }
    }
    all
}

fn subscribed() -> Vec<String> {
    let subjects = [
        ">",
        "*.*",
        "chunks.>",
        "commands.>",
        "messages.>",
        "tasks.>",
        "chunks.3.key",
        "commands.3.key",
        "tasks.3.key",
        "work.>",
        "work.default",
        "live.gateway-1",
        "turns.thread",
        "stop.turn.0",
        "query.3",
        "moving.>",
        "_INBOX.>",
        "_R_.>",
        "$JS.>",
        "$JS.API.>",
        "$JS.EVENT.>",
        "$SYS.>",
        "$SYS.ACCOUNT.>",
        "antiphon.API.>",
    ];
    let inboxes = USERS.iter().chain(&EXAMPLES).map(|user| format!("_INBOX_{user}.x"));
    subjects.map(str::to_owned).into_iter().chain(inboxes).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn each_nats_user_may_do_what_it_is_there_for_and_nothing_else() {
    let nats = ShippedNats::with_examples().await;
    let (published, subscribed) = (published(), subscribed());
    for user in USERS.into_iter().chain(EXAMPLES) {
        let operations: Vec<String> = published
            .iter()
            .map(|subject| format!("PUB {subject} 0\r\n"))
            .chain(subscribed.iter().zip(1..).map(|(subject, id)| format!("SUB {subject} {id}")))
            .collect();
        let refused = nats.refused(user, &operations).await;
        if user == "operator" {
            // The operator has all rights in its own account, and none in the system account.
            assert!(refused.is_empty(), "{refused:?}");
            continue;
        }
        let (may_publish, may_subscribe) = rights(user);
        let forbidden: Vec<&String> = published
            .iter()
            .zip(&operations)
            .filter(|(subject, _)| !covers(&may_publish, subject))
            .map(|(_, operation)| operation)
            .chain(
                subscribed
                    .iter()
                    .zip(&operations[published.len()..])
                    .filter(|(subject, _)| !covers(&may_subscribe, subject))
                    .map(|(_, operation)| operation),
            )
            .collect();
        assert_eq!(refused.iter().collect::<Vec<_>>(), forbidden, "{user}");
        assert!(refused.len() >= 100, "{user}: {} forbidden acts", refused.len());
    }
}

/// The unchanged file does not contain the example users.
#[tokio::test(flavor = "multi_thread")]
async fn examples_are_no_users_until_they_are_used() {
    let nats = ShippedNats::start().await;
    for user in EXAMPLES {
        assert!(nats.options(user).connect(nats.address()).await.is_err(), "{user}");
    }
    nats.connect("publisher").await;
}
