//! Identifiers chosen by clients. They travel in subjects, URLs and SQL, so their alphabet is
//! narrow.

use std::borrow::Borrow;
use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::{Bucket, TaskKind};

/// Maximum bytes of an identifier, without its tenant.
pub const MAX_ID_LEN: usize = 128;

/// Maximum bytes of a tenant's name.
pub const MAX_TENANT_LEN: usize = 32;

/// Separates the tenant from the name in an id. No name contains it, so every id shows its tenant.
pub const TENANT_MARK: char = '~';

/// Separates the agent from the kind of work in the id of a background queue: `<agent>+<kind>`. No
/// name contains it, so only the system can name such a queue or its thread.
const QUEUE_MARK: char = '+';

/// An identifier that does not match `[A-Za-z0-9_-]{1,128}`.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidId {
    #[error("the id is empty")]
    Empty,
    /// Longer than [`MAX_ID_LEN`].
    #[error("the id has {0} bytes; at most {MAX_ID_LEN} are allowed")]
    TooLong(usize),
    /// A character with a meaning in a subject or a URL, or one that is not ASCII.
    #[error("the id has the character {0:?}; letters, digits, '_' and '-' are allowed")]
    Character(char),
    /// The part after [`QUEUE_MARK`] is not a kind of work that follows a turn.
    #[error("{0:?} is no kind of work that follows a turn")]
    Queue(String),
    /// The part before [`TENANT_MARK`] is not a tenant's name.
    #[error(
        "{0:?} is no tenant: lower-case letters, digits and '-' are allowed, at most {MAX_TENANT_LEN}, no '-' first"
    )]
    Tenant(String),
}

fn check(text: &str) -> Result<(), InvalidId> {
    if text.is_empty() {
        return Err(InvalidId::Empty);
    }
    if text.len() > MAX_ID_LEN {
        return Err(InvalidId::TooLong(text.len()));
    }
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '-';
    match text.chars().find(|c| !allowed(*c)) {
        Some(character) => Err(InvalidId::Character(character)),
        None => Ok(()),
    }
}

fn check_owned(text: &str) -> Result<(), InvalidId> {
    let (text, kind) = without_queue(text);
    if let Some(kind) = kind
        && TaskKind::BACKGROUND.iter().all(|known| known.name() != kind)
    {
        return Err(InvalidId::Queue(kind.chars().take(MAX_TENANT_LEN).collect()));
    }
    match text.split_once(TENANT_MARK) {
        Some((tenant, name)) => check_tenant(tenant).and_then(|()| check(name)),
        None => check(text),
    }
}

/// Checks an id that is never a background queue.
fn check_tenant_name(text: &str) -> Result<(), InvalidId> {
    match text.split_once(TENANT_MARK) {
        Some((tenant, name)) => check_tenant(tenant).and_then(|()| check(name)),
        None => check(text),
    }
}

/// Parts before and after [`QUEUE_MARK`].
fn without_queue(text: &str) -> (&str, Option<&str>) {
    text.split_once(QUEUE_MARK).map_or((text, None), |(name, kind)| (name, Some(kind)))
}

fn check_tenant(text: &str) -> Result<(), InvalidId> {
    let allowed = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    match text.chars().find(|c| !allowed(*c)) {
        _ if text.is_empty() || text.starts_with('-') || text.len() > MAX_TENANT_LEN => {
            Err(InvalidId::Tenant(text.chars().take(MAX_TENANT_LEN).collect()))
        }
        Some(_) => Err(InvalidId::Tenant(text.to_owned())),
        None => Ok(()),
    }
}

macro_rules! id {
    ($(#[$doc:meta])* $name:ident) => {
        id! { $(#[$doc])* $name, check }
    };
    ($(#[$doc:meta])* $name:ident, $check:ident) => {
        $(#[$doc])*
        #[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(Arc<str>);

        impl $name {
            /// Checks the alphabet and the length.
            pub fn parse(text: &str) -> Result<Self, InvalidId> {
                $check(text).map(|()| Self(Arc::from(text)))
            }

            /// An identifier built from others that are known to be valid and short.
            #[allow(dead_code, reason = "not every kind is made from others")]
            pub(crate) fn new_unchecked(text: &str) -> Self {
                debug_assert!(check(text).is_ok(), "{text} is no id");
                Self(Arc::from(text))
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl TryFrom<String> for $name {
            type Error = InvalidId;
            fn try_from(text: String) -> Result<Self, InvalidId> {
                Self::parse(&text)
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0.to_string()
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    };
}

id! {
    /// Owner of threads and agents: `[a-z0-9][a-z0-9-]{0,31}`. Ids without a tenant belong to the
    /// default tenant, which has no name.
    Tenant, check_tenant
}

id! {
    /// A conversation, durable and ordered. The wire calls it `session_id`. `<name>`, or
    /// `<tenant>~<name>`.
    ThreadId, check_owned
}

id! {
    /// One message of a thread, named by its producer; unique within its thread.
    MessageId
}

id! {
    /// An addressable actor with a queue of tasks, a workflow that thinks for it, and a backoff.
    /// `<name>`, or `<tenant>~<name>`.
    AgentId, check_owned
}

id! {
    /// A focused reasoning session of an agent. `<name>`, or `<tenant>~<name>`.
    ReasoningSessionId, check_tenant_name
}

impl GatewayId {
    /// Gateway id from a random number.
    pub fn of_number(number: u64) -> Self {
        Self::new_unchecked(&format!("gateway-{number:016x}"))
    }
}

macro_rules! owned {
    ($name:ident) => {
        impl $name {
            /// Id of `name` in `tenant`; for the default tenant the name itself.
            ///
            /// # Errors
            /// `name` is invalid; a name that begins with a tenant is invalid too.
            pub fn of_tenant(tenant: Option<&Tenant>, name: &str) -> Result<Self, InvalidId> {
                check(name)?;
                Ok(Self(match tenant {
                    Some(tenant) => Arc::from(format!("{tenant}{TENANT_MARK}{name}")),
                    None => Arc::from(name),
                }))
            }

            /// Tenant; `None`: the default tenant.
            pub fn tenant(&self) -> Option<Tenant> {
                let (tenant, _) = self.0.split_once(TENANT_MARK)?;
                Some(Tenant(Arc::from(tenant)))
            }

            /// Name within its tenant.
            pub fn name(&self) -> &str {
                self.0.split_once(TENANT_MARK).map_or(&*self.0, |(_, name)| name)
            }
        }
    };
}

owned!(ThreadId);
owned!(AgentId);
owned!(ReasoningSessionId);

macro_rules! may_be_queue {
    ($name:ident) => {
        impl $name {
            /// Kind of work of a background queue, or of the thread of such a queue.
            pub fn background_kind(&self) -> Option<TaskKind> {
                without_queue(&self.0).1.and_then(TaskKind::from_name)
            }
        }
    };
}

may_be_queue!(ThreadId);
may_be_queue!(AgentId);

id! {
    /// One unit of work of an agent, named by its sender; unique for seven days.
    TaskId
}

id! {
    /// One process that serves clients. Owners send it the frames of the threads that it follows.
    GatewayId
}

id! {
    /// The name of a schedule, unique within its agent.
    ScheduleName
}

id! {
    /// The name of a budget, unique within its tenant.
    BudgetName
}

id! {
    /// One command of an operator or a client on an agent, a task or a turn; makes it happen once.
    CommandId
}

id! {
    /// Name of a workflow: the last token of the subject on which its services take turn requests.
    WorkflowName
}

impl AgentId {
    /// Id of `name` in `tenant`: an agent, or a background queue of an agent.
    ///
    /// # Errors
    /// `name` is neither.
    pub fn queue_of_tenant(tenant: Option<&Tenant>, name: &str) -> Result<Self, InvalidId> {
        let (agent, kind) = without_queue(name);
        check_owned(name)?;
        let agent = Self::of_tenant(tenant, agent)?;
        Ok(kind.and_then(TaskKind::from_name).map_or(agent.clone(), |kind| agent.queue_of(kind)))
    }

    /// The agent `default` of the default tenant.
    pub fn standard() -> Self {
        Self::new_unchecked("default")
    }

    /// The agent of this name in a tenant.
    #[must_use]
    pub fn in_tenant(&self, tenant: Option<&Tenant>) -> Self {
        match tenant {
            Some(tenant) => Self(Arc::from(format!("{tenant}{TENANT_MARK}{}", self.name()))),
            None => Self(Arc::from(self.name())),
        }
    }

    /// The agent's own thread, in which its tasks run. It has the agent's id.
    pub fn thread(&self) -> ThreadId {
        ThreadId(Arc::clone(&self.0))
    }

    /// Background queue of this agent for one kind of work: `<agent>+<kind>`. It has its own
    /// backoff and thread, so such work never delays a task and never shows in a thread.
    pub fn queue_of(&self, kind: TaskKind) -> Self {
        match kind {
            TaskKind::Task => self.agent(),
            _ => Self(Arc::from(format!("{}{QUEUE_MARK}{}", without_queue(&self.0).0, kind.name()))),
        }
    }

    /// Agent of this queue: itself, or the agent of a background queue. Its settings and workflow
    /// apply.
    pub fn agent(&self) -> Self {
        match without_queue(&self.0) {
            (_, None) => self.clone(),
            (name, Some(_)) => Self(Arc::from(name)),
        }
    }
}

impl ThreadId {
    /// Bucket of the thread and of everything in it.
    pub fn bucket(&self) -> Bucket {
        Bucket::of_key(self.as_str())
    }

    /// The agent whose own thread this would be.
    pub fn agent(&self) -> AgentId {
        AgentId(Arc::clone(&self.0))
    }
}

/// Identity of a message. Message ids are unique only within a thread, so that no publisher can
/// collide with ids in another thread.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MessageKey {
    pub thread: ThreadId,
    pub message: MessageId,
}

impl fmt::Display for MessageKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.thread, self.message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn queues_of_background_work_cannot_be_named_from_outside() {
        for (agent, tenant) in [("ann", None), ("acme~ann", Tenant::parse("acme").ok())] {
            let agent = AgentId::parse(agent).unwrap();
            let queue = agent.queue_of(TaskKind::Memory);
            assert_eq!(queue.as_str(), format!("{agent}+memory"));
            assert_eq!(AgentId::parse(queue.as_str()), Ok(queue.clone()));
            assert_eq!((queue.agent(), queue.tenant()), (agent.clone(), tenant.clone()));
            assert_eq!(queue.thread().background_kind(), Some(TaskKind::Memory));
            assert_eq!(queue.queue_of(TaskKind::WorkRequest), agent.queue_of(TaskKind::WorkRequest));
            assert_eq!((agent.background_kind(), agent.queue_of(TaskKind::Task)), (None, agent.clone()));
            assert!(AgentId::of_tenant(tenant.as_ref(), "ann+memory").is_err(), "no caller can name it");
            assert_eq!(AgentId::queue_of_tenant(tenant.as_ref(), "ann+memory"), Ok(queue));
            assert_eq!(AgentId::queue_of_tenant(tenant.as_ref(), "ann"), Ok(agent));
            for bad in ["ann+task", "ann+", "+memory", "x~ann+memory", "ann+memory+memory"] {
                assert!(AgentId::queue_of_tenant(tenant.as_ref(), bad).is_err(), "{bad}");
            }
        }
        assert_eq!(AgentId::parse("ann+task"), Err(InvalidId::Queue("task".to_owned())));
        assert!(MessageId::parse("m+memory").is_err());
    }

    #[test]
    fn the_alphabet_and_the_length_are_checked() {
        assert!(ThreadId::parse("a-Z_09").is_ok());
        assert!(ThreadId::parse(&"x".repeat(128)).is_ok());
        assert_eq!(ThreadId::parse(""), Err(InvalidId::Empty));
        assert_eq!(ThreadId::parse(&"x".repeat(129)), Err(InvalidId::TooLong(129)));
        for bad in ["a.b", "a b", "*", ">", "../", "a\0", "é", "'; --", "%00"] {
            assert!(matches!(MessageId::parse(bad), Err(InvalidId::Character(_))), "{bad:?}");
        }
    }

    #[test]
    fn ids_carry_their_tenant() {
        let tenant = Tenant::parse("acme-2").unwrap();
        let thread = ThreadId::of_tenant(Some(&tenant), "t1").unwrap();
        assert_eq!((thread.as_str(), thread.name(), thread.tenant()), ("acme-2~t1", "t1", Some(tenant)));
        assert_eq!(ThreadId::parse("acme-2~t1"), Ok(thread.clone()));
        assert_eq!(thread.agent().name(), "t1");
        let plain = ThreadId::of_tenant(None, "acme-2").unwrap();
        assert_eq!((plain.as_str(), plain.name(), plain.tenant()), ("acme-2", "acme-2", None));
        let longest = format!("{}~{}", "a".repeat(32), "x".repeat(128));
        assert!(AgentId::parse(&longest).is_ok());
    }

    #[test]
    fn names_of_another_tenant_are_refused() {
        for name in ["acme~t1", "~", "~t1", "acme~", ""] {
            assert!(ThreadId::of_tenant(None, name).is_err(), "{name:?}");
            assert!(ThreadId::of_tenant(Tenant::parse("b").ok().as_ref(), name).is_err(), "{name:?}");
        }
        for id in ["~t1", "acme~", "Acme~t1", "-~t1", "a~b~c", "a.b~c", "a~b.c"] {
            assert!(ThreadId::parse(id).is_err(), "{id:?}");
        }
        assert!(MessageId::parse("a~b").is_err());
        for tenant in ["", "-a", "A", "a_b", "a~b", &"x".repeat(33)] {
            assert!(Tenant::parse(tenant).is_err(), "{tenant:?}");
        }
    }
}
