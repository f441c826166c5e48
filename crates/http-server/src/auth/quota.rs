//! Limits of tenants on this gateway: request rates and open streams.

use std::sync::{Arc, Mutex, PoisonError};

use auth::{LimitExceeded, Permission, Principal, RequestClass, StreamPermit, TenantName, TenantRateLimiter};
use model::Timestamp;

use crate::error::{ErrorCode, Problem};

/// Counts what tenants use of this gateway. Cheap to clone.
#[derive(Debug, Clone)]
pub struct TenantLimiter {
    tenants: Option<Arc<Mutex<TenantRateLimiter>>>,
}

/// A stream that counts while this value lives.
#[derive(Debug)]
pub struct TenantStreamPermit {
    tenants: Arc<Mutex<TenantRateLimiter>>,
    permit: Option<StreamPermit>,
}

impl Drop for TenantStreamPermit {
    fn drop(&mut self) {
        if let Some(permit) = self.permit.take() {
            self.tenants.lock().unwrap_or_else(PoisonError::into_inner).release(permit);
        }
    }
}

impl TenantLimiter {
    pub fn new(limits: auth::TenantLimits, is_counted: bool) -> Self {
        Self { tenants: is_counted.then(|| Arc::new(Mutex::new(TenantRateLimiter::new(limits)))) }
    }

    pub fn admit(&self, tenant: &TenantName, class: RequestClass, now: Timestamp) -> Result<(), Problem> {
        Ok(self.count(tenant, class, now)?)
    }

    /// Counts a request, for callers that report a refusal in another form.
    pub(crate) fn count(
        &self,
        tenant: &TenantName,
        class: RequestClass,
        now: Timestamp,
    ) -> Result<(), LimitExceeded> {
        let Some(tenants) = &self.tenants else { return Ok(()) };
        tenants.lock().unwrap_or_else(PoisonError::into_inner).admit(tenant, class, now)
    }

    pub fn count_opening(&self, principal: &Principal, now: Timestamp) -> Result<(), Problem> {
        let Some(tenants) = &self.tenants else { return Ok(()) };
        Ok(tenants.lock().unwrap_or_else(PoisonError::into_inner).count_opening(principal.tenant(), now)?)
    }

    pub fn open_stream(
        &self,
        principal: &Principal,
        now: Timestamp,
    ) -> Result<Option<TenantStreamPermit>, Problem> {
        let Some(tenants) = &self.tenants else { return Ok(None) };
        let permit =
            tenants.lock().unwrap_or_else(PoisonError::into_inner).open_stream(principal.tenant(), now)?;
        Ok(Some(TenantStreamPermit { tenants: Arc::clone(tenants), permit: Some(permit) }))
    }
}

impl From<LimitExceeded> for Problem {
    fn from(over: LimitExceeded) -> Self {
        let detail = format!("the tenant uses as many {} here as it may", over.what.name());
        Self::new(ErrorCode::RateLimited, detail).retry_after(over.retry_after_s)
    }
}

/// The class in which requests that need this permission are counted.
pub fn class(scope: Permission) -> RequestClass {
    match scope {
        Permission::ReadThreads
        | Permission::ReadAgents
        | Permission::ReadAudit
        | Permission::ReadDeadLetters
        | Permission::ReadReasoning
        | Permission::ReadMemory
        | Permission::ReadFleet
        | Permission::ExportData => RequestClass::Read,
        Permission::WriteThreads
        | Permission::SendTasks
        | Permission::OperateAgents
        | Permission::ConfigureAgents
        | Permission::ManageKeys
        | Permission::WriteReasoning
        | Permission::WriteMemory
        | Permission::OperateDeadLetters
        | Permission::OperateFleet
        | Permission::EraseData
        | Permission::ImportData => RequestClass::Write,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stream_counts_while_it_lives() {
        let limits = auth::TenantLimits { streams: Some(1), ..auth::TenantLimits::default() };
        let (limiter, now) = (TenantLimiter::new(limits, true), Timestamp(0));
        let first = limiter.open_stream(&Principal::local(), now).unwrap();
        let refused = limiter.open_stream(&Principal::local(), now).unwrap_err();
        assert_eq!(refused.code(), ErrorCode::RateLimited);
        drop(first);
        assert!(limiter.open_stream(&Principal::local(), now).unwrap().is_some());
    }
}
