//! The authenticated principal: the result of checking a credential.

use model::{ThreadId, Timestamp};

use crate::{AccessRole, Permission, Permissions, PresentedKey, TenantName};

/// The principal for which a request is served. Only the check of a credential creates one.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Principal {
    pub(crate) tenant: TenantName,
    pub(crate) name: Box<str>,
    pub(crate) permissions: Permissions,
    pub(crate) thread: Option<ThreadId>,
    pub(crate) expires_at: Option<Timestamp>,
    pub(crate) source: CredentialSource,
}

/// The kind of credential that was presented.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CredentialSource {
    /// An API key.
    Key(PresentedKey),
    /// A signed token of an identity provider.
    Jwt,
    /// A ticket for one thread's stream.
    Ticket {
        /// The API key with which it was requested, if any. If the key is revoked, or this secret
        /// of it ends, its tickets become invalid.
        key: Option<PresentedKey>,
    },
    /// No credential: authentication is disabled.
    Insecure,
}

impl Principal {
    /// The principal if authentication is disabled: `local`, with all permissions in the default
    /// tenant.
    pub fn local() -> Self {
        Self {
            tenant: TenantName::default(),
            name: "local".into(),
            permissions: AccessRole::Admin.permissions(),
            thread: None,
            expires_at: None,
            source: CredentialSource::Insecure,
        }
    }

    /// The tenant whose data may be read or changed.
    pub fn tenant(&self) -> &TenantName {
        &self.tenant
    }

    /// The actor in the audit log: `key:<id>`, `jwt:<subject>` or `local`, at most 128 visible
    /// ASCII characters without a slash. A ticket has the name of its requester.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// All permissions; the empty set for a ticket.
    pub fn permissions(&self) -> Permissions {
        self.permissions
    }

    /// The only thread that a ticket can be used to subscribe to; `None` for other credentials.
    pub fn thread(&self) -> Option<&ThreadId> {
        self.thread.as_ref()
    }

    /// When the credential expires.
    pub fn expires_at(&self) -> Option<Timestamp> {
        self.expires_at
    }

    /// The kind of credential.
    pub fn source(&self) -> CredentialSource {
        self.source
    }

    /// The API key behind the credential, directly or through a ticket.
    pub fn key(&self) -> Option<PresentedKey> {
        match self.source {
            CredentialSource::Key(key) => Some(key),
            CredentialSource::Ticket { key } => key,
            CredentialSource::Jwt | CredentialSource::Insecure => None,
        }
    }

    /// True if the permission is granted. A ticket has none: see [`Principal::can_stream`].
    pub fn has_permission(&self, permission: Permission) -> bool {
        self.permissions.has(permission)
    }

    /// True if the principal may subscribe to the events of this thread. A ticket permits nothing
    /// else.
    pub fn can_stream(&self, thread: &ThreadId) -> bool {
        match &self.thread {
            Some(only) => only == thread,
            None => self.has_permission(Permission::ReadThreads),
        }
    }

    /// True if the credential has expired. Call it repeatedly while a stream is open.
    pub fn has_expired(&self, now: Timestamp) -> bool {
        self.expires_at.is_some_and(|end| end <= now)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn local_may_everything() {
        let local = Principal::local();
        assert!(Permission::ALL.into_iter().all(|permission| local.has_permission(permission)));
        assert!(local.can_stream(&ThreadId::parse("t").unwrap()));
        assert_eq!((local.name(), local.tenant().as_str(), local.key()), ("local", None, None));
        assert!(!local.has_expired(Timestamp(i64::MAX)));
    }

    #[test]
    fn a_principal_of_one_thread_follows_no_other() {
        let thread = ThreadId::parse("t").unwrap();
        let only =
            Principal { permissions: Permissions::NONE, thread: Some(thread.clone()), ..Principal::local() };
        assert!(only.can_stream(&thread) && !only.can_stream(&ThreadId::parse("T").unwrap()));
        assert!(!only.has_permission(Permission::ReadThreads));
    }

    #[test]
    fn the_end_is_not_part_of_the_time() {
        let ends = Principal { expires_at: Some(Timestamp(5)), ..Principal::local() };
        assert!(!ends.has_expired(Timestamp(4)) && ends.has_expired(Timestamp(5)));
    }
}
