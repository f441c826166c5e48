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

pub(crate) const KEYS: &str = "keys";

pub(crate) const GATEWAY: &str = "gateway";

pub(crate) const TAGS: [(&str, &str); 12] = [
    (THREADS, "Threads: their messages, their streams of events, and what a model sees of them."),
    (TURNS, "Turns under way, and those that failed."),
    (AGENTS, "Agents: their settings, their backoff, and what operators do to them."),
    (TASKS, "The queues of agents."),
    (TIMERS, "What happens later: follow-ups, schedules, and tasks that wait for their time."),
    (MEMORY, "What agents remember of users and threads."),
    (BUDGETS, "How much the calls of models may use in a day or a month."),
    (AI_SDK, "The same threads for Vercel's AI SDK: the UI message stream."),
    (
        OPENAI,
        "The same threads for libraries of OpenAI: Responses and chat completions. `model` names the agent.",
    ),
    (AG_UI, "The same threads for AG-UI."),
    (KEYS, "API keys and tickets."),
    (GATEWAY, "The gateway itself."),
];
