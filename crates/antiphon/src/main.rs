//! `antiphon`: one binary with a subcommand per role. Reads the configuration and composes the
//! roles; it has no logic of its own.

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
mod output_file;
#[cfg(test)]
mod reference_tests;
mod roles;
#[cfg(test)]
mod settings_tests;
mod workflow_role;

use std::process::ExitCode;

use clap::error::ErrorKind;
use runtime::escape::escape;

use crate::exit::ExitError;
use crate::options::{Command, Options};

#[cfg(feature = "jemalloc")]
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

/// Number of tasks that a busy thread runs before it polls its sockets. A reader or a partition
/// with a backlog takes about a millisecond each time. With tokio's default of 61, answers of
/// Postgres would stay unread for tens of milliseconds.
const EVENT_INTERVAL: u32 = 5;

/// Exit code of an invalid configuration.
const WRONG_CONFIGURATION: u8 = 2;
/// Exit code when the reader of the output is gone: that of a process that SIGPIPE has ended.
const OUTPUT_CLOSED: u8 = 128 + 13;

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
        // The missing option may be the misspelt one.
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
        Err(ExitError::OutputClosed) => ExitCode::from(OUTPUT_CLOSED),
    }
}

/// The text of clap before its advice, on one line.
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
