-- $1 true to include acknowledged incidents, $2 maximum number of rows.
SELECT partition_id, kind, incarnation, first_seq, last_seq, detail,
       to_char(detected_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS detected_at,
       to_char(acknowledged_at AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"') AS acknowledged_at,
       acknowledged_by
FROM incidents
WHERE $1 OR acknowledged_at IS NULL
ORDER BY incidents.detected_at DESC, partition_id, first_seq
LIMIT $2
