//! The table of commands: which operation of the API a noun and a verb call.

use std::sync::LazyLock;

const TEXT: &str = include_str!("commands.txt");

/// Every command that calls the API, sorted by noun.
pub(super) static COMMANDS: LazyLock<Vec<ApiCommand>> =
    LazyLock::new(|| rows().filter_map(ApiCommand::read).collect());

#[derive(Debug)]
pub(super) struct ApiCommand {
    pub(super) noun: &'static str,
    /// Empty if the noun alone is the command.
    pub(super) verb: &'static str,
    /// The id of the operation.
    pub(super) operation: &'static str,
    pub(super) shown: AnswerView,
    /// Fields of the body that are arguments without a flag, after the variables of the path.
    pub(super) arguments: Vec<&'static str>,
    /// Inputs whose flag has another name, as pairs of input and flag.
    pub(super) flags: Vec<(&'static str, &'static str)>,
}

/// How an answer is shown as a table.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum AnswerView {
    /// Every field in a row of its own.
    Fields,
    /// The items of this list, with these columns.
    Rows(&'static str, Vec<&'static str>),
    /// The single values, and below them the items of this list.
    RowsBelow(&'static str, Vec<&'static str>),
    /// Only the text of this field.
    Text(&'static str),
    /// Every field of the operation that the call begins, once the operation has ended.
    Awaited,
    /// The lines of an export, as they come, into a file.
    Export,
    /// The counts of an import, whose lines are the body.
    Import,
}

/// Nouns whose commands are all here, with their descriptions.
pub(super) const NOUNS: &[(&str, &str)] = &[
    ("agents", "Agents: settings, queues and backoff"),
    ("budgets", "Budgets: limits on the tokens or money that turns use per day or month"),
    ("dead-letters", "Dead letters (inputs that could not be processed): show, replay and drop them"),
    ("erasures", "Erasures of threads, users and tenants, and their receipts"),
    ("export", "Export all threads of the tenant"),
    ("feedback", "Feedback: what users say about messages"),
    ("follow-ups", "Follow-ups: pending proactive messages, and why others were sent or suppressed"),
    ("import", "Import threads into the tenant"),
    (
        "incidents",
        "Incidents: data lost when a store or a stream went back in time, and tool calls of unknown outcome",
    ),
    ("reasoning", "Reasoning sessions of agents: view them, and undo compressions"),
    ("schedules", "Schedules of agents"),
    ("signing-keys", "Keys with which the fleet itself signs: turn tokens and tickets"),
    ("tasks", "Tasks of agents: the queue, and delayed tasks"),
    ("threads", "Threads: create, follow, export, copy and erase them"),
    ("turns", "Turns in progress, and failed turns"),
    ("usage", "Usage and cost of model calls"),
    ("users", "Users of threads"),
];

/// The lines of the file that are commands.
pub(super) fn rows() -> impl Iterator<Item = &'static str> {
    TEXT.lines().filter(|line| !line.is_empty() && !line.starts_with('#'))
}

impl ApiCommand {
    pub(super) fn read(line: &'static str) -> Option<Self> {
        let mut parts = line.split(" | ").map(str::trim);
        let (name, operation, shown) = (parts.next()?, parts.next()?, AnswerView::read(parts.next()?)?);
        let (noun, verb) = name.split_once(' ').unwrap_or((name, ""));
        let rest = parts.next().into_iter().flat_map(|rest| rest.split(", "));
        let (flags, arguments): (Vec<_>, Vec<_>) = rest.partition(|input| input.contains(" as "));
        let flags = flags.into_iter().filter_map(|input| input.split_once(" as ")).collect();
        Some(Self { noun, verb, operation, shown, arguments, flags })
    }
}

impl AnswerView {
    fn read(text: &'static str) -> Option<Self> {
        let (kind, of) = text.split_once(' ').unwrap_or((text, ""));
        let list = || {
            let (list, columns) = of.split_once(": ")?;
            Some((list, columns.split(", ").collect()))
        };
        match kind {
            "fields" => Some(Self::Fields),
            "awaited" => Some(Self::Awaited),
            "export" => Some(Self::Export),
            "import" => Some(Self::Import),
            "text" => Some(Self::Text(of)),
            "rows" => list().map(|(list, columns)| Self::Rows(list, columns)),
            "below" => list().map(|(list, columns)| Self::RowsBelow(list, columns)),
            _ => None,
        }
    }
}
