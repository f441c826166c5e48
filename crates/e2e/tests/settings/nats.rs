//! Users of NATS that prove a key: alone, or with a token of their account.

use std::{fs, process::Stdio};

use devservices::{
    services::{Port, ScratchDir},
    tools,
};
use testkit::{
    api::Api,
    fleet::{Fleet, FleetOptions},
    services::TestDatabase,
};
use tokio::{
    net::TcpStream,
    process::{Child, Command},
    time::{Duration, Instant, sleep},
};

use crate::api_client::{SOON, scripted};

const OPERATOR: &str = include_str!("operator.conf");
const CREDENTIALS: &str = include_str!("user.creds");
/// The public key of the user in [`CREDENTIALS`].
const USER: &str = "UDWUSKGGFDI4FRXK5EBTRECZSVQSSWJHHJOGH6JWG3AUMFFMQ435C2U4";

/// A server that accepts only the user.
struct ServerWithKeys {
    port: Port,
    folder: ScratchDir,
    _process: Child,
}

impl ServerWithKeys {
    async fn start(config: &str) -> Self {
        let (folder, port) = (ScratchDir::new("nats-keys").unwrap(), Port::reserve().unwrap());
        let file = folder.path().join("nats.conf");
        fs::write(&file, config).unwrap();
        let mut nats = Command::new(tools::nats_server().unwrap().path);
        nats.arg("--config").arg(file).args(["--addr", "127.0.0.1", "--port", &port.number().to_string()]);
        nats.env("ANTIPHON_NATS_STORE", folder.path().join("jetstream"));
        nats.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
        let process = nats.spawn().unwrap();
        let began = Instant::now();
        while TcpStream::connect(("127.0.0.1", port.number())).await.is_err() {
            assert!(began.elapsed() < SOON, "NATS does not listen");
            sleep(Duration::from_millis(20)).await;
        }
        Self { port, folder, _process: process }
    }

    /// Checks that a fleet with this file in this variable answers.
    async fn serves(&self, variable: &str, text: &str) {
        let url = format!("nats://127.0.0.1:{}", self.port.number());
        assert!(async_nats::connect(&url).await.is_err(), "a client without a key is accepted");
        let file = self.folder.path().join("user");
        fs::write(&file, text).unwrap();
        let database = TestDatabase::create().await.unwrap();
        let options = FleetOptions::new(&url, database.url()).with_env(variable, file.display());
        let fleet = Fleet::start(scripted(options)).await.unwrap();
        let api = Api(fleet.gateway_addrs()[0]);
        let began = Instant::now();
        api.say("talk", "hello").await.unwrap();
        while !api.history("talk").await.is_ok_and(|messages| messages.len() >= 2) {
            assert!(began.elapsed() < SOON, "{}", fleet.log_tails());
            sleep(Duration::from_millis(50)).await;
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_signs_in_to_nats_with_a_credentials_file() {
    ServerWithKeys::start(OPERATOR).await.serves("ANTIPHON_NATS_CREDENTIALS", CREDENTIALS).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_signs_in_to_nats_with_a_seed() {
    let config = format!(
        "jetstream {{ store_dir: $ANTIPHON_NATS_STORE }}\nauthorization {{ users: [ {{ nkey: {USER} }} ] }}\n"
    );
    let mut lines = CREDENTIALS.lines().skip_while(|line| !line.contains("BEGIN USER NKEY SEED"));
    let seed = lines.nth(1).unwrap();
    ServerWithKeys::start(&config).await.serves("ANTIPHON_NATS_NKEY", seed).await;
}
