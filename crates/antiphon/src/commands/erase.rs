//! Erases data without the API, for a fleet that is down and for the default tenant.

use bus::Bus;
use erasing::{Erasure, ErasureProgress, Receipt};
use serde_json::{Map, Value, json};
use store::{ErasedData, ErasedOwner, Store};

use super::lookup::unknown;
use super::timeouts::SERVER_TIMEOUT;
use crate::connect::connect_own_bus;
use crate::exit::ExitError;
use crate::options::Erase;
use crate::output;

/// Erases a thread, the threads of a tenant or a user and their other data.
pub(crate) async fn run(store: &Store, options: &Erase) -> Result<(), ExitError> {
    let data = options.data()?;
    let bus = connected(store, options).await?;
    if let ErasedData::Thread(thread) = &data
        && !erasing::is_known(store, bus.as_ref(), thread).await?
    {
        return Err(unknown(thread));
    }
    let erasure = Erasure { data, actor: options.actor.clone(), wait: options.wait(), hold: None };
    let progress = ErasureProgress::default();
    if !options.yes {
        let receipt = erasing::preview(store, bus.as_ref(), &erasure, &progress).await?;
        output::eprint_line("nothing was erased; --yes erases");
        return print(options, &erasure.data, &receipt);
    }
    let receipt = erasing::erase(store, bus.as_ref(), &erasure, &progress).await?;
    print(options, &erasure.data, &receipt)?;
    match receipt.left() {
        None => Ok(()),
        Some(_) => Err(ExitError::Failed("something of it is left: see `pending`".to_owned())),
    }
}

async fn connected(store: &Store, options: &Erase) -> Result<Option<Bus>, ExitError> {
    if options.database_only {
        return Ok(None);
    }
    match connect_own_bus(store, &options.nats, "antiphon erase", SERVER_TIMEOUT).await {
        Err(ExitError::Failed(why)) => {
            Err(ExitError::Failed(format!("{why}; --database-only leaves the streams alone")))
        }
        bus => bus.map(Some),
    }
}

fn print(options: &Erase, data: &ErasedData, receipt: &Receipt) -> Result<(), ExitError> {
    let mut json = scope(data);
    json.extend(receipt.to_json());
    if options.database_only {
        json.insert("streams".to_owned(), Value::Null);
    }
    let json = Value::Object(json);
    output::print(options.database.output.format(), &json, || output::receipt_table(&json))
}

fn scope(data: &ErasedData) -> Map<String, Value> {
    let name = |tenant: &Option<model::Tenant>| tenant.as_ref().map_or("-".to_owned(), ToString::to_string);
    let fields = match data {
        ErasedData::Thread(thread) => vec![("thread_id", json!(thread.as_str()))],
        ErasedData::Owner(ErasedOwner::Tenant(tenant)) => vec![("tenant", json!(name(tenant)))],
        ErasedData::Owner(ErasedOwner::User(tenant, user)) => {
            vec![("tenant", json!(name(tenant))), ("user", json!(user))]
        }
    };
    fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
}
