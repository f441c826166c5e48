//! `antiphon doctor`: looks at Postgres, NATS and the fleet, and says what keeps it from working and what to do. Changes nothing.

mod findings;

use std::time::Duration;

use bus::Bus;
use model::PartitionCount;
use serde_json::{Value, json};
use store::Store;
use wire::subject;

use self::findings::{Examined, Finding, Severity, Symptom};
use super::output::{self, Table, cell};
use super::timeouts::SERVER_TIMEOUT;
use crate::connect::bus_config;
use crate::exit::ExitError;
use crate::mapping;
use crate::options::Doctor;

/// Dead letters that are older are known by now.
const RECENT: Duration = Duration::from_secs(24 * 3600);

/// `store`: what came of connecting.
pub(super) async fn run(options: &Doctor, store: Result<Store, ExitError>) -> Result<(), ExitError> {
    let vectors_of = options.embeddings.config()?.map(|config| config.vectors_of());
    let (postgres, nats) = tokio::join!(examine_postgres(store, vectors_of), connect_bus(options));
    let mut examined = postgres?;
    match (nats?, examined.partitions) {
        (Err(why), _) => examined.found.push(Symptom::NatsAway(why)),
        (Ok(bus), Some(count)) => examine_nats(&bus, count, &mut examined).await?,
        (Ok(_), None) => {}
    }
    let findings = findings::judge(&examined);
    let json = json!({ "findings": findings.iter().map(shown).collect::<Vec<_>>() });
    output::print(options.format, &json, || {
        let mut table = Table::new(["STATE", "WHAT", "DETAIL", "WHAT TO DO"]);
        for finding in json["findings"].as_array().into_iter().flatten() {
            table
                .row([&finding["state"], &finding["what"], &finding["detail"], &finding["advice"]].map(cell));
        }
        table
    })?;
    let problems = findings.iter().filter(|finding| finding.severity == Severity::Problem).count();
    match problems {
        0 => Ok(()),
        1 => Err(ExitError::Failed("there is a problem".to_owned())),
        _ => Err(ExitError::Failed(format!("there are {problems} problems"))),
    }
}

fn shown(finding: &Finding) -> Value {
    json!({
        "state": finding.severity.name(), "what": finding.what, "detail": finding.detail, "advice": finding.advice,
    })
}

/// A wrong setting is an error, and a server that is away is what was looked for.
async fn connect_bus(options: &Doctor) -> Result<Result<Bus, String>, ExitError> {
    let config = bus_config(&options.servers.nats, "antiphon doctor");
    config.check().await?;
    Ok(match tokio::time::timeout(SERVER_TIMEOUT, Bus::connect(&config)).await {
        Ok(Ok(bus)) => Ok(bus),
        Ok(Err(error)) => Err(error.to_string()),
        Err(_) => Err(format!("no answer within {} s", SERVER_TIMEOUT.as_secs())),
    })
}

/// `vectors_of`: of what the vectors of facts are to be.
async fn examine_postgres(
    store: Result<Store, ExitError>,
    vectors_of: Option<String>,
) -> Result<Examined, ExitError> {
    let mut examined = Examined::default();
    let store = match store {
        Ok(store) => store,
        Err(ExitError::Failed(why)) => {
            examined.found.push(Symptom::PostgresAway(why));
            return Ok(examined);
        }
        Err(error) => return Err(error),
    };
    let layout = store.layout().await?;
    if layout != store::Layout::Enough {
        examined.found.push(Symptom::NotMigrated(layout));
        return Ok(examined);
    }
    if let Some(newest) = store.newest_unknown_migration().await? {
        examined.found.push(Symptom::NewerSchema(newest));
    }
    if let Some(why) = store.weak_commits().await? {
        examined.found.push(Symptom::WeakCommits(why));
    }
    if let Some(wanted) = vectors_of {
        let stored = store.vectors_of().await?;
        if stored.as_ref() != Some(&wanted) {
            examined.found.push(Symptom::NoVectors { wanted, stored });
        }
    }
    examined.partitions = store.partition_count().await?;
    examined.installation = Some(store.installation_id().await?);
    if let Some(change) = store.partition_change().await? {
        examined.found.push(Symptom::ChangingPartitions { from: change.from.get(), to: change.to.get() });
    }
    examined.owners = store.partitions_status().await?;
    for incident in store.incidents(false).await? {
        examined.found.push(Symptom::Incident { partition: incident.partition, detail: incident.detail });
    }
    for (reason, count) in store.recent_dead_letters(RECENT).await? {
        examined.found.push(Symptom::DeadLetters { reason, count });
    }
    Ok(examined)
}

async fn examine_nats(bus: &Bus, count: PartitionCount, examined: &mut Examined) -> Result<(), ExitError> {
    let partitions = count.all().map(subject::stream_name);
    let others = [subject::WORK_STREAM, subject::TURNS_STREAM, subject::TOOL_CALLS_STREAM];
    let all = partitions.chain(others.map(str::to_owned));
    for name in all {
        let usage = bus.stream_usage(&name).await?;
        if usage.is_some() {
            examined.owners_of_streams.push((name.clone(), bus.installation_of(&name).await?));
        }
        examined.streams.push((name, usage));
    }
    match mapping::check(bus, count).await {
        Ok(wrong) => examined.found.extend(wrong.map(Symptom::WrongMapping)),
        Err(error) => tracing::warn!(%error, "the mapping of the NATS account could not be checked"),
    }
    match bus.streams_beyond(count).await {
        Ok(streams) => examined.left_over = streams,
        Err(error) => tracing::warn!(%error, "the streams of the NATS account could not be listed"),
    }
    if examined.streams.iter().any(|(name, usage)| name == subject::WORK_STREAM && usage.is_some()) {
        examined.waiting_requests = bus.subjects(subject::WORK_STREAM, subject::ALL_WORK).await?;
        examined.consumers = bus.workflow_consumers().await?;
    }
    Ok(())
}
