//! The tenant of a credential.

use std::fmt;

use model::{InvalidId, Tenant};

/// The tenant of a credential: the default one, or a named one.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantName(Option<Tenant>);

impl TenantName {
    /// Parses the name of a tenant.
    ///
    /// # Errors
    /// The text is not the name of a [`Tenant`].
    pub fn parse(text: &str) -> Result<Self, InvalidId> {
        Tenant::parse(text).map(|tenant| Self(Some(tenant)))
    }

    /// The tenant; `None` for the default one.
    pub fn tenant(&self) -> Option<&Tenant> {
        self.0.as_ref()
    }

    /// The name; `None` for the default tenant.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_ref().map(Tenant::as_str)
    }
}

impl From<Option<Tenant>> for TenantName {
    fn from(tenant: Option<Tenant>) -> Self {
        Self(tenant)
    }
}

impl fmt::Display for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str().unwrap_or("(default)"))
    }
}

impl fmt::Debug for TenantName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}
