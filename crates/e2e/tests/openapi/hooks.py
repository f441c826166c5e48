"""Puts what exists into the place of what was made up, so that not every answer is 404.

`FUZZ_KNOWN` is a JSON object: what the variables of addresses are called -> values that exist. What was made up to be wrong stays wrong.
"""

import json
import os
import re
import zlib

import schemathesis

KNOWN = json.loads(os.environ.get("FUZZ_KNOWN", "{}"))
ID = re.compile(r"[A-Za-z0-9_-]{1,128}")
# The effect of these on an agent would prevent answers to its turns.
SPARE = {"putAgent", "pauseAgent"}


def known(name, made_up):
    """Mostly something known, chosen by what was made up, so that the same run is the same again."""
    values = KNOWN.get(name, [])
    number = zlib.crc32(made_up.encode())
    return values[number % len(values)] if values and number % 4 else made_up


@schemathesis.hook
def map_path_parameters(context, path_parameters):
    """Variables of the address, where they are valid."""
    for name, value in (path_parameters or {}).items():
        if isinstance(value, str) and ID.fullmatch(value):
            if context.operation.definition.raw.get("operationId") in SPARE:
                path_parameters[name] = f"spare-{zlib.crc32(value.encode()) % 8}"
            else:
                path_parameters[name] = known(name, value)
    return path_parameters


@schemathesis.hook
def map_query(context, query):
    """The message that a follower waits for, and the agent whose settings count."""
    for name, value in (query or {}).items():
        if name in ("message", "agent") and isinstance(value, str) and ID.fullmatch(value):
            query[name] = known(name, value)
    return query


@schemathesis.serializer("application/x-ndjson")
def lines(context, value):
    """Text as it is; what is made up to be wrong may be anything else."""
    return value.encode(errors="ignore") if isinstance(value, str) else json.dumps(value).encode()


# A method that is not described, and a turn that failed with a code of its workflow.
OF_NO_OPERATION = (405, 502)


@schemathesis.check
def code_conformance(ctx, response, case):
    """A refusal has a code of its operation: one of `x-error-codes`, or of the `default` response."""
    if response.status_code < 400 or response.status_code in OF_NO_OPERATION:
        return
    try:
        body = response.json()
    except ValueError:
        return
    body = body.get("error", body) if isinstance(body, dict) else {}
    shared = case.operation.schema.raw_schema["components"]["responses"]["Refused"]["content"]["application/problem+json"]
    codes = shared["schema"]["properties"]["code"]["enum"] + case.operation.definition.raw.get("x-error-codes", [])
    assert body.get("code") in codes, f"{body.get('code')} is not a code of this operation"
