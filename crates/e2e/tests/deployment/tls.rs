//! The fleet over TLS: the block of the shipped nats.conf, and `sslmode=verify-full` for Postgres,
//! with real certificates.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::process::{Child, Command, Stdio};

use devservices::{
    services::{Port, ScratchDir},
    tools,
};
use serde_json::json;
use sqlx::postgres::PgPoolOptions;
use testkit::{
    fleet::{Fleet, FleetOptions, invoke},
    http::{self, HttpRequest},
    services::PostgresServer,
};
use tokio::time::{Instant, sleep};

use super::{deploy, read};
use crate::api_client::{SOON, scripted};

pub(super) const NATS_PASSWORD: &str = "of-the-operator";

/// A process that is killed when this is dropped.
pub(super) struct Killed(pub(super) Child);

impl Drop for Killed {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn openssl(dir: &Path, words: &str) {
    let done = Command::new("openssl").args(words.split_whitespace()).current_dir(dir).output().unwrap();
    assert!(done.status.success(), "openssl {words}: {}", String::from_utf8_lossy(&done.stderr));
}

/// Creates an authority, and a server certificate of it for `localhost`.
pub(super) fn certificates(dir: &Path) {
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    openssl(dir, &format!("req -x509 {key} -keyout ca.key -out ca.crt -days 2 -subj /CN=antiphon-test"));
    openssl(dir, &format!("req {key} -keyout tls.key -out tls.csr -subj /CN=localhost"));
    let extensions =
        "subjectAltName=DNS:localhost\nbasicConstraints=CA:FALSE\nextendedKeyUsage=serverAuth,clientAuth\n";
    fs::write(dir.join("extensions"), extensions).unwrap();
    openssl(
        dir,
        "x509 -req -in tls.csr -CA ca.crt -CAkey ca.key -CAcreateserial -days 2 -extfile extensions -out tls.crt",
    );
}

/// The shipped configuration with the TLS block, uncommented like by an operator.
pub(super) fn with_tls(config: &str, dir: &Path) -> String {
    let block = config.find("# tls {").expect("the shipped file has a block for TLS");
    let end = block + config[block..].find("\n# }\n").expect("it ends") + "\n# }\n".len();
    let active: String =
        config[block..end].lines().map(|line| format!("{}\n", line.trim_start_matches("# "))).collect();
    let active = active.replace("/etc/nats/tls", &dir.display().to_string());
    format!("{}{active}{}", &config[..block], &config[end..])
}

/// Turns TLS on in a running server, with its certificate in its own folder and for its own user.
pub(super) async fn secure(postgres: &PostgresServer, dir: &Path) {
    let pool = PgPoolOptions::new().connect(postgres.url()).await.unwrap();
    let data: String = sqlx::query_scalar("SHOW data_directory").fetch_one(&pool).await.unwrap();
    let owner = fs::metadata(&data).unwrap();
    for (from, to) in [("tls.crt", "server.crt"), ("tls.key", "server.key")] {
        let to = Path::new(&data).join(to);
        fs::copy(dir.join(from), &to).unwrap();
        fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&to, Some(owner.uid()), Some(owner.gid())).unwrap();
    }
    sqlx::raw_sql("ALTER SYSTEM SET ssl = on").execute(&pool).await.unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&pool).await.unwrap();
    let began = Instant::now();
    while sqlx::query_scalar::<_, String>("SHOW ssl").fetch_one(&pool).await.unwrap() != "on" {
        assert!(began.elapsed() < SOON, "TLS stays off");
        sleep(std::time::Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fleet_talks_to_nats_and_postgres_over_tls() {
    let folder = ScratchDir::new("tls").unwrap();
    let dir = folder.path();
    certificates(dir);
    let others = ScratchDir::new("tls-of-others").unwrap();
    certificates(others.path());

    let (port, monitor) = (Port::reserve().unwrap(), Port::reserve().unwrap());
    let (config, log) = (dir.join("nats.conf"), dir.join("nats.log"));
    fs::write(&config, with_tls(&read(&deploy().join("nats.conf")), dir)).unwrap();
    let mut nats = Command::new(tools::nats_server().unwrap().path);
    nats.arg("--config").arg(&config).args(["--addr", "127.0.0.1"]);
    nats.args(["--port", &port.number().to_string(), "--http_port", &monitor.number().to_string()]);
    nats.env("ANTIPHON_NATS_NAME", "tls").env("ANTIPHON_NATS_STORE", dir.join("jetstream"));
    for user in ["WORKER", "GATEWAY", "WORKFLOW", "PUBLISHER", "INTEGRATOR", "OPERATOR", "ADMIN"] {
        nats.env(format!("ANTIPHON_NATS_{user}_PASSWORD"), NATS_PASSWORD);
    }
    let output = File::create(&log).unwrap();
    let _nats = Killed(nats.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn().unwrap());
    let postgres = PostgresServer::start().await.unwrap();
    secure(&postgres, dir).await;

    let nats_url =
        |scheme: &str, host: &str| format!("{scheme}://operator:{NATS_PASSWORD}@{host}:{}", port.number());
    let database_url = |host: &str, ca: &Path| {
        let url = postgres.url().replacen("127.0.0.1", host, 1);
        format!("{url}?sslmode=verify-full&sslrootcert={}", ca.join("ca.crt").display())
    };
    let options = scripted(FleetOptions::new(&nats_url("tls", "localhost"), &database_url("localhost", dir)))
        .with_env("ANTIPHON_NATS_CA", dir.join("ca.crt").display())
        .with_env("ANTIPHON_INSECURE", "true");
    let fleet = match Fleet::start(options).await {
        Ok(fleet) => fleet,
        Err(error) => panic!("{error:#}\n{}", read(&log)),
    };
    let addr = fleet.gateways[0].http_addr();
    let (headers, body) = ([("content-type", "application/json")], json!({"content": "hello"}).to_string());
    let input = HttpRequest {
        method: "POST",
        path: "/v1/threads/t/messages",
        headers: &headers,
        body: body.as_bytes(),
    };
    let said = http::exchange(addr, input).await.unwrap();
    assert_eq!(said.status, 202, "{}", said.text);
    let began = Instant::now();
    loop {
        let history = http::get(addr, "/v1/threads/t/history").await.unwrap();
        if history.status == 200 && history.json().unwrap()["messages"].as_array().unwrap().len() == 2 {
            break;
        }
        assert!(began.elapsed() < SOON, "{}\n{}", history.text, fleet.log_tails());
        sleep(std::time::Duration::from_millis(50)).await;
    }
    let pool = PgPoolOptions::new().connect(postgres.url()).await.unwrap();
    let sql = "SELECT count(*) FILTER (WHERE ssl), count(*) FILTER (WHERE NOT ssl)
               FROM pg_stat_ssl JOIN pg_stat_activity USING (pid) WHERE application_name = 'antiphon'";
    let (encrypted, plain): (i64, i64) = sqlx::query_as(sql).fetch_one(&pool).await.unwrap();
    assert!(encrypted > 0 && plain == 0, "{encrypted} {plain}");

    let settings = WrongSettings {
        dir,
        others: others.path(),
        nats_url: &nats_url("tls", "localhost"),
        nats_url_by_address: &nats_url("tls", "127.0.0.1"),
        database_url: &database_url("localhost", dir),
        database_url_by_address: &database_url("127.0.0.1", dir),
    };
    settings.are_refused_at_once().await;
    assert!(!read(&log).contains("panic"), "{}", read(&log));
}

/// Wrong settings of a fleet over TLS, with reachable servers.
struct WrongSettings<'a> {
    dir: &'a Path,
    /// Certificates of another authority.
    others: &'a Path,
    nats_url: &'a str,
    nats_url_by_address: &'a str,
    database_url: &'a str,
    database_url_by_address: &'a str,
}

impl WrongSettings<'_> {
    /// Checks that roles and commands end with code 2 and one line that names the mistake, because
    /// none of these servers is unreachable.
    async fn are_refused_at_once(&self) {
        let file = |dir: &Path, name: &str| dir.join(name).display().to_string();
        let no_certificate = file(self.dir, "no-certificate");
        fs::write(&no_certificate, "this is no certificate").unwrap();
        let ca = file(self.dir, "ca.crt");
        let others_ca = file(self.others, "ca.crt");
        let folder = self.dir.display().to_string();
        let (without_ca, _) = self.database_url.split_once("&sslrootcert=").unwrap();
        let with_ca = |ca: &str| format!("{without_ca}&sslrootcert={ca}");
        let with_key =
            |key: &str| format!("{}&sslcert={}&sslkey={key}", self.database_url, file(self.dir, "tls.crt"));
        let others_key = file(self.others, "tls.key");
        let cases = [
            // (database URL, NATS URL, file of the authorities, words in the line)
            (with_ca("/nowhere/ca.crt"), self.nats_url, ca.as_str(), vec!["/nowhere/ca.crt", "No such file"]),
            (with_ca(&no_certificate), self.nats_url, &ca, vec![&no_certificate, "no certificate in it"]),
            (with_ca(&folder), self.nats_url, &ca, vec![&folder, "directory"]),
            (with_ca(&others_ca), self.nats_url, &ca, vec![&others_ca, "is refused", "database URL"]),
            (with_key(&others_key), self.nats_url, &ca, vec![&others_key, "is not the private key of"]),
            (with_key("/nowhere/tls.key"), self.nats_url, &ca, vec!["/nowhere/tls.key", "No such file"]),
            (with_key(&ca), self.nats_url, &ca, vec![&ca, "no private key in it"]),
            (self.database_url_by_address.to_owned(), self.nats_url, &ca, vec!["127.0.0.1", "database URL"]),
            (
                self.database_url.to_owned(),
                self.nats_url,
                "/nowhere/ca.crt",
                vec!["/nowhere/ca.crt", "No such file"],
            ),
            (
                self.database_url.to_owned(),
                self.nats_url,
                &no_certificate,
                vec![&no_certificate, "no certificate in it"],
            ),
            (self.database_url.to_owned(), self.nats_url, &others_ca, vec![&others_ca, "is refused", "NATS"]),
            (self.database_url.to_owned(), self.nats_url_by_address, &ca, vec!["127.0.0.1", "NATS"]),
        ];
        let mut wrong = Vec::new();
        for (database_url, nats_url, nats_ca, names) in &cases {
            let env = [
                ("DATABASE_URL", database_url.as_str()),
                ("NATS_URL", nats_url),
                ("ANTIPHON_NATS_CA", nats_ca),
                ("ANTIPHON_METRICS_ADDR", "127.0.0.1:0"),
            ];
            let env = env.map(|(name, value)| (name.to_owned(), value.to_owned()));
            for command in ["worker", "migrate"] {
                let began = Instant::now();
                let ended = invoke(&[command], &env).await.unwrap();
                let line =
                    ended.stderr.lines().filter(|line| line.starts_with("antiphon: ")).collect::<Vec<_>>();
                let is_named = line.len() == 1 && names.iter().all(|name| line[0].contains(name));
                if ended.code != Some(2) || !is_named || began.elapsed() > std::time::Duration::from_secs(15)
                {
                    wrong.push(format!(
                        "{command} {names:?}: {:?} after {:?}: {}",
                        ended.code,
                        began.elapsed(),
                        ended.stderr
                    ));
                }
            }
        }
        assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), 2 * cases.len(), wrong.join("\n"));
    }
}
