//! The container image, without building it: its defaults are settings of the binary, and those
//! that the chart relies on.

use std::collections::{BTreeMap, BTreeSet};
use std::process::Command;

use devservices::workspace;
use serde_json::Value;
use testkit::fleet::invoke;

use super::{deploy, read, words};

/// Settings that a start requires and the image cannot know.
const NEEDED: [(&str, &str); 2] =
    [("NATS_URL", "nats://127.0.0.1:9"), ("DATABASE_URL", "postgres://127.0.0.1:9/x?sslmode=disable")];

/// The arguments of each instruction of this name, in order.
fn instructions<'a>(containerfile: &'a str, name: &str) -> Vec<&'a str> {
    containerfile.lines().filter_map(|line| line.strip_prefix(name)?.strip_prefix(' ')).collect()
}

/// The variables that the image sets.
pub(super) fn image_env() -> BTreeMap<String, String> {
    let containerfile = read(&deploy().join("image/Containerfile"));
    let pairs = instructions(&containerfile, "ENV").into_iter().flat_map(str::split_whitespace);
    pairs
        .map(|pair| pair.split_once('=').unwrap_or_else(|| panic!("ENV {pair}: not a name and a value")))
        .map(|(name, value)| (name.to_owned(), value.to_owned()))
        .collect()
}

/// The manifests of all sets of values, concatenated.
fn manifests() -> String {
    super::value_sets().iter().map(|(name, _)| read(&deploy().join("chart/golden").join(name))).collect()
}

/// The values of a key anywhere in the manifests.
fn values_of<'a>(manifests: &'a str, key: &str) -> BTreeSet<&'a str> {
    let after = manifests.lines().filter_map(|line| line.split_once(key)).map(|(_, rest)| rest);
    after.map(|rest| rest.trim_matches([' ', '"', '}'])).collect()
}

/// The settings with which a command would start, by name: value and source.
pub(super) async fn checked(
    command: &str,
    env: &BTreeMap<String, String>,
) -> BTreeMap<String, (Option<String>, String)> {
    let env: Vec<_> = env.iter().map(|(name, value)| (name.clone(), value.clone())).collect();
    let run = invoke(&["config", "check", command, "-o", "json"], &env).await.unwrap();
    assert_eq!((run.code, run.stderr.as_str()), (Some(0), ""), "{command} with {env:?}");
    let settings: Vec<Value> = serde_json::from_str(&run.stdout).unwrap();
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let entry = |it: &Value| (text(&it["name"]).unwrap(), (text(&it["value"]), text(&it["source"]).unwrap()));
    settings.iter().map(entry).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn defaults_of_the_image_are_settings_of_the_binary() {
    let image = image_env();
    let needed = NEEDED.map(|(name, value)| (name.to_owned(), value.to_owned()));
    let env = image.clone().into_iter().chain(needed).collect();
    let mut unused: BTreeSet<_> = image.keys().cloned().collect();
    for command in ["migrate", "worker", "gateway", "mcp", "workflow", "all"] {
        for (name, (value, source)) in checked(command, &env).await {
            if let Some(set) = image.get(&name) {
                assert_eq!(
                    (value.as_ref(), source.as_str()),
                    (Some(set), "environment"),
                    "{command}: {name}"
                );
                unused.remove(&name);
            }
        }
    }
    assert!(image.len() >= 4 && unused.is_empty(), "no command has {unused:?}");
}

#[test]
fn image_listens_where_the_chart_expects_it() {
    let containerfile = read(&deploy().join("image/Containerfile"));
    let (image, manifests) = (image_env(), manifests());
    let ports: BTreeSet<_> = instructions(&containerfile, "EXPOSE")[0].split_whitespace().collect();
    assert_eq!(ports, values_of(&manifests, "containerPort:"));
    let addresses: BTreeMap<_, _> = image.iter().filter(|(name, _)| name.ends_with("_ADDR")).collect();
    assert_eq!(
        addresses.values().filter_map(|value| value.strip_prefix("0.0.0.0:")).collect::<BTreeSet<_>>(),
        ports
    );
    let variables = words(&manifests, "ANTIPHON_").into_iter().filter(|name| name.ends_with("_ADDR"));
    assert_eq!(addresses.keys().map(|name| name.to_string()).collect::<BTreeSet<_>>(), variables.collect());
    let lines: Vec<_> = manifests.lines().map(str::trim).collect();
    for pair in lines.windows(2) {
        let name = pair[0].strip_prefix("- name: ").unwrap_or_default().to_owned();
        if let Some(expected) = addresses.get(&name) {
            assert_eq!(pair[1], format!("value: {expected}"), "{name}");
        }
    }
}

#[test]
fn image_has_the_user_entry_point_and_version_of_the_chart() {
    let containerfile = read(&deploy().join("image/Containerfile"));
    let manifests = manifests();
    let id = |key| values_of(&manifests, key).into_iter().collect::<Vec<_>>().join(" or ");
    let user = format!("{}:{}", id("runAsUser:"), id("runAsGroup:"));
    assert_eq!(instructions(&containerfile, "USER"), [user]);
    assert_eq!(instructions(&containerfile, "ENTRYPOINT"), [r#"["/antiphon"]"#]);
    assert!(!manifests.contains("command:"), "pods give arguments, and leave the entry point to the image");
    // `cargo xtask image` gives the image this name, with the version of the workspace, and the
    // chart uses it.
    let name = format!("antiphon:{}", env!("CARGO_PKG_VERSION"));
    assert!(values_of(&manifests, "image:").contains(name.as_str()), "no pod runs {name}");
}

/// The revision after `--version`, in brackets.
#[tokio::test]
async fn binary_names_the_commit_that_it_is_built_of() {
    let run = invoke(&["--version"], &[]).await.unwrap();
    let (version, revision) = run.stdout.trim().split_once(" (").unwrap_or_else(|| panic!("{}", run.stdout));
    assert_eq!(version, format!("antiphon {}", env!("CARGO_PKG_VERSION")));
    let revision = revision.trim_end_matches(')').trim_end_matches("-modified");
    let git = |arguments: &[&str]| {
        let run = Command::new("git").args(arguments).current_dir(workspace::root()).output();
        run.is_ok_and(|output| output.status.success())
    };
    if git(&["rev-parse", "HEAD"]) {
        assert_eq!(revision.len(), 40, "{revision}");
        assert!(git(&["cat-file", "-e", revision]), "{revision} is no commit of this repository");
    } else {
        assert_eq!(revision, "unknown");
    }
}

/// The labels known without a build; `cargo xtask image` adds version, revision and source, and its
/// tests check them.
#[test]
fn image_has_labels() {
    let containerfile = read(&deploy().join("image/Containerfile")).replace("\\\n", " ");
    let labels = instructions(&containerfile, "LABEL").join(" ");
    for name in ["title=antiphon", "description=\"", "licenses=Apache-2.0"] {
        assert!(labels.contains(&format!("org.opencontainers.image.{name}")), "{name}: {labels}");
    }
}
