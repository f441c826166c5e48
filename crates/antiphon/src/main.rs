//! `antiphon`: one binary, a subcommand per role. Reads the configuration and composes; no logic of
//! its own.

mod client;
mod commands;
mod connect;
#[cfg(test)]
mod documents_tests;
mod exit;
mod healthcheck;
mod mapping;
mod mcp_role;
mod options;
mod output;
#[cfg(test)]
mod reference_tests;
mod roles;
mod workflow_role;

use std::process::ExitCode;

use clap::error::ErrorKind;
use runtime::escape::escape;

use crate::exit::ExitError;
use crate::options::{Command, Options};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// How many tasks a busy thread runs before it looks at its sockets. A reader or a partition at a
/// backlog takes about a millisecond each time: with tokio's default of 61 Postgres' answers would
/// lie unread for tens of milliseconds.
const EVENT_INTERVAL: u32 = 5;

/// The exit code of a configuration that cannot work.
const WRONG_CONFIGURATION: u8 = 2;

fn main() -> ExitCode {
    let variables = std::env::vars_os().filter_map(|(name, _)| name.into_string().ok());
    let misspelt = options::misspelt_variable(variables);
    let options = match Options::read() {
        Ok(options) => options,
        Err(error) if matches!(error.kind(), ErrorKind::DisplayHelp | ErrorKind::DisplayVersion) => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            let _ = error.print();
            return ExitCode::from(WRONG_CONFIGURATION);
        }
        // What is missing may be what was misspelt.
        Err(error) => {
            let line = misspelt.filter(|_| error.kind() == ErrorKind::MissingRequiredArgument);
            return wrong(&line.unwrap_or_else(|| first_paragraph(&error.to_string())));
        }
    };
    if let Some(line) = misspelt {
        return wrong(&line);
    }
    if let Command::Healthcheck(healthcheck) = &options.command {
        return healthcheck::run(healthcheck);
    }
    let runtime =
        tokio::runtime::Builder::new_multi_thread().enable_all().event_interval(EVENT_INTERVAL).build();
    let runtime = match runtime {
        Ok(runtime) => runtime,
        Err(error) => return failed(&error.to_string()),
    };
    match runtime.block_on(roles::run(options)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(ExitError::Configuration(line)) => wrong(&line),
        Err(ExitError::Failed(line)) => failed(&line),
    }
}

/// What clap says before its advice, on one line.
fn first_paragraph(text: &str) -> String {
    let paragraph: Vec<_> = text.lines().map(str::trim).take_while(|line| !line.is_empty()).collect();
    paragraph.join(" ").trim_start_matches("error: ").to_owned()
}

fn wrong(line: &str) -> ExitCode {
    eprintln!("antiphon: {}", escape(line));
    ExitCode::from(WRONG_CONFIGURATION)
}

fn failed(line: &str) -> ExitCode {
    eprintln!("antiphon: {}", escape(line));
    ExitCode::FAILURE
}
