//! The deployment's alerts, provoked on a real fleet with a real Prometheus.
//!
//! [`run`] starts a fleet and a Prometheus with the shipped rules, but with shorter ranges and
//! `for:` times; otherwise a run would take a day. Other thresholds are not changed. It makes one
//! [`Provocation`] after the other until its alerts fire, and then undoes it.

mod provocation;
mod scene;

use std::{collections::BTreeMap, fmt, fs, path::PathBuf, time::Duration};

use anyhow::{Context, Result, ensure};
use devservices::workspace;

use provocation::Provocation;
use scene::Scene;

/// Range of the rules in a run. Scrapes are one second apart.
const RANGE: &str = "20s";
/// Time for which a condition must hold in a run.
const HOLDS: &str = "1s";
/// Thresholds that are times: the text in the shipped rules, and its replacement in a run.
const TIMES: [(&str, &str); 1] = [
    // The shipped rule requires a message that stays open for half an hour.
    (
        "antiphon_worker_oldest_message_age_seconds) > 1800",
        "antiphon_worker_oldest_message_age_seconds) > 25",
    ),
];

/// Settings of a run.
#[derive(Debug, Clone, Default)]
pub struct AlertsOptions {
    /// The alerts to provoke; if empty, all of them.
    pub only: Vec<String>,
    /// A build of another version, needed for one of the alerts.
    pub other_binary: Option<PathBuf>,
}

/// The outcome of a run.
#[derive(Debug, Default)]
pub struct AlertsReport {
    /// For each alert, the provocation and the time after which the alert fired; `None`: it did not
    /// fire.
    pub outcomes: BTreeMap<String, (&'static str, Option<Duration>)>,
    /// Alerts that were not provoked, with the reasons.
    pub left_out: BTreeMap<String, &'static str>,
}

impl AlertsReport {
    /// True if every provoked alert fired.
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
        for (alert, why) in &self.left_out {
            writeln!(f, "  {alert:<32} not provoked: {why}")?;
        }
        let fired = self.outcomes.values().filter(|(_, fired)| fired.is_some()).count();
        write!(f, "  {fired} of {} alerts fired", self.outcomes.len() + self.left_out.len())
    }
}

/// Provokes the alerts.
///
/// # Errors
/// A server or the fleet could not be controlled, or an alert is unknown. Alerts that did not fire
/// are in the report.
pub async fn run(options: AlertsOptions) -> Result<AlertsReport> {
    let shipped = fs::read_to_string(workspace::root().join("deploy/chart/antiphon/files/alerts.yaml"))?;
    check_that_all_are_provoked(&shipped)?;
    let wanted = wanted(&options.only)?;
    let has_other = options.other_binary.is_some();
    let mut scene = Scene::set(&shortened(&shipped), options.other_binary).await?;
    let mut report = AlertsReport::default();
    for provocation in wanted {
        let alerts = provocation.alerts();
        if provocation == Provocation::OtherVersion && !has_other {
            let left_out =
                alerts.iter().map(|alert| ((*alert).to_owned(), "needs a build of another version"));
            report.left_out.extend(left_out);
            continue;
        }
        println!("{}", provocation.name());
        scene.quiet(alerts).await?;
        let fired = provocation.make(&mut scene).await.with_context(|| provocation.name())?;
        scene.ready().await?;
        for alert in alerts {
            let after = fired.get(*alert).copied();
            println!("  {alert}: {after:?}");
            report.outcomes.insert((*alert).to_owned(), (provocation.name(), after));
        }
    }
    Ok(report)
}

/// The provocations of these alerts, in the order in which they are made; all of them if no alert
/// is named.
fn wanted(only: &[String]) -> Result<Vec<Provocation>> {
    let is_of = |provocation: &Provocation, alert: &String| provocation.alerts().contains(&alert.as_str());
    for alert in only {
        ensure!(Provocation::ALL.iter().any(|provocation| is_of(provocation, alert)), "{alert} is no alert");
    }
    let mut wanted = Provocation::ALL.to_vec();
    wanted.retain(|provocation| only.is_empty() || only.iter().any(|alert| is_of(provocation, alert)));
    Ok(wanted)
}

/// Checks that every shipped alert has a provocation.
fn check_that_all_are_provoked(rules: &str) -> Result<()> {
    let provoked: Vec<_> = Provocation::ALL.iter().flat_map(|provocation| provocation.alerts()).collect();
    let mut alerts = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: "));
    ensure!(alerts.all(|alert| provoked.contains(&&alert)), "an alert is not provoked");
    Ok(())
}

/// The rules with shorter times.
fn shortened(rules: &str) -> String {
    let mut text = String::new();
    let rules = TIMES.iter().fold(rules.to_owned(), |rules, (shipped, here)| rules.replace(shipped, here));
    for line in rules.lines() {
        match line.split_once("for: ") {
            Some((indent, _)) if indent.trim().is_empty() => text.push_str(&format!("{indent}for: {HOLDS}")),
            _ => text.push_str(&with_range(line)),
        }
        text.push('\n');
    }
    text
}

/// Replaces the ranges of a line, such as `[10m]`.
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

    fn shipped() -> String {
        fs::read_to_string(workspace::root().join("deploy/chart/antiphon/files/alerts.yaml")).unwrap()
    }

    #[test]
    fn every_alert_is_provoked() {
        check_that_all_are_provoked(&shipped()).unwrap();
    }

    #[test]
    fn alerts_by_name_are_provoked_alone() {
        assert_eq!(wanted(&[]).unwrap(), Provocation::ALL);
        let names = ["AntiphonNoWorkers", "AntiphonGapTimeouts"].map(str::to_owned);
        assert_eq!(wanted(&names).unwrap(), [Provocation::LostChunks, Provocation::NoWorkers]);
        wanted(&["AntiphonNothing".to_owned()]).unwrap_err();
    }

    #[test]
    fn times_are_shortened_and_nothing_else() {
        let rules = "- alert: A\n  expr: sum(increase(a_total[10m])) / sum(rate(b[5m])) > 5\n  for: 5m\n  x: 'for: [1]'\n";
        let expected = "- alert: A\n  expr: sum(increase(a_total[20s])) / sum(rate(b[20s])) > 5\n  for: 1s\n  x: 'for: [1]'\n";
        assert_eq!(shortened(rules), expected);
    }

    #[test]
    fn thresholds_that_are_times_are_in_the_rules() {
        let (shipped, here) = (shipped(), shortened(&shipped()));
        for (long, short) in TIMES {
            assert!(shipped.contains(long) && !here.contains(long) && here.contains(short), "{long}");
        }
        let limits = |rules: &str| rules.matches(" > ").count();
        assert_eq!(limits(&shipped), limits(&here));
    }
}
