//! `antiphon config check`: the settings with which a command would run.

use bus::BusError;
use store::StoreConfig;

use crate::connect::bus_config;
use crate::exit::ExitError;
use crate::options::{CheckedCommand, ConfigCheck, NatsArguments};
use crate::output::{self, Table};

/// Checks the settings and prints them.
///
/// # Errors
/// The command would not start with them.
pub(super) async fn check(check: &ConfigCheck) -> Result<(), ExitError> {
    check_settings(&check.command).await?;
    output::print(check.format, &output::json(&check.settings), || {
        let mut table = Table::new(["setting", "value", "from"]);
        for setting in &check.settings {
            let value = setting.value.clone().unwrap_or_else(|| "-".to_owned());
            table.row([setting.name.clone(), value, setting.source.as_str().to_owned()]);
        }
        table
    })
}

/// Makes all checks that the command makes before it connects.
async fn check_settings(command: &CheckedCommand) -> Result<(), ExitError> {
    match command {
        CheckedCommand::Migrate(options) => {
            options.embeddings.config()?;
            check_database(&options.servers.database_url)?;
            check_nats(&options.servers.nats).await
        }
        CheckedCommand::Worker(options) => {
            options.process.traces.settings("worker")?;
            options.prices.read()?;
            options.worker.turn_limits()?;
            options.embeddings.config()?;
            check_database(&options.process.servers.database_url)?;
            check_nats(&options.process.servers.nats).await
        }
        CheckedCommand::Gateway(options) => {
            options.process.traces.settings("gateway")?;
            options.embeddings.config()?;
            check_database(&options.process.servers.database_url)?;
            check_nats(&options.process.servers.nats).await?;
            options.gateway.config().await.map(drop)
        }
        CheckedCommand::Mcp(options) => {
            options.traces.settings("mcp")?;
            check_database(&options.database_url)?;
            options.config().await.map(drop)
        }
        CheckedCommand::Workflow(options) => {
            options.traces.settings("workflow")?;
            check_nats(&options.nats).await?;
            options.prices.read()?;
            options.workflow.check()
        }
        CheckedCommand::All(options) => {
            options.process.traces.settings("all")?;
            options.embeddings.config()?;
            options.worker.turn_limits()?;
            check_database(&options.process.servers.database_url)?;
            check_nats(&options.process.servers.nats).await?;
            options.gateway.config().await?;
            options.mcp.config(&options.gateway.access, &options.gateway.http).await?;
            if options.workflow.is_wanted() { options.workflow.check() } else { Ok(()) }
        }
    }
}

fn check_database(url: &str) -> Result<(), ExitError> {
    Ok(StoreConfig::new(url).check()?)
}

async fn check_nats(nats: &NatsArguments) -> Result<(), ExitError> {
    let checked: Result<(), BusError> = bus_config(nats, "antiphon config check").check().await;
    Ok(checked?)
}
