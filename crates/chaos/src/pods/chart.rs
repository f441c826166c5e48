//! The pods of the chart, as rendered by Helm, in the form in which Kubernetes would create them.

use std::{collections::BTreeMap, process::Command, time::Duration};

use anyhow::{Context, Result};
use devservices::{tools, workspace};
use serde_json::{Value, json};

use crate::manifests::{as_json, output_of};

/// The release name, which is also the instance label of its pods.
pub(super) const RELEASE: &str = "antiphon-pods";
/// The rendered chart.
#[derive(Debug)]
pub(super) struct Rendered {
    /// The Job that runs before an upgrade.
    pub(super) migration: PodTemplate,
    pub(super) deployments: Vec<PodTemplate>,
}

/// The pod template of a Deployment or a Job.
#[derive(Debug, Clone)]
pub(super) struct PodTemplate {
    /// The label `component`: worker, gateway, workflow, mcp, migrate.
    pub(super) role: String,
    pub(super) replicas: usize,
    /// Maximum time for a pod to end after SIGTERM.
    pub(super) grace: Duration,
    pub(super) image: String,
    /// Ports of the container by name.
    pub(super) ports: BTreeMap<String, u16>,
    metadata: Value,
    spec: Value,
}

/// An `httpGet` probe.
#[derive(Debug, Clone)]
pub(super) struct Probe {
    pub(super) path: String,
    pub(super) port: u16,
    pub(super) period: Duration,
    pub(super) timeout: Duration,
    pub(super) failure_threshold: u32,
}

/// Renders the chart with values in the form of `--set`.
pub(super) fn render(values: &[String]) -> Result<Rendered> {
    let deploy = workspace::root().join("deploy/chart");
    let mut helm = Command::new(tools::helm()?.path);
    helm.args(["template", RELEASE]).arg(deploy.join("antiphon")).arg("--values");
    helm.arg(deploy.join("values/minimal.yaml"));
    helm.args(values.iter().flat_map(|value| ["--set", value]));
    let documents = as_json(&output_of(&mut helm)?)?;
    let templates = |kind: &str| -> Result<Vec<_>> {
        documents.iter().filter(|document| document["kind"] == kind).map(PodTemplate::read).collect()
    };
    let migration = templates("Job")?.into_iter().next().context("the chart has no migration")?;
    Ok(Rendered { migration, deployments: templates("Deployment")? })
}

impl PodTemplate {
    fn read(document: &Value) -> Result<Self> {
        let (metadata, spec) =
            (&document["spec"]["template"]["metadata"], &document["spec"]["template"]["spec"]);
        let role =
            metadata["labels"]["app.kubernetes.io/component"].as_str().context("a pod without a role")?;
        let container = &spec["containers"][0];
        let ports = container["ports"].as_array().into_iter().flatten();
        let port = |port: &Value| {
            Some((port["name"].as_str()?.to_owned(), u16::try_from(port["containerPort"].as_u64()?).ok()?))
        };
        Ok(Self {
            role: role.to_owned(),
            replicas: usize::try_from(document["spec"]["replicas"].as_u64().unwrap_or(1))?,
            grace: Duration::from_secs(spec["terminationGracePeriodSeconds"].as_u64().unwrap_or(30)),
            image: container["image"].as_str().context("a container without an image")?.to_owned(),
            ports: ports.filter_map(port).collect(),
            metadata: metadata.clone(),
            spec: spec.clone(),
        })
    }

    /// A probe of the container by its kind, such as `readinessProbe`.
    pub(super) fn probe(&self, kind: &str) -> Result<Probe> {
        let probe = &self.spec["containers"][0][kind];
        let port = probe["httpGet"]["port"].as_str().and_then(|name| self.ports.get(name));
        let number = |name: &str, default| probe[name].as_u64().unwrap_or(default);
        Ok(Probe {
            path: probe["httpGet"]["path"].as_str().context("a probe without a path")?.to_owned(),
            port: *port.with_context(|| format!("{} has no {kind} on a port of its own", self.role))?,
            period: Duration::from_secs(number("periodSeconds", 10)),
            timeout: Duration::from_secs(number("timeoutSeconds", 1)),
            failure_threshold: u32::try_from(number("failureThreshold", 3))?,
        })
    }

    /// The limit of the container's memory, as the chart writes it.
    pub(super) fn memory_limit(&self) -> &str {
        self.spec["containers"][0]["resources"]["limits"]["memory"].as_str().unwrap_or("none")
    }

    /// The manifest of a pod with this name, without ports and probes. A kubelet would handle these
    /// two differently from podman. Podman publishes ports on the machine, where replicas would
    /// collide. It also runs probes inside the container, which has no program for them.
    pub(super) fn pod(&self, name: &str) -> Value {
        let (mut metadata, mut spec) = (self.metadata.clone(), self.spec.clone());
        metadata["name"] = json!(name);
        for container in
            spec["containers"].as_array_mut().into_iter().flatten().filter_map(Value::as_object_mut)
        {
            for field in ["ports", "livenessProbe", "readinessProbe"] {
                container.remove(field);
            }
        }
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
    }
}
