//! What operators do from a shell: they look at what is stored, move it, and mend it. Each command needs Postgres; what has to go through a stream needs NATS too.
//!
//! A command says what it found on standard output, as a table or as JSON; everything else is on standard error.

mod batch_pages;
mod batches;
mod budgets;
mod check;
mod command_id;
mod config;
mod dead_letters;
mod doctor;
mod erase;
mod export;
mod exported_follow_up;
mod exported_threads;
mod import;
mod incidents;
mod keys;
mod langchain_export;
mod layout;
mod lookup;
mod memory;
mod output_file;
mod partitions;
mod progress;
mod reasoning;
mod tenants;
mod threads;
mod timeouts;
mod timer_acts;
mod timers;
mod usage;

use store::{Store, StoreConfig};

use self::timeouts::{SERVER_TIMEOUT, STATEMENT_TIMEOUT};
use crate::exit::ExitError;
use crate::options::{
    Batches, BatchesCommand, Budgets, BudgetsCommand, Config, ConfigCommand, Database, DeadLetters,
    DeadLettersCommand, Doctor, EraseOwner, ExportFormat, FollowUps, FollowUpsCommand, Incidents,
    IncidentsCommand, Keys, KeysCommand, Memory, MemoryCommand, Migrate, Partitions, PartitionsCommand,
    Reasoning, ReasoningCommand, Schedules, SchedulesCommand, Tenants, TenantsCommand, Threads,
    ThreadsCommand, UsageOptions,
};

/// Runs a command on batches.
pub(crate) async fn run_batches(options: Batches) -> Result<(), ExitError> {
    match options.command {
        BatchesCommand::List(list) => batches::list(&connect(&list.database).await?, &list).await,
        BatchesCommand::Show(show) => batches::show(&connect(&show.database).await?, &show).await,
        BatchesCommand::Check(check) => check::run(&connect(&check.database).await?, &check).await,
    }
}

/// Runs a command on threads.
pub(crate) async fn run_threads(options: Threads) -> Result<(), ExitError> {
    match options.command {
        ThreadsCommand::Show(show) => threads::show(&connect(&show.database).await?, &show).await,
        ThreadsCommand::Export(export) => {
            let store = connect(&export.database).await?;
            match export.to {
                ExportFormat::Antiphon => export::run(&store, &export).await,
                ExportFormat::Langchain => langchain_export::run(&store, &export).await,
            }
        }
        ThreadsCommand::Import(import) => import::run(&connect(&import.database).await?, &import).await,
        ThreadsCommand::Fork(fork) => threads::fork(&connect(&fork.database).await?, &fork).await,
        ThreadsCommand::Erase(erase) => erase::thread(&connect(&erase.policy.database).await?, &erase).await,
    }
}

/// Runs a command on what agents remember.
pub(crate) async fn run_memory(options: Memory) -> Result<(), ExitError> {
    match options.command {
        MemoryCommand::Export(export) => memory::export(&connect(&export.database).await?, &export).await,
        MemoryCommand::Import(import) => memory::import(&connect(&import.database).await?, &import).await,
    }
}

/// Erases what a tenant or a user has.
pub(crate) async fn run_erase(options: EraseOwner) -> Result<(), ExitError> {
    erase::owner(&connect(&options.policy.database).await?, &options).await
}

/// Runs a command on API keys.
pub(crate) async fn run_keys(options: Keys) -> Result<(), ExitError> {
    match options.command {
        KeysCommand::Create(create) => keys::create(&connect(&create.database).await?, &create).await,
        KeysCommand::List(list) => keys::list(&connect(&list.database).await?, &list).await,
        KeysCommand::Rotate(rotate) => keys::rotate(&connect(&rotate.database).await?, &rotate).await,
        KeysCommand::Rotations(list) => keys::rotations(&connect(&list.database).await?, &list).await,
        KeysCommand::Revoke(revoke) => keys::revoke(&connect(&revoke.database).await?, &revoke).await,
    }
}

/// Runs a command on erased tenants.
pub(crate) async fn run_tenants(options: Tenants) -> Result<(), ExitError> {
    match options.command {
        TenantsCommand::Erased(list) => tenants::list(&connect(&list.database).await?, &list).await,
        TenantsCommand::Reopen(reopen) => tenants::reopen(&connect(&reopen.database).await?, &reopen).await,
    }
}

/// Runs a command on dead letters.
pub(crate) async fn run_dead_letters(options: DeadLetters) -> Result<(), ExitError> {
    match options.command {
        DeadLettersCommand::List(list) => dead_letters::list(&connect(&list.database).await?, &list).await,
        DeadLettersCommand::Show(show) => dead_letters::show(&connect(&show.database).await?, &show).await,
        DeadLettersCommand::Replay(replay) => {
            dead_letters::replay(&connect(&replay.database).await?, &replay).await
        }
        DeadLettersCommand::Drop(drop) => dead_letters::drop(&connect(&drop.database).await?, &drop).await,
    }
}

/// Prints what calls of models have used.
pub(crate) async fn run_usage(options: UsageOptions) -> Result<(), ExitError> {
    usage::sums(&connect(&options.database).await?, &options).await
}

/// Runs a command on budgets.
pub(crate) async fn run_budgets(options: Budgets) -> Result<(), ExitError> {
    match options.command {
        BudgetsCommand::List(list) => budgets::list(&connect(&list.database).await?, &list).await,
        BudgetsCommand::Put(put) => budgets::put(&connect(&put.database).await?, put).await,
        BudgetsCommand::Delete(delete) => budgets::delete(&connect(&delete.database).await?, &delete).await,
    }
}

/// Looks at everything.
pub(crate) async fn run_doctor(options: Doctor) -> Result<(), ExitError> {
    let store = open(&options.servers.database_url).await;
    doctor::run(&options, store).await
}

/// Runs a command on incidents.
pub(crate) async fn run_incidents(options: Incidents) -> Result<(), ExitError> {
    match options.command {
        IncidentsCommand::List(list) => incidents::list(&connect(&list.database).await?, &list).await,
        IncidentsCommand::Acknowledge(which) => {
            incidents::acknowledge(&connect(&which.database).await?, &which).await
        }
        IncidentsCommand::ToolCalls(list) => {
            incidents::tool_calls(&connect(&list.database).await?, &list).await
        }
        IncidentsCommand::Decide(decide) => {
            incidents::decide(&connect(&decide.act.database).await?, &decide).await
        }
    }
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

/// Runs a command on reasoning sessions.
pub(crate) async fn run_reasoning(options: Reasoning) -> Result<(), ExitError> {
    match options.command {
        ReasoningCommand::View(view) => reasoning::view(&connect(&view.database).await?, &view).await,
        ReasoningCommand::Undo(undo) => reasoning::undo(&connect(&undo.database).await?, &undo).await,
        ReasoningCommand::Discarded(log) => reasoning::discarded(&connect(&log.database).await?, &log).await,
        ReasoningCommand::Message(one) => reasoning::message(&connect(&one.database).await?, &one).await,
    }
}

/// Runs a command on follow-ups.
pub(crate) async fn run_follow_ups(options: FollowUps) -> Result<(), ExitError> {
    match options.command {
        FollowUpsCommand::List(list) => timers::follow_ups(&connect(&list.database).await?, &list).await,
        FollowUpsCommand::Show(show) => timers::follow_up(&connect(&show.database).await?, &show).await,
        FollowUpsCommand::Snooze(snooze) => {
            timer_acts::snooze(&connect(&snooze.act.database).await?, &snooze).await
        }
        FollowUpsCommand::Cancel(cancel) => {
            timer_acts::cancel(&connect(&cancel.act.database).await?, &cancel).await
        }
    }
}

/// Runs a command on schedules.
pub(crate) async fn run_schedules(options: Schedules) -> Result<(), ExitError> {
    match options.command {
        SchedulesCommand::List(list) => timers::schedules(&connect(&list.database).await?, &list).await,
        SchedulesCommand::Show(show) => timers::schedule(&connect(&show.database).await?, &show).await,
        SchedulesCommand::Put(put) => timer_acts::put(&connect(&put.act.database).await?, &put).await,
        SchedulesCommand::Delete(delete) => {
            timer_acts::delete(&connect(&delete.act.database).await?, &delete).await
        }
        SchedulesCommand::DryRun(dry_run) => {
            timer_acts::dry_run(&connect(&dry_run.database).await?, &dry_run).await
        }
    }
}

/// Prints what a command would run with.
pub(crate) async fn run_config(options: Config) -> Result<(), ExitError> {
    let ConfigCommand::Check(check) = options.command;
    config::check(&check).await
}

/// Compares the tables with what this version needs.
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
