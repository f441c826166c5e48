//! `antiphon config check`: the settings a command would run with, and those it would refuse.

use std::collections::HashMap;

use serde_json::Value;
use testkit::fleet::{Invocation, invoke};

/// Settings that every start needs.
const NEEDED: [(&str, &str); 3] = [
    ("NATS_URL", "nats://someone:a-password@127.0.0.1:9"),
    ("DATABASE_URL", "postgres://someone:a-password@127.0.0.1:9/x?sslmode=disable"),
    ("ANTIPHON_LOG", "warn"),
];

async fn check(arguments: &[&str], env: &[(&str, &str)]) -> Invocation {
    let arguments = ["config", "check"].iter().chain(arguments).copied().collect::<Vec<_>>();
    let env = NEEDED.iter().chain(env).map(|(name, value)| ((*name).to_owned(), (*value).to_owned()));
    invoke(&arguments, &env.collect::<Vec<_>>()).await.unwrap()
}

/// The command, its settings, and the words that the error line must contain.
type WrongSetting = (&'static str, &'static [(&'static str, &'static str)], &'static str);

const WRONG: &[WrongSetting] = &[
    ("worker", &[("ANTIPHON_LEASE_TTL_SECONDS", "ten")], "--lease-ttl-seconds"),
    ("worker", &[("ANTIPHON_MAX_OPEN_MESSAGES", "0")], "--max-open-messages"),
    ("worker", &[("ANTIPHON_PARTITIONS", "3")], "--partitions"),
    (
        "worker",
        &[("ANTIPHON_LIMITS_FILE", "/nowhere/limits.json")],
        "ANTIPHON_LIMITS_FILE /nowhere/limits.json: ",
    ),
    ("worker", &[("ANTIPHON_LEASE_TTL_SECOND", "10")], "ANTIPHON_LEASE_TTL_SECOND"),
    ("worker", &[("ANTIPHON_LOG", "=?=")], "=?="),
    ("worker", &[("DATABASE_URL", "mysql://x")], "postgres://"),
    ("worker", &[("NATS_URL", "http://x")], "NATS_URL"),
    ("worker", &[("ANTIPHON_NATS_CREDENTIALS", "/nowhere/creds")], "/nowhere/creds"),
    ("worker", &[("ANTIPHON_NATS_CREDENTIALS", "/etc/hosts")], "/etc/hosts"),
    ("worker", &[("ANTIPHON_NATS_CREDENTIALS", "/etc")], "/etc: "),
    ("worker", &[("ANTIPHON_NATS_NKEY", "/nowhere/seed")], "/nowhere/seed"),
    ("worker", &[("ANTIPHON_NATS_NKEY", "/etc/hosts")], "/etc/hosts: no nkey seed"),
    ("worker", &[("ANTIPHON_NATS_CA", "/nowhere/ca.pem")], "/nowhere/ca.pem"),
    ("worker", &[("ANTIPHON_NATS_CERTIFICATE", "/nowhere/tls.crt")], "--nats-certificate-key"),
    (
        "worker",
        &[
            ("ANTIPHON_NATS_CERTIFICATE", "/nowhere/tls.crt"),
            ("ANTIPHON_NATS_CERTIFICATE_KEY", "/nowhere/tls.key"),
        ],
        "/nowhere/tls.crt",
    ),
    ("worker", &[("ANTIPHON_NATS_CA", "/etc/hosts")], "/etc/hosts: there is no certificate in it"),
    ("workflow", &[("ANTIPHON_NATS_CA", "/etc")], "/etc: "),
    (
        "worker",
        &[("DATABASE_URL", "postgres://h/x?sslmode=verify-full&sslrootcert=/nowhere/ca.crt")],
        "/nowhere/ca.crt",
    ),
    (
        "migrate",
        &[("DATABASE_URL", "postgres://h/x?sslmode=require&sslrootcert=/etc/hosts")],
        "/etc/hosts: there is no certificate",
    ),
    (
        "mcp",
        &[("DATABASE_URL", "postgres://h/x?sslmode=require&sslcert=/etc/hosts&sslkey=/etc/hosts")],
        "/etc/hosts",
    ),
    (
        "gateway",
        &[("DATABASE_READ_URL", "postgres://h/x?sslmode=verify-full&sslrootcert=/nowhere/ca.crt")],
        "/nowhere/ca.crt",
    ),
    ("worker", &[("ANTIPHON_PRICES_FILE", "/nowhere/prices.json")], "/nowhere/prices.json"),
    (
        "workflow",
        &[
            ("ANTIPHON_LLM_BASE_URL", "http://127.0.0.1:9/v1"),
            ("ANTIPHON_LLM_MODEL", "m"),
            ("ANTIPHON_TOOLS_FILE", "/nowhere/tools.json"),
        ],
        "/nowhere/tools.json",
    ),
    (
        "gateway",
        &[
            ("ANTIPHON_JWT_ISSUER", "https://idp.example"),
            ("ANTIPHON_JWT_AUDIENCE", "x"),
            ("ANTIPHON_JWT_JWKS_FILE", "/etc/hosts"),
        ],
        "/etc/hosts",
    ),
    ("worker", &[("OTEL_EXPORTER_OTLP_ENDPOINT", "collector:4318")], "OTEL_EXPORTER_OTLP_ENDPOINT"),
    ("worker", &[("OTEL_EXPORTER_OTLP_HEADERS", "a-password")], "OTEL_EXPORTER_OTLP_HEADERS"),
    ("gateway", &[("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")], "http/protobuf"),
    ("workflow", &[("OTEL_TRACES_SAMPLER", "sometimes")], "parentbased_traceidratio"),
    ("workflow", &[("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")], "ratio"),
    ("migrate", &[("ANTIPHON_STREAM_REPLICAS", "6")], "--stream-replicas"),
    ("migrate", &[("ANTIPHON_PARTITIONS", "2048")], "--partitions"),
    ("gateway", &[("ANTIPHON_INSECURE", "true"), ("ANTIPHON_HTTP_ADDR", "0.0.0.0:80")], "ANTIPHON_HTTP_ADDR"),
    ("gateway", &[("ANTIPHON_JWT_ISSUER", "https://idp.example")], "jwt"),
    ("gateway", &[("ANTIPHON_CORS_ORIGINS", "https://app.example/path")], "ANTIPHON_CORS_ORIGINS"),
    (
        "gateway",
        &[
            ("ANTIPHON_JWT_ISSUER", "https://idp.example"),
            ("ANTIPHON_JWT_AUDIENCE", "x"),
            ("ANTIPHON_JWT_SECRET_FILE", "/nowhere/secret"),
        ],
        "ANTIPHON_JWT_SECRET_FILE",
    ),
    ("worker", &[("ANTIPHON_EMBEDDINGS_URL", "localhost:1/v1")], "ANTIPHON_EMBEDDINGS_URL"),
    ("gateway", &[("ANTIPHON_EMBEDDINGS_URL", "http://localhost:1/v1")], "ANTIPHON_EMBEDDINGS_MODEL"),
    ("migrate", &[("ANTIPHON_EMBEDDINGS_DIMENSIONS", "0")], "--embeddings-dimensions"),
    ("all", &[("ANTIPHON_EMBEDDINGS_TIMEOUT_MS", "0.5")], "--embeddings-timeout-ms"),
    ("mcp", &[("ANTIPHON_MCP_ADDR", "localhost")], "--mcp-addr"),
    ("workflow", &[("ANTIPHON_WORKFLOW_ENGINE", "openai")], "ANTIPHON_LLM_BASE_URL"),
    ("workflow", &[("ANTIPHON_WORKFLOW_ENGINE", "none")], "ANTIPHON_SCRIPT_HTTP_ADDR"),
    ("workflow", &[("ANTIPHON_SCRIPT_FILE", "/nowhere/script.json")], "/nowhere/script.json"),
    ("workflow", &[("ANTIPHON_MCP_URL", "127.0.0.1:8090")], "--mcp-url"),
    ("all", &[("ANTIPHON_MCP_ADDR", "0.0.0.0:1"), ("ANTIPHON_INSECURE", "true")], "ANTIPHON_MCP_ADDR"),
];

#[tokio::test(flavor = "multi_thread")]
async fn config_check_refuses_wrong_settings_with_one_line() {
    let mut wrong = Vec::new();
    for (command, env, names) in WRONG {
        let run = check(&[command], env).await;
        let lines = run.stderr.lines().filter(|line| !line.trim().is_empty()).count();
        let secret = run.stderr.contains("a-password");
        if run.code != Some(2)
            || lines != 1
            || !run.stdout.is_empty()
            || secret
            || !run.stderr.contains(names)
        {
            wrong.push(format!("{command} {env:?}: {:?}: {}{}", run.code, run.stderr, run.stdout));
        }
    }
    assert!(wrong.is_empty(), "{} cases:\n{}", wrong.len(), wrong.join("\n"));
}

#[tokio::test(flavor = "multi_thread")]
async fn config_check_says_what_counts_and_why() {
    let env = [
        ("ANTIPHON_LLM_API_KEY", "a-password"),
        ("ANTIPHON_MAX_OPEN_MESSAGES", "5"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "key=a-password"),
    ];
    let arguments = ["all", "-o", "json", "--max-open-messages", "7", "--insecure"];
    let run = check(&arguments, &env).await;
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""));
    assert!(!run.stdout.contains("a-password"), "{}", run.stdout);
    let settings: Vec<Value> = serde_json::from_str(&run.stdout).unwrap();
    let by_name: HashMap<_, _> = settings.iter().map(|it| (it["name"].as_str().unwrap(), it)).collect();
    assert_eq!(by_name.len(), settings.len(), "a setting is there twice");
    for (name, value, source) in [
        ("ANTIPHON_MAX_OPEN_MESSAGES", Some("7"), "flag"),
        ("ANTIPHON_INSECURE", Some("true"), "flag"),
        ("ANTIPHON_LOG", Some("warn"), "environment"),
        ("ANTIPHON_LEASE_TTL_SECONDS", Some("10"), "default"),
        ("ANTIPHON_WORKER_ID", None, "unset"),
        ("ANTIPHON_LLM_API_KEY", Some("***"), "environment"),
        ("OTEL_EXPORTER_OTLP_HEADERS", Some("***"), "environment"),
        ("NATS_URL", Some("nats://***@127.0.0.1:9"), "environment"),
        ("DATABASE_URL", Some("postgres://***@127.0.0.1:9/x?sslmode=disable"), "environment"),
    ] {
        let setting = by_name.get(name).unwrap_or_else(|| panic!("{name} is missing"));
        assert_eq!((setting["value"].as_str(), setting["source"].as_str()), (value, Some(source)), "{name}");
    }
    for command in ["migrate", "worker", "gateway", "mcp", "workflow"] {
        let run = check(&[command], &[]).await;
        assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{command}");
        assert!(run.stdout.starts_with("setting") && run.stdout.contains("ANTIPHON_LOG_FORMAT"), "{command}");
    }
}

/// The roles can read the files that the chart writes.
#[tokio::test]
async fn files_of_the_chart_are_what_roles_read() {
    let manifests = super::read(&super::deploy().join("chart/golden/production.yaml"));
    let folder = std::env::temp_dir().join(format!("chart-files-{}", rand::random::<u64>()));
    std::fs::create_dir(&folder).unwrap();
    let file = |name: &str| {
        let line = manifests.lines().find_map(|line| line.trim().strip_prefix(&format!("{name}: "))).unwrap();
        let path = folder.join(name);
        std::fs::write(&path, serde_json::from_str::<String>(line).unwrap()).unwrap();
        path.to_str().unwrap().to_owned()
    };
    let (prices, limits) = (file("prices.json"), file("limits.json"));
    let files = [("ANTIPHON_PRICES_FILE", prices.as_str()), ("ANTIPHON_LIMITS_FILE", limits.as_str())];
    let checked = check(&["worker"], &files).await;
    assert_eq!(checked.code, Some(0), "{}", checked.stderr);
    // Each file is valid only for its own setting.
    for swapped in [("ANTIPHON_PRICES_FILE", limits.as_str()), ("ANTIPHON_LIMITS_FILE", prices.as_str())] {
        let checked = check(&["worker"], &[swapped]).await;
        assert_eq!(checked.code, Some(2), "{swapped:?} {}", checked.stderr);
        assert!(checked.stderr.contains(swapped.0), "{}", checked.stderr);
    }
    std::fs::remove_dir_all(folder).unwrap();
}
