//! Schemas of ids, positions, names and other texts, for the OpenAPI document.
//!
//! These types have no values. Each has two names: that of the type, and that of the component in
//! the document. Fields that are plain texts in the code refer to them.

use http_server::extract::query;
use model::{BusyPolicy, MAX_CONTEXT_TOKENS, MAX_ID_LEN, TaskKind, TriggerType, WaitReason};
use protocols::schema;
use protocols::schemas::{id, one_of, text};
use scheduling::budget::{BudgetPeriod, BudgetUnit};
use scheduling::follow_up::RestraintRule;
use scheduling::schedule::{MissedRule, OverlapRule};
use serde_json::json;
use store::{ErasedKind, ErasureState, TaskStatus, TimerStatus};
use utoipa::openapi::KnownFormat;
use utoipa::openapi::schema::{ObjectBuilder, SchemaFormat, SchemaType, Type};

use crate::commands::control;
use crate::commands::owner_query::OwnerStatus;
use crate::commands::thread_states::ThreadState;

pub(crate) use protocols::schemas::{
    AgentIdSchema, BatchTypeSchema, MessageIdSchema, PositionSchema, ResponseIdSchema, RoleSchema,
    ThreadIdSchema, TurnIdSchema,
};

fn number(least: u64, most: u64) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(least)).maximum(Some(most))
}

schema! {
    /// The id of an API key: its public part.
    KeyIdSchema as "KeyName", text("^[0-9a-f]{16}$", 16, "0123456789abcdef")
}

schema! {
    /// The id of an erasure.
    ErasureIdSchema as "ErasureName", text("^[0-9a-f]{32}$", 32, "0198c4d2e5f57a60b1d3c8a94e27f610")
}

schema! {
    /// What is erased.
    ErasedKindSchema as "ErasedKindText", one_of(ErasedKind::ALL.map(ErasedKind::name))
}

schema! {
    /// The state of an erasure. `failed`: something is left, and no worker tries again.
    ErasureStateSchema as "ErasureStateText", one_of(ErasureState::ALL.map(ErasureState::name))
}

/// Longest name of a user, in bytes. Names in metadata may be longer, but the head of a request
/// has room for 32 KiB, and percent-encoding makes three bytes of one.
pub(crate) const MAX_USER_LEN: usize = 8_192;

schema! {
    /// A user: the text that metadata of threads has as `user_id`.
    ErasedUserSchema as "UserText", text("^[^\\u0000]+$", MAX_USER_LEN, "ann")
}

schema! {
    /// The name of a tenant.
    TenantSchema as "TenantName", text("^[a-z0-9][a-z0-9-]{0,31}$", 32, "acme")
}

schema! {
    /// The name of an erased tenant; `-` is the default one.
    MarkedTenantSchema as "MarkedTenantName", text("^(-|[a-z0-9][a-z0-9-]{0,31})$", 32, "acme")
}

schema! {
    /// A key with which the fleet itself signs. `turn-tokens`: workflows answer turns with them;
    /// `tickets`: browsers follow threads with them.
    SigningKeySchema as "SigningKeyName", one_of(store::SigningKey::ALL.map(store::SigningKey::name))
}

schema! {
    /// The role of a credential, which determines the scopes that it may have.
    CredentialRole as "CredentialRole", one_of(auth::AccessRole::ALL.map(auth::AccessRole::name))
}

schema! {
    /// A scope: a group of operations that a credential may perform.
    ScopeSchema as "ScopeText", one_of(auth::Permission::ALL.map(auth::Permission::scope))
}

schema! {
    /// A ticket for the events of one thread.
    TicketSchema as "TicketText", text("^tkt_[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+$", 1_024, "tkt_AQAAAABrAt5S.TrX4ZWJPhrtYuJP8Ldpu60GX7eAJzh")
}

schema! {
    /// The id of an agent, or with `+` and a kind of work the queue of that agent's background
    /// tasks.
    QueueIdSchema as "QueueName", text("^[A-Za-z0-9_-]{1,128}([+](work_request|memory|compaction))?$", MAX_ID_LEN + 16, "ann")
}

schema! {
    /// What a thread is doing. `failed`: its last turn failed, and nothing has happened since.
    ThreadStateSchema as "ThreadStateText", one_of(ThreadState::ALL.map(ThreadState::name))
}

schema! {
    /// The state of a turn.
    TurnStateSchema as "TurnStateText", one_of(["waiting", "running", "completed", "failed"])
}

schema! {
    /// The id of a task, unique within its agent for seven days.
    TaskIdSchema as "TaskName", id("t-1")
}

schema! {
    /// The id of a follow-up.
    FollowUpIdSchema as "FollowUpName", text("^f[0-9a-f]{4}-[A-Za-z0-9_-]{1,58}$", 64, "f01f3-7524873984012345345")
}

schema! {
    /// The state of a follow-up.
    TimerStatusSchema as "TimerStatusText", one_of(TimerStatus::ALL.map(TimerStatus::name))
}

schema! {
    /// The reason for which an agent speaks first.
    TriggerTypeSchema as "TriggerTypeText", one_of(TriggerType::ALL.map(TriggerType::name))
}

schema! {
    /// What would happen to a follow-up if it were due now.
    VerdictSchema as "VerdictText", one_of(["fire", "refused", "later", "superseded"])
}

schema! {
    /// A rule that keeps an agent from speaking first.
    RestraintRuleSchema as "RestraintRuleText", one_of(RestraintRule::ALL.map(RestraintRule::name))
}

schema! {
    /// The outcome of a rule.
    RuleOutcomeSchema as "RuleOutcomeText", one_of(["passes", "refuses", "delays"])
}

schema! {
    /// The name of a schedule, unique within its agent.
    ScheduleNameSchema as "ScheduleName", id("daily")
}

schema! {
    /// The name of a budget, unique within its tenant.
    BudgetNameSchema as "BudgetName", id("ann-daily")
}

/// Highest limit of a budget in tokens.
pub(crate) const MOST_BUDGET_TOKENS: u64 = 1_000_000_000_000_000;

schema! {
    /// The number of tokens that may be used.
    BudgetTokens as "BudgetTokens", number(0, MOST_BUDGET_TOKENS).build()
}

schema! {
    /// The period after which a budget starts again.
    BudgetPeriodSchema as "BudgetPeriodText", one_of(BudgetPeriod::ALL.map(BudgetPeriod::name))
}

schema! {
    /// The unit in which a budget is counted.
    BudgetUnitSchema as "BudgetUnitText", one_of(BudgetUnit::ALL.map(BudgetUnit::name))
}

schema! {
    /// What happens to an occurrence while the task of the previous one is not done.
    OverlapSchema as "OverlapText", one_of(OverlapRule::ALL.map(OverlapRule::name))
}

schema! {
    /// What happens to occurrences that fell due while no worker was running.
    MissedSchema as "MissedText", one_of(MissedRule::ALL.map(MissedRule::name))
}

schema! {
    /// The id of a control command.
    CommandIdSchema as "ActName", id("0198c4d2e5f5")
}

schema! {
    /// The status of a control command; `pending` until its owner has reported the outcome.
    CommandStatusSchema as "CommandStatusText", one_of(control::STATUSES)
}

schema! {
    /// The name of a workflow.
    WorkflowNameSchema as "WorkflowText", id("default")
}

schema! {
    /// An id of the request, chosen by the client and unique in the thread: a repeated request with
    /// it has no further effect.
    RequestIdSchema as "RequestName", id("r-1")
}

schema! {
    /// Who reads a note: people and models, or models only.
    VisibilitySchema as "VisibilityText", one_of(["shown", "hidden"])
}

schema! {
    /// The text of an input: at most 262,144 bytes (UTF-8).
    InputSchema as "InputText", ObjectBuilder::new()
        .schema_type(Type::String)
        .min_length(Some(1))
        .max_length(Some(wire::MAX_INPUT_BYTES))
        .examples(["How is the weather?"])
        .build()
}

schema! {
    /// Free-form object: at most 65,536 bytes as JSON, without NUL characters and numbers beyond
    /// 2^53.
    MetadataObject as "MetadataObject", ObjectBuilder::new().schema_type(Type::Object).examples([json!({"channel": "web"})]).build()
}

schema! {
    /// The id of an event, to be sent back unchanged: the position of the last end that the reader
    /// has, which is valid alone, and what the reader has of each open message.
    CursorSchema as "CursorText", text(
        concat!(
            r"^[0-9]{1,19}(~[A-Za-z0-9_-]{1,128}\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9]{1,19}",
            r"(\.[0-9]{1,19}\.[0-9]{1,10}(\.[0-9]{1,19}(-[0-9]{1,19})?){0,8})?(\.x)?(\.f)?(\.[iw])?)*$",
        ),
        protocols::cursor::MAX_LEN,
        "7524873984012345344~u01f3-0198c4d2e5f5-a.0.12.480",
    )
}

schema! {
    /// A point in time, in RFC 3339.
    TimestampSchema as "Moment", ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2026-11-22T11:49:44.123Z"])
        .build()
}

schema! {
    /// What happens to an input while another turn of its thread is in progress.
    BusyPolicySchema as "BusyPolicyText", one_of(BusyPolicy::ALL.map(BusyPolicy::name))
}

schema! {
    /// Whether every message of a batch is there; `open`: a turn of it is in progress.
    BatchStateSchema as "BatchStateText", one_of(["open", "complete", "incomplete", "abandoned"])
}

schema! {
    /// A batch, by its id or by the id of its first turn.
    BatchNameSchema as "BatchName",
    text("^([0-9]{1,19}|[ut][0-9a-f]{4}-[A-Za-z0-9_-]{1,80})$", 86, "7524873984012345344")
}

schema! {
    /// A state of incomplete batches.
    IncompleteSchema as "IncompleteText", one_of(INCOMPLETE)
}

schema! {
    /// The reason why something waits.
    WaitReasonSchema as "WaitReasonText", one_of(WaitReason::ALL.map(WaitReason::name))
}

schema! {
    /// The state of a compaction.
    CompactionStateSchema as "CompactionStateText", one_of(COMPACTION_STATES)
}

schema! {
    /// The reason why the first task of an agent waits.
    AgentWaitingSchema as "AgentWaitingText", one_of(["backoff", "paused"])
}

schema! {
    /// The form in which a provider of models takes messages.
    FormatSchema as "FormatText", one_of(["openai", "anthropic"])
}

schema! {
    /// The maximum number of items of a page.
    Limit as "Limit", number(1, query::MAX_LIMIT.into()).default(Some(query::DEFAULT_LIMIT.into())).build()
}

schema! {
    /// Value of `next` for the next page; null on the last page.
    NextPage as "NextPage", ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::String, Type::Null])).build()
}

schema! {
    /// The number of an event of a response.
    EventNumber as "EventNumber", ObjectBuilder::new().schema_type(Type::Integer).minimum(Some(0)).build()
}

schema! {
    /// A number of tokens.
    Tokens as "Tokens", number(1, MAX_CONTEXT_TOKENS).build()
}

schema! {
    /// Whether the worker that owns the partition answers. Without it only stored data is known.
    OwnerStatusSchema as "OwnerStatusText", one_of(OwnerStatus::ALL.map(OwnerStatus::name))
}

schema! {
    /// The kind of a task.
    TaskKindSchema as "TaskKindText", one_of(TaskKind::ALL.map(TaskKind::name))
}

schema! {
    /// The status of a task.
    TaskStatusSchema as "TaskStatusText", one_of(TaskStatus::ALL.map(TaskStatus::name))
}

/// States of a batch that is not complete.
pub(crate) const INCOMPLETE: [&str; 2] = ["incomplete", "abandoned"];

pub(crate) const WAITING: &str = "waiting for its summary";

pub(crate) const COUNTS: &str = "counts";

pub(crate) const UNDONE: &str = "undone";

pub(crate) const REPLACED: &str = "replaced";

/// States of a compaction.
pub(crate) const COMPACTION_STATES: [&str; 4] = [WAITING, COUNTS, UNDONE, REPLACED];
