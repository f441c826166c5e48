-- What a client of the Responses protocol asked for with an input and gets to see again with its response, from whichever gateway.
-- Written by gateways before the input is published; without a row a response is shown with what is known otherwise.
CREATE TABLE responses (
    bucket               smallint    NOT NULL,
    thread_id            text        NOT NULL,
    turn_id              text        NOT NULL,
    model                text        NOT NULL,
    background           boolean     NOT NULL,
    previous_response_id text,
    metadata             jsonb       NOT NULL,
    created_at           timestamptz NOT NULL DEFAULT clock_timestamp(),
    PRIMARY KEY (bucket, thread_id, turn_id)
);

-- They go when they are old.
CREATE INDEX responses_created_at ON responses (created_at);

ALTER TABLE responses ENABLE ROW LEVEL SECURITY;
ALTER TABLE responses FORCE ROW LEVEL SECURITY;
CREATE POLICY tenants ON responses USING (antiphon_sees(thread_id)) WITH CHECK (antiphon_sees(thread_id));
