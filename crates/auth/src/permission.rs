//! What may be done, and the roles and scopes that say so.

use std::fmt;

/// One thing that a request does. Its scope is its name in keys, tokens and settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Permission {
    /// To see threads: history, batches, contexts, turns, events.
    ReadThreads,
    /// To open threads, send inputs, stop one's turn.
    WriteThreads,
    /// To see agents, their queues and their failures.
    ReadAgents,
    /// To send tasks to agents.
    SendTasks,
    /// To pause and resume agents; to edit, retry and drop what waits or has failed.
    OperateAgents,
    /// To create agents and to change their settings.
    ConfigureAgents,
    /// To see who did what.
    ReadAudit,
    /// To see what was given up on, with its payload.
    ReadDeadLetters,
    /// To replay and drop what was given up on.
    OperateDeadLetters,
    /// To make and revoke API keys.
    ManageKeys,
    /// To see reasoning sessions.
    ReadReasoning,
    /// To make reasoning sessions, and to append, compress, undo and plan in them.
    WriteReasoning,
    /// To search what an agent remembers that counts in a thread.
    ReadMemory,
    /// To have an agent remember, correct and forget what counts in a thread.
    WriteMemory,
    /// To see what concerns the installation and no tenant: incidents.
    ReadFleet,
    /// To acknowledge incidents.
    OperateFleet,
}

impl Permission {
    /// All of them.
    pub const ALL: [Self; 16] = [
        Self::ReadThreads,
        Self::WriteThreads,
        Self::ReadAgents,
        Self::SendTasks,
        Self::OperateAgents,
        Self::ConfigureAgents,
        Self::ReadAudit,
        Self::ReadDeadLetters,
        Self::OperateDeadLetters,
        Self::ManageKeys,
        Self::ReadReasoning,
        Self::WriteReasoning,
        Self::ReadMemory,
        Self::WriteMemory,
        Self::ReadFleet,
        Self::OperateFleet,
    ];

    /// Its name as a scope.
    pub const fn scope(self) -> &'static str {
        match self {
            Self::ReadThreads => "threads:read",
            Self::WriteThreads => "threads:write",
            Self::ReadAgents => "agents:read",
            Self::SendTasks => "tasks:write",
            Self::OperateAgents => "agents:operate",
            Self::ConfigureAgents => "agents:configure",
            Self::ReadAudit => "audit:read",
            Self::ReadDeadLetters => "dead-letters:read",
            Self::OperateDeadLetters => "dead-letters:operate",
            Self::ManageKeys => "keys:manage",
            Self::ReadReasoning => "reasoning:read",
            Self::WriteReasoning => "reasoning:write",
            Self::ReadMemory => "memory:read",
            Self::WriteMemory => "memory:write",
            Self::ReadFleet => "fleet:read",
            Self::OperateFleet => "fleet:operate",
        }
    }

    /// The permission that a scope names.
    pub fn of_scope(scope: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|permission| permission.scope() == scope)
    }
}

/// A set of permissions.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Permissions(u32);

impl Permissions {
    /// Nothing.
    pub const NONE: Self = Self(0);

    /// These.
    pub const fn of(permissions: &[Permission]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < permissions.len() {
            bits |= 1 << permissions[at] as u8;
            at += 1;
        }
        Self(bits)
    }

    /// Those that scopes name. A scope that is not known here, such as `openid` or one of a newer version, grants nothing.
    pub fn of_scopes<'a>(scopes: impl IntoIterator<Item = &'a str>) -> Self {
        let known = scopes.into_iter().filter_map(Permission::of_scope);
        known.fold(Self::NONE, |set, permission| Self(set.0 | 1 << permission as u8))
    }

    /// Whether the permission is one of them.
    pub const fn has(self, permission: Permission) -> bool {
        self.0 & (1 << permission as u8) != 0
    }

    /// What both sets have.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    /// Each of them.
    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL.into_iter().filter(move |permission| self.has(*permission))
    }
}

/// By their scopes.
impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Permission::scope)).finish()
    }
}

/// What a credential is for. Its scopes can only narrow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessRole {
    /// Sees threads and agents.
    Viewer,
    /// Also writes threads, sends tasks, operates agents and reads the audit.
    Operator,
    /// May do everything.
    Admin,
}

/// A scope that a credential cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScope {
    /// No permission has this name.
    #[error("there is no scope {0:?}; there are {all}", all = Permission::ALL.map(Permission::scope).join(", "))]
    Unknown(String),
    /// The role does not have it, and scopes only narrow a role.
    #[error("the role {role} does not have the scope {scope}", role = .role.name(), scope = .permission.scope())]
    BeyondRole {
        /// The credential's role.
        role: AccessRole,
        /// What it does not have.
        permission: Permission,
    },
}

impl AccessRole {
    /// All of them, the lowest first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Its name in keys, tokens and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The role of this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// What it may do.
    pub const fn permissions(self) -> Permissions {
        use Permission::{
            OperateAgents, ReadAgents, ReadAudit, ReadFleet, ReadMemory, ReadReasoning, ReadThreads,
            SendTasks, WriteMemory, WriteReasoning, WriteThreads,
        };
        match self {
            Self::Viewer => Permissions::of(&[ReadThreads, ReadAgents, ReadReasoning, ReadMemory]),
            Self::Operator => Permissions::of(&[
                ReadThreads,
                ReadAgents,
                WriteThreads,
                SendTasks,
                OperateAgents,
                ReadAudit,
                ReadReasoning,
                WriteReasoning,
                ReadMemory,
                WriteMemory,
                ReadFleet,
            ]),
            Self::Admin => Permissions::of(&Permission::ALL),
        }
    }

    /// The scopes of a credential that is being made. An empty list is a credential that may do nothing.
    ///
    /// # Errors
    /// A scope that does not exist, or that the role does not have.
    pub fn restricted_to(self, scopes: &[&str]) -> Result<Permissions, InvalidScope> {
        for scope in scopes {
            let permission =
                Permission::of_scope(scope).ok_or_else(|| InvalidScope::Unknown((*scope).to_owned()))?;
            if !self.permissions().has(permission) {
                return Err(InvalidScope::BeyondRole { role: self, permission });
            }
        }
        Ok(Permissions::of_scopes(scopes.iter().copied()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_hold_each_other() {
        let [viewer, operator, admin] = AccessRole::ALL.map(AccessRole::permissions);
        assert_eq!(
            format!("{viewer:?}"),
            r#"{"threads:read", "agents:read", "reasoning:read", "memory:read"}"#
        );
        assert_eq!(operator.iter().count(), 11);
        assert!(!operator.has(Permission::ConfigureAgents) && !operator.has(Permission::ManageKeys));
        assert_eq!(admin.iter().count(), Permission::ALL.len());
        assert_eq!((viewer.and(operator), operator.and(admin)), (viewer, operator));
    }

    #[test]
    fn names_lead_back() {
        for permission in Permission::ALL {
            assert_eq!(Permission::of_scope(permission.scope()), Some(permission));
            assert_eq!(Permissions::of(&[permission]).iter().collect::<Vec<_>>(), [permission]);
        }
        for role in AccessRole::ALL {
            assert_eq!(AccessRole::of_name(role.name()), Some(role));
        }
        assert_eq!((Permission::of_scope("threads:READ"), AccessRole::of_name("Admin")), (None, None));
    }

    #[test]
    fn scopes_only_narrow() {
        let scoped = AccessRole::Operator.restricted_to(&["threads:read", "tasks:write"]).unwrap();
        assert_eq!(scoped, Permissions::of(&[Permission::ReadThreads, Permission::SendTasks]));
        assert_eq!(AccessRole::Viewer.restricted_to(&[]), Ok(Permissions::NONE));
        let beyond = AccessRole::Viewer.restricted_to(&["threads:read", "threads:write"]).unwrap_err();
        assert_eq!(beyond.to_string(), "the role viewer does not have the scope threads:write");
        let unknown = AccessRole::Admin.restricted_to(&["threads:*"]).unwrap_err();
        assert!(
            unknown.to_string().starts_with(r#"there is no scope "threads:*"; there are threads:read, "#)
        );
        assert_eq!(Permissions::of_scopes(["openid", "threads:read", ""]).iter().count(), 1);
    }
}
