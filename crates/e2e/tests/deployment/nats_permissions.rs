//! The users of deploy/nats.conf on a real server: each role may do what it does, and nothing else.

use std::{
    fs::File,
    path::PathBuf,
    process::{Command, Stdio},
    time::Duration,
};

use devservices::{
    services::{Port, ScratchDir},
    tools,
};
use sqlx::PgPool;
use testkit::{
    db_snapshot::turns,
    examples,
    fleet::{Fleet, FleetOptions, invoke},
    services::TestDatabase,
    sse::{FollowOptions, Follower},
};
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt, BufReader},
    net::TcpStream,
    time::{Instant, sleep, timeout},
};

use super::{deploy, read};
use crate::api_client::{SOON, scripted};

const ROLES: [&str; 6] = ["worker", "gateway", "workflow", "publisher", "integrator", "operator"];

/// A process that is killed when this is dropped.
struct Killed(std::process::Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// A server with the configuration that is shipped, on a port of its own.
struct ShippedNats {
    port: Port,
    log: PathBuf,
    _process: Killed,
    _folder: ScratchDir,
}

impl ShippedNats {
    async fn start() -> Self {
        let folder = ScratchDir::new("shipped-nats").unwrap();
        let (port, monitor, log) =
            (Port::reserve().unwrap(), Port::reserve().unwrap(), folder.path().join("nats.log"));
        let mut nats = Command::new(tools::nats_server().unwrap().path);
        nats.arg("--config").arg(deploy().join("nats.conf")).args(["--addr", "127.0.0.1"]);
        nats.args(["--port", &port.number().to_string(), "--http_port", &monitor.number().to_string()]);
        nats.env("ANTIPHON_NATS_NAME", "shipped").env("ANTIPHON_NATS_STORE", folder.path().join("jetstream"));
        for role in ROLES.iter().chain(&["admin"]) {
            nats.env(format!("ANTIPHON_NATS_{}_PASSWORD", role.to_uppercase()), password(role));
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

    fn url(&self, role: &str) -> String {
        format!("nats://{role}:{}@127.0.0.1:{}", password(role), self.port.number())
    }

    /// What it has refused so far.
    fn violations(&self) -> Vec<String> {
        read(&self.log).lines().filter(|line| line.contains("Violation")).map(str::to_owned).collect()
    }

    /// Whether the server refuses a role one operation, a line of the protocol.
    async fn refuses(&self, role: &str, operation: &str) -> bool {
        let mut stream = BufReader::new(TcpStream::connect(("127.0.0.1", self.port.number())).await.unwrap());
        let connect = format!(r#"CONNECT {{"verbose":false,"user":"{role}","pass":"{}"}}"#, password(role));
        stream.write_all(format!("{connect}\r\n{operation}\r\nPING\r\n").as_bytes()).await.unwrap();
        let mut is_refused = false;
        loop {
            let mut line = String::new();
            let read = timeout(SOON, stream.read_line(&mut line)).await.expect("an answer").unwrap();
            assert!(read > 0, "{role} {operation}: the server closes the connection");
            match line.split_whitespace().next() {
                Some("PONG") => return is_refused,
                Some("-ERR") if line.contains("Permissions Violation") => is_refused = true,
                Some("-ERR") => panic!("{role} {operation}: {line}"),
                _ => {}
            }
        }
    }
}

fn password(role: &str) -> String {
    format!("of-the-{role}")
}

/// What is published and subscribed to, and who may.
const OPERATIONS: &[(&str, &[&str])] = &[
    ("PUB chunks.thread 0\r\n", &["workflow", "publisher"]),
    ("PUB chunks.3.thread 0\r\n", &["worker", "gateway", "workflow", "publisher"]),
    ("PUB tasks.agent 0\r\n", &["publisher"]),
    ("PUB tasks.3.agent 0\r\n", &["worker", "gateway", "publisher"]),
    ("PUB live.thread 0\r\n", &["worker"]),
    ("PUB work.default 0\r\n", &["worker"]),
    ("PUB turns.thread 0\r\n", &["worker"]),
    ("PUB stop.turn.0 0\r\n", &["worker"]),
    ("PUB query.3 0\r\n", &["gateway"]),
    ("PUB _INBOX_gateway.x 0\r\n", &["worker"]),
    ("PUB _INBOX_worker.x 0\r\n", &[]),
    ("PUB _INBOX_workflow.x 0\r\n", &[]),
    ("PUB $JS.API.STREAM.INFO.WORK 0\r\n", &["worker", "gateway", "workflow"]),
    ("PUB $JS.API.STREAM.CREATE.OTHER 0\r\n", &[]),
    ("PUB $JS.API.STREAM.UPDATE.PARTITION_3 0\r\n", &[]),
    ("PUB $JS.API.STREAM.DELETE.PARTITION_3 0\r\n", &[]),
    ("PUB $JS.API.STREAM.PURGE.PARTITION_3 0\r\n", &["worker"]),
    ("PUB $JS.API.STREAM.PURGE.TURNS 0\r\n", &[]),
    ("PUB $JS.API.STREAM.MSG.DELETE.PARTITION_3 0\r\n", &[]),
    ("PUB $JS.API.STREAM.MSG.GET.PARTITION_3 0\r\n", &["worker"]),
    ("PUB $JS.API.STREAM.MSG.GET.WORK 0\r\n", &[]),
    ("PUB $JS.API.DIRECT.GET.PARTITION_3 0\r\n", &[]),
    ("PUB $JS.API.CONSUMER.CREATE.PARTITION_3.x 0\r\n", &["worker"]),
    ("PUB $JS.API.CONSUMER.CREATE.WORK.x 0\r\n", &["workflow"]),
    ("PUB $JS.API.CONSUMER.CREATE.TURNS.x 0\r\n", &["integrator"]),
    ("PUB $JS.API.CONSUMER.MSG.NEXT.WORK.x 0\r\n", &["workflow"]),
    ("PUB $JS.API.CONSUMER.DELETE.WORK.x 0\r\n", &[]),
    ("PUB $JS.API.CONSUMER.INFO.WORK.x 0\r\n", &["worker", "workflow"]),
    ("PUB $JS.API.CONSUMER.LEADER.STEPDOWN.WORK.x 0\r\n", &["worker"]),
    ("PUB $JS.API.CONSUMER.LEADER.STEPDOWN.TURNS.x 0\r\n", &[]),
    ("PUB $JS.API.CONSUMER.INFO.TURNS.x 0\r\n", &["integrator"]),
    ("PUB $JS.API.ACCOUNT.PURGE.x 0\r\n", &[]),
    ("PUB $JS.ACK.WORK.x.1.1.1.1.0 0\r\n", &["workflow"]),
    ("PUB anything.else 0\r\n", &[]),
    ("SUB > 1", &[]),
    ("SUB chunks.> 1", &[]),
    ("SUB tasks.> 1", &[]),
    ("SUB work.> 1", &[]),
    ("SUB live.thread 1", &["gateway"]),
    ("SUB turns.* 1", &["integrator"]),
    ("SUB stop.turn.0 1", &["workflow"]),
    ("SUB query.3 1", &["worker"]),
    ("SUB _INBOX.> 1", &[]),
    ("SUB _INBOX_worker.> 1", &["worker"]),
    ("SUB _INBOX_gateway.> 1", &["gateway"]),
    ("SUB _INBOX_workflow.> 1", &["workflow"]),
    ("SUB _INBOX_publisher.> 1", &["publisher"]),
    ("SUB $SYS.> 1", &[]),
];

#[tokio::test(flavor = "multi_thread")]
async fn each_nats_user_may_do_what_its_role_does_and_nothing_else() {
    let nats = ShippedNats::start().await;
    let mut refused = 0;
    for (operation, allowed) in OPERATIONS {
        for role in ROLES {
            let may = allowed.contains(&role) || role == "operator";
            assert_eq!(nats.refuses(role, operation).await, !may, "{role}: {operation}");
            refused += usize::from(!may);
        }
    }
    assert!(refused >= 60, "{refused}");
}

fn as_users(nats: &ShippedNats, options: FleetOptions) -> FleetOptions {
    let roles =
        [("worker", "worker"), ("gateway", "gateway"), ("workflow", "workflow"), ("migrate", "operator")];
    roles.into_iter().fold(options, |options, (role, user)| {
        let options = options.with_role_env(role, "NATS_URL", nats.url(user));
        options.with_role_env(role, "ANTIPHON_NATS_INBOX_PREFIX", format!("_INBOX_{user}"))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_works_with_the_nats_users_of_its_roles() {
    let (nats, database) = (ShippedNats::start().await, TestDatabase::create().await.unwrap());
    let options = as_users(&nats, scripted(FleetOptions::new("nats://nowhere:1", database.url())));
    let fleet = Fleet::start(options.with_env("ANTIPHON_STREAM_MAX_BYTES", 1 << 28)).await.unwrap();
    let api = testkit::api::Api(fleet.gateway_addrs()[0]);
    let pool = database.pool().await.unwrap();
    let follower = Follower::start(&fleet.gateway_addrs(), "users", FollowOptions::default());
    follower.opened().await.unwrap();
    api.put_agent("robot", "default", serde_json::json!({})).await.unwrap();
    api.say("users", "Hello").await.unwrap();
    api.send_task("robot", "task-1", "Hello").await.unwrap();
    let stopped = api.say("others", &format!("slowly {}", "and on ".repeat(200))).await.unwrap();
    follower.wait(SOON, |progress| progress.terminals > 0).await.unwrap();
    api.stop(&stopped.id).await.unwrap();
    until_messages(&pool, 4, &fleet).await;
    let env = [
        ("NATS_URL".to_owned(), nats.url("operator")),
        ("DATABASE_URL".to_owned(), database.url().to_owned()),
        ("ANTIPHON_NATS_INBOX_PREFIX".to_owned(), "_INBOX_operator".to_owned()),
    ];
    let erased = invoke(&["threads", "erase", "users", "--yes"], &env).await.unwrap();
    assert_eq!(erased.code, Some(0), "{} {}", erased.stdout, erased.stderr);
    assert_eq!(nats.violations(), [""; 0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn example_services_answer_as_the_nats_user_of_workflows() {
    let (nats, database) = (ShippedNats::start().await, TestDatabase::create().await.unwrap());
    let options = FleetOptions::new("nats://nowhere:1", database.url())
        .with_env("ANTIPHON_STREAM_MAX_BYTES", 1 << 28)
        .with_workflow(examples::python("python").await.unwrap())
        .with_workflow(examples::typescript("typescript").await.unwrap());
    let fleet = Fleet::start(as_users(&nats, options)).await.unwrap();
    let api = testkit::api::Api(fleet.gateway_addrs()[0]);
    for workflow in ["python", "typescript"] {
        api.put_agent(workflow, workflow, serde_json::json!({})).await.unwrap();
        api.say(workflow, "Hello").await.unwrap();
    }
    until_messages(&database.pool().await.unwrap(), 4, &fleet).await;
    assert_eq!(nats.violations(), [""; 0]);
}

async fn until_messages(pool: &PgPool, count: usize, fleet: &Fleet) {
    let began = Instant::now();
    while turns::messages(pool).await.unwrap().len() < count {
        assert!(began.elapsed() < SOON, "{}", fleet.log_tails());
        sleep(Duration::from_millis(50)).await;
    }
}
