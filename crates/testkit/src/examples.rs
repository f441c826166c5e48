//! The example workflow services of `deploy/examples`, installed into a folder that is kept between
//! runs.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use anyhow::{Context as _, Result, bail};
use devservices::workspace;
use tokio::{process::Command, time::timeout};

use crate::fleet::{WorkflowOptions, WorkflowProgram};

/// Limit for one step of an installation.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(240);

/// The Python example as a service of this workflow.
pub async fn python(workflow: &str) -> Result<WorkflowOptions> {
    let dir = place("workflow-python", &["workflow.py", "requirements.txt"])?;
    let done = dir.join("installed");
    if !is_done(&done, &dir.join("requirements.txt"))? {
        // The packages are installed beside the script, which finds them there. A virtual
        // environment would need the venv package, which may be missing.
        let options = ["--quiet", "--upgrade", "--target", ".", "--requirement", "requirements.txt"];
        run(&dir, "python3", &[&["-m", "pip", "install"], options.as_slice()].concat()).await?;
        note_done(&done, &dir.join("requirements.txt"))?;
    }
    Ok(service(workflow, "python3", "workflow.py", dir))
}

/// The TypeScript example as a service of this workflow; compiled each time.
pub async fn typescript(workflow: &str) -> Result<WorkflowOptions> {
    let files = ["workflow.ts", "tool_calls.ts", "package.json", "package-lock.json", "tsconfig.json"];
    let dir = place("workflow-typescript", &files)?;
    let done = dir.join("installed");
    if !is_done(&done, &dir.join("package-lock.json"))? {
        run(&dir, "npm", &["ci", "--include=dev", "--no-audit", "--no-fund"]).await?;
        note_done(&done, &dir.join("package-lock.json"))?;
    }
    run(&dir, "npm", &["run", "build"]).await?;
    Ok(service(workflow, "node", "dist/workflow.js", dir))
}

fn service(workflow: &str, program: &str, script: &str, dir: PathBuf) -> WorkflowOptions {
    let program =
        WorkflowProgram::Program { binary: program.into(), arguments: vec![script.to_owned()], dir };
    WorkflowOptions { workflow: workflow.to_owned(), program }
}

/// Copies the example below `target/`, so that nothing is installed into the sources.
fn place(example: &str, files: &[&str]) -> Result<PathBuf> {
    let from = workspace::root().join("deploy/examples").join(example);
    let to = workspace::target_dir().join("examples").join(example);
    fs::create_dir_all(&to)?;
    for file in files {
        fs::copy(from.join(file), to.join(file)).with_context(|| format!("copying {file} of {example}"))?;
    }
    Ok(to)
}

/// True if exactly this was installed before.
fn is_done(mark: &Path, wanted: &Path) -> Result<bool> {
    let wanted = fs::read(wanted)?;
    Ok(fs::read(mark).is_ok_and(|installed| installed == wanted))
}

fn note_done(mark: &Path, wanted: &Path) -> Result<()> {
    fs::copy(wanted, mark)?;
    Ok(())
}

async fn run(dir: &Path, program: &str, arguments: &[&str]) -> Result<()> {
    let what = format!("{program} {}", arguments.join(" "));
    let mut command = Command::new(program);
    command.args(arguments).current_dir(dir).stdin(Stdio::null()).kill_on_drop(true);
    let output = timeout(COMMAND_TIMEOUT, command.output()).await;
    let output = output.with_context(|| format!("{what}: not after {COMMAND_TIMEOUT:?}"))?;
    let output = output.with_context(|| what.clone())?;
    if !output.status.success() {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        bail!("{what}: {}\n{}{}", output.status, text(&output.stdout), text(&output.stderr));
    }
    Ok(())
}
