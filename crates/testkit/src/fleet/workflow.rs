//! Workflow services of a fleet: the binary's own service with a script, or any other program.

use std::{
    fs,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result};
use serde_json::Value;

use super::process::{Process, Program};

#[derive(Debug, Clone)]
pub struct WorkflowOptions {
    /// The workflow whose turn requests it takes.
    pub workflow: String,
    pub program: WorkflowProgram,
}

/// The program of a workflow service.
#[derive(Debug, Clone)]
pub enum WorkflowProgram {
    /// `antiphon workflow` with this script.
    Script(Value),
    /// Another program, which finds `NATS_URL` and `ANTIPHON_WORKFLOW` in its environment.
    Program { binary: PathBuf, arguments: Vec<String>, dir: PathBuf },
}

impl WorkflowOptions {
    /// A scripted service for the workflow `default`.
    pub fn script(script: Value) -> Self {
        Self { workflow: "default".to_owned(), program: WorkflowProgram::Script(script) }
    }

    /// Sets another workflow.
    #[must_use]
    pub fn of(mut self, workflow: &str) -> Self {
        self.workflow = workflow.to_owned();
        self
    }

    pub(super) fn process(
        &self,
        name: String,
        dir: &Path,
        mut env: Vec<(String, String)>,
    ) -> Result<Process> {
        env.push(("ANTIPHON_WORKFLOW".to_owned(), self.workflow.clone()));
        let program = match &self.program {
            WorkflowProgram::Script(script) => {
                let path = dir.join(format!("{name}.json"));
                fs::write(&path, serde_json::to_vec_pretty(script)?)
                    .with_context(|| format!("writing {}", path.display()))?;
                env.push(("ANTIPHON_WORKFLOW_ENGINE".to_owned(), "scripted".to_owned()));
                env.push(("ANTIPHON_SCRIPT_FILE".to_owned(), path.display().to_string()));
                Program::role("workflow")?
            }
            WorkflowProgram::Program { binary, arguments, dir } => Program {
                binary: binary.clone(),
                arguments: arguments.iter().map(Into::into).collect(),
                dir: Some(dir.clone()),
                has_probes: false,
            },
        };
        Process::new(program, name, dir, env)
    }
}
