//! Backoff of an agent: exponential with equal jitter, never below the base, never above the cap.

/// Delay after the `failures`th failure in a row, ms.
///
/// c = min(cap, base·2ⁿ), delay = c/2 + U(0, c/2) (equal jitter: Marc Brooker, "Exponential Backoff
/// and Jitter", AWS Architecture Blog 2015). With n ≥ 1 the lower bound c/2 is never below the
/// base. The jitter applies at the cap too, so that agents that have failed for a long time do not
/// all return at once.
///
/// `random` is uniform over all of `u64`. A count of 0 counts as 1. A cap below the base counts as
/// the base.
pub fn delay_ms(failures: u32, base_ms: i64, cap_ms: i64, random: u64) -> i64 {
    let base = base_ms.max(1);
    let ceiling = ceiling_ms(failures.max(1), base, cap_ms.max(base));
    let half = ceiling / 2;
    // Uniform over 0..=ceiling - half: the high half of the product (Lemire 2019).
    let spread = (u128::from(random) * (u128::from((ceiling - half).unsigned_abs()) + 1)) >> 64;
    (half + spread as i64).max(base)
}

/// min(cap, base·2ⁿ) without overflow.
fn ceiling_ms(n: u32, base_ms: i64, cap_ms: i64) -> i64 {
    let doublings = n.min(62);
    match base_ms.leading_zeros() > doublings {
        true => (base_ms << doublings).min(cap_ms),
        false => cap_ms,
    }
}

#[cfg(test)]
mod tests;
