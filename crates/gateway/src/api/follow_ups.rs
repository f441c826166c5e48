//! Follow-ups of a thread: those that wait, the outcome of the others, and why an agent spoke
//! first.

use axum::http::HeaderMap;
use axum::response::{IntoResponse, Response};
use http_server::error::{ErrorCode, Problem};
use http_server::extract::body::{EmptyBody, JsonBody, MaxBodySize};
use http_server::extract::path;
use http_server::extract::path::PathParam;
use http_server::extract::query;
use http_server::extract::query::QueryParams;
use model::{ControlKind, QueryTarget, ThreadId, TimerId, Timestamp};
use scheduling::follow_up::{
    FollowUpFacts, FollowUpRules, FollowUpVerdict, RestraintRule, RuleCheck, RuleOutcome, check_rules,
    decide_follow_up,
};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use store::{DueTimer, FollowUpRow, TimerStatus};
use utoipa::{IntoParams, ToSchema};

use crate::api::respond::json_no_store;
use crate::api::{threads, views};
use crate::app::request_context::RequestContext;
use crate::backend::Backend;
use crate::commands::control::{self, ControlOutcome};
use crate::commands::owner_query;
use crate::openapi::operation::{Operation, Scope};
use crate::openapi::schemas;
use crate::openapi::tags::TIMERS;

pub(crate) fn operations() -> Vec<Operation> {
    let all = "/v1/threads/{thread}/follow-ups";
    let one = "/v1/threads/{thread}/follow-ups/{timer}";
    vec![
        Operation::get(all, "listFollowUps", "List follow-ups: proactive messages that are pending, sent or suppressed", list)
            .tag(TIMERS)
            .scope(Scope::ReadThreads)
            .query::<FollowUpsQuery>()
            .response::<FollowUpsPage>(
                200,
                "Follow-ups, newest first",
                json!({ "thread_id": "hello", "follow_ups": [follow_up_example()], "next": null }),
            )
            .errors(&[ErrorCode::UnknownThread, ErrorCode::PartitionUnavailable, ErrorCode::InvalidLimit]),
        Operation::get(one, "showFollowUp", "Show a follow-up: why it fired, or whether it would fire now", get)
            .tag(TIMERS)
            .description(
                "Shows the turn that armed it and the outcome of each rule. For a pending follow-up the rules are evaluated now, without \
                 changing anything; otherwise the outcomes are those of the decision.",
            )
            .scope(Scope::ReadThreads)
            .response::<FollowUpDetail>(200, "The follow-up", follow_up_now_example())
            .errors(&[ErrorCode::UnknownFollowUp]),
        Operation::post("/v1/threads/{thread}/follow-ups/{timer}/snooze", "snoozeFollowUp", "Postpone a follow-up, or bring it forward", snooze)
            .tag(TIMERS)
            .description("All rules are evaluated when it is due, as usual.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .body::<SnoozeBody>(json!({ "seconds": 3_600 }))
            .acts()
            .errors(&[ErrorCode::UnknownFollowUp, ErrorCode::FollowUpEnded, ErrorCode::InvalidSnooze]),
        Operation::delete(one, "cancelFollowUp", "Cancel a pending follow-up", cancel)
            .tag(TIMERS)
            .description("A follow-up that has fired is a turn: stop the turn instead.")
            .scope(Scope::WriteThreads)
            .actor_header()
            .no_body()
            .acts()
            .errors(&[ErrorCode::UnknownFollowUp, ErrorCode::FollowUpEnded]),
    ]
}

/// Maximum time by which a follow-up may be postponed, ms.
const MOST_SNOOZE_MS: i64 = 30 * 86_400_000;

#[derive(Debug, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
pub(crate) struct FollowUpsQuery {
    /// `next` of the previous page.
    #[param(value_type = Option<schemas::FollowUpIdSchema>)]
    next: Option<String>,
    #[param(value_type = Option<schemas::Limit>)]
    limit: Option<String>,
}

/// A page of a thread's follow-ups, newest first.
#[derive(Serialize, ToSchema)]
pub(crate) struct FollowUpsPage {
    #[schema(value_type = schemas::ThreadIdSchema)]
    thread_id: String,
    follow_ups: Vec<FollowUpView>,
    #[schema(value_type = schemas::NextPage, required)]
    next: Option<String>,
}

/// A follow-up and its state.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FollowUpView {
    #[schema(value_type = schemas::FollowUpIdSchema)]
    follow_up_id: String,
    #[schema(value_type = schemas::AgentIdSchema)]
    agent_id: String,
    #[schema(value_type = schemas::TimerStatusSchema)]
    status: &'static str,
    #[schema(value_type = schemas::TriggerTypeSchema)]
    trigger_type: String,
    /// The workflow's reason for the follow-up, for people who look for the cause.
    reason: String,
    /// What requested the follow-up: `hint` of its workflow, or `default` of the agent's settings.
    source: String,
    /// The id of the turn whose end armed the follow-up.
    armed_by: String,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    armed_at: Option<String>,
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    due_at: Option<String>,
    /// When the follow-up fired or ended; null while it waits.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    ended_at: Option<String>,
    /// The rule or event that ended the follow-up or keeps it waiting: a rule's name, `message`,
    /// `client`, `snooze`, `replaced`, `nothing_to_say`, or the code of its turn's failure. Null
    /// when there is none.
    #[schema(required)]
    decided_by: Option<String>,
    /// The turn that the follow-up opened; null when it has not fired.
    #[schema(value_type = Option<schemas::TurnIdSchema>, required)]
    turn_id: Option<String>,
}

/// A follow-up with the outcome of each rule: for a waiting one as of now, for another one as of
/// its decision.
#[derive(Debug, Serialize, ToSchema)]
pub(crate) struct FollowUpDetail {
    #[serde(flatten)]
    follow_up: FollowUpView,
    /// What would happen to a waiting follow-up if it were due now: `fire`, `refused`, `later`, or
    /// `superseded` by a message. Null for a follow-up that no longer waits. While the thread has
    /// an owner, a message that is not in the history yet also counts.
    #[schema(value_type = Option<schemas::VerdictSchema>, required)]
    verdict: Option<&'static str>,
    /// The rules in the order in which they are checked; those after a rule that refused were not
    /// checked.
    rules: Vec<RuleView>,
}

/// A rule and its outcome.
#[derive(Debug, Serialize, ToSchema)]
struct RuleView {
    #[schema(value_type = schemas::RestraintRuleSchema)]
    rule: &'static str,
    #[schema(value_type = schemas::RuleOutcomeSchema)]
    outcome: &'static str,
    /// The time until which the rule delays the follow-up; null if there is no delay.
    #[schema(value_type = Option<schemas::TimestampSchema>, required)]
    until: Option<String>,
}

/// The new due time: either `seconds` or `until`.
#[derive(Debug, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct SnoozeBody {
    /// The delay from now, in seconds.
    #[schema(minimum = 1, maximum = 2_592_000)]
    pub(crate) seconds: Option<u64>,
    /// The new due time, at most thirty days from now.
    #[schema(value_type = Option<schemas::TimestampSchema>)]
    pub(crate) until: Option<String>,
}

impl MaxBodySize for SnoozeBody {
    const MAX_BYTES: usize = 4 << 10;
}

fn unknown() -> Problem {
    Problem::from(ErrorCode::UnknownFollowUp)
}

fn timer_id(name: &str, text: &str) -> Result<TimerId, Problem> {
    path::id(name, text, TimerId::parse)
}

pub(crate) async fn list(
    ctx: RequestContext,
    PathParam(thread): PathParam<String>,
    QueryParams(query): QueryParams<FollowUpsQuery>,
) -> Result<Response, Problem> {
    let thread = ctx.thread(&thread)?;
    let before = query.next.map(|id| timer_id("next", &id)).transpose()?;
    let limit = query::limit(query.limit.as_deref())?;
    let store = ctx.store()?;
    let mut rows = store.follow_ups(&thread, before.as_ref(), limit + 1).await?;
    if rows.is_empty() && store.thread(&thread).await?.is_none() {
        threads::check_begun(ctx.backend()?, &thread).await?;
    }
    let next = query::next(&mut rows, limit, |last| last.timer.to_string());
    let follow_ups = rows.iter().map(FollowUpView::from).collect();
    Ok(json_no_store(FollowUpsPage { thread_id: thread.name().to_owned(), follow_ups, next }))
}

pub(crate) async fn get(
    ctx: RequestContext,
    PathParam((thread, timer)): PathParam<(String, String)>,
) -> Result<Response, Problem> {
    let (thread, timer) = (ctx.thread(&thread)?, timer_id("follow-up", &timer)?);
    let store = ctx.store()?;
    let row = store.follow_up(&thread, &timer).await?.ok_or_else(unknown)?;
    let found = store.due_timers(None, std::slice::from_ref(&row.timer)).await?;
    let has_open_input =
        row.status == TimerStatus::Pending && has_open_input(ctx.backend()?, &thread).await.unwrap_or(false);
    Ok(json_no_store(FollowUpDetail::new(&row, found.into_iter().flatten().next().as_ref(), has_open_input)))
}

/// Whether a person's input waits or is in progress in the thread; `None` when the thread's owner
/// does not answer, because only the owner knows.
async fn has_open_input(backend: &Backend, thread: &ThreadId) -> Option<bool> {
    let about = QueryTarget::Thread(thread.clone());
    let status = owner_query::explain(backend, thread.bucket(), &about).await?;
    Some(owner_query::turns_with_people(&status).next().is_some())
}

impl FollowUpDetail {
    /// `now`: the current data on which the decision depends.
    /// `has_open_input`: a person's input waits or is in progress in the thread.
    pub(crate) fn new(row: &FollowUpRow, now: Option<&DueTimer>, has_open_input: bool) -> Self {
        let follow_up = FollowUpView::from(row);
        match now.filter(|_| row.status == TimerStatus::Pending) {
            None => Self { follow_up, verdict: None, rules: rules_then(row) },
            Some(now) => {
                let (verdict, checks) = verdict_now(now, has_open_input);
                Self { follow_up, verdict: Some(verdict), rules: checks.map(RuleView::from).into() }
            }
        }
    }
}

/// What would happen to the follow-up if it were due now.
fn verdict_now(
    due: &DueTimer,
    has_open_input: bool,
) -> (&'static str, [RuleCheck; RestraintRule::ALL.len()]) {
    // Invalid rules are ignored, as the owner of the thread ignores them.
    let rules = due.follow_up_rules().unwrap_or(FollowUpRules::OFF);
    let facts = FollowUpFacts { has_open_input, ..due.follow_up_facts(&rules) };
    let verdict = match decide_follow_up(&rules, &facts) {
        _ if due.is_answered() => "superseded",
        FollowUpVerdict::Superseded => "superseded",
        FollowUpVerdict::Fire => "fire",
        FollowUpVerdict::Refused(_) => "refused",
        FollowUpVerdict::Later { .. } => "later",
    };
    (verdict, check_rules(&rules, &facts))
}

/// The outcome of each rule for a decided follow-up. A follow-up fires only if all rules pass; the
/// first rule that refuses ends it. A follow-up that has fired is withdrawn if a rule refuses it
/// when its turn begins.
fn rules_then(row: &FollowUpRow) -> Vec<RuleView> {
    let passes = |rule: RestraintRule| RuleCheck { rule, outcome: RuleOutcome::Passes };
    let refused = row.ended_by.as_deref().and_then(RestraintRule::from_name);
    match (row.status, refused) {
        // If the row of a fired follow-up names a rule, that rule only delayed it.
        (TimerStatus::Fired, _) => RestraintRule::ALL.into_iter().map(passes).map(RuleView::from).collect(),
        (TimerStatus::Withdrawn, refused) => {
            let outcome = |rule: RestraintRule| match Some(rule) == refused {
                true => RuleCheck { rule, outcome: RuleOutcome::Refuses },
                false => passes(rule),
            };
            RestraintRule::ALL.into_iter().map(outcome).map(RuleView::from).collect()
        }
        (TimerStatus::Refused, Some(refused)) => {
            let before = RestraintRule::ALL.into_iter().take_while(|rule| *rule != refused).map(passes);
            let last = RuleCheck { rule: refused, outcome: RuleOutcome::Refuses };
            before.chain([last]).map(RuleView::from).collect()
        }
        (TimerStatus::Refused | TimerStatus::Pending | TimerStatus::Cancelled, _) => Vec::new(),
    }
}

pub(crate) async fn snooze(
    ctx: RequestContext,
    PathParam((thread, timer)): PathParam<(String, String)>,
    headers: HeaderMap,
    JsonBody(body): JsonBody<SnoozeBody>,
) -> Result<Response, Problem> {
    let (thread, timer) = (ctx.thread(&thread)?, timer_id("follow-up", &timer)?);
    let (actor, backend) = (ctx.actor(&headers)?, ctx.backend()?);
    Ok(put_off(backend, actor, &thread, &timer, &body).await?.into_response())
}

/// Moves a waiting follow-up to another time.
async fn put_off(
    backend: &Backend,
    actor: String,
    thread: &ThreadId,
    timer: &TimerId,
    body: &SnoozeBody,
) -> Result<ControlOutcome, Problem> {
    let until = snoozed_until(body, backend.store().database_time().await?)?;
    let snooze = ControlKind::SnoozeTimer { timer: timer.clone(), until };
    act(backend, actor, thread, timer, snooze, TimerStatus::Pending).await
}

fn snoozed_until(body: &SnoozeBody, now: Timestamp) -> Result<Timestamp, Problem> {
    let invalid = |detail: &str| Problem::new(ErrorCode::InvalidSnooze, detail.to_owned());
    let until = match (body.seconds, &body.until) {
        (Some(seconds), None) => {
            let ms = i64::try_from(seconds).ok().and_then(|seconds| seconds.checked_mul(1_000));
            now.plus_ms(ms.unwrap_or(i64::MAX / 2))
        }
        (None, Some(text)) => wire::parse_rfc3339(text)
            .ok_or_else(|| invalid("until must be a time like 2026-12-24T18:00:00Z"))?,
        (Some(_), Some(_)) | (None, None) => return Err(invalid("either seconds or until is needed")),
    };
    match (1..=MOST_SNOOZE_MS).contains(&until.since_ms(now)) {
        true => Ok(until),
        false => Err(invalid("it must be due within thirty days from now")),
    }
}

pub(crate) async fn cancel(
    ctx: RequestContext,
    PathParam((thread, timer)): PathParam<(String, String)>,
    headers: HeaderMap,
    _: EmptyBody,
) -> Result<Response, Problem> {
    let (thread, timer) = (ctx.thread(&thread)?, timer_id("follow-up", &timer)?);
    let (actor, backend) = (ctx.actor(&headers)?, ctx.backend()?);
    Ok(call_off(backend, actor, &thread, &timer).await?.into_response())
}

/// Cancels a waiting follow-up.
async fn call_off(
    backend: &Backend,
    actor: String,
    thread: &ThreadId,
    timer: &TimerId,
) -> Result<ControlOutcome, Problem> {
    act(backend, actor, thread, timer, ControlKind::CancelTimer(timer.clone()), TimerStatus::Cancelled).await
}

/// The owner executes the command, because only the owner knows what fires at this moment. Returns
/// the follow-up as it is stored afterwards.
async fn act(
    backend: &Backend,
    actor: String,
    thread: &ThreadId,
    timer: &TimerId,
    kind: ControlKind,
    wanted: TimerStatus,
) -> Result<ControlOutcome, Problem> {
    let row = backend.store().follow_up(thread, timer).await?.ok_or_else(unknown)?;
    let ended = || Problem::from(ErrorCode::FollowUpEnded);
    if row.status != TimerStatus::Pending {
        return Err(ended());
    }
    let acted = control::execute(backend, actor, thread.agent(), kind).await?;
    if !acted.is_pending() {
        let now = backend.store().follow_up(thread, timer).await?.ok_or_else(unknown)?;
        if now.status != wanted && now.status != TimerStatus::Pending {
            return Err(ended());
        }
    }
    Ok(acted)
}

impl From<&FollowUpRow> for FollowUpView {
    fn from(row: &FollowUpRow) -> Self {
        let text = |key: &str| row.body.get(key).and_then(Value::as_str).unwrap_or_default().to_owned();
        Self {
            follow_up_id: row.timer.to_string(),
            agent_id: row.agent.name().to_owned(),
            status: row.status.name(),
            trigger_type: text("trigger_type"),
            reason: text("reason"),
            source: text("source"),
            armed_by: text("armed_by"),
            armed_at: views::rfc3339(row.created_at),
            due_at: views::rfc3339(row.due_at),
            ended_at: row.ended_at.and_then(views::rfc3339),
            decided_by: row.ended_by.clone(),
            turn_id: row.fired_turn.as_ref().map(|turn| turn.as_str().to_owned()),
        }
    }
}

impl From<RuleCheck> for RuleView {
    fn from(check: RuleCheck) -> Self {
        let (outcome, until) = match check.outcome {
            RuleOutcome::Passes => ("passes", None),
            RuleOutcome::Refuses => ("refuses", None),
            RuleOutcome::Delays(until) => ("delays", views::rfc3339(until)),
        };
        Self { rule: check.rule.name(), outcome, until }
    }
}

fn follow_up_example() -> Value {
    json!({
        "follow_up_id": "f01f3-7524873984012345345", "agent_id": "ann", "status": "pending", "trigger_type": "question_unanswered",
        "reason": "asked for the city", "source": "hint", "armed_by": "u01f3-0198c4d2e5f5",
        "armed_at": "2026-11-22T11:49:44.123Z", "due_at": "2026-11-22T11:54:44.123Z", "ended_at": null, "decided_by": null,
        "turn_id": null,
    })
}

fn follow_up_now_example() -> Value {
    let mut follow_up = follow_up_example();
    follow_up["verdict"] = json!("later");
    follow_up["rules"] = json!([
        { "rule": "disabled", "outcome": "passes", "until": null },
        { "rule": "quiet_hours", "outcome": "delays", "until": "2026-11-23T07:00:00Z" },
    ]);
    follow_up
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_follow_up_is_put_off_to_a_time_within_thirty_days() {
        let now = Timestamp(1_700_000_000_000);
        let until = |seconds: Option<u64>, until: Option<&str>| {
            let body = SnoozeBody { seconds, until: until.map(str::to_owned) };
            snoozed_until(&body, now).map(|at| at.since_ms(now)).map_err(|problem| problem.code())
        };
        assert_eq!(until(Some(1), None), Ok(1_000));
        assert_eq!(until(Some(2_592_000), None), Ok(MOST_SNOOZE_MS));
        assert_eq!(until(None, Some("2023-11-14T22:13:21+00:00")), Ok(1_000));
        for (seconds, at) in [
            (None, None),
            (Some(1), Some("2023-11-14T22:13:21Z")),
            (Some(0), None),
            (Some(2_592_001), None),
            (Some(u64::MAX), None),
            (None, Some("2023-11-14T22:13:20Z")),
            (None, Some("2024-11-14T22:13:20Z")),
            (None, Some("tomorrow")),
        ] {
            assert_eq!(until(seconds, at), Err(ErrorCode::InvalidSnooze), "{seconds:?} {at:?}");
        }
    }
}
