//! Export and import by the shipped commands, compared with Postgres' own COPY of the same rows.

use std::{path::PathBuf, process::Stdio};

use anyhow::{Context as _, Result, ensure};
use devservices::services::ScratchDir;
use futures_util::TryStreamExt;
use sqlx::{Connection as _, PgConnection};
use tokio::process::Command;

use super::{
    super::{table::Row, timing::Timings},
    environment::ContextEnvironment,
    threads::BenchThread,
};
use testkit::fleet;

const OF_COPY: f64 = 0.4;

/// Exports the thread from the database and imports it into an empty one, by the commands and by
/// Postgres' COPY.
pub(super) async fn rows(
    environment: &ContextEnvironment,
    thread: &BenchThread,
    rounds: u32,
) -> Result<Vec<Row>> {
    let scratch = ScratchDir::new("export")?;
    let commands = Commands { binary: fleet::binary()?, file: scratch.path().join("thread.jsonl") };
    if !commands.are_there().await? {
        let why = "this binary has no `database export` and `database import`";
        return Ok(vec![Row::missing('d', "export and import", why)]);
    }
    let mut ways = Ways::default();
    for _ in 0..rounds {
        ways.out(environment, thread, &commands).await?;
        ways.back(environment, thread, &commands).await?;
    }
    Ok(ways.rows(thread))
}

/// The commands of the shipped binary, each run as a process.
struct Commands {
    binary: PathBuf,
    file: PathBuf,
}

impl Commands {
    async fn are_there(&self) -> Result<bool> {
        for name in ["export", "import"] {
            if !self.command(&["database", name, "--help"]).status().await?.success() {
                return Ok(false);
            }
        }
        Ok(true)
    }

    async fn export(&self, thread: &BenchThread, url: &str) -> Result<()> {
        let mut command = self.command(&["database", "export", thread.id.as_str(), "--database-url", url]);
        finish(command.arg("--output").arg(&self.file)).await
    }

    async fn import(&self, url: &str) -> Result<()> {
        let mut command = self.command(&["database", "import", "--database-url", url]);
        finish(command.arg("--file").arg(&self.file)).await
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = Command::new(&self.binary);
        command.args(arguments).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        command
    }
}

async fn finish(command: &mut Command) -> Result<()> {
    let output = command.stderr(Stdio::piped()).output().await.context("starting antiphon")?;
    ensure!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}

/// The times of the steps.
#[derive(Debug, Default)]
struct Ways {
    exporting: Timings,
    copying_out: Timings,
    importing: Timings,
    copying_in: Timings,
    exported_bytes: u64,
    copied: Vec<u8>,
    /// Load of other processes while Postgres copied. For the commands it cannot be measured,
    /// because they are other processes too.
    foreign_cores: f64,
}

impl Ways {
    async fn out(
        &mut self,
        environment: &ContextEnvironment,
        thread: &BenchThread,
        commands: &Commands,
    ) -> Result<()> {
        self.exporting.time(commands.export(thread, environment.url())).await?;
        self.exported_bytes = std::fs::metadata(&commands.file)?.len();
        let (mut copied, meter) = (Vec::new(), environment.meter());
        self.copying_out.time(copy_out(environment, thread, |part| copied.extend_from_slice(part))).await?;
        self.foreign_cores = self.foreign_cores.max(meter.used().foreign_cores);
        self.copied = copied;
        Ok(())
    }

    async fn back(
        &mut self,
        environment: &ContextEnvironment,
        thread: &BenchThread,
        commands: &Commands,
    ) -> Result<()> {
        let database = environment.another().await?;
        self.importing.time(commands.import(database.url())).await?;
        ensure_rows(database.url(), thread).await?;
        let database = environment.another().await?;
        let meter = environment.meter();
        self.copying_in.time(copy_in(database.url(), &self.copied)).await?;
        self.foreign_cores = self.foreign_cores.max(meter.used().foreign_cores);
        ensure_rows(database.url(), thread).await
    }

    fn rows(&self, thread: &BenchThread) -> Vec<Row> {
        let rate = |timings: &Timings| thread.messages() as f64 / timings.p50_ms() * 1e3;
        let row = |name: &str, timings: &Timings, bytes: u64| {
            let what = format!("{name}, {} rows", thread.messages());
            Row::new('d', what, format!("{:.0} rows/s", rate(timings)))
                .note(format!("{} MB", bytes / 1_000_000))
                .figure("rows_per_second", rate(timings))
        };
        let ours = |name: &str, timings: &Timings| {
            row(name, timings, self.exported_bytes).of_binary("rows/s", rate(timings))
        };
        let goal = |name: &str, ours: &Timings, copy: &Timings| {
            let ratio = rate(ours) / rate(copy);
            Row::new('d', name, format!("{ratio:.2}"))
                .figure("ratio", ratio)
                .figure("foreign_cores", self.foreign_cores)
                .goal(format!(">= {OF_COPY}"), ratio >= OF_COPY)
                .note(format!("others used up to {:.1} cores beside COPY", self.foreign_cores))
        };
        let copied = self.copied.len() as u64;
        vec![
            ours("database export", &self.exporting),
            row("COPY TO", &self.copying_out, copied),
            goal("database export / COPY TO, rows/s", &self.exporting, &self.copying_out),
            ours("database import", &self.importing),
            row("COPY FROM", &self.copying_in, copied),
            goal("database import / COPY FROM, rows/s", &self.importing, &self.copying_in),
        ]
    }
}

/// All messages of the thread, exported by COPY TO.
pub(super) async fn copy_out(
    environment: &ContextEnvironment,
    thread: &BenchThread,
    mut take: impl FnMut(&[u8]),
) -> Result<()> {
    let mut connection = environment.connection().await?;
    // COPY FROM accepts no generated columns.
    let columns: String = sqlx::query_scalar(
        "SELECT string_agg(quote_ident(attname), ', ' ORDER BY attnum) FROM pg_attribute
         WHERE attrelid = 'messages'::regclass AND attnum > 0 AND NOT attisdropped AND attgenerated = ''",
    )
    .fetch_one(&mut connection)
    .await?;
    let statement = format!(
        "COPY (SELECT {columns} FROM messages WHERE bucket = {} AND thread_id = '{}' ORDER BY position) TO STDOUT",
        thread.bucket(),
        thread.id
    );
    let mut parts = connection.copy_out_raw(&statement).await?;
    while let Some(part) = parts.try_next().await? {
        take(&part);
    }
    drop(parts);
    Ok(connection.close().await?)
}

/// Copies the same rows into an empty table with its indexes, in one transaction. The table is a
/// copy, because COPY FROM refuses tables with row security.
async fn copy_in(url: &str, rows: &[u8]) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    sqlx::query("ALTER TABLE messages DISABLE ROW LEVEL SECURITY").execute(&mut connection).await?;
    let mut copy = connection.copy_in_raw("COPY messages FROM STDIN").await?;
    for part in rows.chunks(1 << 20) {
        copy.send(part).await?;
    }
    copy.finish().await?;
    Ok(connection.close().await?)
}

async fn ensure_rows(url: &str, thread: &BenchThread) -> Result<()> {
    let mut connection = PgConnection::connect(url).await?;
    let stored: i64 = sqlx::query_scalar("SELECT count(*) FROM messages").fetch_one(&mut connection).await?;
    ensure!(stored as u64 == thread.messages(), "{stored} rows are there instead of {}", thread.messages());
    Ok(connection.close().await?)
}
