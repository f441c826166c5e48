//! Operator commands that work on Postgres and NATS themselves: they lay out, check, move and erase
//! stored data. All other commands call the API (`client`).
//!
//! A command prints its result to standard output, as a table or as JSON. Everything else goes to
//! standard error.

mod check;
mod command_id;
mod config;
mod doctor;
mod erase;
mod export;
mod import;
mod keys;
mod langchain_export;
mod layout;
mod lookup;
mod memory;
mod partitions;
mod progress;
mod tenants;
mod timeouts;

use store::{Store, StoreConfig};

use self::timeouts::{SERVER_TIMEOUT, STATEMENT_TIMEOUT};
use crate::exit::ExitError;
use crate::options::{
    Batches, BatchesCommand, Config, ConfigCommand, Copies, CopiesCommand, Database, Doctor, Erase,
    ExportFormat, Keys, KeysCommand, Memory, MemoryCommand, Migrate, Partitions, PartitionsCommand, Tenants,
    TenantsCommand,
};

/// Runs a command on batches.
pub(crate) async fn run_batches(options: Batches) -> Result<(), ExitError> {
    let BatchesCommand::Check(check) = options.command;
    check::run(&connect(&check.database).await?, &check).await
}

/// Exports or imports threads without the API.
pub(crate) async fn run_copies(options: Copies) -> Result<(), ExitError> {
    match options.command {
        CopiesCommand::Export(export) => {
            let store = connect(&export.database).await?;
            match export.to {
                ExportFormat::Antiphon => export::run(&store, &export).await,
                ExportFormat::Langchain => langchain_export::run(&store, &export).await,
            }
        }
        CopiesCommand::Import(import) => import::run(&connect(&import.database).await?, &import).await,
    }
}

/// Runs a command on the memory of agents.
pub(crate) async fn run_memory(options: Memory) -> Result<(), ExitError> {
    match options.command {
        MemoryCommand::Export(export) => memory::export(&connect(&export.database).await?, &export).await,
        MemoryCommand::Import(import) => memory::import(&connect(&import.database).await?, &import).await,
    }
}

/// Erases a thread, a user or a tenant.
pub(crate) async fn run_erase(options: Erase) -> Result<(), ExitError> {
    erase::run(&connect(&options.database).await?, &options).await
}

/// Runs a command on API keys.
pub(crate) async fn run_keys(options: Keys) -> Result<(), ExitError> {
    match options.command {
        KeysCommand::CreateFirst(create) => keys::create(&connect(&create.database).await?, &create).await,
    }
}

/// Reopens the erased default tenant.
pub(crate) async fn run_tenants(options: Tenants) -> Result<(), ExitError> {
    let TenantsCommand::ReopenDefault(reopen) = options.command;
    tenants::reopen_default(&connect(&reopen.database).await?, &reopen).await
}

/// Checks Postgres, NATS and the fleet.
pub(crate) async fn run_doctor(options: Doctor) -> Result<(), ExitError> {
    let store = open(&options.servers.database_url).await;
    doctor::run(&options, store).await
}

/// Runs a command on partitions.
pub(crate) async fn run_partitions(options: Partitions) -> Result<(), ExitError> {
    match options.command {
        PartitionsCommand::List(list) => partitions::list(&connect(&list.database).await?, &list).await,
        PartitionsCommand::Change(change) => {
            partitions::change(&connect(&change.database).await?, &change).await
        }
    }
}

/// Prints the settings with which a command would run.
pub(crate) async fn run_config(options: Config) -> Result<(), ExitError> {
    let ConfigCommand::Check(check) = options.command;
    config::check(&check).await
}

/// Compares the tables with those that this version needs.
pub(crate) async fn check_layout(options: &Migrate) -> Result<(), ExitError> {
    layout::check(&open(&options.servers.database_url).await?, options).await
}

async fn connect(database: &Database) -> Result<Store, ExitError> {
    let store = open(&database.database_url).await?;
    match store.partition_count().await? {
        Some(_) => Ok(store),
        None => {
            Err(ExitError::Failed("the database is not laid out: run `antiphon migrate` first".to_owned()))
        }
    }
}

async fn open(url: &str) -> Result<Store, ExitError> {
    let mut config = StoreConfig::new(url);
    (config.read_connections, config.statement_timeout) = (1, STATEMENT_TIMEOUT);
    let connecting = tokio::time::timeout(SERVER_TIMEOUT, Store::connect(&config)).await;
    let silent =
        || ExitError::Failed(format!("Postgres does not answer within {} s", SERVER_TIMEOUT.as_secs()));
    Ok(connecting.map_err(|_| silent())??)
}
