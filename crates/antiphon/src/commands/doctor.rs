//! `antiphon doctor`: checks Postgres, NATS and the fleet, and prints each problem with what to do
//! about it. It changes nothing.

mod findings;

use std::time::Duration;

use bus::{Bus, BusError};
use model::PartitionCount;
use serde_json::{Value, json};
use store::{Store, StoreError};
use wire::subject;

use self::findings::{Examined, Finding, Severity, Symptom};
use super::timeouts::SERVER_TIMEOUT;
use crate::connect::bus_config;
use crate::exit::ExitError;
use crate::mapping;
use crate::options::Doctor;
use crate::output::{self, Table, cell};

/// Maximum age of dead letters that are reported.
const RECENT: Duration = Duration::from_secs(24 * 3600);
/// Maximum number of incidents that are shown one by one.
const MOST_INCIDENTS: u32 = 20;

/// `store`: the result of connecting to Postgres. Each part is checked even if another one fails.
pub(super) async fn run(options: &Doctor, store: Result<Store, ExitError>) -> Result<(), ExitError> {
    let vectors_of = options.embeddings.config()?.map(|config| config.vectors_of());
    let (mut examined, bus) = tokio::join!(examine_postgres(store, vectors_of), connect_bus(options));
    match bus {
        Ok(bus) => examine_nats(&bus, &mut examined).await,
        Err(symptom) => examined.found.push(symptom),
    }
    let findings = findings::judge(&examined);
    let json = json!({ "findings": findings.iter().map(shown).collect::<Vec<_>>() });
    output::print(options.output.format(), &json, || {
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

async fn connect_bus(options: &Doctor) -> Result<Bus, Symptom> {
    let config = bus_config(&options.servers.nats, "antiphon doctor");
    let refused = |error: BusError| Symptom::NatsRefused(error.to_string());
    config.check().await.map_err(refused)?;
    match tokio::time::timeout(SERVER_TIMEOUT, Bus::connect(&config)).await {
        Ok(Ok(bus)) => Ok(bus),
        Ok(Err(error)) => Err(refused(error)),
        Err(_) => Err(Symptom::NatsAway(format!("no answer within {} s", SERVER_TIMEOUT.as_secs()))),
    }
}

/// `vectors_of`: the model and dimensions that the vectors of facts should have.
async fn examine_postgres(store: Result<Store, ExitError>, vectors_of: Option<String>) -> Examined {
    let mut examined = Examined::default();
    match store {
        Ok(store) => examine_tables(&store, vectors_of, &mut examined).await,
        Err(ExitError::Failed(why)) => examined.found.push(Symptom::PostgresAway(why)),
        Err(ExitError::Configuration(why)) => {
            examined.found.push(Symptom::PostgresRefused(without_line(&why)))
        }
        // Connecting writes no output.
        Err(ExitError::OutputClosed) => {}
    }
    examined
}

/// Removes the server's source line, which does not help an operator.
fn without_line(why: &str) -> String {
    why.split(" at line ").next().unwrap_or_default().to_owned()
}

async fn examine_tables(store: &Store, vectors_of: Option<String>, examined: &mut Examined) {
    match store.layout().await {
        Ok(store::Layout::Enough) => {}
        Ok(layout) => return examined.found.push(Symptom::NotMigrated(layout)),
        Err(error) => return examined.found.push(unread("its migrations", &error)),
    }
    if let Some(newest) = examined.read("newer migrations", store.newest_unknown_migration().await).flatten()
    {
        examined.found.push(Symptom::NewerSchema(newest));
    }
    if let Some(why) = examined.read("its settings", store.weak_commits().await).flatten() {
        examined.found.push(Symptom::WeakCommits(why));
    }
    if let Some(wanted) = vectors_of
        && let Some(stored) = examined.read("the vectors of facts", store.vectors_of().await)
        && stored.as_ref() != Some(&wanted)
    {
        examined.found.push(Symptom::NoVectors { wanted, stored });
    }
    examined.partitions = examined.read("the number of partitions", store.partition_count().await).flatten();
    examined.installation = examined.read("the installation's id", store.installation_id().await);
    if let Some(change) = examined.read("the change of partitions", store.partition_change().await).flatten()
    {
        examined.found.push(Symptom::ChangingPartitions { from: change.from.get(), to: change.to.get() });
    }
    examined.owners =
        examined.read("the owners of partitions", store.partitions_status().await).unwrap_or_default();
    let mut incidents =
        examined.read("incidents", store.incidents(false, MOST_INCIDENTS + 1).await).unwrap_or_default();
    let has_more = incidents.len() > MOST_INCIDENTS as usize;
    incidents.truncate(MOST_INCIDENTS as usize);
    examined.found.extend(
        incidents
            .into_iter()
            .map(|incident| Symptom::Incident { partition: incident.partition, detail: incident.detail }),
    );
    if has_more {
        examined.found.push(Symptom::MoreIncidents { shown: MOST_INCIDENTS });
    }
    for (reason, count) in
        examined.read("dead letters", store.recent_dead_letters(RECENT).await).unwrap_or_default()
    {
        examined.found.push(Symptom::DeadLetters { reason, count });
    }
}

fn unread(what: &'static str, error: &StoreError) -> Symptom {
    let (why, severity) = (without_line(&error.to_string()), Severity::Problem);
    Symptom::Unread { of: "postgres", what, why, severity }
}

impl Examined {
    /// Returns the value that was read. A failure becomes a finding.
    fn read<T>(&mut self, what: &'static str, read: Result<T, StoreError>) -> Option<T> {
        read.map_err(|error| self.found.push(unread(what, &error))).ok()
    }

    /// Like [`Self::read`], for NATS.
    fn asked<T>(&mut self, what: &'static str, asked: Result<T, BusError>) -> Option<T> {
        self.asked_of(Severity::Problem, what, asked)
    }

    fn asked_of<T>(
        &mut self,
        severity: Severity,
        what: &'static str,
        asked: Result<T, BusError>,
    ) -> Option<T> {
        let unread = |error: BusError| Symptom::Unread { of: "nats", what, why: error.to_string(), severity };
        asked.map_err(|error| self.found.push(unread(error))).ok()
    }
}

/// Without the number of partitions, which comes from Postgres, only the streams that all
/// partitions share are checked.
async fn examine_nats(bus: &Bus, examined: &mut Examined) {
    let partitions = examined.partitions.into_iter().flat_map(PartitionCount::all).map(subject::stream_name);
    let others = [subject::WORK_STREAM, subject::TURNS_STREAM, subject::TOOL_CALLS_STREAM];
    for name in partitions.chain(others.map(str::to_owned)).collect::<Vec<_>>() {
        // The other streams would fail for the same reason: a user without the permission, or no
        // JetStream.
        let Some(usage) = examined.asked("its streams", bus.stream_usage(&name).await) else { return };
        if usage.is_some() {
            let Some(owner) = examined.asked("whose its streams are", bus.installation_of(&name).await)
            else {
                return;
            };
            examined.owners_of_streams.push((name.clone(), owner));
        }
        examined.streams.push((name, usage));
    }
    if let Some(count) = examined.partitions {
        // A NATS user may work without permission to read the mappings.
        let wrong = mapping::check(bus, count).await;
        let wrong = examined.asked_of(Severity::Warning, "the mapping of the account", wrong);
        examined.found.extend(wrong.flatten().map(Symptom::WrongMapping));
        let left_over = bus.streams_beyond(count).await;
        let left_over = examined.asked_of(Severity::Warning, "the names of all streams", left_over);
        examined.left_over = left_over.unwrap_or_default();
    }
    if examined.streams.iter().any(|(name, usage)| name == subject::WORK_STREAM && usage.is_some()) {
        let waiting = bus.subjects(subject::WORK_STREAM, subject::ALL_WORK).await;
        examined.waiting_requests = examined.asked("turn requests", waiting).unwrap_or_default();
        examined.consumers =
            examined.asked("consumers of workflows", bus.workflow_consumers().await).unwrap_or_default();
    }
}
