//! Servers that require client certificates: the chart's variables are necessary and sufficient for
//! NATS and Postgres.

use std::{
    fs::{self, File},
    path::Path,
    process::{Command, Stdio},
};

use devservices::{
    services::{Port, ScratchDir},
    tools,
};
use futures_util::future::join_all;
use sqlx::postgres::PgPoolOptions;
use testkit::{fleet::invoke, services::PostgresServer};

use super::{
    deploy, read,
    tls::{Killed, NATS_PASSWORD, certificates, secure, with_tls},
};

/// The shipped configuration, with the TLS block and its lines for client certificates.
fn with_mutual_tls(dir: &Path) -> String {
    let config = with_tls(&read(&deploy().join("nats.conf")), dir);
    let active =
        config.replacen("  # ca_file:", "  ca_file:", 1).replacen("  # verify: true", "  verify: true", 1);
    assert_ne!(config, active, "the block for TLS has no lines for certificates of clients");
    active
}

/// Requires a certificate of the authority for TCP connections.
async fn ask_for_certificates(postgres: &PostgresServer, dir: &Path) {
    let pool = PgPoolOptions::new().connect(postgres.url()).await.unwrap();
    let hba: String = sqlx::query_scalar("SHOW hba_file").fetch_one(&pool).await.unwrap();
    let authority = Path::new(&hba).with_file_name("clients.crt");
    fs::copy(dir.join("ca.crt"), authority).unwrap();
    sqlx::raw_sql("ALTER SYSTEM SET ssl_ca_file = 'clients.crt'").execute(&pool).await.unwrap();
    fs::write(hba, "local all all trust\nhostssl all all all trust clientcert=verify-ca\n").unwrap();
    sqlx::raw_sql("SELECT pg_reload_conf()").execute(&pool).await.unwrap();
}

fn nats(dir: &Path, port: &Port) -> Killed {
    let (config, log) = (dir.join("nats.conf"), dir.join("nats.log"));
    fs::write(&config, with_mutual_tls(dir)).unwrap();
    let mut nats = Command::new(tools::nats_server().unwrap().path);
    nats.arg("--config").arg(&config).args(["--addr", "127.0.0.1"]);
    nats.args(["--port", &port.number().to_string(), "--http_port", "-1"]);
    nats.env("ANTIPHON_NATS_NAME", "mtls").env("ANTIPHON_NATS_STORE", dir.join("jetstream"));
    for user in ["WORKER", "GATEWAY", "WORKFLOW", "PUBLISHER", "INTEGRATOR", "OPERATOR", "ADMIN"] {
        nats.env(format!("ANTIPHON_NATS_{user}_PASSWORD"), NATS_PASSWORD);
    }
    let output = File::create(log).unwrap();
    Killed(nats.stdin(Stdio::null()).stdout(Stdio::null()).stderr(output).spawn().unwrap())
}

#[tokio::test(flavor = "multi_thread")]
async fn certificates_of_clients_are_shown_to_nats_and_postgres() {
    let (folder, of_others) = (ScratchDir::new("mtls").unwrap(), ScratchDir::new("mtls-of-others").unwrap());
    let dir = folder.path();
    certificates(dir);
    certificates(of_others.path());
    let port = Port::reserve().unwrap();
    let _nats = nats(dir, &port);
    let postgres = PostgresServer::start().await.unwrap();
    secure(&postgres, dir).await;
    ask_for_certificates(&postgres, dir).await;

    // As in the chart: the URLs come from secrets, and do not mention files.
    let variables = |nats: Option<&Path>, postgres_files: Option<&Path>| {
        let mut env = vec![
            ("DATABASE_URL".to_owned(), postgres.url().replacen("127.0.0.1", "localhost", 1)),
            ("NATS_URL".to_owned(), format!("tls://operator:{NATS_PASSWORD}@localhost:{}", port.number())),
            ("ANTIPHON_NATS_CA".to_owned(), dir.join("ca.crt").display().to_string()),
            ("PGSSLMODE".to_owned(), "verify-full".to_owned()),
            ("PGSSLROOTCERT".to_owned(), dir.join("ca.crt").display().to_string()),
        ];
        let files = [
            (nats, [("ANTIPHON_NATS_CERTIFICATE", "tls.crt"), ("ANTIPHON_NATS_CERTIFICATE_KEY", "tls.key")]),
            (postgres_files, [("PGSSLCERT", "tls.crt"), ("PGSSLKEY", "tls.key")]),
        ];
        for (folder, variables) in files {
            if let Some(folder) = folder {
                let path = |file: &str| folder.join(file).display().to_string();
                env.extend(variables.map(|(variable, file)| (variable.to_owned(), path(file))));
            }
        }
        env
    };
    let migrated = invoke(&["migrate"], &variables(Some(dir), Some(dir))).await.unwrap();
    assert_eq!(migrated.code, Some(0), "{}\n{}", migrated.stderr, read(&dir.join("nats.log")));
    let listed = invoke(&["partitions", "list"], &variables(None, Some(dir))).await.unwrap();
    assert_eq!(listed.code, Some(0), "{}", listed.stderr);

    let erase = ["erase", "--thread", "nothing", "--yes"];
    let unknown = invoke(&erase, &variables(Some(dir), Some(dir))).await.unwrap();
    assert!(unknown.stderr.contains("there is no thread"), "{}", unknown.stderr);
    let (others, right) = (Some(of_others.path()), Some(dir));
    let refused = [
        ("Postgres takes no certificate", &["partitions", "list"][..], variables(None, None)),
        ("Postgres takes that of others", &["partitions", "list"], variables(None, others)),
        ("NATS takes no certificate", &erase, variables(None, right)),
        ("NATS takes that of others", &erase, variables(others, right)),
    ];
    // Some runs take as long as with an unreachable server, so all of them run concurrently.
    let runs = refused.iter().map(|(_, command, env)| invoke(command, env));
    for ((what, ..), run) in refused.iter().zip(join_all(runs).await) {
        let run = run.unwrap();
        assert!(run.code != Some(0) && run.stderr != unknown.stderr, "{what}: {}{}", run.stdout, run.stderr);
    }
    let mut half = variables(Some(dir), Some(dir));
    half.retain(|(name, _)| name != "ANTIPHON_NATS_CERTIFICATE_KEY");
    let refused = invoke(&["config", "check", "worker"], &half).await.unwrap();
    assert_eq!(refused.code, Some(2), "{}", refused.stderr);
    assert!(refused.stderr.contains("--nats-certificate-key"), "{}", refused.stderr);
}
