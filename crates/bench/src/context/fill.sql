-- $1 bucket, $2 thread, $3 number of batches, $4 position of the first, $5 distance of positions,
-- $6 the same in ms, $7 time of the first in ms, $8 a text from which contents are cut. The length
-- of a message is derived from its number, so it is the same in every run.
INSERT INTO messages (bucket, thread_id, position, message_id, batch_id, number, sequence_num, batch_type, role, content, tool_calls,
                      tool_call_id, metadata, token_count, parent_id, created_at)
SELECT $1, $2, b.id + k.num, b.turn || k.suffix, b.id, b.number * 4 + k.num + 1, k.num, 'user_request', k.role,
       convert_from(substring($8::bytea FROM 1 + r.start % 9000 FOR k.least + r.length % k.spread), 'UTF8'),
       CASE k.num WHEN 1 THEN jsonb_build_array(jsonb_build_object(
           'id', 'call_' || md5(b.turn), 'name', 'search_documents',
           'arguments', jsonb_build_object('query', convert_from(substring($8::bytea FROM 1 + r.start % 8000 FOR 90), 'UTF8'),
                                           'limit', 10, 'collection', 'handbook')::text)) END,
       CASE k.num WHEN 2 THEN 'call_' || md5(b.turn) END,
       CASE k.num WHEN 3 THEN jsonb_build_object(
           'model', 'model-1', 'finish_reason', 'stop', 'steps', 2, 'tokens_used', 7600 + r.length % 500,
           'usage', jsonb_build_object('prompt_tokens', 7300, 'completion_tokens', 300 + r.length % 500,
                                       'total_tokens', 7600 + r.length % 500)) ELSE '{}' END,
       CASE k.num WHEN 3 THEN 7600 + r.length % 500 END,
       CASE WHEN k.num > 0 THEN b.id + k.num - 1 WHEN b.number > 0 THEN b.id - $5 + 3 END,
       to_timestamp((b.at_ms + k.num * 700) / 1000.0)
FROM (SELECT n AS number, $4 + n * $5 AS id, $7 + n * $6 AS at_ms,
             'u' || lpad(to_hex($1::integer), 4, '0') || '-' || md5($2 || n) AS turn
      FROM generate_series(0, $3::bigint - 1) AS n) AS b
CROSS JOIN (VALUES (0, '-q', 'user', 40, 400), (1, '-a-s0', 'assistant', 20, 100), (2, '-a-s0-r0', 'tool', 200, 2000),
                   (3, '-a', 'assistant', 150, 1500)) AS k (num, suffix, role, least, spread)
CROSS JOIN LATERAL (SELECT (hashint8extended(b.number * 4 + k.num, 1) & 1048575)::integer AS start,
                           (hashint8extended(b.number * 4 + k.num, 2) & 1048575)::integer AS length) AS r
ORDER BY b.number, k.num
