//! How much a tenant may request: requests in a second, and streams at a time.
//!
//! Entry: [`TenantRateLimiter`]. Each gateway counts for itself: with several, a tenant has the limit on each of them. What a tenant
//! that was forgotten loses is only what was counted against it.

use std::collections::BTreeMap;

use model::Timestamp;

use crate::TenantName;

/// Most tenants that are remembered.
const MOST_TENANTS: usize = 10_000;
/// When to come back after too many requests, in s: the slowest rate brings one by then.
const RETRY_REQUEST_S: u32 = 1;
/// When to come back after too many streams, in s. When one of them ends is not known.
const RETRY_STREAM_S: u32 = 5;
/// A bucket holds thousandths, so that what flows in within a millisecond is a whole number.
const PARTS: u64 = 1000;

/// By how much a request may have read the clock before another and come after it, in ms.
const OVERTAKEN_MS: i64 = 1_000;

/// A rate of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    per_second: u32,
    burst: u32,
}

/// A rate by which nothing would ever pass.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rate needs at least 1 a second and a burst of at least 1")]
pub struct InvalidRate;

/// A token bucket: holds as much as a burst, and fills with the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    /// In parts of a request.
    level: u64,
    at: Timestamp,
}

/// What every tenant may request. `None` is no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantLimits {
    /// Requests that change nothing.
    pub reads: Option<Rate>,
    /// Inputs, tasks and acts.
    pub writes: Option<Rate>,
    /// Event streams that are open at a time.
    pub streams: Option<u32>,
}

/// What a request costs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestClass {
    /// It changes nothing.
    Read,
    /// An input, a task, an act.
    Write,
}

/// What there was too much of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// [`TenantLimits::reads`].
    Reads,
    /// [`TenantLimits::writes`].
    Writes,
    /// [`TenantLimits::streams`].
    Streams,
}

/// A request that is too much (429).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many {}; retry after {retry_after_s} s", .what.name())]
pub struct LimitExceeded {
    /// Of what.
    pub what: Limit,
    /// For `Retry-After`, in s, from 1. After that time the same request passes, if the tenant asks for nothing in between;
    /// for streams it is a guess.
    pub retry_after_s: u32,
}

/// A stream that is open. It counts until it is [released](TenantRateLimiter::release).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the stream counts until it is released"]
pub struct StreamPermit {
    tenant: TenantName,
    /// Which time the tenant was remembered: a count that was forgotten is not given back.
    born: u64,
}

/// What tenants have used, for at most 10,000 of them. When there are more, the one is forgotten that has been idle the longest;
/// one that has streams open only if all have.
#[derive(Debug)]
pub struct TenantRateLimiter {
    limits: TenantLimits,
    known: BTreeMap<TenantName, TenantUsage>,
    /// By whether streams are open, then by the last use.
    idle: BTreeMap<(bool, u64), TenantName>,
    /// Counts uses: clocks may go back.
    uses: u64,
    most: usize,
}

#[derive(Debug)]
struct TenantUsage {
    reads: Option<TokenBucket>,
    writes: Option<TokenBucket>,
    streams: u32,
    opened: Option<TokenBucket>,
    born: u64,
    used: u64,
}

impl Limit {
    /// Its name in messages and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Streams => "streams",
        }
    }
}

impl Rate {
    /// So many in a second, and so many at once after a pause.
    ///
    /// # Errors
    /// One of them is 0.
    pub fn new(per_second: u32, burst: u32) -> Result<Self, InvalidRate> {
        if per_second == 0 || burst == 0 { Err(InvalidRate) } else { Ok(Self { per_second, burst }) }
    }

    fn full(self) -> u64 {
        u64::from(self.burst) * PARTS
    }
}

impl TenantLimits {
    /// How streams may be opened: beyond a burst of reads as many at once as may be open.
    fn opens(self) -> Option<Rate> {
        let (reads, streams) = (self.reads?, self.streams?);
        Some(Rate { burst: reads.burst.saturating_add(streams), ..reads })
    }
}

impl TokenBucket {
    /// A full one.
    pub fn new(rate: Rate, now: Timestamp) -> Self {
        Self { rate, level: rate.full(), at: now }
    }

    /// Takes a request out; false when there is less than one, and nothing was taken.
    pub fn take(&mut self, now: Timestamp) -> bool {
        let passed_ms = now.since_ms(self.at);
        let brought = u64::try_from(passed_ms).unwrap_or(0).saturating_mul(self.rate.per_second.into());
        self.level = self.level.saturating_add(brought).min(self.rate.full());
        // A clock that goes back brings nothing, and the time goes on from there. A request that has read the clock before another and comes after it
        // must not: the same time would count twice.
        if passed_ms > 0 || self.at.since_ms(now) > OVERTAKEN_MS {
            self.at = now;
        }
        let left = self.level.checked_sub(PARTS);
        self.level = left.unwrap_or(self.level);
        left.is_some()
    }
}

impl TenantRateLimiter {
    /// Nothing used yet.
    pub fn new(limits: TenantLimits) -> Self {
        Self { limits, known: BTreeMap::new(), idle: BTreeMap::new(), uses: 0, most: MOST_TENANTS }
    }

    /// Lets one request of a tenant pass.
    ///
    /// # Errors
    /// It is too much. What was refused does not count.
    pub fn admit(
        &mut self,
        tenant: &TenantName,
        class: RequestClass,
        now: Timestamp,
    ) -> Result<(), LimitExceeded> {
        let usage = self.usage(tenant, now);
        let (bucket, what) = match class {
            RequestClass::Read => (&mut usage.reads, Limit::Reads),
            RequestClass::Write => (&mut usage.writes, Limit::Writes),
        };
        match bucket.as_mut().is_none_or(|bucket| bucket.take(now)) {
            true => Ok(()),
            false => Err(LimitExceeded { what, retry_after_s: RETRY_REQUEST_S }),
        }
    }

    /// Counts a stream that a tenant opens with no other request. It costs no request, so that the clients of a gateway that has gone can all
    /// come back at once: an `EventSource` that is refused does not try again. Who opens and leaves streams all the time gets as many more as
    /// the rate of reads brings.
    ///
    /// # Errors
    /// Too many were opened in a short time.
    pub fn count_opening(&mut self, tenant: &TenantName, now: Timestamp) -> Result<(), LimitExceeded> {
        match self.usage(tenant, now).opened.as_mut().is_none_or(|bucket| bucket.take(now)) {
            true => Ok(()),
            false => Err(LimitExceeded { what: Limit::Streams, retry_after_s: RETRY_REQUEST_S }),
        }
    }

    /// Gives a tenant's stream a place.
    ///
    /// # Errors
    /// Too many are open.
    pub fn open_stream(
        &mut self,
        tenant: &TenantName,
        now: Timestamp,
    ) -> Result<StreamPermit, LimitExceeded> {
        let most = self.limits.streams.unwrap_or(u32::MAX);
        let usage = self.usage(tenant, now);
        if usage.streams >= most {
            return Err(LimitExceeded { what: Limit::Streams, retry_after_s: RETRY_STREAM_S });
        }
        let born = usage.born;
        self.count(tenant, |streams| streams + 1);
        Ok(StreamPermit { tenant: tenant.clone(), born })
    }

    /// Takes back a stream that has ended.
    #[allow(clippy::needless_pass_by_value, reason = "a permit is given back once")]
    pub fn release(&mut self, permit: StreamPermit) {
        if self.known.get(&permit.tenant).is_some_and(|usage| usage.born == permit.born) {
            self.count(&permit.tenant, |streams| streams.saturating_sub(1));
        }
    }

    /// What the tenant has used, which is in use now.
    fn usage(&mut self, tenant: &TenantName, now: Timestamp) -> &mut TenantUsage {
        if !self.known.contains_key(tenant) && self.known.len() >= self.most {
            self.forget_one();
        }
        self.uses += 1;
        let (limits, used) = (self.limits, self.uses);
        let usage = self.known.entry(tenant.clone()).or_insert_with(|| TenantUsage {
            reads: limits.reads.map(|rate| TokenBucket::new(rate, now)),
            writes: limits.writes.map(|rate| TokenBucket::new(rate, now)),
            streams: 0,
            opened: limits.opens().map(|rate| TokenBucket::new(rate, now)),
            born: used,
            used,
        });
        let name = self.idle.remove(&usage.place()).unwrap_or_else(|| tenant.clone());
        usage.used = used;
        self.idle.insert(usage.place(), name);
        usage
    }

    fn count(&mut self, tenant: &TenantName, changed: impl FnOnce(u32) -> u32) {
        let Some(usage) = self.known.get_mut(tenant) else { return };
        let name = self.idle.remove(&usage.place()).unwrap_or_else(|| tenant.clone());
        usage.streams = changed(usage.streams);
        self.idle.insert(usage.place(), name);
    }

    fn forget_one(&mut self) {
        if let Some((_, tenant)) = self.idle.pop_first() {
            self.known.remove(&tenant);
        }
    }
}

impl TenantUsage {
    fn place(&self) -> (bool, u64) {
        (self.streams > 0, self.used)
    }
}

#[cfg(test)]
mod tests;
