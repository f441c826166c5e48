use proptest::prelude::*;

use super::*;

const BASE: i64 = 60_000;
const CAP: i64 = 86_400_000;

/// SplitMix64 (Steele, Lea, Flood 2014): a fixed seed gives fixed draws.
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }
}

fn ceiling(n: u32) -> i64 {
    BASE.checked_shl(n.min(20)).unwrap_or(CAP).min(CAP)
}

/// Kolmogorov–Smirnov: the largest distance between the empirical distribution and U(0, 1), times
/// √n.
fn distance_to_uniform(mut samples: Vec<f64>) -> f64 {
    samples.sort_by(f64::total_cmp);
    let count = samples.len() as f64;
    let distance = samples.iter().enumerate().map(|(i, x)| {
        let (below, above) = (i as f64 / count, (i + 1) as f64 / count);
        (x - below).abs().max((above - x).abs())
    });
    distance.fold(0.0, f64::max) * count.sqrt()
}

/// The distance that uniform samples exceed once in ten thousand: √(ln(2/p)/2) with p = 10⁻⁴.
const KS_LIMIT: f64 = 2.226;

#[test]
fn the_bounds_of_the_requirements() {
    assert_eq!(delay_ms(1, BASE, CAP, 0), 60_000);
    assert_eq!(delay_ms(1, BASE, CAP, u64::MAX), 120_000);
    for n in [11, 12, 1_000, u32::MAX] {
        assert_eq!(delay_ms(n, BASE, CAP, 0), 43_200_000, "{n}");
        assert_eq!(delay_ms(n, BASE, CAP, u64::MAX), 86_400_000, "{n}");
    }
}

proptest! {
    #[test]
    fn never_below_the_base_never_above_the_cap(n in 0..=(1_u32 << 31), random: u64) {
        let delay = delay_ms(n, BASE, CAP, random);
        prop_assert!((BASE..=CAP).contains(&delay), "{delay}");
        let ceiling = ceiling(n.max(1));
        prop_assert!(delay >= ceiling / 2 && delay <= ceiling, "{delay} of {ceiling}");
    }

    #[test]
    fn whatever_is_configured_nothing_overflows(n: u32, base: i64, cap: i64, random: u64) {
        let delay = delay_ms(n, base, cap, random);
        prop_assert!(delay >= base.max(1) && delay <= cap.max(base).max(1));
    }

    #[test]
    fn more_failures_never_lower_the_ceiling(n in 0_u32..u32::MAX) {
        prop_assert!(delay_ms(n, BASE, CAP, u64::MAX) <= delay_ms(n + 1, BASE, CAP, u64::MAX));
        prop_assert!(delay_ms(n, BASE, CAP, 0) <= delay_ms(n + 1, BASE, CAP, 0));
    }
}

#[test]
fn the_jitter_is_uniform_at_every_count() {
    for n in (1..=14).chain([1_000, u32::MAX]) {
        let mut random = Random(u64::from(n));
        let half = ceiling(n) as f64 / 2.0;
        let samples =
            (0..10_000).map(|_| (delay_ms(n, BASE, CAP, random.next()) as f64 - half) / half).collect();
        let distance = distance_to_uniform(samples);
        assert!(distance < KS_LIMIT, "n = {n}: {distance}");
    }
}

/// The test above must be able to fail: ten percent of jitter around three quarters is a different
/// distribution.
#[test]
fn a_tenth_of_jitter_is_distinguished_from_a_half() {
    let mut random = Random(1);
    let unit = |bits: u64| (bits >> 11) as f64 / (1_u64 << 53) as f64;
    let samples = (0..10_000).map(|_| 0.5 + 0.2 * (unit(random.next()) - 0.5)).collect();
    assert!(distance_to_uniform(samples) > KS_LIMIT);
}

#[test]
fn agents_that_fail_together_do_not_come_back_together() {
    const AGENTS: usize = 20_000;
    let mut random = Random(42);
    let mut by_second = std::collections::BTreeMap::<i64, usize>::new();
    let mut due: Vec<i64> = vec![0; AGENTS];
    for n in 1..=12 {
        by_second.clear();
        for due in &mut due {
            *due += delay_ms(n, BASE, CAP, random.next());
            *by_second.entry(*due / 1_000).or_default() += 1;
        }
        let peak = by_second.values().max().copied().unwrap_or_default();
        assert!(peak < AGENTS * 3 / 100, "failure {n}: {peak} of {AGENTS} in one second");
    }
}

#[test]
fn the_draws_of_neighbours_are_unrelated() {
    let mut random = Random(7);
    let half = ceiling(5) as f64 / 2.0;
    let draws: Vec<f64> =
        (0..20_000).map(|_| (delay_ms(5, BASE, CAP, random.next()) as f64 - half) / half - 0.5).collect();
    let covariance: f64 = draws.windows(2).map(|pair| pair[0] * pair[1]).sum();
    let variance: f64 = draws.iter().map(|draw| draw * draw).sum();
    assert!((covariance / variance).abs() < 0.05, "{}", covariance / variance);
}

#[test]
fn the_ceiling_is_exact_up_to_the_largest_number() {
    assert_eq!(ceiling_ms(62, 1, i64::MAX), 1 << 62);
    assert_eq!(ceiling_ms(61, 2, i64::MAX), 1 << 62);
    assert_eq!(ceiling_ms(62, 2, i64::MAX), i64::MAX, "2^63 does not fit");
    assert_eq!(ceiling_ms(1, i64::MAX / 2 + 1, i64::MAX), i64::MAX);
}
