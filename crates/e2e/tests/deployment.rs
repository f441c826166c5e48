//! The deployment: the chart, rendered and checked against the schemas of Kubernetes; alerts and
//! dashboards, on a real Prometheus.

mod backup;
mod chart;
mod clusters;
mod compose;
mod configuration;
mod image;
mod monitoring;
mod mutual_tls;
mod nats_permissions;
mod runbooks;
mod tls;

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    process::{Command, Output},
};

use devservices::{pip, tools, workspace};

/// If set, the golden manifests are written before they are compared.
const WRITE_GOLDEN: &str = "ANTIPHON_WRITE_GOLDEN";

fn deploy() -> PathBuf {
    workspace::root().join("deploy")
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

fn said(output: &Output) -> String {
    [&output.stdout, &output.stderr].map(|bytes| String::from_utf8_lossy(bytes).into_owned()).join("")
}

/// Renders the chart with a file of values and more arguments.
fn render(values: &Path, more: &[&str]) -> Output {
    let helm = tools::helm().unwrap().path;
    let mut helm = Command::new(helm);
    helm.args(["template", "antiphon"])
        .arg(deploy().join("chart/antiphon"))
        .args(["--namespace", "antiphon"]);
    helm.arg("--values").arg(values).args(more).output().unwrap()
}

/// The tested sets of values, by name.
fn value_sets() -> Vec<(String, PathBuf)> {
    let folder = fs::read_dir(deploy().join("chart/values")).unwrap();
    let mut sets: Vec<_> = folder
        .map(|entry| entry.unwrap())
        .map(|entry| (entry.file_name().into_string().unwrap(), entry.path()))
        .collect();
    sets.sort();
    sets
}

#[test]
fn chart_renders_the_golden_manifests() {
    let sets = value_sets();
    assert!(sets.len() >= 6, "{sets:?}");
    for (name, values) in sets {
        let output = render(&values, &[]);
        assert!(output.status.success(), "{name}: {}", said(&output));
        let (rendered, golden) =
            (String::from_utf8(output.stdout).unwrap(), deploy().join("chart/golden").join(&name));
        if std::env::var_os(WRITE_GOLDEN).is_some() {
            fs::write(&golden, &rendered).unwrap();
        }
        assert_eq!(rendered, read(&golden), "{name}: {WRITE_GOLDEN}=1 writes it again");
    }
}

#[test]
fn manifests_hold_the_schemas_of_kubernetes() {
    let sources = workspace::root().join("crates/e2e/tests/deployment");
    let target = workspace::target_dir().join("deployment");
    let packages = pip::install(&sources.join("requirements.txt"), &target).unwrap();
    // Not a golden manifest, because it contains whole files.
    let with_dashboards =
        render(&deploy().join("chart/values/minimal.yaml"), &["--set", "metrics.dashboards.enabled=true"]);
    let dashboards = target.join(format!("dashboards-{}.yaml", std::process::id()));
    fs::write(&dashboards, &with_dashboards.stdout).unwrap();
    let golden = value_sets()
        .into_iter()
        .map(|(name, _)| deploy().join("chart/golden").join(name))
        .collect::<Vec<_>>();
    let clusters = target.join(format!("clusters-{}", std::process::id()));
    fs::create_dir_all(&clusters).unwrap();
    let write = |(name, text): (String, String)| {
        let path = clusters.join(name).with_extension("yaml");
        fs::write(&path, text).unwrap();
        path
    };
    let of_clusters: Vec<_> = clusters::rendered_clusters().into_iter().map(write).collect();
    assert!(of_clusters.len() >= 20, "{of_clusters:?}");
    let mut python = Command::new("python3");
    python.env("PYTHONPATH", packages).env("PYTHONDONTWRITEBYTECODE", "1");
    let output = python.arg(sources.join("check.py")).args(golden).args(of_clusters).arg(&dashboards);
    let output = output.output().unwrap();
    fs::remove_file(dashboards).unwrap();
    fs::remove_dir_all(clusters).unwrap();
    assert!(output.status.success(), "{}", said(&output));
}

/// Values, and a word of the error that refuses them.
const WRONG_VALUES: &[(&str, &str)] = &[
    ("worker.replica=3", "replica"),
    ("worker.replicas=0", "replicas"),
    ("worker.replicas=33", "32 partitions"),
    ("worker.terminationGracePeriodSeconds=10", "terminationGracePeriodSeconds"),
    ("worker.autoscaling.enabled=true,worker.autoscaling.maxReplicas=33", "32 partitions"),
    ("partitions=12", "partitions"),
    ("nats.url=http://nats:4222", "nats/url"),
    ("nats.url=", "nats.url or nats.usersSecret"),
    ("nats.streamReplicas=2", "streamReplicas"),
    ("database.existingSecret=", "existingSecret"),
    ("image.digest=sha256:12", "digest"),
    ("gateway.service.port=70000", "port"),
    ("gateway.service.type=External", "type"),
    ("gateway.drainSeconds=-1", "drainSeconds"),
    ("gateway.maxConnectionsPerIp=many", "maxConnectionsPerIp"),
    ("gateway.ingress.enabled=true", "gateway.ingress.hosts"),
    ("gateway.httpRoute.enabled=true", "gateway.httpRoute.parentRefs"),
    ("gateway.autoscaling.enabled=true,gateway.autoscaling.targetSubscribers=100", "prometheusAddress"),
    ("workflow.enabled=true", "workflow.llm.baseUrl"),
    ("log.format=xml", "format"),
    ("otlp.endpoint=collector:4318", "endpoint"),
    ("otlp.sampler=sometimes", "sampler"),
    ("env.lower_case=1", "lower_case"),
    ("env.ANTIPHON_HTTP_DRAIN_SECONDS=60", "gateway.drainSeconds"),
    ("worker.env.ANTIPHON_LOG=debug", "log.level"),
    ("gateway.env.ANTIPHON_HTTP_ADDR=0.0.0.0:80", "ANTIPHON_HTTP_ADDR"),
    ("gateway.envFrom[0].secret.name=more", "envFrom"),
    ("gateway.extraVolumeMounts[0].name=ca", "mountPath"),
    ("metrics.podMonitor.interval=15", "interval"),
    ("networkPolicy.natsPort=0", "natsPort"),
    ("turnLimits[0].model=m", "turnLimits/0"),
    ("turnLimits[0].model=m,turnLimits[0].tenant=t,turnLimits[0].turnsAtOnce=3", "turnLimits/0"),
    ("turnLimits[0].model=m,turnLimits[0].turnsAtOnce=0", "turnsAtOnce"),
    ("prices.currency=USD", "prices"),
];

#[test]
fn chart_refuses_wrong_values() {
    for (set, expected) in WRONG_VALUES {
        let output = render(&deploy().join("chart/values/minimal.yaml"), &["--set", set]);
        assert!(!output.status.success(), "{set} is rendered");
        assert!(said(&output).contains(expected), "{set}: {}", said(&output));
    }
}

/// The words of a text that begin with `prefix` and consist of letters, digits and underscores.
fn words(text: &str, prefix: &str) -> BTreeSet<String> {
    text.split(|c: char| !c.is_ascii_alphanumeric() && c != '_')
        .filter(|word| word.starts_with(prefix))
        .map(str::to_owned)
        .collect()
}

#[test]
fn deployment_names_only_variables_and_metrics_that_exist() {
    let chart = deploy().join("chart/antiphon");
    let reference = read(&deploy().join("REFERENCE.md"));
    let (variables, metrics) = (words(&reference, "ANTIPHON_"), words(&reference, "antiphon_"));
    let files_of = |folder: &str| {
        let entries = fs::read_dir(chart.join(folder)).unwrap().map(|entry| entry.unwrap().path());
        entries.filter(|path| path.is_file()).map(|path| read(&path)).collect::<String>()
    };
    let named = words(&files_of("templates"), "ANTIPHON_");
    assert!(named.len() > 10 && named.is_subset(&variables), "{:?}", named.difference(&variables));
    let queries = read(&chart.join("files/alerts.yaml")) + &files_of("files/dashboards");
    let histogram_part = |name: &str| {
        ["_bucket", "_count", "_sum"].iter().find_map(|part| name.strip_suffix(part)).map(str::to_owned)
    };
    let asked: BTreeSet<String> = words(&queries, "antiphon_")
        .into_iter()
        .map(|name| histogram_part(&name).filter(|base| metrics.contains(base)).unwrap_or(name))
        .collect();
    assert!(asked.len() > 40 && asked.is_subset(&metrics), "{:?}", asked.difference(&metrics));
}
