//! Groups of operations.

pub(crate) const THREADS: &str = "threads";

pub(crate) const TURNS: &str = "turns";

pub(crate) const AGENTS: &str = "agents";

pub(crate) const TASKS: &str = "tasks";

pub(crate) const TIMERS: &str = "timers";

pub(crate) const MEMORY: &str = "memory";

pub(crate) const BUDGETS: &str = "budgets";

pub(crate) const AI_SDK: &str = "ai-sdk";

pub(crate) const OPENAI: &str = "openai";

pub(crate) const AG_UI: &str = "ag-ui";

pub(crate) const ERASURES: &str = "erasures";

pub(crate) const KEYS: &str = "keys";

pub(crate) const GATEWAY: &str = "gateway";

pub(crate) const TAGS: [(&str, &str); 13] = [
    (THREADS, "Threads: their messages, event streams and model contexts."),
    (TURNS, "Turns in progress, and failed turns."),
    (AGENTS, "Agents: settings, backoff and operator actions."),
    (TASKS, "The task queues of agents."),
    (TIMERS, "Timers: follow-ups, schedules and delayed tasks."),
    (MEMORY, "What agents remember about users and threads."),
    (BUDGETS, "Limits on the usage of model calls per day or month."),
    (AI_SDK, "The same threads for Vercel's AI SDK (UI message stream)."),
    (
        OPENAI,
        "The same threads for OpenAI client libraries: Responses and chat completions. `model` names the agent.",
    ),
    (AG_UI, "The same threads for AG-UI."),
    (ERASURES, "Erasures of threads, users and tenants, and their receipts."),
    (KEYS, "API keys and tickets."),
    (GATEWAY, "The gateway itself."),
];
