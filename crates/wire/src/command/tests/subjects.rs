//! Subjects that do not go with what they carry.

use super::*;

#[test]
fn agents_are_read_in_their_own_partition_only() {
    let payload = || tasking(|_| {}).into();
    let of = |p, subject: &str, count| {
        let limits = DecodeLimits { partitions: PartitionCount::new(count).unwrap(), ..limits() };
        decode_entry(PartitionId(p), subject, None, &payload(), &limits).map_err(|refusal| refusal.code)
    };
    let right = Bucket::of_key("a1").partition(PartitionCount::new(8).unwrap());
    for p in 0..8 {
        let read = of(p, &format!("tasks.{p}.a1"), 8);
        match p == right.0 {
            true => assert!(read.is_ok()),
            false => assert_eq!(read, Err("wrong_partition")),
        }
    }
    assert_eq!(of(0, "tasks.1.a1", 1), Err("invalid_subject"));
    assert_eq!(of(0, "tasks.0.a.1", 1), Err("invalid_subject"));
    assert_eq!(of(0, "tasks.0.", 1), Err("invalid_subject"));
}
