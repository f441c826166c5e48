use proptest::prelude::*;

use super::*;

const START: Timestamp = Timestamp(1_800_000_000_000);

fn rate(per_second: u32, burst: u32) -> Rate {
    Rate::new(per_second, burst).unwrap()
}

fn tenant(name: &str) -> TenantName {
    TenantName::parse(name).unwrap()
}

fn tenants(most: usize, streams: u32) -> TenantRateLimiter {
    let limits = TenantLimits { reads: Some(rate(10, 2)), writes: Some(rate(1, 1)), streams: Some(streams) };
    TenantRateLimiter { most, ..TenantRateLimiter::new(limits) }
}

fn open_streams(tenants: &TenantRateLimiter) -> u32 {
    tenants.known.values().map(|usage| usage.streams).sum()
}

#[test]
fn a_bucket_gives_a_burst_and_then_the_rate() {
    let mut bucket = TokenBucket::new(rate(2, 3), START);
    let mut taken = |n: u32, now: Timestamp| (0..n).map(|_| bucket.take(now)).collect::<Vec<_>>();
    assert_eq!(taken(4, START), [true, true, true, false]);
    assert_eq!(taken(1, START.plus_ms(499)), [false]);
    assert_eq!(taken(2, START.plus_ms(500)), [true, false]);
    assert_eq!(taken(4, START.plus_ms(2000)), [true, true, true, false]);
    // After any pause, at most one burst passes.
    assert_eq!(taken(4, START.plus_ms(i64::MAX)), [true, true, true, false]);
    assert_eq!((Rate::new(0, 1), Rate::new(1, 0)), (Err(InvalidRate), Err(InvalidRate)));
}

#[test]
fn requests_that_overtake_each_other_bring_nothing() {
    let mut bucket = TokenBucket::new(rate(50, 200), START);
    let times = (0..20_000).map(|n| START.plus_ms(n / 10 - if n % 2 == 0 { 900 } else { 0 }));
    // Two seconds add a hundred requests.
    assert_eq!(times.filter(|now| bucket.take(*now)).count(), 200 + 99);
}

#[test]
fn a_clock_that_goes_back_harms_nothing() {
    let mut bucket = TokenBucket::new(rate(1, 1), START);
    assert!(bucket.take(START));
    let back = START.plus_ms(-3_600_000);
    assert!(!bucket.take(back));
    assert!(bucket.take(back.plus_ms(1000)));
    assert!(!bucket.take(Timestamp(i64::MIN)));
    assert!(bucket.take(Timestamp(i64::MAX)));
}

#[test]
fn tenants_and_classes_have_buckets_of_their_own() {
    let mut tenants = tenants(10, 1);
    let (a, b) = (tenant("a"), TenantName::default());
    assert_eq!(tenants.admit(&a, RequestClass::Write, START), Ok(()));
    let over = tenants.admit(&a, RequestClass::Write, START).unwrap_err();
    assert_eq!(over, LimitExceeded { what: Limit::Writes, retry_after_s: 1 });
    assert_eq!(over.to_string(), "too many writes; retry after 1 s");
    assert_eq!(tenants.admit(&a, RequestClass::Read, START), Ok(()));
    assert_eq!(tenants.admit(&b, RequestClass::Write, START), Ok(()));
    assert_eq!(tenants.admit(&a, RequestClass::Write, START.plus_ms(1000)), Ok(()));
    let mut free = TenantRateLimiter::new(TenantLimits::default());
    assert!((0..1000).all(|_| free.admit(&a, RequestClass::Read, START).is_ok()));
    let _open = free.open_stream(&a, START).unwrap();
}

#[test]
fn streams_count_until_they_are_released() {
    let mut tenants = tenants(10, 2);
    let a = tenant("a");
    let first = tenants.open_stream(&a, START).unwrap();
    let second = tenants.open_stream(&a, START).unwrap();
    let over = tenants.open_stream(&a, START.plus_ms(86_400_000)).unwrap_err();
    assert_eq!((over.what, over.retry_after_s), (Limit::Streams, 5));
    assert_eq!(open_streams(&tenants), 2);
    let other = tenants.open_stream(&tenant("b"), START).unwrap();
    tenants.release(first);
    let third = tenants.open_stream(&a, START).unwrap();
    assert!(tenants.open_stream(&a, START).is_err());
    for permit in [second, third, other] {
        tenants.release(permit);
    }
    assert_eq!(open_streams(&tenants), 0);
}

#[test]
fn streams_that_are_left_at_once_come_at_the_rate_of_reads() {
    let mut tenants = tenants(10, 5);
    let a = tenant("a");
    let opened = |tenants: &mut TenantRateLimiter, now: Timestamp| {
        (0..100).filter(|_| tenants.count_opening(&a, now).is_ok()).count()
    };
    // Five streams, the maximum, can reconnect at once, and the burst of two can be opened as well.
    assert_eq!(opened(&mut tenants, START), 5 + 2);
    assert_eq!(opened(&mut tenants, START.plus_ms(300)), 3);
    let over = tenants.count_opening(&a, START.plus_ms(300)).unwrap_err();
    assert_eq!((over.what, over.retry_after_s), (Limit::Streams, 1));
    // A stream that is opened by a request is counted with the request.
    assert!(tenants.open_stream(&a, START.plus_ms(300)).is_ok());
}

#[test]
fn the_one_idle_the_longest_is_forgotten() {
    let mut tenants = tenants(3, 1);
    let [a, b, c, d, e] = ["a", "b", "c", "d", "e"].map(tenant);
    let permit = tenants.open_stream(&a, START).unwrap();
    for name in [&b, &c] {
        tenants.admit(name, RequestClass::Write, START).unwrap();
    }
    assert!(tenants.admit(&b, RequestClass::Write, START).is_err());
    tenants.admit(&d, RequestClass::Write, START).unwrap();
    // Tenant c was forgotten, because it was used before b, and a has an open stream.
    assert_eq!(tenants.known.keys().collect::<Vec<_>>(), [&a, &b, &d]);
    assert!(tenants.open_stream(&a, START).is_err());
    tenants.admit(&c, RequestClass::Write, START).unwrap();
    assert_eq!(tenants.known.keys().collect::<Vec<_>>(), [&a, &c, &d]);

    // If all have open streams, even one of those is forgotten.
    let kept = [&c, &d].map(|name| tenants.open_stream(name, START).unwrap());
    let last = tenants.open_stream(&e, START).unwrap();
    assert_eq!(tenants.known.keys().collect::<Vec<_>>(), [&c, &d, &e]);
    // If a count was forgotten, its streams are not released from the new count of the same tenant.
    tenants.release(last);
    let again = tenants.open_stream(&a, START).unwrap();
    tenants.release(permit);
    assert_eq!(open_streams(&tenants), 3);
    tenants.release(again);
    kept.into_iter().for_each(|permit| tenants.release(permit));
    assert_eq!((open_streams(&tenants), tenants.known.len(), tenants.idle.len()), (0, 3, 3));
}

#[test]
fn ten_thousand_tenants_are_remembered() {
    let mut tenants =
        TenantRateLimiter::new(TenantLimits { reads: Some(rate(1, 1)), ..TenantLimits::default() });
    for i in 0..10_500 {
        tenants.admit(&tenant(&format!("t{i}")), RequestClass::Read, START).unwrap();
    }
    assert_eq!((tenants.known.len(), tenants.idle.len()), (10_000, 10_000));
    assert!(tenants.admit(&tenant("t10499"), RequestClass::Read, START).is_err());
    assert!(tenants.admit(&tenant("t0"), RequestClass::Read, START).is_ok());
}

proptest! {
    #[test]
    fn no_more_passes_than_burst_and_rate_and_one_after_a_second(
        per_second in 1_u32..50,
        burst in 1_u32..50,
        steps in prop::collection::vec((0_i64..500, 1_u32..50), 1..100),
    ) {
        let mut bucket = TokenBucket::new(rate(per_second, burst), START);
        let (mut now, mut passed) = (START, 0_i64);
        for (ms, n) in steps {
            now = now.plus_ms(ms);
            for _ in 0..n {
                passed += i64::from(bucket.take(now));
            }
            let most = i64::from(burst) * 1000 + now.since_ms(START) * i64::from(per_second);
            prop_assert!(passed * 1000 <= most);
            let (mut later, seconds) = (bucket, i64::from(RETRY_REQUEST_S));
            prop_assert!(later.take(now.plus_ms(seconds * 1000)));
        }
    }

    #[test]
    fn streams_never_pass_their_limit(ops in prop::collection::vec((0_u8..4, prop::bool::ANY), 1..200)) {
        // There are four names and room for two tenants. The counts of tracked tenants must stay
        // correct.
        let mut tenants = tenants(2, 3);
        let mut open: Vec<StreamPermit> = Vec::new();
        for (name, opens) in ops {
            let name = tenant(&format!("t{name}"));
            if opens {
                open.extend(tenants.open_stream(&name, START));
            } else if let Some(at) = open.iter().position(|permit| permit.tenant == name) {
                tenants.release(open.swap_remove(at));
            }
            for (name, usage) in &tenants.known {
                let held = open.iter().filter(|p| p.tenant == *name && p.born == usage.born).count();
                prop_assert!(usage.streams <= 3);
                prop_assert_eq!(usage.streams as usize, held);
            }
            prop_assert!(tenants.known.len() <= 2);
            prop_assert_eq!(tenants.known.len(), tenants.idle.len());
        }
    }
}
