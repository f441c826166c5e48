"""Whether a description of an API is valid OpenAPI 3.1, and whether each of its examples is what its schema says, and each event that the
protocols write.

`check.py <file> <folder>`: the description, and the golden files of the protocols, in folders by their names. Prints what is wrong, and ends
with 1 then.
"""

import json
import pathlib
import sys

import jsonschema_rs
from openapi_spec_validator import OpenAPIV31SpecValidator

document = json.load(open(sys.argv[1], encoding="utf-8"))
faults = [f"{'/'.join(map(str, fault.path))}: {fault.message}" for fault in OpenAPIV31SpecValidator(document).iter_errors()]
checked = 0


def validate(schema, value, place):
    """Holds a value against a schema, and what is JSON inside of its texts against `contentSchema`."""
    global checked
    checked += 1
    rooted = {"$schema": "https://json-schema.org/draft/2020-12/schema", "components": document["components"], "allOf": [schema]}
    for fault in jsonschema_rs.Draft202012Validator(rooted, validate_formats=True).iter_errors(value):
        faults.append(f"{place}: {fault.message[:300]}")


def resolved(value):
    """What a reference refers to."""
    while "$ref" in value:
        parts = value["$ref"].removeprefix("#/").split("/")
        value = document
        for part in parts:
            value = value[part]
    return value


def contents(schema):
    """All schemas of content in a schema of an event."""
    if isinstance(schema, dict):
        if "contentSchema" in schema:
            yield schema["contentSchema"]
        for inner in schema.values():
            yield from contents(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from contents(inner)


def examples(holder):
    if "example" in holder:
        yield "example", holder["example"]
    for name, example in holder.get("examples", {}).items():
        yield name, resolved(example)["value"]


def has_example(schema):
    """Whether an example can be made from those of the schema, or of the items of a list in it."""
    schema = resolved(schema)
    items = [resolved(field.get("items", {})) for field in schema.get("properties", {}).values()]
    return any("examples" in one for one in [schema, *items])


def media(content, place):
    for kind, holder in content.items():
        found = list(examples(holder))
        if kind in ("application/json", "application/problem+json", "text/event-stream") and "schema" not in holder:
            faults.append(f"{place} {kind}: there is no schema")
        for name, value in found:
            validate(holder["schema"], value, f"{place} {kind} {name}")
            if kind == "text/event-stream":
                data = value["data"]
                validate({"anyOf": list(contents(resolved(holder["schema"])))}, json.loads(data), f"{place} {kind} {name} data")
        if not found and kind == "application/json" and not has_example(holder.get("schema", {})):
            faults.append(f"{place} {kind}: there is no example")


for name, schema in document["components"]["schemas"].items():
    for value in schema.get("examples", []):
        validate(schema, value, name)

for path, item in document["paths"].items():
    for method, operation in item.items():
        place = f"{method} {path}"
        for parameter in operation.get("parameters", []):
            parameter = resolved(parameter)
            for value in parameter.get("schema", {}).get("examples", []):
                validate(parameter["schema"], value, f"{place} {parameter['name']}")
        media(resolved(operation.get("requestBody", {})).get("content", {}), place)
        for status, answer in operation["responses"].items():
            # A proxy in front of the gateway may return these codes itself.
            content = resolved(answer).get("content", {}) if status not in ("401", "403", "429") else {}
            media(content, f"{place} {status}")
for name, schema in document["components"]["schemas"].items():
    for value in schema.get("examples", []):
        validate(schema, value, name)

# Where the gateway writes the streams that have golden files.
WRITTEN = {
    "native": ("get", "/v1/threads/{thread}/events"),
    "ui_message": ("post", "/api/chat"),
    "agui": ("post", "/agui"),
    "responses": ("post", "/v1/responses"),
    "chat_completions": ("post", "/v1/chat/completions"),
}
for folder, (method, path) in WRITTEN.items():
    answer = resolved(document["paths"][path][method]["responses"]["200"])
    schema = resolved(answer["content"]["text/event-stream"]["schema"])
    said = {"anyOf": list(contents(schema))}
    before = checked
    for file in sorted(pathlib.Path(sys.argv[2], folder).glob("*.txt")):
        for line in file.read_text(encoding="utf-8").split("\n"):
            if folder == "native" and line.startswith("id: "):
                validate(schema["properties"]["id"], line.removeprefix("id: "), f"{folder}/{file.name} {line}")
            if line.startswith("data: ") and line != "data: [DONE]":
                validate(said, json.loads(line.removeprefix("data: ")), f"{folder}/{file.name} {line[:200]}")
    if checked == before:
        faults.append(f"{folder} has no events")

print(f"{checked} examples")
print("\n".join(faults))
sys.exit(1 if faults else 0)
