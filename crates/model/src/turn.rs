//! Turns: ids, options, and failures.

use std::fmt;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{AgentId, Bucket, InvalidId, MessageId, Metadata, Position, ThreadId, Timestamp};

/// Maximum bytes of a turn id: the ids of its messages are derived from it.
const MAX_TURN_LEN: usize = "u0000-".len() + 80;

/// Id of a turn: `u<bucket>-<unique>` for an input of a person, `t<bucket>-<position>` for a task.
/// The bucket is that of the thread in four hexadecimal digits, so the id identifies the owner.
///
/// The ids of the turn's messages are derived from it and are reserved: `<turn>-q` is the input,
/// `<turn>-a<run>` the answer of a run (`-a` of the first), `<turn>-a<run>-s<step>` a step before
/// it, `…-r<n>` a tool's result.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TurnId(MessageId);

impl TurnId {
    /// Parses an id made by [`TurnId::foreground`] or [`TurnId::of_task`].
    ///
    /// # Errors
    /// `text` is not such an id.
    pub fn parse(text: &str) -> Result<Self, InvalidTurnId> {
        let id = MessageId::parse(text)?;
        let body = text.strip_prefix(['u', 't']).filter(|_| text.len() <= MAX_TURN_LEN);
        let (bucket, rest) = body.and_then(|body| body.split_once('-')).ok_or(InvalidTurnId::Form)?;
        let is_hex = bucket.len() == 4 && bucket.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'));
        match u16::from_str_radix(bucket, 16) {
            Ok(number) if is_hex && number < crate::BUCKETS && !rest.is_empty() => Ok(Self(id)),
            Ok(_) | Err(_) => Err(InvalidTurnId::Form),
        }
    }

    /// The turn of an input to `thread`. `unique` is at most 80 characters of the id alphabet.
    ///
    /// # Errors
    /// `unique` breaks that rule.
    pub fn foreground(thread: &ThreadId, unique: &str) -> Result<Self, InvalidTurnId> {
        Self::parse(&format!("u{:04x}-{unique}", thread.bucket().get()))
    }

    /// The turn of a task, which is determined by the task's position alone.
    pub fn of_task(agent: &AgentId, position: Position) -> Self {
        let text = format!("t{:04x}-{position}", Bucket::of_key(agent.as_str()).get());
        Self(MessageId::new_unchecked(&text))
    }

    /// Position of the task that the turn answers; `None` for an input's turn.
    pub fn task_position(&self) -> Option<Position> {
        let (_, position) = self.as_str().strip_prefix('t')?.split_once('-')?;
        position.parse().ok().map(Position::from_stored)
    }

    /// Turn and run that an answer's message id belongs to; `None` for any other message.
    pub fn of_answer(message: &MessageId) -> Option<(Self, u32)> {
        let (turn, suffix) = message.as_str().rsplit_once("-a")?;
        let run = match suffix {
            "" => 0,
            digits if digits.bytes().all(|b| b.is_ascii_digit()) && !digits.starts_with('0') => {
                digits.parse().ok()?
            }
            _ => return None,
        };
        Some((Self::parse(turn).ok()?, run))
    }

    /// Turn that an input's message id belongs to; `None` for any other message.
    pub fn of_input(message: &MessageId) -> Option<Self> {
        Self::parse(message.as_str().strip_suffix("-q")?).ok()
    }

    /// True for the id of a turn's input, step or tool result, which only the owner writes. A
    /// published message with such an id would leave an incomplete turn, or one that counts as
    /// already written.
    pub fn is_reserved(message: &MessageId) -> bool {
        let id = message.as_str();
        if let Some(turn) = id.strip_suffix("-q") {
            return Self::parse(turn).is_ok();
        }
        let number = |text: &str| !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit());
        let answer_of = |step: &str| {
            let (answer, step) = step.rsplit_once("-s")?;
            let answer = MessageId::parse(answer).ok().filter(|_| number(step))?;
            Self::of_answer(&answer)
        };
        match id.rsplit_once("-r") {
            Some((step, result)) if number(result) => answer_of(step).is_some(),
            _ => answer_of(id).is_some(),
        }
    }

    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }

    /// True if the turn answers an input and not a task.
    pub fn is_foreground(&self) -> bool {
        self.as_str().starts_with('u')
    }

    /// The turn that continues the batch of the answer at this position.
    ///
    /// # Errors
    /// Never for a real position.
    pub fn continuation(thread: &ThreadId, answer: Position) -> Result<Self, InvalidTurnId> {
        Self::foreground(thread, &format!("h{answer}"))
    }

    /// The turn of a heartbeat: a continuation requested by a client. `request` is 1 to 64
    /// hexadecimal digits, a digest of the batch and the request's id; the same `request` gives the
    /// same turn.
    ///
    /// # Errors
    /// `request` breaks that rule.
    pub fn heartbeat(thread: &ThreadId, request: &str) -> Result<Self, InvalidTurnId> {
        let turn = Self::foreground(thread, &format!("k{request}"))?;
        if turn.is_heartbeat() { Ok(turn) } else { Err(InvalidTurnId::Form) }
    }

    /// True if the turn continues a batch without a person's input.
    pub fn is_continuation(&self) -> bool {
        self.continued_place().is_some() || self.is_heartbeat()
    }

    /// Position of the answer that requested the turn of [`TurnId::continuation`].
    pub fn continued_answer(&self) -> Option<Position> {
        self.continued_place()?.parse().ok().map(Position::from_stored)
    }

    fn continued_place(&self) -> Option<&str> {
        let place = self.as_str().split_once('-')?.1.strip_prefix('h')?;
        let is_place = !place.is_empty() && place.bytes().all(|byte| byte.is_ascii_digit());
        Some(place).filter(|_| is_place && self.is_foreground())
    }

    fn is_heartbeat(&self) -> bool {
        let request = self.as_str().split_once('-').and_then(|(_, unique)| unique.strip_prefix('k'));
        let is_digest = |request: &str| {
            (1..=64).contains(&request.len())
                && request.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        self.is_foreground() && request.is_some_and(is_digest)
    }

    pub fn bucket(&self) -> Bucket {
        let digits = self.as_str().get(1..5).unwrap_or_default();
        Bucket::from_number(u16::from_str_radix(digits, 16).unwrap_or_default())
    }

    /// Message id of its input.
    pub fn input(&self) -> MessageId {
        MessageId::new_unchecked(&format!("{self}-q"))
    }

    /// Message id of the answer of `run`, counted from 0. Each run has its own, because a failed
    /// answer is never continued.
    pub fn answer(&self, run: u32) -> MessageId {
        MessageId::new_unchecked(&match run {
            0 => format!("{self}-a"),
            run => format!("{self}-a{run}"),
        })
    }

    /// Message id of a step before the last.
    pub fn step(&self, run: u32, step: u32) -> MessageId {
        MessageId::new_unchecked(&format!("{}-s{step}", self.answer(run)))
    }

    /// Message id of the `number`th tool result of a step.
    pub fn result(&self, run: u32, step: u32, number: usize) -> MessageId {
        MessageId::new_unchecked(&format!("{}-s{step}-r{number}", self.answer(run)))
    }
}

impl TryFrom<String> for TurnId {
    type Error = InvalidTurnId;
    fn try_from(text: String) -> Result<Self, InvalidTurnId> {
        Self::parse(&text)
    }
}

impl From<TurnId> for String {
    fn from(id: TurnId) -> Self {
        id.as_str().to_owned()
    }
}

impl fmt::Display for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl fmt::Debug for TurnId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(self.as_str(), f)
    }
}

/// Text that is not a turn id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidTurnId {
    /// Not a valid id.
    #[error(transparent)]
    Id(#[from] InvalidId),
    /// A valid id that does not have the form of a turn id.
    #[error("a turn id is u or t, four hexadecimal digits, a dash and at most 80 characters")]
    Form,
}

/// Effect of a new input on a thread that has an active turn.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum BusyPolicy {
    /// The input waits for its turn.
    #[default]
    Enqueue,
    /// The input becomes a failed turn, which can be retried.
    Reject,
    /// The running turn is stopped: its partial answer is kept and marked.
    Interrupt,
    /// The running turn is rolled back: nothing of it enters the history, and its input becomes a
    /// failed turn.
    Rollback,
}

impl BusyPolicy {
    /// In the order of their numbers in protobuf.
    pub const ALL: [Self; 4] = [Self::Enqueue, Self::Reject, Self::Interrupt, Self::Rollback];

    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Enqueue => "enqueue",
            Self::Reject => "reject",
            Self::Interrupt => "interrupt",
            Self::Rollback => "rollback",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|policy| policy.name() == name)
    }
}

/// Options of a turn. They are kept across takeovers, retries and continuations, and are not part
/// of the history. They are stored as the JSON object that they serialize to.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(default)]
pub struct TurnOptions {
    /// Effect of the input on a thread that has an active turn.
    pub busy_policy: BusyPolicy,
    /// The client's model parameters; see [`TurnOptions::MAX_PARAMETERS`].
    #[serde(skip_serializing_if = "Metadata::is_empty")]
    pub parameters: Metadata,
    /// Id for tracing across services.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub correlation_id: Option<Box<str>>,
    /// For a retry: time at which the input was first accepted.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub accepted_at: Option<Timestamp>,
}

impl TurnOptions {
    /// Maximum bytes of the parameters: sampling options and limits under the names of OpenAI's
    /// chat completions, `instructions` (text), and any others known to the agent's workflow.
    pub const MAX_PARAMETERS: usize = 64 << 10;
}

/// Effect of a failure on the queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorClass {
    /// A later retry may succeed.
    Transient,
    /// The same input would fail again.
    Permanent,
    /// A service that the workflow calls has rejected its credentials: no turn of the agent can
    /// succeed until an operator intervenes.
    Auth,
}

impl ErrorClass {
    /// Name in JSON and Postgres.
    pub fn name(self) -> &'static str {
        match self {
            Self::Transient => "transient",
            Self::Permanent => "permanent",
            Self::Auth => "auth",
        }
    }

    pub fn from_name(name: &str) -> Option<Self> {
        [Self::Transient, Self::Permanent, Self::Auth].into_iter().find(|class| class.name() == name)
    }
}

/// Classification of an error by its producer: the metadata of an `error` chunk.
///
/// Its keys are `class` (`transient`, `permanent`, `auth`), `retryable`, and `retry_after` in
/// seconds, as a number or as text; HTTP dates are ignored. `retryable: false` means permanent,
/// unless the class is `auth`, which pauses the agent. Absent or invalid values count as transient
/// without a minimum delay: a wrong hint must not lose a task.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RetryHint {
    pub class: ErrorClass,
    /// Minimum delay of the next try, ms; at most 24 hours.
    pub retry_after_ms: Option<i64>,
}

impl RetryHint {
    /// Transient, without a minimum delay.
    pub const TRANSIENT: Self = Self { class: ErrorClass::Transient, retry_after_ms: None };

    pub fn of(metadata: &Metadata) -> Self {
        let class = match (metadata.get("class").and_then(Value::as_str), metadata.get("retryable")) {
            (Some("auth"), _) => ErrorClass::Auth,
            (Some("permanent"), _) => ErrorClass::Permanent,
            (_, Some(Value::Bool(false))) => ErrorClass::Permanent,
            _ => ErrorClass::Transient,
        };
        let seconds = metadata.get("retry_after").and_then(|value| match value {
            Value::String(text) => text.trim().parse().ok(),
            _ => value.as_f64(),
        });
        let seconds = seconds.filter(|seconds| seconds.is_finite() && *seconds > 0.0);
        Self { class, retry_after_ms: seconds.map(|seconds| (seconds.min(86_400.0) * 1_000.0) as i64) }
    }
}

/// Why a turn failed, other than by a failure of its answer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TurnError {
    /// The workflow made no progress within its deadline.
    Deadline,
    /// The request was not answered within the deadline, or can no longer be answered, for a known
    /// reason.
    Unanswered(Unanswered),
    /// The thread had an active turn, and the policy was to reject.
    Busy,
    /// The turn was stopped before it began.
    Stopped,
    /// A later input rolled it back.
    RolledBack,
    /// The agent or thread is not known and must not be created.
    Unknown,
}

impl TurnError {
    pub const ALL: [Self; 11] = [
        Self::Deadline,
        Self::Busy,
        Self::Stopped,
        Self::RolledBack,
        Self::Unknown,
        Self::Unanswered(Unanswered::NoWorkflow),
        Self::Unanswered(Unanswered::HandedBack),
        Self::Unanswered(Unanswered::LostService),
        Self::Unanswered(Unanswered::NoAnswer),
        Self::Unanswered(Unanswered::Unfinished),
        Self::Unanswered(Unanswered::NoToken),
    ];

    /// Code in metrics and rows and for clients.
    pub fn code(self) -> &'static str {
        match self {
            Self::Deadline => "deadline",
            Self::Unanswered(why) => why.code(),
            Self::Busy => "busy",
            Self::Stopped => "stopped",
            Self::RolledBack => "rolled_back",
            Self::Unknown => "unknown_agent",
        }
    }

    pub fn from_code(code: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|fault| fault.code() == code)
    }

    /// Description for people.
    pub fn text(self) -> &'static str {
        match self {
            Self::Deadline => "the workflow made no progress within its deadline",
            Self::Unanswered(why) => why.text(),
            Self::Busy => "the thread had a turn under way, and the message was to be rejected then",
            Self::Stopped => "the turn was stopped before it began",
            Self::RolledBack => "a later message took the turn back",
            Self::Unknown => "there is no such agent, and agents may not be created by use here",
        }
    }
}

/// Known problem of an unanswered request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unanswered {
    /// No service has taken it.
    NoWorkflow,
    /// Services have handed the request back, including the last one.
    HandedBack,
    /// A service took the request and then missed its acknowledgment deadline.
    LostService,
    /// The request was acknowledged, but no chunk has arrived.
    NoAnswer,
    /// The request was acknowledged, but the answer has no final chunk.
    Unfinished,
    /// Chunks for the answer came without the turn's token or with another one.
    NoToken,
}

impl Unanswered {
    /// Code for clients, rows and metrics, both as a wait reason and as a failure.
    pub fn code(self) -> &'static str {
        match self {
            Self::NoWorkflow => "no_workflow",
            Self::HandedBack => "handed_back",
            Self::LostService => "lost_service",
            Self::NoAnswer => "no_answer",
            Self::Unfinished => "unfinished",
            Self::NoToken => "no_token",
        }
    }

    /// Description for people: the problem and what to do.
    pub fn text(self) -> &'static str {
        match self {
            Self::NoWorkflow => {
                "no workflow service has taken the request; start one for the agent's workflow (`antiphon doctor` names it)"
            }
            Self::HandedBack => {
                "the workflow service has handed the request back (NAK); its own log says why"
            }
            Self::LostService => {
                "the workflow service that took the request has said nothing since; it is delivered again when a service asks for requests"
            }
            Self::NoAnswer => {
                "the workflow service has acknowledged the request without publishing an answer; acknowledge after the final chunk is stored"
            }
            Self::Unfinished => {
                "the workflow service has acknowledged the request, and its answer has no final chunk; send a chunk with `is_final: true` before the acknowledgement"
            }
            Self::NoToken => {
                "chunks for the answer came without the turn's token; copy `turn_token` of the request into each chunk"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn ids_of_a_turns_messages_lead_back_to_it() {
        let thread = ThreadId::parse("t").unwrap();
        let turn = TurnId::foreground(&thread, "x-a7").unwrap();
        assert_eq!(turn.bucket(), thread.bucket());
        for run in [0, 1, 12] {
            assert_eq!(TurnId::of_answer(&turn.answer(run)), Some((turn.clone(), run)));
        }
        for other in [turn.input(), turn.step(1, 0), turn.step(0, 12), turn.result(0, 2, 1)] {
            assert_eq!(TurnId::of_answer(&other), None, "{other}");
            assert!(TurnId::is_reserved(&other), "{other}");
        }
        for free in [
            "m-q",
            "u0001-q",
            "t-a-s0",
            "x",
            "u0001-x-s0",
            "u0001-x-a-s",
            "u0001-x-a-s0-r",
            "u0001-x-a-s0-rx",
        ] {
            assert!(!TurnId::is_reserved(&MessageId::parse(free).unwrap()), "{free}");
        }
        let agent = AgentId::parse("a").unwrap();
        let task = TurnId::of_task(&agent, Position::from_stored(77));
        assert_eq!(TurnId::parse(task.as_str()), Ok(task.clone()));
        assert_eq!(TurnId::of_answer(&task.answer(3)), Some((task, 3)));
    }

    #[test]
    fn continuations_are_known_by_their_ids() {
        let thread = ThreadId::parse("t").unwrap();
        let continuation = TurnId::continuation(&thread, Position::from_stored(12)).unwrap();
        assert!(continuation.is_foreground() && continuation.is_continuation());
        assert_eq!(continuation.continued_answer(), Some(Position::from_stored(12)));
        assert_eq!(TurnId::heartbeat(&thread, "12").unwrap().continued_answer(), None);
        assert!(TurnId::heartbeat(&thread, "01f3").unwrap().is_continuation());
        assert!(
            ["", "x", "01f3-a", &"0".repeat(65)].iter().all(|no| TurnId::heartbeat(&thread, no).is_err())
        );
        for other in ["h", "h12x", "f12", "x-h12", "12", "k", "kx", "x-k1"] {
            assert!(!TurnId::foreground(&thread, other).unwrap().is_continuation(), "{other}");
        }
        assert!(!TurnId::of_task(&thread.agent(), Position::from_stored(12)).is_continuation());
    }

    #[test]
    fn other_ids_are_no_turns() {
        for wrong in ["", "x0001-a", "u001-a", "u0001-", "uffff-a", "u00G1-a", "U0001-a", "u0001"] {
            assert!(TurnId::parse(wrong).is_err(), "{wrong}");
        }
        for wrong in ["m1-a", "u0001-x-a01", "u0001-x-ab", "u0001-x-a99999999999"] {
            assert_eq!(TurnId::of_answer(&MessageId::parse(wrong).unwrap()), None, "{wrong}");
        }
        let of_length = |length| TurnId::foreground(&ThreadId::parse("t").unwrap(), &"x".repeat(length));
        assert!(of_length(80).is_ok() && of_length(81).is_err());
    }

    #[test]
    fn hints_that_make_no_sense_are_transient() {
        let hint = |json: Value| RetryHint::of(&Metadata::new(json.as_object().unwrap().clone()).unwrap());
        assert_eq!(hint(json!({})), RetryHint::TRANSIENT);
        assert_eq!(hint(json!({"class": 7, "retry_after": "soon", "retryable": "no"})), RetryHint::TRANSIENT);
        assert_eq!(hint(json!({"retryable": false})).class, ErrorClass::Permanent);
        assert_eq!(hint(json!({"class": "auth"})).class, ErrorClass::Auth);
        let floor = hint(json!({"class": "transient", "retryable": true, "retry_after": 1.5}));
        assert_eq!(floor, RetryHint { class: ErrorClass::Transient, retry_after_ms: Some(1_500) });
        assert_eq!(hint(json!({"class": "transient", "retryable": false})).class, ErrorClass::Permanent);
        assert_eq!(hint(json!({"class": "auth", "retryable": false})).class, ErrorClass::Auth);
        for (text, floor) in [("120", Some(120_000)), (" 1.5 ", Some(1_500)), ("1e300", Some(86_400_000))] {
            assert_eq!(hint(json!({ "retry_after": text })).retry_after_ms, floor, "{text}");
        }
        for wrong in ["", "-1", "NaN", "inf", "2 minutes", "Wed, 21 Oct 2026 07:28:00 GMT"] {
            assert_eq!(hint(json!({ "retry_after": wrong })).retry_after_ms, None, "{wrong}");
        }
        assert_eq!(hint(json!({"retry_after": 1e300})).retry_after_ms, Some(86_400_000));
        assert_eq!(hint(json!({"retry_after": -1})).retry_after_ms, None);
    }
}
