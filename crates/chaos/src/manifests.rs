//! Converts rendered manifests to JSON for look-ups.

use std::{fs, process::Command};

use anyhow::{Context, Result, ensure};
use devservices::{services::ScratchDir, tools};
use serde_json::Value;

/// A template with which Helm converts the rendered YAML to JSON. The chart needs Helm anyway.
const AS_JSON: &str = r#"{{ $all := list }}{{ range splitList "\n---" (.Files.Get "rendered.yaml") }}{{ $all = append $all (fromYaml .) }}{{ end }}{{ dict "all" $all | toJson }}"#;

/// The documents of rendered manifests.
///
/// # Errors
/// Helm is missing, or cannot read them.
pub fn as_json(rendered: &str) -> Result<Vec<Value>> {
    let chart = ScratchDir::new("manifests")?;
    fs::create_dir(chart.path().join("templates"))?;
    fs::write(chart.path().join("Chart.yaml"), "{apiVersion: v2, name: manifests, version: 0.0.0}")?;
    fs::write(chart.path().join("rendered.yaml"), rendered)?;
    fs::write(chart.path().join("templates/all.json"), AS_JSON)?;
    let text = output_of(Command::new(tools::helm()?.path).arg("template").arg(chart.path()))?;
    let all: Value = serde_json::from_str(text.lines().last().unwrap_or_default())?;
    Ok(all["all"].as_array().context("Helm read no manifests")?.clone())
}

/// The standard output of a command.
///
/// # Errors
/// The command cannot be started or fails; the error contains its standard error.
pub(crate) fn output_of(command: &mut Command) -> Result<String> {
    let output = command.output().context("starting helm")?;
    ensure!(output.status.success(), "helm: {}", String::from_utf8_lossy(&output.stderr).trim());
    Ok(String::from_utf8(output.stdout)?)
}
