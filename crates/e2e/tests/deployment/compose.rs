//! deploy/compose.yaml, without containers: its settings are those of the binary and of the files
//! that it mounts.

use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::PathBuf,
    process::Command,
};

use devservices::{
    services::{Nginx, ScratchDir, Server},
    tools, workspace,
};
use serde_json::{Value, json};
use testkit::http;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{
    deploy,
    image::{checked, image_env},
    read, said, words,
};
use crate::{api_client::SOON, fixture::Fixture};

/// The services of the file, by name. Helm reads YAML, and is installed for the chart anyway.
fn services() -> BTreeMap<String, Value> {
    let chart = ScratchDir::new("compose-as-values").unwrap();
    fs::create_dir(chart.path().join("templates")).unwrap();
    fs::write(chart.path().join("Chart.yaml"), "{apiVersion: v2, name: compose, version: 0.0.0}").unwrap();
    fs::write(chart.path().join("templates/values.json"), "{{ toJson .Values }}").unwrap();
    let mut helm = Command::new(tools::helm().unwrap().path);
    helm.args(["template", "--values"]).arg(deploy().join("compose.yaml")).arg(chart.path());
    let output = helm.output().unwrap();
    assert!(output.status.success(), "{}", said(&output));
    let rendered = String::from_utf8(output.stdout).unwrap();
    let values: Value = serde_json::from_str(rendered.lines().last().unwrap()).unwrap();
    serde_json::from_value(values["services"].clone()).unwrap()
}

/// The variables of a service, all of them strings: a number or a boolean would be written in
/// YAML's form.
fn env_of(service: &Value) -> BTreeMap<String, String> {
    serde_json::from_value(service["environment"].clone())
        .unwrap_or_else(|error| panic!("{error}: {service}"))
}

/// The files of the checkout that a service mounts, by their path in the container.
fn mounts(service: &Value) -> BTreeMap<String, PathBuf> {
    let volumes = service["volumes"].as_array().into_iter().flatten();
    let parts = volumes.map(|volume| volume.as_str().unwrap().split(':').collect::<Vec<_>>());
    parts
        .filter(|parts| parts[0].starts_with('.'))
        .map(|parts| (parts[1].to_owned(), deploy().join(parts[0])))
        .collect()
}

/// The only line of a configuration that begins with this word, without it and without a semicolon.
fn line_of<'a>(configuration: &'a str, word: &str) -> &'a str {
    let mut lines = configuration.lines().filter_map(|line| line.trim().strip_prefix(word));
    let line = lines.next().unwrap_or_else(|| panic!("no line begins with {word}"));
    assert_eq!(lines.next(), None, "two lines begin with {word}");
    line.trim().trim_end_matches(';')
}

#[tokio::test(flavor = "multi_thread")]
async fn compose_sets_what_the_binary_knows() {
    let services = services();
    let antiphon = &services["antiphon"];
    assert_eq!(antiphon["command"], json!(["all"]));
    let (set, files) = (env_of(antiphon), mounts(antiphon));
    let outside = |value: &String| files.get(value).map_or(value.clone(), |file| file.display().to_string());
    let set: BTreeMap<_, _> = set.iter().map(|(name, value)| (name.clone(), outside(value))).collect();
    let settings = checked("all", &image_env().into_iter().chain(set.clone()).collect()).await;
    for (name, value) in &set {
        let (known, source) = settings.get(name).unwrap_or_else(|| panic!("no setting {name}"));
        assert_eq!(source, "environment", "{name}");
        let is_secret = known.as_ref().is_some_and(|known| known.contains("***"));
        assert!(is_secret || known.as_ref() == Some(value), "{name}: {known:?} instead of {value}");
    }
    assert!(settings["ANTIPHON_SCRIPT_FILE"].0.as_ref().is_some_and(|file| file.ends_with("script.json")));
}

#[test]
fn compose_gives_nats_its_configuration_and_users() {
    let services = services();
    let (nats, env) = (&services["nats"], env_of(&services["nats"]));
    let place = nats["command"].as_array().unwrap().last().unwrap().as_str().unwrap();
    let file = fs::canonicalize(&mounts(nats)[place]).unwrap();
    assert_eq!(file, fs::canonicalize(deploy().join("nats.conf")).unwrap());
    let configuration = read(&file);
    let is_used = |line: &&str| !line.trim_start().starts_with('#');
    let configuration = configuration.lines().filter(is_used).collect::<Vec<_>>().join("\n");
    let asked: BTreeSet<_> = words(&configuration.replace('$', " "), "ANTIPHON_NATS_");
    let asked: BTreeSet<_> =
        asked.into_iter().filter(|name| configuration.contains(&format!("${name}"))).collect();
    assert!(asked.len() > 5);
    assert_eq!(env.keys().cloned().collect::<BTreeSet<_>>(), asked);
    let port = line_of(&configuration, "listen:").rsplit_once(':').unwrap().1;
    let (user, password) = ("operator", &env["ANTIPHON_NATS_OPERATOR_PASSWORD"]);
    assert_eq!(env_of(&services["antiphon"])["NATS_URL"], format!("nats://{user}:{password}@nats:{port}"));
    assert_eq!(nats["ports"], json!([format!("127.0.0.1:{port}:{port}")]));
}

#[test]
fn compose_names_services_and_files_that_exist() {
    let services = services();
    for (name, service) in &services {
        let image = service["image"].as_str().unwrap();
        let tag = image.split_once(':').map_or("", |(_, tag)| tag);
        assert!(image == "antiphon:latest" || tag.starts_with(|c: char| c.is_ascii_digit()), "{image}");
        for (place, file) in mounts(service) {
            assert!(file.is_file(), "{name}: {place} is {}", file.display());
        }
        for port in service["ports"].as_array().into_iter().flatten() {
            assert!(port.as_str().unwrap().starts_with("127.0.0.1:"), "{name}: {port} is open to others");
        }
        for other in service["depends_on"].as_array().into_iter().flatten() {
            assert!(services.contains_key(other.as_str().unwrap()), "{name}: there is no {other}");
        }
    }
    let antiphon = &services["antiphon"];
    assert_eq!((&antiphon["read_only"], &antiphon["cap_drop"]), (&json!(true), &json!(["ALL"])));
    let password = &env_of(&services["postgres"])["POSTGRES_PASSWORD"];
    let database = format!("postgres://postgres:{password}@postgres:5432/postgres");
    assert_eq!(env_of(antiphon)["DATABASE_URL"], database);
}

#[test]
fn compose_serves_the_address_of_the_readme() {
    let services = services();
    let proxy = read(&deploy().join("compose/proxy.conf"));
    assert_eq!(services["antiphon"]["network_mode"], "service:proxy");
    let gateway = &env_of(&services["antiphon"])["ANTIPHON_HTTP_ADDR"];
    assert_eq!(line_of(&proxy, "proxy_pass"), format!("http://{gateway}"));
    let published = services["proxy"]["ports"][0].as_str().unwrap();
    let (address, listens) = published.rsplit_once(':').unwrap();
    assert_eq!(line_of(&proxy, "listen"), listens);
    let readme = read(&workspace::root().join("README.md"));
    assert!(readme.contains(&format!("http://{address}/v1/threads/hello/messages")), "{address}");
}

/// The proxy's own lines before a gateway without authentication, as in the file.
#[tokio::test(flavor = "multi_thread")]
async fn proxy_of_compose_streams_and_keeps_the_host() {
    let fixture = Fixture::new().await;
    let proxy = read(&deploy().join("compose/proxy.conf"));
    let (_, location) = proxy.split_once("location / {").unwrap();
    let lines = location.split_once('}').unwrap().0.lines().filter(|line| !line.contains("proxy_pass"));
    let server =
        Server { upstream: fixture.fleet.gateway_addrs()[0], lines: lines.collect::<Vec<_>>().join("\n") };
    let nginx = tokio::task::spawn_blocking(move || Nginx::start(&tools::nginx()?.path, &[server]));
    let nginx = nginx.await.unwrap().unwrap();
    let mut opened = http::open(nginx.addrs()[0], "/v1/threads/hello/events", &[]).await.unwrap();
    assert_eq!(opened.status, 200, "{opened:?}");
    // An event stream begins with a comment: the proxy buffers nothing.
    let mut begin = Vec::new();
    assert!(timeout(SOON, opened.body.read(&mut begin)).await.unwrap().unwrap() > 0);
    let mut stream = TcpStream::connect(nginx.addrs()[0]).await.unwrap();
    let request = "GET /v1/models HTTP/1.1\r\nHost: elsewhere.example\r\nConnection: close\r\n\r\n";
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(SOON, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    assert!(answer.starts_with("HTTP/1.1 421 "), "{answer}");
}
