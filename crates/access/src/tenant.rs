//! The name of a tenant, as credentials carry it.

use std::fmt;

/// Longest name, in bytes.
const LONGEST: usize = 32;

/// A tenant: the default one, or one that has a name of `[a-z0-9][a-z0-9-]{0,31}`.
#[derive(Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct TenantName(Option<String>);

/// A text that names no tenant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a tenant's name has 1 to 32 characters a-z, 0-9 and '-', and does not begin with '-'")]
pub struct InvalidTenantName;

impl TenantName {
    /// Checks the alphabet and the length.
    ///
    /// # Errors
    /// Anything but `[a-z0-9][a-z0-9-]{0,31}`.
    pub fn parse(text: &str) -> Result<Self, InvalidTenantName> {
        if is_name(text) { Ok(Self(Some(text.to_owned()))) } else { Err(InvalidTenantName) }
    }

    /// The name; nothing for the default tenant.
    pub fn as_str(&self) -> Option<&str> {
        self.0.as_deref()
    }
}

fn is_name(text: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    text.len() <= LONGEST
        && text.bytes().next().is_some_and(plain)
        && text.bytes().all(|byte| plain(byte) || byte == b'-')
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_is_narrow() {
        for good in ["a", "0", "acme", "acme-2", "a-", &"a".repeat(32)] {
            assert_eq!(TenantName::parse(good).unwrap().as_str(), Some(good));
        }
        for bad in ["", "-a", "A", "a_b", "a.b", "a b", "a\n", "ä", "a/b", &"a".repeat(33)] {
            assert_eq!(TenantName::parse(bad), Err(InvalidTenantName), "{bad:?}");
        }
        assert_eq!(TenantName::default().as_str(), None);
    }
}
