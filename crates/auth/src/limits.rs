//! Limits of a tenant: requests per second, and concurrent streams.
//!
//! Entry type: [`TenantRateLimiter`]. Each gateway counts separately, so with several gateways a
//! tenant has the limit on each. If a tenant is forgotten, only its counts are lost.

use std::collections::BTreeMap;

use model::Timestamp;

use crate::TenantName;

/// Maximum number of tracked tenants.
const MOST_TENANTS: usize = 10_000;
/// `Retry-After` for too many requests, in s: after this time even the slowest rate allows one.
const RETRY_REQUEST_S: u32 = 1;
/// `Retry-After` for too many streams, in s. It is a guess, because the end of a stream cannot be
/// predicted.
const RETRY_STREAM_S: u32 = 5;
/// A bucket counts in thousandths, so that the inflow of a millisecond is a whole number.
const PARTS: u64 = 1000;

/// Maximum time in ms by which requests may overtake each other: a request may have read the clock
/// earlier and still arrive after another one.
const OVERTAKEN_MS: i64 = 1_000;

/// A rate of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    per_second: u32,
    burst: u32,
}

/// The rate would allow no requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("a rate needs at least 1 a second and a burst of at least 1")]
pub struct InvalidRate;

/// A token bucket, which holds one burst and refills at the rate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TokenBucket {
    rate: Rate,
    /// Number of available requests, in thousandths.
    level: u64,
    at: Timestamp,
}

/// Limits of every tenant; `None` means unlimited.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct TenantLimits {
    /// Rate of read requests.
    pub reads: Option<Rate>,
    /// Rate of inputs, tasks and other changes.
    pub writes: Option<Rate>,
    /// Maximum number of concurrent event streams.
    pub streams: Option<u32>,
}

/// The class of a request, which decides its limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RequestClass {
    /// A request that changes nothing.
    Read,
    /// An input, a task or another change.
    Write,
}

/// The exceeded limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// The limit [`TenantLimits::reads`].
    Reads,
    /// The limit [`TenantLimits::writes`].
    Writes,
    /// The limit [`TenantLimits::streams`].
    Streams,
}

/// A request beyond a limit (429).
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("too many {}; retry after {retry_after_s} s", .what.name())]
pub struct LimitExceeded {
    pub what: Limit,
    /// `Retry-After` in s, at least 1. The same request passes after that time if the tenant sends
    /// no other request in between. For streams it is an estimate.
    pub retry_after_s: u32,
}

/// An open stream, which counts until it is [released](TenantRateLimiter::release).
#[derive(Debug, PartialEq, Eq)]
#[must_use = "the stream counts until it is released"]
pub struct StreamPermit {
    tenant: TenantName,
    /// Identifies one period of tracking a tenant. If the tenant was forgotten after that,
    /// releasing the stream changes no count.
    born: u64,
}

/// Usage of at most 10,000 tenants. If there are more, the tenant that has been idle longest is
/// forgotten. One with open streams is forgotten only if all tenants have open streams.
#[derive(Debug)]
pub struct TenantRateLimiter {
    limits: TenantLimits,
    known: BTreeMap<TenantName, TenantUsage>,
    /// Ordered by whether streams are open, then by the last use.
    idle: BTreeMap<(bool, u64), TenantName>,
    /// Counter of uses. It is used instead of a time, because clocks may go back.
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
    /// Name in messages and labels.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Reads => "reads",
            Self::Writes => "writes",
            Self::Streams => "streams",
        }
    }
}

impl Rate {
    /// A rate of `per_second` requests per second, with a burst of `burst` requests after a pause.
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
    /// The rate at which streams may be opened: the rate of reads, with a burst increased by the
    /// maximum number of open streams.
    fn opens(self) -> Option<Rate> {
        let (reads, streams) = (self.reads?, self.streams?);
        Some(Rate { burst: reads.burst.saturating_add(streams), ..reads })
    }
}

impl TokenBucket {
    /// A full bucket.
    pub fn new(rate: Rate, now: Timestamp) -> Self {
        Self { rate, level: rate.full(), at: now }
    }

    /// Takes one request and returns true. If less than one is left, takes nothing and returns
    /// false.
    pub fn take(&mut self, now: Timestamp) -> bool {
        let passed_ms = now.since_ms(self.at);
        let brought = u64::try_from(passed_ms).unwrap_or(0).saturating_mul(self.rate.per_second.into());
        self.level = self.level.saturating_add(brought).min(self.rate.full());
        // If the clock goes back, nothing is added, and time continues from its new value. But a
        // request that was overtaken has also read the clock earlier. It must not reset the time,
        // because the same period would then count twice.
        if passed_ms > 0 || self.at.since_ms(now) > OVERTAKEN_MS {
            self.at = now;
        }
        let left = self.level.checked_sub(PARTS);
        self.level = left.unwrap_or(self.level);
        left.is_some()
    }
}

impl TenantRateLimiter {
    /// Creates a limiter without any usage.
    pub fn new(limits: TenantLimits) -> Self {
        Self { limits, known: BTreeMap::new(), idle: BTreeMap::new(), uses: 0, most: MOST_TENANTS }
    }

    /// Admits one request of a tenant.
    ///
    /// # Errors
    /// The limit is exceeded. The refused request does not count.
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

    /// Counts a stream that a tenant opens without another request. It uses a separate bucket, so
    /// that all clients of a gateway that failed can reconnect at once: an `EventSource` that is
    /// refused does not retry. A client that keeps opening and closing streams is limited to the
    /// rate of reads.
    ///
    /// # Errors
    /// Too many streams were opened in a short time.
    pub fn count_opening(&mut self, tenant: &TenantName, now: Timestamp) -> Result<(), LimitExceeded> {
        match self.usage(tenant, now).opened.as_mut().is_none_or(|bucket| bucket.take(now)) {
            true => Ok(()),
            false => Err(LimitExceeded { what: Limit::Streams, retry_after_s: RETRY_REQUEST_S }),
        }
    }

    /// Reserves a place for a tenant's stream.
    ///
    /// # Errors
    /// Too many streams are open.
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

    /// Releases the place of a stream that has ended.
    #[allow(clippy::needless_pass_by_value, reason = "a permit is given back once")]
    pub fn release(&mut self, permit: StreamPermit) {
        if self.known.get(&permit.tenant).is_some_and(|usage| usage.born == permit.born) {
            self.count(&permit.tenant, |streams| streams.saturating_sub(1));
        }
    }

    /// The tenant's usage, marked as just used.
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
