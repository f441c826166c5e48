//! Durable timers: their ids and kinds.

use std::fmt;

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use crate::{AgentId, Bucket, CommandId, MessageId, Position, ScheduleName, TaskId, ThreadId, TurnId};

/// Maximum bytes of a timer id. The ids of the turns and tasks that it fires are derived from it.
const MAX_TIMER_LEN: usize = 64;

/// What a timer fires.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum TimerKind {
    /// A turn in which an agent writes without being asked.
    FollowUp,
    /// A task, repeatedly.
    Schedule,
    /// A task, once.
    Task,
}

impl TimerKind {
    pub const ALL: [Self; 3] = [Self::FollowUp, Self::Schedule, Self::Task];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::FollowUp => "follow_up",
            Self::Schedule => "schedule",
            Self::Task => "task",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// First letter of the ids.
    fn letter(self) -> char {
        match self {
            Self::FollowUp => 'f',
            Self::Schedule => 's',
            Self::Task => 'd',
        }
    }
}

/// Id of a durable timer. It begins with `f` for a follow-up, `s` for a schedule, or `d` for a
/// delayed task. Then come the bucket of the thread or agent in four hexadecimal digits, a dash,
/// and at most 58 characters of the id alphabet.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TimerId(MessageId);

impl TimerId {
    /// Parses an id made by one of the constructors.
    ///
    /// # Errors
    /// `text` is not such an id.
    pub fn parse(text: &str) -> Result<Self, InvalidTimerId> {
        let id = MessageId::parse(text).map_err(|_| InvalidTimerId)?;
        let (head, unique) = text.split_once('-').ok_or(InvalidTimerId)?;
        let bucket =
            TimerKind::ALL.iter().find_map(|kind| head.strip_prefix(kind.letter())).unwrap_or_default();
        let is_hex = bucket.len() == 4 && bucket.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match u16::from_str_radix(bucket, 16) {
            Ok(number)
                if is_hex && number < crate::BUCKETS && !unique.is_empty() && text.len() <= MAX_TIMER_LEN =>
            {
                Ok(Self(id))
            }
            Ok(_) | Err(_) => Err(InvalidTimerId),
        }
    }

    /// The follow-up armed by the answer at this position, which alone determines the id.
    pub fn follow_up(thread: &ThreadId, answer: Position) -> Self {
        Self(MessageId::new_unchecked(&format!("f{:04x}-{answer}", thread.bucket().get())))
    }

    /// The timer of an agent's schedule or delayed task.
    ///
    /// # Errors
    /// `unique` is empty, too long, or not of the id alphabet.
    pub fn of_agent(kind: TimerKind, agent: &AgentId, unique: &str) -> Result<Self, InvalidTimerId> {
        let bucket = Bucket::of_key(agent.as_str()).get();
        Self::parse(&format!("{}{bucket:04x}-{unique}", kind.letter()))
    }

    /// The timer of a task that enters its agent's queue later. It is derived from agent and task,
    /// so that the same task is delayed once.
    pub fn of_task(agent: &AgentId, task: &TaskId) -> Self {
        Self::made(TimerKind::Task, agent, &digest(&[agent.as_str(), task.as_str()]))
    }

    /// The timer of the schedule version that this command stored. Earlier versions of the schedule
    /// have other timers.
    pub fn of_schedule(agent: &AgentId, name: &ScheduleName, command: &CommandId) -> Self {
        let unique = format!("{}-{}", digest(&[agent.as_str(), name.as_str()]), digest(&[command.as_str()]));
        Self::made(TimerKind::Schedule, agent, &unique)
    }

    fn made(kind: TimerKind, agent: &AgentId, unique: &str) -> Self {
        let bucket = Bucket::of_key(agent.as_str()).get();
        Self(MessageId::new_unchecked(&format!("{}{bucket:04x}-{unique}", kind.letter())))
    }

    /// Common prefix of the ids of a schedule's tasks, whichever command put the schedule.
    pub fn series(&self) -> &str {
        let text = self.as_str();
        text.match_indices('-').nth(1).map_or(text, |(end, _)| &text[..end])
    }

    /// The turn that a follow-up fires.
    ///
    /// # Errors
    /// The id is not that of a follow-up.
    pub fn turn(&self) -> Result<TurnId, InvalidTimerId> {
        let (bucket, unique) = self.as_str().split_once('-').ok_or(InvalidTimerId)?;
        let bucket = bucket.strip_prefix('f').ok_or(InvalidTimerId)?;
        TurnId::parse(&format!("u{bucket}-f{unique}")).map_err(|_| InvalidTimerId)
    }

    /// The follow-up that fired this turn; `None` if there is none.
    pub fn of_turn(turn: &TurnId) -> Option<Self> {
        let (bucket, place) = turn.as_str().strip_prefix('u')?.split_once("-f")?;
        let is_place = !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_digit());
        Self::parse(&format!("f{bucket}-{place}")).ok().filter(|_| is_place)
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    pub fn kind(&self) -> TimerKind {
        let of = |kind: &TimerKind| self.as_str().starts_with(kind.letter());
        TimerKind::ALL.into_iter().find(of).unwrap_or(TimerKind::Task)
    }

    /// The bucket of its thread or agent.
    pub fn bucket(&self) -> Bucket {
        let digits = self.as_str().get(1..5).unwrap_or_default();
        Bucket::from_number(u16::from_str_radix(digits, 16).unwrap_or_default())
    }
}

/// 24 hexadecimal digits: a collision of 96 bits is practically impossible.
fn digest(parts: &[&str]) -> String {
    // Ids contain no line feed.
    let hash = Sha256::digest(parts.join("\n"));
    hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect()
}

impl TryFrom<String> for TimerId {
    type Error = InvalidTimerId;
    fn try_from(text: String) -> Result<Self, InvalidTimerId> {
        Self::parse(&text)
    }
}

impl From<TimerId> for String {
    fn from(id: TimerId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TimerId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Text that is no timer id.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a timer id is f, s or d, four hexadecimal digits, a dash and at most 58 characters")]
pub struct InvalidTimerId;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timer_ids_name_kind_bucket_and_turn() {
        let thread = ThreadId::parse("t").unwrap();
        let timer = TimerId::follow_up(&thread, Position::from_stored(1_234));
        assert_eq!((timer.kind(), timer.bucket()), (TimerKind::FollowUp, thread.bucket()));
        assert_eq!(TimerId::parse(timer.as_str()), Ok(timer.clone()));
        assert_eq!(timer.turn().unwrap(), TurnId::foreground(&thread, "f1234").unwrap());
        assert_eq!(TimerId::of_turn(&timer.turn().unwrap()), Some(timer));
        for other in ["f", "f12x", "h1234", "x"] {
            assert_eq!(TimerId::of_turn(&TurnId::foreground(&thread, other).unwrap()), None, "{other}");
        }
        let agent = AgentId::parse("a").unwrap();
        for kind in [TimerKind::Schedule, TimerKind::Task] {
            let timer = TimerId::of_agent(kind, &agent, "x_1").unwrap();
            assert_eq!((timer.kind(), timer.bucket()), (kind, Bucket::of_key("a")));
            assert_eq!(timer.turn(), Err(InvalidTimerId), "a task has no turn of its own");
            assert_eq!(TimerKind::from_name(kind.name()), Some(kind));
        }
        let task = TimerId::of_task(&agent, &TaskId::parse("k").unwrap());
        assert_eq!((task.kind(), TimerId::parse(task.as_str())), (TimerKind::Task, Ok(task.clone())));
        let put = |name: &str, command: &str| {
            let (name, command) = (ScheduleName::parse(name).unwrap(), CommandId::parse(command).unwrap());
            TimerId::of_schedule(&agent, &name, &command)
        };
        let (first, second) = (put("daily", "c1"), put("daily", "c2"));
        assert_eq!((first.kind(), TimerId::parse(first.as_str())), (TimerKind::Schedule, Ok(first.clone())));
        assert!(first != second && first.series() == second.series(), "{first} {second}");
        assert_ne!(first.series(), put("weekly", "c1").series());
        for bad in ["", "f", "f0001", "f0001-", "x0001-1", "f00g1-1", "fffff-1", "f0001-a.b", "f001-1"] {
            assert_eq!(TimerId::parse(bad), Err(InvalidTimerId), "{bad}");
        }
        assert_eq!(TimerId::of_agent(TimerKind::Task, &agent, &"x".repeat(59)), Err(InvalidTimerId));
        assert!(TimerId::of_agent(TimerKind::Task, &agent, &"x".repeat(58)).is_ok());
    }
}
