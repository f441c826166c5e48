-- $1 buckets and $2 ids of threads: whole batches in the threads of agents, written by the agents'
-- background tasks after turns of these threads.
batches AS MATERIALIZED (
    SELECT DISTINCT k.id, q.bucket, q.thread_id, q.batch_id
    FROM unnest($1::smallint[], $2::text[]) AS k (bucket, id) {inputs}
    LIMIT {limit}
)
, gone AS (
    DELETE FROM messages AS m USING batches AS b
    WHERE m.bucket = b.bucket AND m.thread_id = b.thread_id AND m.position >= b.batch_id AND m.batch_id = b.batch_id
    RETURNING b.id, m.bucket, m.thread_id, m.message_id, m.metadata -> 'synthetic' IS NOT DISTINCT FROM 'true'::jsonb AS is_hidden
)
, gone_feedback AS (
    DELETE FROM feedback AS f USING gone AS g
    WHERE f.bucket = g.bucket AND f.thread_id = g.thread_id AND f.message_id = g.message_id
)
, shorter AS (
    UPDATE threads AS t
    SET message_count = greatest(t.message_count - g.messages, 0), hidden_count = greatest(t.hidden_count - g.hidden, 0),
        revision = t.revision + 1
    FROM (SELECT bucket, thread_id, count(*) AS messages, count(*) FILTER (WHERE is_hidden) AS hidden FROM gone GROUP BY bucket, thread_id) AS g
    WHERE t.bucket = g.bucket AND t.thread_id = g.thread_id
)
-- Clears the summaries made from these batches; the list of compacted batches stays.
, unsummarised AS (
    UPDATE compactions AS c SET summary = NULL
    FROM (SELECT bucket, thread_id, min(batch_id) AS first FROM batches GROUP BY bucket, thread_id) AS b
    WHERE c.bucket = b.bucket AND c.thread_id = b.thread_id AND c.through_position >= b.first AND c.summary IS NOT NULL
)
, per AS (SELECT id, count(*) AS rows FROM gone GROUP BY id)
