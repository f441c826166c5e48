-- $1 bucket, $2 thread and $3 message; $4 partition and $5 epoch of the asking owner.
SELECT EXISTS (SELECT FROM dead_letters AS d WHERE d.bucket = $1 AND d.kind = 'message' AND d.key = $2 || '/' || $3)
       OR EXISTS (SELECT FROM erased_threads AS e WHERE e.bucket = $1 AND e.thread_id = $2 AND e.recreated_at IS NULL)
       OR EXISTS (SELECT FROM erased_tenants AS z WHERE z.tenant = antiphon_tenant_of($2)) AS has_failed,
       EXISTS (SELECT FROM partitions AS p WHERE p.partition_id = $4 AND p.epoch = $5::bigint AND p.owner IS NOT NULL) AS is_owner
