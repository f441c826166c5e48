//! Forms of texts: what ids, positions and names look like, for the description of the API.
//!
//! None of these types has values, and each has two names: that of the type, and that of the component in the description. They lend their form to fields that are plain texts in the code.

use model::{BusyPolicy, MAX_CONTEXT_TOKENS, MAX_ID_LEN, TaskKind, TriggerType, WaitReason};
use protocols::schema;
use protocols::schemas::{id, one_of, text};
use scheduling::budget::{BudgetPeriod, BudgetUnit};
use scheduling::follow_up::RestraintRule;
use scheduling::schedule::{MissedRule, OverlapRule};
use serde_json::json;
use store::{TaskStatus, TimerStatus};
use utoipa::openapi::KnownFormat;
use utoipa::openapi::schema::{ObjectBuilder, SchemaFormat, Type};

use crate::commands::control;
use crate::commands::owner_query::OwnerStatus;
use crate::extract::query;

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
    /// What a credential is for.
    CredentialRole as "CredentialRole", one_of(auth::AccessRole::ALL.map(auth::AccessRole::name))
}

schema! {
    /// What may be done.
    ScopeSchema as "ScopeText", one_of(auth::Permission::ALL.map(auth::Permission::scope))
}

schema! {
    /// A ticket for the events of one thread.
    TicketSchema as "TicketText", text("^tkt_[A-Za-z0-9_-]+[.][A-Za-z0-9_-]+$", 1_024, "tkt_AQAAAABrAt5S.TrX4ZWJPhrtYuJP8Ldpu60GX7eAJzh")
}

schema! {
    /// The id of an agent; with a kind of work behind `+`, the queue of what follows the agent's turns.
    QueueIdSchema as "QueueName", text("^[A-Za-z0-9_-]{1,128}([+](work_request|memory|compaction))?$", MAX_ID_LEN + 16, "ann")
}

schema! {
    /// How a turn stands.
    TurnStateSchema as "TurnStateText", one_of(["waiting", "running", "completed", "failed"])
}

schema! {
    /// The id of a task, unique within its agent for seven days.
    TaskIdSchema as "TaskName", id("t-1")
}

schema! {
    /// The id of a follow-up's timer.
    FollowUpIdSchema as "FollowUpName", text("^f[0-9a-f]{4}-[A-Za-z0-9_-]{1,58}$", 64, "f01f3-7524873984012345345")
}

schema! {
    /// What became of a timer.
    TimerStatusSchema as "TimerStatusText", one_of(TimerStatus::ALL.map(TimerStatus::name))
}

schema! {
    /// Why an agent speaks first.
    TriggerTypeSchema as "TriggerTypeText", one_of(TriggerType::ALL.map(TriggerType::name))
}

schema! {
    /// What would become of a follow-up.
    VerdictSchema as "VerdictText", one_of(["fire", "refused", "later", "superseded"])
}

schema! {
    /// A rule that keeps an agent from speaking first.
    RestraintRuleSchema as "RestraintRuleText", one_of(RestraintRule::ALL.map(RestraintRule::name))
}

schema! {
    /// What a rule says.
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

/// Most tokens of a budget.
pub(crate) const MOST_BUDGET_TOKENS: u64 = 1_000_000_000_000_000;

schema! {
    /// How many tokens may be used.
    BudgetTokens as "BudgetTokens", number(0, MOST_BUDGET_TOKENS).build()
}

schema! {
    /// After what a budget begins anew.
    BudgetPeriodSchema as "BudgetPeriodText", one_of(BudgetPeriod::ALL.map(BudgetPeriod::name))
}

schema! {
    /// In what a budget is counted.
    BudgetUnitSchema as "BudgetUnitText", one_of(BudgetUnit::ALL.map(BudgetUnit::name))
}

schema! {
    /// What happens to an occurrence while the task of the one before is not done.
    OverlapSchema as "OverlapText", one_of(OverlapRule::ALL.map(OverlapRule::name))
}

schema! {
    /// What happens to occurrences that fell due while there was no worker.
    MissedSchema as "MissedText", one_of(MissedRule::ALL.map(MissedRule::name))
}

schema! {
    /// The id of a control command.
    CommandIdSchema as "ActName", id("0198c4d2e5f57a60b1d3c8a94e27f610")
}

schema! {
    /// What became of a control command: `pending` until its owner has said.
    CommandStatusSchema as "CommandStatusText", one_of(control::STATUSES)
}

schema! {
    /// The name of a workflow.
    WorkflowNameSchema as "WorkflowText", id("default")
}

schema! {
    /// What names a request, so that the same again does nothing more: chosen by the client, unique in the thread.
    RequestIdSchema as "RequestName", id("r-1")
}

schema! {
    /// Who reads a note: people as well, or models only.
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
    /// Free-form: at most 65,536 bytes as JSON, without NUL characters and numbers beyond 2^53.
    MetadataObject as "MetadataObject", ObjectBuilder::new().schema_type(Type::Object).examples([json!({"channel": "web"})]).build()
}

schema! {
    /// The id of an event: how far its reader has read. To be given back as it is. It begins with the position of the last end that the
    /// reader has got, so a position alone is one, too; of each open message follows what the reader has of it.
    CursorSchema as "CursorText", text(
        concat!(
            r"^[0-9]{1,19}(~[A-Za-z0-9_-]{1,128}\.[0-9]{1,10}\.[0-9]{1,10}\.[0-9]{1,19}",
            r"(\.[0-9]{1,19}\.[0-9]{1,10}(\.[0-9]{1,19}(-[0-9]{1,19})?){0,8})?(\.x)?(\.f)?)*$",
        ),
        protocols::cursor::MAX_LEN,
        "7524873984012345344~u01f3-0198c4d2e5f57a60b1d3c8a94e27f610-a.0.12.480",
    )
}

schema! {
    /// A moment.
    TimestampSchema as "Moment", ObjectBuilder::new()
        .schema_type(Type::String)
        .format(Some(SchemaFormat::KnownFormat(KnownFormat::DateTime)))
        .examples(["2026-11-22T11:49:44.123Z"])
        .build()
}

schema! {
    /// What becomes of an input while another turn of its thread is under way.
    BusyPolicySchema as "BusyPolicyText", one_of(BusyPolicy::ALL.map(BusyPolicy::name))
}

schema! {
    /// Whether every message that belongs to a batch is there; `open`: a turn of it is under way.
    BatchStateSchema as "BatchStateText", one_of(["open", "complete", "incomplete", "abandoned"])
}

schema! {
    /// A batch, by its id or by the id of its first turn.
    BatchNameSchema as "BatchName",
    text("^([0-9]{1,19}|[ut][0-9a-f]{4}-[A-Za-z0-9_-]{1,80})$", 86, "7524873984012345344")
}

schema! {
    /// Which incomplete batches.
    IncompleteSchema as "IncompleteText", one_of(INCOMPLETE)
}

schema! {
    /// Why something waits.
    WaitReasonSchema as "WaitReasonText", one_of(WaitReason::ALL.map(WaitReason::name))
}

schema! {
    /// Whether a compaction counts.
    CompactionStateSchema as "CompactionStateText", one_of(COMPACTION_STATES)
}

schema! {
    /// Why the heads of agents wait that are looked for.
    AgentWaitingSchema as "AgentWaitingText", one_of(["backoff", "paused"])
}

schema! {
    /// The form in which a provider of models takes messages.
    FormatSchema as "FormatText", one_of(["openai", "anthropic"])
}

schema! {
    /// How many items a page has at most.
    Limit as "Limit", number(1, query::MAX_LIMIT.into()).default(Some(query::DEFAULT_LIMIT.into())).build()
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
    /// Whether the worker answers that owns the partition; without it only what is stored is known.
    OwnerStatusSchema as "OwnerStatusText", one_of(OwnerStatus::ALL.map(OwnerStatus::name))
}

schema! {
    /// What a task is about.
    TaskKindSchema as "TaskKindText", one_of(TaskKind::ALL.map(TaskKind::name))
}

schema! {
    /// What became of a task.
    TaskStatusSchema as "TaskStatusText", one_of(TaskStatus::ALL.map(TaskStatus::name))
}

/// States of a batch that is not complete.
pub(crate) const INCOMPLETE: [&str; 2] = ["incomplete", "abandoned"];

pub(crate) const WAITING: &str = "waiting for its summary";

pub(crate) const COUNTS: &str = "counts";

pub(crate) const UNDONE: &str = "undone";

pub(crate) const REPLACED: &str = "replaced";

/// What a compaction may be.
pub(crate) const COMPACTION_STATES: [&str; 4] = [WAITING, COUNTS, UNDONE, REPLACED];
