-- $1 bucket, $2 session, $3 layers (even), $4 messages after them. Each layer has replaced the
-- previous summary and one message. So the view is one summary and the messages after it, whatever
-- the number of layers. One message in four calls a tool, and the next one is its result of 400 to
-- 4,000 characters.
WITH made AS (
    INSERT INTO reasoning_sessions (bucket, session_id, agent_id, source_threads, last_number, head_layer, last_layer, created_by)
    VALUES ($1, $2, 'ann', '{ann}', 2 * $3 + $4, $3, $3, 'bench')
)
, messages AS (
    INSERT INTO reasoning_messages (bucket, session_id, number, in_temp, role, content, chars, calls, answers, tool)
    SELECT $1, $2, m.number, true, m.role, m.content, length(m.content),
           CASE WHEN m.kind = 1 THEN jsonb_build_array(jsonb_build_object('id', 'c' || m.number, 'name', 'search')) END,
           CASE WHEN m.kind = 2 THEN 'c' || (m.number - 1) END, CASE WHEN m.kind = 2 THEN 'search' END
    FROM (
        SELECT k.number, k.kind,
               CASE WHEN k.number <= 2 * $3 AND k.number % 2 = 0 THEN 'summary' WHEN k.kind = 2 THEN 'tool' WHEN k.kind = 1 THEN 'assistant'
                    ELSE 'user' END AS role,
               CASE WHEN k.kind = 2 THEN repeat(md5(k.number::text), 13 + (k.number % 112)::integer)
                    ELSE repeat(md5(k.number::text) || ' ', 3) END AS content
        FROM (SELECT n AS number, CASE WHEN n > 2 * $3 THEN n % 4 ELSE 0 END AS kind FROM generate_series(1, 2 * $3 + $4) AS n) AS k
    ) AS m
)
INSERT INTO reasoning_layers (bucket, session_id, layer_id, previous_id, replaced, first_number, last_number, summary_number, shown, chars, token, actor)
SELECT $1, $2, n, n - 1, CASE n WHEN 1 THEN ARRAY[1] ELSE ARRAY[2 * n - 2, 2 * n - 1] END, 2 * n - 2 + (n = 1)::integer, 2 * n - 1, 2 * n,
       ARRAY[2 * n, 2 * n], 198, 'bench', 'bench'
FROM generate_series(1, $3) AS n
