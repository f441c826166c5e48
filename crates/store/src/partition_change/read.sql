SELECT from_count::bigint, to_count::bigint, replicas, max_bytes, max_message_bytes, ends, is_moved,
       (extract(epoch FROM clock_timestamp() - started_at) * 1000)::bigint AS age_ms
FROM partition_change
