"""Lists and calls every reasoning tool with the official client, over HTTP or over stdio, and once more with pydantic-ai.

The one argument is JSON: {"url"} or {"command", "args", "env"}. Prints what every call said.
"""

import asyncio
import json
import sys

from fastmcp.client.transports import StdioTransport
from fastmcp.exceptions import ToolError
from mcp.client import Client
from mcp.client.stdio import StdioServerParameters
from pydantic_ai.mcp import MCPToolset

CALLS = [
    ("frs_create_session", {"agent_id": "ann", "session_id": "SESSION"}),
    (
        "frs_append",
        {
            "session_id": "SESSION",
            "messages": [
                {"role": "user", "content": "Analyze codebase"},
                {"role": "assistant", "content": "I'll search...", "tool_calls": [{"id": "c1", "name": "search"}]},
                {"role": "tool", "tool_call_id": "c1", "content": "x" * 2000},
                {"role": "assistant", "thinking": "Nothing there.", "content": "Nothing found."},
                {"role": "user", "content": "Go on"},
                {"role": "assistant", "content": "I go on."},
            ],
        },
    ),
    ("frs_view_thread", {"session_id": "SESSION"}),
    ("frs_checkpoint", {"session_id": "SESSION", "name": "begin"}),
    ("frs_compress_last", {"session_id": "SESSION", "count": 2, "summary": "It goes on."}),
    ("frs_compress_range", {"session_id": "SESSION", "from": 3, "to": 4, "summary": "Searched: nothing."}),
    ("frs_undo", {"session_id": "SESSION"}),
    ("frs_compress_range", {"session_id": "SESSION", "numbers": [2, 3, 4], "summary": "Searched: nothing."}),
    ("frs_plan", {"session_id": "SESSION", "items": [{"text": "Search", "state": "done"}]}),
    ("frs_view_thread", {"session_id": "SESSION", "showPlan": True}),
    ("frs_discarded", {"session_id": "SESSION"}),
    ("frs_restore", {"session_id": "SESSION", "name": "begin"}),
    ("frs_view_thread", {"session_id": "SESSION"}),
    ("frs_compress_last", {"session_id": "SESSION", "count": 9, "summary": "x"}),
    ("frs_view_thread", {"session_id": "nobody"}),
    ("frs_read_message", {"session_id": "SESSION", "number": 3}),
    ("memory_remember", {"thread_id": "SESSION", "text": "The user likes tea."}),
    ("memory_search", {"thread_id": "SESSION", "query": "Which drink?"}),
    ("memory_correct", {"thread_id": "SESSION", "fact_id": "nothing", "text": "The user likes coffee."}),
    ("memory_forget", {"thread_id": "SESSION", "fact_id": "nothing"}),
]


def named(arguments: dict, session: str) -> dict:
    return {name: session if value == "SESSION" else value for name, value in arguments.items()}


async def with_pydantic_ai(options: dict, session: str) -> dict:
    server = options.get("url") or StdioTransport(command=options["command"], args=options["args"], env=options["env"])
    report = {"tools": [], "calls": []}
    async with MCPToolset(server, tool_error_behavior="error") as toolset:
        report["tools"] = [tool.name for tool in await toolset.list_tools()]
        for name, arguments in CALLS:
            try:
                said, is_error = await toolset.direct_call_tool(name, named(arguments, session)), False
            except ToolError as error:
                said, is_error = str(error), True
            report["calls"].append({"tool": name, "said": said, "is_error": is_error})
    return report


async def main() -> None:
    options = json.loads(sys.argv[1])
    session = options["session"]
    server = options.get("url") or StdioServerParameters(
        command=options["command"], args=options["args"], env=options["env"]
    )
    report = {"tools": [], "calls": []}
    async with Client(server) as client:
        report["tools"] = [tool.name for tool in (await client.list_tools()).tools]
        for name, arguments in CALLS:
            result = await client.call_tool(name, named(arguments, session))
            text = "".join(block.text for block in result.content)
            report["calls"].append({"tool": name, "text": text, "is_error": bool(result.is_error)})
    report["pydantic_ai"] = await with_pydantic_ai(options, session + "-agent")
    print(json.dumps(report))


asyncio.run(main())
