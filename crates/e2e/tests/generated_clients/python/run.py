"""Makes the calls of a list with a client that openapi-python-client has generated, and prints the operation, the status and the text of each
answer as JSON.

`run.py <base url> <calls>`: the list has the operation, the tag, the parameters and the body of each call. A body is read and
written by the model of its schema, which drops fields that it does not know: what comes out must be what went in.
"""

import datetime
import importlib
import io
import json
import keyword
import re
import sys
import typing

from antiphon_client import Client
from antiphon_client.types import File


def snake(name):
    """A name as the generator writes it, which appends an underscore to a word of Python."""
    name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|-", "_", name).lower()
    return f"{name}_" if keyword.iskeyword(name) else name


def argument(value, kind):
    return datetime.datetime.fromisoformat(value) if kind is datetime.datetime else value


def plain(value):
    """A value with times as the client writes them."""
    if isinstance(value, dict):
        return {name: plain(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [plain(inner) for inner in value]
    try:
        return datetime.datetime.fromisoformat(value).isoformat() if isinstance(value, str) and "T" in value else value
    except ValueError:
        return value


def body_of(module, sent):
    """The body as its model, found by the annotation of the generated function."""
    annotation = module.sync_detailed.__annotations__["body"]
    names = re.findall(r"\w+", annotation) if isinstance(annotation, str) else [part.__name__ for part in parts(annotation)]
    models = [getattr(module, name) for name in names if hasattr(getattr(module, name, None), "from_dict")]
    body = models[0].from_dict(json.loads(json.dumps(sent)))
    written = body.to_dict()
    assert plain(written) == plain(sent), f"{module.__name__} sends {written} instead of {sent}"
    return body


def parts(annotation):
    return getattr(annotation, "__args__", None) or [annotation]


base_url, calls = sys.argv[1], json.load(open(sys.argv[2], encoding="utf-8"))
answers = []
with Client(base_url=base_url, timeout=20) as client:
    for call in calls:
        module = importlib.import_module(f"antiphon_client.api.{snake(call['tag'])}.{snake(call['operation'])}")
        kinds = typing.get_type_hints(module._get_kwargs)
        arguments = {snake(name): argument(value, kinds[snake(name)]) for name, value in call["parameters"].items()}
        if "body" in call:
            arguments["body"] = body_of(module, call["body"])
        if "lines" in call:
            arguments["body"] = File(payload=io.BytesIO(call["lines"].encode()))
        # As `sync_detailed` does it, which would read every answer as JSON: streams are for a library of events.
        answer = client.get_httpx_client().request(**module._get_kwargs(**arguments))
        if re.match(r"application/(problem\+)?json\b", answer.headers.get("content-type", "")):
            assert module._parse_response(client=client, response=answer) is not None, f"{call['operation']}: {answer.text}"
        text = "" if answer.status_code < 400 else answer.text
        answers.append({"operation": call["operation"], "status": answer.status_code, "text": text})
print(json.dumps(answers))
