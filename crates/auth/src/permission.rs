//! Permissions, and the roles and scopes that grant them.

use std::fmt;

/// A permission. Its scope is its name in keys, tokens and settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum Permission {
    /// Read threads: history, batches, contexts, turns, events.
    ReadThreads,
    /// Open threads, send inputs, stop one's own turn.
    WriteThreads,
    /// Read agents, their queues and their failures.
    ReadAgents,
    /// Send tasks to agents.
    SendTasks,
    /// Pause and resume agents; edit, retry and drop waiting or failed tasks.
    OperateAgents,
    /// Create agents and change their settings.
    ConfigureAgents,
    /// Read the audit log.
    ReadAudit,
    /// Read dead letters with their payloads.
    ReadDeadLetters,
    /// Replay and drop rejected inputs.
    OperateDeadLetters,
    /// Make, rotate and revoke API keys.
    ManageKeys,
    /// Read reasoning sessions.
    ReadReasoning,
    /// Create reasoning sessions, and append, compress, undo and plan in them.
    WriteReasoning,
    /// Search the agent's facts that apply to a thread.
    ReadMemory,
    /// Let an agent remember, correct and forget facts that apply to a thread.
    WriteMemory,
    /// Read incidents, which concern the installation and not a tenant.
    ReadFleet,
    /// Acknowledge incidents of the installation, and rotate the keys with which it signs.
    OperateFleet,
    /// Erase threads and users, and read the receipts; in the default tenant also erase and reopen
    /// tenants.
    EraseData,
    /// Export all threads of the tenant.
    ExportData,
    /// Import threads into the tenant.
    ImportData,
}

impl Permission {
    /// The list of all permissions.
    pub const ALL: [Self; 19] = [
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
        Self::EraseData,
        Self::ExportData,
        Self::ImportData,
    ];

    /// Name as a scope.
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
            Self::EraseData => "data:erase",
            Self::ExportData => "data:export",
            Self::ImportData => "data:import",
        }
    }

    /// The permission of this scope.
    pub fn of_scope(scope: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|permission| permission.scope() == scope)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Permissions(u32);

impl Permissions {
    /// The empty set.
    pub const NONE: Self = Self(0);

    /// A set of these permissions.
    pub const fn of(permissions: &[Permission]) -> Self {
        let mut bits = 0;
        let mut at = 0;
        while at < permissions.len() {
            bits |= 1 << permissions[at] as u8;
            at += 1;
        }
        Self(bits)
    }

    /// The permissions of these scopes. An unknown scope, such as `openid` or one of a newer
    /// version, grants nothing.
    pub fn of_scopes<'a>(scopes: impl IntoIterator<Item = &'a str>) -> Self {
        let known = scopes.into_iter().filter_map(Permission::of_scope);
        known.fold(Self::NONE, |set, permission| Self(set.0 | 1 << permission as u8))
    }

    /// True if the set has the permission.
    pub const fn has(self, permission: Permission) -> bool {
        self.0 & (1 << permission as u8) != 0
    }

    /// The intersection of both sets.
    #[must_use]
    pub const fn and(self, other: Self) -> Self {
        Self(self.0 & other.0)
    }

    pub fn iter(self) -> impl Iterator<Item = Permission> {
        Permission::ALL.into_iter().filter(move |permission| self.has(*permission))
    }
}

/// Formats the set as a list of its scopes.
impl fmt::Debug for Permissions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(Permission::scope)).finish()
    }
}

/// The role of a credential. Scopes can only narrow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum AccessRole {
    /// Reads threads and agents.
    Viewer,
    /// Also writes threads, sends tasks, operates agents and reads the audit log.
    Operator,
    /// Has all permissions.
    Admin,
}

/// A scope that a credential cannot have.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidScope {
    /// No permission has this scope.
    #[error("there is no scope {0:?}; there are {all}", all = Permission::ALL.map(Permission::scope).join(", "))]
    Unknown(String),
    /// The role lacks this permission, and scopes only narrow a role.
    #[error("the role {role} does not have the scope {scope}", role = .role.name(), scope = .permission.scope())]
    BeyondRole {
        /// The credential's role.
        role: AccessRole,
        /// The missing permission.
        permission: Permission,
    },
}

impl AccessRole {
    /// All roles, the lowest first.
    pub const ALL: [Self; 3] = [Self::Viewer, Self::Operator, Self::Admin];

    /// Name in keys, tokens and settings.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Viewer => "viewer",
            Self::Operator => "operator",
            Self::Admin => "admin",
        }
    }

    /// The role with this name.
    pub fn of_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.name() == name)
    }

    /// All permissions of the role.
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

    /// The permissions of a new credential with these scopes. An empty list grants nothing.
    ///
    /// # Errors
    /// A scope does not exist, or the role does not have it.
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
