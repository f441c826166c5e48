//! `doctor`: the available tools and their sources, and advice for missing ones.

use std::{env, path::Path};

use anyhow::Result;
use devservices::{
    tools::{self, ToolKind},
    workspace,
};

use super::version_of;

pub(crate) fn doctor() -> Result<i32> {
    println!(
        "antiphon doctor: nothing is fetched now; tests and demo fetch what is missing into {}",
        workspace::tools_cache().display()
    );
    let mut missing = Vec::new();
    let kinds = [
        (ToolKind::Nats, Some("NATS_URL")),
        (ToolKind::Postgres, Some("DATABASE_URL")),
        (ToolKind::Pgvector, None),
        (ToolKind::Nginx, None),
        (ToolKind::Helm, None),
        (ToolKind::Promtool, None),
    ];
    for (kind, url) in kinds {
        println!("\n{} ({} names one outright)", kind.name(), kind.variable());
        if let Some(url) = url.filter(|url| env::var_os(url).is_some_and(|value| !value.is_empty())) {
            println!("  {url} is set: demo and services use that server");
        }
        let resolution = tools::look_up(kind);
        for (link, said) in &resolution.steps {
            let mark =
                if resolution.tool.as_ref().is_some_and(|tool| tool.link == *link) { "ok" } else { "-" };
            println!("  {mark:<3}{:<8}{said}", link.name());
        }
        if resolution.is_fetched_on_demand() {
            println!("  => {} is fetched when it is needed", kind.name());
            continue;
        }
        match resolution.into_tool() {
            Ok(tool) => println!("  => {} {} from {}", kind.name(), tool.version, tool.link.name()),
            Err(error) => missing.push(format!("{error:#}")),
        }
    }
    println!("\nothers");
    for (name, program, args, without) in OTHERS {
        let version = version_of(Path::new(program), args);
        println!("  {name:<14}{}", version.as_deref().unwrap_or(without));
    }
    for error in &missing {
        println!("\n{error}");
    }
    let verdict = if missing.is_empty() { "all that is needed is there" } else { "something is missing" };
    println!("\n{verdict}");
    Ok(i32::from(!missing.is_empty()))
}

/// Name, program, arguments, and the consequence if it is absent.
const OTHERS: &[(&str, &str, &[&str], &str)] = &[
    ("cargo", "cargo", &["--version"], "not on PATH"),
    ("cargo-nextest", "cargo-nextest", &["nextest", "--version"], "absent: tests run with cargo test"),
    ("cargo-deny", "cargo-deny", &["--version"], "absent: tidy skips licences and bans"),
    ("git", "git", &["--version"], "absent: tidy walks the folders itself"),
    ("buildah", "buildah", &["--version"], "absent: no `cargo xtask image`"),
    ("objcopy", "objcopy", &["--version"], "absent: no `cargo xtask image`"),
    ("python3", "python3", &["--version"], "absent: the pip link of the chain fails"),
    (
        "pip",
        "python3",
        &["-m", "pip", "--version"],
        "absent: the pip link of the chain fails, and the fuzz of the API",
    ),
    ("npm", "npm", &["--version"], "absent: the npm link of the chain fails, and the tests of clients"),
    ("node", "node", &["--version"], "absent: the tests of clients fail"),
];
