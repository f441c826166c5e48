//! Follow-ups, schedules and delayed tasks of one seed, and the clock by which they are due.

use model::Metadata;
use serde_json::{Map, Value, json};

use crate::checker::turns::FollowUpLimits;
use crate::log::START;
use crate::rng::Rng;

/// When Berlin's clocks change in 2027, ms: forward, and back.
const CLOCK_CHANGES: [i64; 2] = [1_806_195_600_000, 1_824_944_400_000];
/// The time zone of all users.
pub(crate) const ZONE: &str = "Europe/Berlin";

/// Follow-ups and schedules of a history that has them.
#[derive(Debug, Clone)]
pub(crate) struct FollowUpProfile {
    /// The follow-up part of every agent's settings.
    pub(crate) written: Value,
    pub(crate) max_in_a_row: u32,
    pub(crate) max_per_day: u32,
    pub(crate) cooldown_ms: i64,
    /// Start and end of the quiet hours, in minutes of the day.
    pub(crate) quiet: Option<(i64, i64)>,
    /// Messages name the time zone of their users; otherwise the settings do.
    pub(crate) users_name_zone: bool,
    /// Rate of answers whose last chunk asks for a follow-up.
    pub(crate) hints: f64,
    /// Rate of empty answers.
    pub(crate) empty: f64,
    /// Maximum number of messages that persons write close to a timer's due time, and their rate.
    pub(crate) persons: usize,
    pub(crate) person: f64,
    /// Rate of outages in which all workers die and days pass.
    pub(crate) outage: f64,
    /// How far the clocks of the database and of workers are ahead of the simulation's at its
    /// start, ms.
    pub(crate) ahead_ms: i64,
    pub(crate) schedules: usize,
    pub(crate) delayed_tasks: usize,
    /// From this time on the settings disable follow-ups, ms.
    pub(crate) disabled_at: Option<i64>,
    /// Maximum number of jumps to the next timer while there are faults.
    pub(crate) jumps: u32,
    pub(crate) timer_window: usize,
}

impl FollowUpProfile {
    pub(crate) fn draw(rng: &mut Rng, has_inputs: bool, faults_until: i64) -> Option<Self> {
        if !rng.chance(0.3) || !has_inputs {
            return None;
        }
        let quiet = rng.chance(0.4).then(|| rng.pick([(22 * 60, 8 * 60), (120, 240), (60, 1_380), (0, 30)]));
        let users_name_zone = rng.chance(0.5);
        let (max_in_a_row, max_per_day) = (rng.pick([0, 1, 2, 3, 3, 3]), rng.pick([1, 2, 10, 10]));
        let cooldown_seconds = rng.pick([15, 15, 60, 7_200]);
        let mut written = json!({
            "enabled": true, "max_in_a_row": max_in_a_row, "max_per_day": max_per_day,
            "cooldown_seconds": cooldown_seconds,
        });
        if let Some((from, to)) = quiet {
            let shown = |minute: i64| format!("{:02}:{:02}", minute / 60, minute % 60);
            written["quiet_hours"] = json!({ "from": shown(from), "to": shown(to) });
        }
        if !users_name_zone {
            written["time_zone"] = json!(ZONE);
        }
        if rng.chance(0.5) {
            let after_seconds = rng.pick([30, 31, 600, 3_600]);
            written["default"] =
                json!({ "trigger_type": "question_unanswered", "after_seconds": after_seconds });
        }
        let before_change_ms = rng.range(-3_600_000, 3 * 86_400_000);
        Some(Self {
            written,
            max_in_a_row: max_in_a_row as u32,
            max_per_day: max_per_day as u32,
            cooldown_ms: cooldown_seconds * 1_000,
            quiet,
            users_name_zone,
            hints: rng.pick([0.2, 0.6, 0.9]),
            empty: rng.pick([0.0, 0.0, 0.1]),
            persons: rng.range(0, 3) as usize,
            person: rng.pick([0.2, 0.6]),
            outage: rng.pick([0.0, 0.1, 0.3]),
            ahead_ms: rng.pick(CLOCK_CHANGES) - before_change_ms - START,
            schedules: usize::from(rng.chance(0.4)),
            delayed_tasks: rng.pick([0, 0, 1]),
            disabled_at: rng.chance(0.1).then(|| rng.range(1_000, faults_until)),
            jumps: rng.range(2, 8) as u32,
            timer_window: rng.pick([4, 8, 4_096]),
        })
    }

    /// The settings of every agent at this time.
    pub(crate) fn settings(&self, time: i64) -> Map<String, Value> {
        match self.disabled_at {
            Some(at) if time >= at => Map::new(),
            _ => Map::from_iter([("follow_ups".to_owned(), self.written.clone())]),
        }
    }

    /// The limits as the checker needs them.
    pub(crate) fn limits(&self) -> FollowUpLimits {
        let Self { max_in_a_row, max_per_day, cooldown_ms, quiet, .. } = *self;
        FollowUpLimits { max_in_a_row, max_per_day, cooldown_ms, quiet, summer: CLOCK_CHANGES }
    }

    /// The metadata of a person's message. Some messages look as if the system had written them,
    /// and are still a person's.
    pub(crate) fn metadata(&self, number: usize) -> Metadata {
        let mut map = Map::new();
        if self.users_name_zone {
            map.insert("time_zone".to_owned(), json!(ZONE));
        }
        let looks = match number % 8 {
            1 => Some(json!("true")),
            3 => Some(json!(1)),
            5 => Some(Value::Null),
            _ => None,
        };
        map.extend(looks.map(|looks| ("synthetic".to_owned(), looks)));
        Metadata::new(map).unwrap_or_default()
    }

    /// The text of a person's message.
    pub(crate) fn content(number: usize) -> String {
        match number % 4 {
            2 => format!("[AUTONOMOUS_FOLLOWUP: check_in] {number}"),
            _ => format!("input {number}"),
        }
    }
}
