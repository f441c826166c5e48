//! Turns what was examined into findings, without I/O. Entry: [`judge`].

use std::collections::BTreeMap;

use bus::{StreamUsage, WorkflowConsumer};
use model::{PartitionCount, PartitionId};
use store::{Layout, PartitionStatus};
use wire::subject;

use crate::mapping::WrongMapping;

/// Fill levels of a stream in percent: from `FILLING` on a warning, from `FULL` on a problem.
const FILLING: u64 = 80;
const FULL: u64 = 98;
/// Maximum number of entries after the checkpoint of one partition.
const BACKLOG: u64 = 50_000;

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Severity {
    /// Something does not work.
    Problem,
    /// Something may be wrong, or may go wrong later.
    Warning,
    /// No problem was found.
    Fine,
}

impl Severity {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Problem => "problem",
            Self::Warning => "warning",
            Self::Fine => "ok",
        }
    }
}

/// One line of the report.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Finding {
    pub(super) severity: Severity,
    pub(super) what: &'static str,
    pub(super) detail: String,
    pub(super) advice: String,
}

fn finding(
    severity: Severity,
    what: &'static str,
    detail: impl Into<String>,
    advice: impl Into<String>,
) -> Finding {
    Finding { severity, what, detail: detail.into(), advice: advice.into() }
}

/// A deviation that is reported by itself, whatever else was found.
#[derive(Debug)]
pub(super) enum Symptom {
    PostgresAway(String),
    /// The URL, a file that it names, or the role is wrong.
    PostgresRefused(String),
    NatsAway(String),
    /// The URL or a file given with it is wrong, or the server refuses this user.
    NatsRefused(String),
    /// A value could not be read from a server.
    Unread {
        of: &'static str,
        what: &'static str,
        why: String,
        severity: Severity,
    },
    NotMigrated(Layout),
    NewerSchema(i64),
    WeakCommits(&'static str),
    NoVectors {
        wanted: String,
        stored: Option<String>,
    },
    ChangingPartitions {
        from: u16,
        to: u16,
    },
    WrongMapping(WrongMapping),
    Incident {
        partition: PartitionId,
        detail: String,
    },
    /// There are more incidents than the newest ones, which are shown.
    MoreIncidents {
        shown: u32,
    },
    DeadLetters {
        reason: String,
        count: u64,
    },
}

/// The state of Postgres, NATS and the fleet.
#[derive(Debug, Default)]
pub(super) struct Examined {
    pub(super) found: Vec<Symptom>,
    pub(super) partitions: Option<PartitionCount>,
    pub(super) owners: Vec<PartitionStatus>,
    /// Id of the installation of this database.
    pub(super) installation: Option<String>,
    /// Stream names with the installation that the stream belongs to; `None` if it is not marked.
    pub(super) owners_of_streams: Vec<(String, Option<String>)>,
    /// Streams of partitions beyond the current number of partitions.
    pub(super) left_over: Vec<String>,
    /// Stream names with their usage; `None` if the stream does not exist.
    pub(super) streams: Vec<(String, Option<StreamUsage>)>,
    /// Number of stored turn requests by subject.
    pub(super) waiting_requests: BTreeMap<String, u64>,
    pub(super) consumers: Vec<WorkflowConsumer>,
}

/// The report, the most severe findings first.
pub(super) fn judge(examined: &Examined) -> Vec<Finding> {
    let mut findings: Vec<Finding> = examined.found.iter().map(of_symptom).collect();
    if examined.partitions.is_some() {
        findings.push(owners(&examined.owners));
    }
    findings.extend(installation(examined));
    findings.extend(left_over(&examined.left_over));
    findings.extend(streams(examined));
    findings.extend(workflows(examined));
    findings.sort_by_key(|finding| finding.severity);
    findings
}

fn of_symptom(symptom: &Symptom) -> Finding {
    use Severity::{Problem, Warning};
    match symptom {
        Symptom::PostgresAway(why) => {
            finding(Problem, "postgres", why, "start it, or mend DATABASE_URL; roles wait for it")
        }
        Symptom::PostgresRefused(why) => {
            let advice = "mend DATABASE_URL, and the role, database and files that it names; roles end with this error";
            finding(Problem, "postgres", why, advice)
        }
        Symptom::NatsAway(why) => {
            finding(Problem, "nats", why, "start it, or mend NATS_URL; roles wait for it")
        }
        Symptom::NatsRefused(why) => {
            let advice =
                "mend NATS_URL and the credentials and certificates beside it; roles end with this error";
            finding(Problem, "nats", why, advice)
        }
        Symptom::Unread { of, what, why, severity } => {
            let advice = match *of {
                "nats" => {
                    "give NATS JetStream (nats-server -js), and use a NATS user that may ask for it: operator in deploy/nats.conf"
                }
                _ => "use a role that may read all tables: the owner, or one of antiphon_operator",
            };
            finding(*severity, of, format!("{what} cannot be read: {why}"), advice)
        }
        Symptom::NotMigrated(layout) => {
            let (detail, advice) = match layout {
                Layout::Differs(migration) => (
                    format!("migration {migration} is of another build"),
                    "use the build that made the database, or a new database",
                ),
                Layout::Lacks(migration) => {
                    (format!("migration {migration} is missing"), "run antiphon migrate")
                }
                Layout::Nothing | Layout::Enough => {
                    ("there are no tables".to_owned(), "run antiphon migrate")
                }
            };
            finding(Problem, "schema", detail, advice)
        }
        Symptom::NewerSchema(newest) => {
            let detail = format!("migration {newest} is of a newer version than this command");
            finding(Warning, "schema", detail, "use the command of the newest version that runs")
        }
        Symptom::WeakCommits(why) => {
            finding(Warning, "postgres", *why, "set synchronous_commit to on, in the server or for the role")
        }
        Symptom::NoVectors { wanted, stored } => {
            let (detail, advice) = match stored {
                Some(stored) => (
                    format!(
                        "the vectors of facts are of {stored}, not of {wanted}: memory is searched by words alone"
                    ),
                    "run antiphon migrate with the embeddings of workers and gateways: it makes all vectors again",
                ),
                None => (
                    format!(
                        "there are no vectors of facts, though {wanted} is to make them: memory is searched by words alone"
                    ),
                    "install pgvector 0.7 or newer, have a superuser run CREATE EXTENSION vector, then run antiphon migrate",
                ),
            };
            finding(Warning, "memory", detail, advice)
        }
        Symptom::ChangingPartitions { from, to } => {
            let detail = format!("the number of partitions is being changed from {from} to {to}");
            finding(
                Problem,
                "partitions",
                detail,
                format!("run antiphon partitions change {to} again: it goes on"),
            )
        }
        Symptom::WrongMapping(WrongMapping { kind, mapped, wanted }) => finding(
            Problem,
            "mappings",
            format!("the NATS account maps {kind}.* to {mapped} partitions, and the database has {wanted}"),
            format!("put {wanted} into all mappings, then nats-server --signal reload on each server"),
        ),
        Symptom::Incident { partition, detail } => finding(
            Problem,
            "incident",
            format!("partition {partition}: {detail}"),
            format!("read deploy/README.md on restores, then antiphon incidents acknowledge {partition}"),
        ),
        Symptom::MoreIncidents { shown } => finding(
            Problem,
            "incident",
            format!("there are more than the {shown} newest incidents above"),
            "antiphon incidents list --limit 200".to_owned(),
        ),
        Symptom::DeadLetters { reason, count } => {
            let detail = format!("{count} of reason {reason} within a day");
            let advice = format!("antiphon dead-letters list --reason {reason}");
            finding(Warning, "dead letters", detail, advice)
        }
    }
}

fn owners(all: &[PartitionStatus]) -> Finding {
    let is_free = |status: &&PartitionStatus| {
        status.owner.is_none() || status.lease_left_ms.is_none_or(|left_ms| left_ms <= 0)
    };
    let free: Vec<String> = all.iter().filter(is_free).map(|status| status.partition.to_string()).collect();
    let mut workers: Vec<&str> =
        all.iter().filter(|status| !is_free(status)).filter_map(|status| status.owner.as_deref()).collect();
    workers.sort_unstable();
    workers.dedup();
    let advice = "start a worker; one that runs takes free partitions within seconds";
    if free.is_empty() {
        let detail = format!("{} partitions, {} workers", all.len(), workers.len());
        finding(Severity::Fine, "workers", detail, "")
    } else if workers.is_empty() {
        let detail = format!("no worker owns any of {} partitions: nothing is answered", all.len());
        finding(Severity::Problem, "workers", detail, advice)
    } else {
        let detail = format!("no worker owns partition {}", free.join(", "));
        finding(Severity::Problem, "workers", detail, advice)
    }
}

fn installation(examined: &Examined) -> Option<Finding> {
    let ours = examined.installation.as_deref().filter(|_| !examined.owners_of_streams.is_empty())?;
    let owners = || examined.owners_of_streams.iter();
    let of_others: Vec<&str> = owners()
        .filter(|(_, theirs)| theirs.as_deref().is_some_and(|theirs| theirs != ours))
        .map(|(name, _)| name.as_str())
        .collect();
    if let Some((_, Some(theirs))) = owners().find(|(name, _)| of_others.first() == Some(&name.as_str())) {
        let detail =
            format!("{} belong to installation {theirs}, and the database is {ours}", of_others.join(", "));
        let advice = "give each fleet a NATS account of its own, or mend NATS_URL or DATABASE_URL; if this database takes the place of the other \
                      one, stop the other fleet and run antiphon migrate --adopt-streams";
        return Some(finding(Severity::Problem, "installation", detail, advice));
    }
    let unmarked: Vec<&str> =
        owners().filter(|(_, theirs)| theirs.is_none()).map(|(name, _)| name.as_str()).collect();
    if unmarked.is_empty() {
        return Some(finding(Severity::Fine, "installation", ours, ""));
    }
    let detail = format!("{} do not say which installation they belong to", unmarked.join(", "));
    Some(finding(Severity::Warning, "installation", detail, "run antiphon migrate, which marks them"))
}

fn left_over(streams: &[String]) -> Option<Finding> {
    let advice = "a change of the number of partitions was refused or was not finished: run it again, or delete them with the nats command \
                  line (nats stream rm)";
    (!streams.is_empty()).then(|| {
        let detail = format!("{} belong to no partition, and reserve room", streams.join(", "));
        finding(Severity::Warning, "stream", detail, advice)
    })
}

fn streams(examined: &Examined) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut fine = 0;
    for (name, usage) in &examined.streams {
        let Some(usage) = usage else {
            let detail = format!("{name} is not there");
            let advice =
                "run antiphon migrate, which makes it; what it had is gone, and is named as an incident";
            findings.push(finding(Severity::Problem, "stream", detail, advice));
            continue;
        };
        let percent =
            usage.max_bytes.filter(|max| *max > 0).map_or(0, |max| usage.bytes.saturating_mul(100) / max);
        let checkpoint =
            examined.owners.iter().find(|status| subject::stream_name(status.partition) == *name);
        let backlog = checkpoint.map_or(0, |status| usage.last_seq.0.saturating_sub(status.checkpoint.0));
        let drops_the_oldest = [subject::TURNS_STREAM, subject::TOOL_CALLS_STREAM].contains(&name.as_str());
        let found = if !drops_the_oldest && percent >= FULL {
            let detail = format!("{name} is full: publishers are refused");
            Some((
                Severity::Problem,
                detail,
                "let workers catch up, or raise ANTIPHON_STREAM_MAX_BYTES and migrate",
            ))
        } else if !drops_the_oldest && percent >= FILLING {
            let detail = format!("{name} is {percent} % full");
            Some((Severity::Warning, detail, "look whether its worker keeps up"))
        } else if usage.lagging_replicas > 0 {
            let detail =
                format!("{name}: {} of {} copies are behind", usage.lagging_replicas, usage.replicas);
            Some((Severity::Warning, detail, "look at the servers of NATS"))
        } else if backlog >= BACKLOG {
            let detail = format!("{name} has {backlog} entries that are not committed");
            Some((Severity::Warning, detail, "look at the log and the load of its worker, or add workers"))
        } else {
            None
        };
        match found {
            Some((severity, detail, advice)) => findings.push(finding(severity, "stream", detail, advice)),
            None => fine += 1,
        }
    }
    if fine > 0 {
        findings.push(finding(Severity::Fine, "streams", format!("{fine} as they are to be"), ""));
    }
    findings
}

fn workflows(examined: &Examined) -> Vec<Finding> {
    let mut findings = Vec::new();
    for consumer in &examined.consumers {
        let WorkflowConsumer { workflow, pending, in_hand, waiting_pulls } = consumer;
        let is_served = *waiting_pulls > 0 || *in_hand > 0;
        findings.push(if is_served || *pending == 0 {
            let detail = format!("{workflow}: {pending} requests wait, {in_hand} are being answered");
            finding(Severity::Fine, "workflow", detail, "")
        } else {
            let detail = format!("{workflow}: {pending} requests wait, and no service takes them");
            finding(Severity::Problem, "workflow", detail, "start its service")
        });
    }
    let has_consumer =
        |workflow: &str| examined.consumers.iter().any(|consumer| consumer.workflow == workflow);
    for (subject, count) in &examined.waiting_requests {
        let workflow = subject.split_once('.').map_or(subject.as_str(), |(_, workflow)| workflow);
        if !has_consumer(workflow) {
            let detail = format!("{workflow}: {count} requests wait, and no service of it has ever run");
            let advice = "start its service, or name another workflow in the agents' settings";
            findings.push(finding(Severity::Problem, "workflow", detail, advice));
        }
    }
    findings
}

#[cfg(test)]
mod tests;
