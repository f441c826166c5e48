//! Alerts of the deployment, provoked on a real fleet under a real Prometheus; those that are not are named with the reason.
//!
//! [`run`] starts a fleet and a Prometheus that has the rules as they are shipped, but for their times: ranges and `for:` are shortened, or a run
//! would take a day. Thresholds stay. One [`Provocation`] after the other is made, until the alerts fire that it is for, and undone.

mod provocation;
mod scene;

use std::{collections::BTreeMap, fmt, fs, time::Duration};

use anyhow::{Context, Result, ensure};
use devservices::workspace;

use provocation::Provocation;
use scene::Scene;

/// Ranges of the rules; two scrapes are a second apart.
const RANGE: &str = "20s";
/// How long a condition must hold.
const HOLDS: &str = "1s";
/// Alerts that no provocation is for, and why.
const LEFT_OUT: [(&str, &str); 8] = [
    (
        "AntiphonReaderLag",
        "needs a reader that stays behind: 66,000 chunks that are half a minute old are read within a second",
    ),
    ("AntiphonStreamGaps", "needs entries lost in the middle of a stream, which lets no client take any out"),
    ("AntiphonVersionsMixed", "needs a build of another version"),
    ("AntiphonLargeBuffers", "needs 200 MiB of open messages"),
    ("AntiphonOldBuffers", "needs a message that is open for half an hour"),
    ("AntiphonOutboxBacklog", "needs NATS to refuse what follows hundreds of turns, and to take the turns"),
    ("AntiphonOutboxFailed", "needs an entry that NATS refuses for good, which inputs are too small for"),
    ("AntiphonSubscribersCut", "needs a hundred slow clients with some MiB each on the way"),
];

/// Which alerts fired.
#[derive(Debug, Default)]
pub struct AlertsReport {
    /// By alert: how it was provoked, and after how long it fired; `None`: it did not.
    pub outcomes: BTreeMap<String, (&'static str, Option<Duration>)>,
}

impl AlertsReport {
    /// Every alert that was provoked fired.
    pub fn is_good(&self) -> bool {
        self.outcomes.values().all(|(_, fired)| fired.is_some())
    }
}

impl fmt::Display for AlertsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (alert, (how, fired)) in &self.outcomes {
            let fired =
                fired.map_or("no".to_owned(), |after| format!("yes, after {:.0} s", after.as_secs_f64()));
            writeln!(f, "  {alert:<32} {how:<64} {fired}")?;
        }
        for (alert, why) in LEFT_OUT {
            writeln!(f, "  {alert:<32} not provoked: {why}")?;
        }
        let fired = self.outcomes.values().filter(|(_, fired)| fired.is_some()).count();
        write!(f, "  {fired} of {} alerts fired", self.outcomes.len() + LEFT_OUT.len())
    }
}

/// Provokes all of them.
///
/// # Errors
/// A server or the fleet could not be handled at all; an alert that did not fire is in the report.
pub async fn run() -> Result<AlertsReport> {
    let shipped = fs::read_to_string(workspace::root().join("deploy/chart/antiphon/files/alerts.yaml"))?;
    check_that_all_are_named(&shipped)?;
    let mut scene = Scene::set(&shortened(&shipped)).await?;
    let mut report = AlertsReport::default();
    for provocation in Provocation::ALL {
        println!("{}", provocation.name());
        let fired = provocation.make(&mut scene).await.with_context(|| provocation.name())?;
        scene.ready().await?;
        for alert in provocation.alerts() {
            let after = fired.get(*alert).copied();
            report.outcomes.insert((*alert).to_owned(), (provocation.name(), after));
        }
    }
    Ok(report)
}

/// A new alert has a provocation, or a reason why it has none.
fn check_that_all_are_named(rules: &str) -> Result<()> {
    let provoked = Provocation::ALL.iter().flat_map(|provocation| provocation.alerts()).copied();
    let named: Vec<_> = provoked.chain(LEFT_OUT.iter().map(|(alert, _)| *alert)).collect();
    let mut alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    ensure!(alerts.all(|alert| named.contains(&alert)), "an alert is neither provoked nor left out");
    Ok(())
}

/// The rules with other times.
fn shortened(rules: &str) -> String {
    let mut text = String::new();
    for line in rules.lines() {
        match line.split_once("for: ") {
            Some((indent, _)) if indent.trim().is_empty() => text.push_str(&format!("{indent}for: {HOLDS}")),
            _ => text.push_str(&with_range(line)),
        }
        text.push('\n');
    }
    text
}

/// The ranges of a line, such as `[10m]`, replaced.
fn with_range(line: &str) -> String {
    let mut pieces = line.split('[');
    let mut text = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        match piece.split_once("m]") {
            Some((minutes, rest)) if minutes.parse::<u32>().is_ok() => {
                text.push_str(&format!("[{RANGE}]{rest}"))
            }
            _ => text.push_str(&format!("[{piece}")),
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_alert_is_provoked_or_left_out() {
        let rules = workspace::root().join("deploy/chart/antiphon/files/alerts.yaml");
        check_that_all_are_named(&fs::read_to_string(rules).unwrap()).unwrap();
    }

    #[test]
    fn times_are_shortened_and_nothing_else() {
        let rules = "- alert: A\n  expr: sum(increase(a_total[10m])) / sum(rate(b[5m])) > 5\n  for: 5m\n  x: 'for: [1]'\n";
        let expected = "- alert: A\n  expr: sum(increase(a_total[20s])) / sum(rate(b[20s])) > 5\n  for: 1s\n  x: 'for: [1]'\n";
        assert_eq!(shortened(rules), expected);
    }
}
