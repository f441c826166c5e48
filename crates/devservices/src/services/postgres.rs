//! One Postgres with a fresh cluster.

use std::{
    fs::{self, File},
    io::Write,
    net::Ipv4Addr,
    os::unix::{fs::chown, process::CommandExt},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    time::Duration,
};

use anyhow::{Context, Result, bail};

use super::{
    files,
    port::Port,
    process::{self, children_of, is_dead, log_tail, wait_for_end, wait_until},
    scratch::ScratchDir,
};
use crate::workspace;

/// Crash recovery of a benchmark's cluster may take a while.
const START_LIMIT: Duration = Duration::from_secs(120);
/// A socket's path must be shorter than 108 bytes, including its file name.
const LONGEST_SOCKET_DIR: usize = 80;

/// The options of a cluster.
#[derive(Debug, Clone)]
pub struct PostgresOptions {
    /// The folder with `initdb` and `postgres`.
    pub bin: PathBuf,
    /// The address of this machine for clients.
    pub address: Ipv4Addr,
    /// A network, such as `10.1.0.0/16`, whose clients need no password, like those on loopback.
    pub trusted: Option<String>,
    /// Whether commits reach the disk. Off is right for tests: the data survives a kill of the
    /// server, but not a power cut.
    pub fsync: bool,
    /// The setting `max_connections`.
    pub max_connections: u32,
    /// More settings, which override the defaults.
    pub settings: Vec<(String, String)>,
}

impl PostgresOptions {
    /// Defaults for tests: on loopback, fsync off, 200 connections.
    pub fn new(bin: impl Into<PathBuf>) -> PostgresOptions {
        PostgresOptions {
            bin: bin.into(),
            address: Ipv4Addr::LOCALHOST,
            trusted: None,
            fsync: false,
            max_connections: 200,
            settings: Vec::new(),
        }
    }

    fn all_settings(&self, port: u16, sockets: Option<&Path>) -> Vec<(String, String)> {
        let on_off = |on: bool| if on { "on" } else { "off" }.to_owned();
        let own = [
            ("listen_addresses", self.address.to_string()),
            ("port", port.to_string()),
            ("unix_socket_directories", sockets.map(|dir| dir.display().to_string()).unwrap_or_default()),
            ("fsync", on_off(self.fsync)),
            ("full_page_writes", on_off(self.fsync)),
            ("shared_buffers", "128MB".to_owned()),
            ("max_connections", self.max_connections.to_string()),
            ("idle_in_transaction_session_timeout", "10s".to_owned()),
        ];
        let own = own.into_iter().map(|(name, value)| (name.to_owned(), value));
        own.chain(self.settings.iter().cloned()).collect()
    }
}

/// A running (or killed) Postgres. `Drop` ends it, and removes its folder if it is temporary.
#[derive(Debug)]
pub struct Postgres {
    child: Option<Child>,
    options: PostgresOptions,
    dir: PathBuf,
    account: Option<Account>,
    port: Port,
    _scratch: Option<ScratchDir>,
}

impl Postgres {
    /// Creates a cluster in `dir` (which may contain an earlier one) or in a temporary folder,
    /// starts it and waits until it accepts connections: superuser `postgres`, no password, on its
    /// address only.
    ///
    /// If we are root, the server runs as user `postgres`, or as the user with the fewest rights,
    /// and that user must be able to reach `dir`.
    pub fn start(dir: Option<&Path>, options: &PostgresOptions) -> Result<Postgres> {
        let scratch = if dir.is_none() { Some(ScratchDir::new("pg")?) } else { None };
        let dir = dir.or(scratch.as_ref().map(ScratchDir::path)).unwrap_or(Path::new(".")).to_path_buf();
        let account = if workspace::is_root() { Some(Account::unprivileged()) } else { None };
        let port = Port::reserve()?;
        let mut postgres =
            Postgres { child: None, options: options.clone(), dir, account, port, _scratch: scratch };
        postgres.prepare()?;
        postgres.restart()?;
        Ok(postgres)
    }

    /// Starts a standby from a copy of the present data, and waits until it answers reads. It has
    /// all of this server's settings.
    pub fn start_standby(&self) -> Result<Postgres> {
        let scratch = ScratchDir::new("pg")?;
        let dir = scratch.path().to_path_buf();
        let mut options = self.options.clone();
        let primary = format!("host={} port={} user=postgres", self.options.address, self.port.number());
        options.settings.push(("primary_conninfo".to_owned(), primary));
        let (account, port) = (self.account, Port::reserve()?);
        let mut standby = Postgres { child: None, options, dir, account, port, _scratch: Some(scratch) };
        standby.make_dirs()?;
        self.copy(&standby.data())?;
        File::create(standby.data().join("standby.signal"))?;
        standby.restart()?;
        Ok(standby)
    }

    /// `postgres://postgres@<address>:<port>/postgres`, which never changes.
    pub fn url(&self) -> String {
        format!("postgres://postgres@{}:{}/postgres", self.options.address, self.port.number())
    }

    /// The port, which never changes.
    pub fn port(&self) -> u16 {
        self.port.number()
    }

    /// The folder of the unix socket, if its path is short enough to have one.
    pub fn socket_dir(&self) -> Option<PathBuf> {
        let dir = self.dir.join("sockets");
        (dir.as_os_str().len() <= LONGEST_SOCKET_DIR).then_some(dir)
    }

    /// The postmaster's process id; `None` while it does not run.
    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    pub fn log(&self) -> PathBuf {
        self.dir.join("postgres.log")
    }

    /// Kills the server like a crash: SIGKILL to the postmaster and all its children at once, so
    /// that no backend finishes its work. Does nothing if it is down.
    pub fn kill(&mut self) -> Result<()> {
        let Some(mut child) = self.child.take() else { return Ok(()) };
        // The postmaster is paused first: it must not fork while its children are listed.
        process::signal(child.id(), libc::SIGSTOP);
        let children = children_of(child.id());
        child.kill()?;
        for &pid in &children {
            process::signal(pid, libc::SIGKILL);
        }
        child.wait()?;
        // A backend that still holds the shared memory would prevent the next start.
        if !wait_until(Duration::from_secs(10), || children.iter().all(|&pid| is_dead(pid))) {
            bail!("backends of a killed Postgres are still there after 10 s: {children:?}");
        }
        Ok(())
    }

    /// Stops the server with a fast shutdown: it cuts connections and writes everything to disk.
    pub fn stop(&mut self) -> Result<()> {
        self.end_with(libc::SIGINT, Duration::from_secs(30))
    }

    /// Pauses the postmaster and all its children (SIGSTOP).
    pub fn freeze(&self) {
        self.signal_all(libc::SIGSTOP);
    }

    /// Resumes a paused server.
    pub fn thaw(&self) {
        self.signal_all(libc::SIGCONT);
    }

    /// Kills the server if it runs, starts it on the same port with the same data, and waits until
    /// it accepts connections.
    pub fn restart(&mut self) -> Result<()> {
        self.kill()?;
        // A killed server leaves this file behind; the new server writes another one.
        let _ = fs::remove_file(self.pid_file());
        let mut command = self.program("postgres")?;
        command.arg("-D").arg(self.data());
        for (name, value) in self.options.all_settings(self.port.number(), self.socket_dir().as_deref()) {
            command.arg("-c").arg(format!("{name}={value}"));
        }
        // SIGQUIT is the immediate shutdown: the postmaster takes its children with it.
        let mut child = process::spawn(command, libc::SIGQUIT)?;
        let pid = child.id();
        let mut ended = false;
        let ready = wait_until(START_LIMIT, || {
            ended = child.try_wait().is_ok_and(|status| status.is_some());
            ended || self.is_ready(pid)
        });
        self.child = Some(child);
        if ended || !ready {
            self.kill()?;
            bail!("Postgres did not start; its last words:\n{}", log_tail(&self.log()));
        }
        Ok(())
    }

    /// Copies all data to `to`, as of one moment: all its processes are paused meanwhile.
    pub fn copy(&self, to: &Path) -> Result<()> {
        self.freeze();
        let copied = files::copy(&self.data(), to);
        self.thaw();
        copied
    }

    /// Kills the server like a crash, and starts it with the data of [`Postgres::copy`].
    pub fn put_back(&mut self, from: &Path) -> Result<()> {
        self.kill()?;
        files::copy(from, &self.data())?;
        self.restart()
    }

    fn make_dirs(&self) -> Result<()> {
        fs::create_dir_all(&self.dir)?;
        for dir in [Some(self.data()), self.socket_dir()].into_iter().flatten() {
            fs::create_dir_all(&dir)?;
            if let Some(account) = self.account {
                chown(&dir, Some(account.uid), Some(account.gid))
                    .with_context(|| format!("giving {} to the user that runs Postgres", dir.display()))?;
            }
        }
        Ok(())
    }

    fn prepare(&self) -> Result<()> {
        self.make_dirs()?;
        if self.data().join("PG_VERSION").exists() {
            return Ok(());
        }
        // Sorts by the rules of a language, like managed servers. The rules of operating systems
        // differ, so ICU's are used; builds without ICU sort by bytes.
        if !self.initdb(&["--locale-provider=icu", "--icu-locale=en-US"])?.success() {
            let status = self.initdb(&[])?;
            if !status.success() {
                bail!("initdb failed ({status}); its last words:\n{}", log_tail(&self.log()));
            }
        }
        if let Some(network) = &self.options.trusted {
            let mut allowed = File::options().append(true).open(self.data().join("pg_hba.conf"))?;
            writeln!(allowed, "host all all {network} trust")?;
        }
        Ok(())
    }

    /// Creates the data directory, or leaves it empty.
    fn initdb(&self, locale: &[&str]) -> Result<ExitStatus> {
        let mut command = self.program("initdb")?;
        command.arg("-D").arg(self.data());
        command
            .args(["-U", "postgres", "--auth=trust", "--no-sync", "--locale=C", "--encoding=UTF8"])
            .args(locale);
        Ok(process::spawn(command, libc::SIGKILL)?.wait()?)
    }

    /// A Postgres program, as the right user, with its output in the log.
    fn program(&self, name: &str) -> Result<Command> {
        let log = File::options().create(true).append(true).open(self.log())?;
        let mut command = Command::new(self.options.bin.join(name));
        command.current_dir(&self.dir).env("LC_ALL", "C");
        command.env_remove("PGDATA").env_remove("PGPORT").env_remove("PGOPTIONS");
        command.stdin(Stdio::null()).stdout(log.try_clone()?).stderr(log);
        if let Some(account) = self.account {
            command.uid(account.uid).gid(account.gid);
        }
        Ok(command)
    }

    fn data(&self) -> PathBuf {
        self.dir.join("data")
    }

    fn pid_file(&self) -> PathBuf {
        self.data().join("postmaster.pid")
    }

    /// The same check as in `pg_ctl`: line 1 of the pid file is the postmaster, line 8 its state.
    fn is_ready(&self, pid: u32) -> bool {
        let text = fs::read_to_string(self.pid_file()).unwrap_or_default();
        let mut lines = text.lines();
        lines.next() == Some(pid.to_string().as_str())
            && matches!(lines.nth(6).map(str::trim), Some("ready" | "standby"))
    }

    fn signal_all(&self, signal: i32) {
        let Some(pid) = self.pid() else { return };
        process::signal(pid, signal);
        for child in children_of(pid) {
            process::signal(child, signal);
        }
    }

    fn end_with(&mut self, signal: i32, limit: Duration) -> Result<()> {
        if let Some(child) = &mut self.child {
            process::signal(child.id(), signal);
            if wait_for_end(child, limit) {
                self.child = None;
            }
        }
        self.kill()
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.thaw();
        // Not SIGKILL: an immediate shutdown also releases the shared memory.
        let _ = self.end_with(libc::SIGQUIT, Duration::from_secs(10));
    }
}

/// A user other than root, because Postgres refuses to run as root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Account {
    uid: u32,
    gid: u32,
}

impl Account {
    fn unprivileged() -> Account {
        let fewest_rights = Account { uid: 65_534, gid: 65_534 };
        let users = fs::read_to_string("/etc/passwd").unwrap_or_default();
        Account::find(&users, "postgres").unwrap_or(fewest_rights)
    }

    fn find(passwd: &str, name: &str) -> Option<Account> {
        let line = passwd.lines().find(|line| line.split(':').next() == Some(name))?;
        let mut fields = line.split(':').skip(2).map(str::parse);
        Some(Account { uid: fields.next()?.ok()?, gid: fields.next()?.ok()? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_read_from_passwd_lines() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\npostgres:x:101:104:,,,:/var/lib/postgresql:/bin/bash\n";
        assert_eq!(Account::find(passwd, "postgres"), Some(Account { uid: 101, gid: 104 }));
        assert_eq!(Account::find(passwd, "post"), None);
    }

    #[test]
    fn further_settings_come_last_and_so_win() {
        let mut options = PostgresOptions::new("/bin");
        options.settings.push(("port".to_owned(), "1".to_owned()));
        let settings = options.all_settings(5432, None);
        assert_eq!(settings.last(), Some(&("port".to_owned(), "1".to_owned())));
        assert!(settings.contains(&("fsync".to_owned(), "off".to_owned())));
    }
}
