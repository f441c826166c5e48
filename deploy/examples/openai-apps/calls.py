"""Fifty-six ordinary calls of Python libraries, for a fleet with default settings.

Prints a line for each call, and the totals of each library. See README.md.
"""

import asyncio
import os
import re
import time
import warnings

warnings.filterwarnings("ignore")
BASE = os.environ.get("BASE", "http://127.0.0.1:8080/v1")
STRICT = os.environ.get("STRICT") == "1"
ONLY = os.environ.get("ONLY", "")  # a regular expression for the cases to run
MODEL = os.environ.get("MODEL", "support")
os.environ["OPENAI_AGENTS_DISABLE_TRACING"] = "1"
os.environ.setdefault("LITELLM_LOCAL_MODEL_COST_MAP", "True")
from openai import AsyncOpenAI, OpenAI
from pydantic import BaseModel

client = OpenAI(base_url=BASE, api_key="unused", timeout=60, _strict_response_validation=STRICT)
CASES = []


def case(library, name, limit=None):
    """Adds a call. `limit` names what Antiphon does not do by design, such as tools of clients."""

    def add(f):
        CASES.append((library, name, limit, f))
        return f

    return add


def need(text, what="answer"):
    if not text:
        raise AssertionError(f"the {what} has no text: {text!r}")
    return text


U = lambda t: {"role": "user", "content": t}
HIST = [U("My name is Ann."), {"role": "assistant", "content": "Hello Ann."}, U("What is my name?")]
WEATHER = {
    "name": "get_weather",
    "description": "weather of a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
}
PNG = "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="


class City(BaseModel):
    name: str
    population: int


SCHEMA = {
    "type": "object",
    "properties": {"name": {"type": "string"}},
    "required": ["name"],
    "additionalProperties": False,
}

# ---- openai, chat completions (16)
L = "openai chat"


def chat(**kw):
    kw.setdefault("messages", [U("Hello there")])
    r = client.chat.completions.create(model=MODEL, **kw)
    return need(r.choices[0].message.content)


def chat_stream(**kw):
    text, usage, finish = "", None, None
    for c in client.chat.completions.create(model=MODEL, messages=[U("Hello there")], stream=True, **kw):
        if c.choices:
            text += c.choices[0].delta.content or ""
            finish = c.choices[0].finish_reason or finish
        usage = c.usage or usage
    assert finish, "no finish_reason"
    return need(text), usage


case(L, "one message")(lambda: chat())
case(L, "stream")(lambda: chat_stream()[0])


@case(L, "stream with usage")
def _():
    t, u = chat_stream(stream_options={"include_usage": True})
    assert u is not None, "no usage in the stream"
    return f"{t} {u.total_tokens} tokens"


case(L, "system")(lambda: chat(messages=[{"role": "system", "content": "Be brief."}, U("Hello")]))
case(L, "developer")(lambda: chat(messages=[{"role": "developer", "content": "Be brief."}, U("Hello")]))
case(L, "history of 3 messages")(lambda: chat(messages=HIST))


@case(L, "history with assistant message as SDK object")
def _():
    m = [U("My name is Ann.")]
    m.append(client.chat.completions.create(model=MODEL, messages=m).choices[0].message)
    return chat(messages=m + [U("What is my name?")])


case(L, "content as text parts")(
    lambda: chat(
        messages=[
            {
                "role": "user",
                "content": [{"type": "text", "text": "Hello"}, {"type": "text", "text": "there"}],
            }
        ]
    )
)
case(L, "sampling parameters")(
    lambda: chat(temperature=0.2, top_p=0.9, presence_penalty=0.1, frequency_penalty=0.1, seed=7)
)
case(L, "max_tokens")(lambda: chat(max_tokens=100))
case(L, "stop")(lambda: chat(stop=["\n\n", "END"]))
case(L, "response_format json_schema")(
    lambda: chat(
        response_format={
            "type": "json_schema",
            "json_schema": {"name": "city", "schema": SCHEMA, "strict": True},
        }
    )
)
case(L, "n=2", "n/logprobs")(lambda: chat(n=2))
case(L, "logprobs", "n/logprobs")(lambda: chat(logprobs=True, top_logprobs=2))
case(L, "tools", "tools")(lambda: chat(tools=[{"type": "function", "function": WEATHER}]))
case(L, "image", "image")(
    lambda: chat(
        messages=[
            {
                "role": "user",
                "content": [
                    {"type": "text", "text": "What is it?"},
                    {"type": "image_url", "image_url": {"url": PNG}},
                ],
            }
        ]
    )
)

# ---- openai, Responses (16)
L = "openai responses"


def resp(**kw):
    kw.setdefault("input", "Hello there")
    return client.responses.create(model=MODEL, **kw)


text = lambda **kw: need(resp(**kw).output_text)
case(L, "text")(lambda: text())


@case(L, "stream")
def _():
    t, last = "", None
    for e in resp(stream=True):
        if e.type == "response.output_text.delta":
            t += e.delta
        last = e
    assert last.type == "response.completed", last.type
    assert last.response.output_text == t, f"deltas {t!r} and text {last.response.output_text!r}"
    return need(t)


case(L, "instructions")(lambda: text(instructions="Be brief."))
case(L, "input list with history")(lambda: text(input=HIST))


@case(L, "previous_response_id twice")
def _():
    a = resp(input="My name is Ann.")
    b = resp(input="What is my name?", previous_response_id=a.id)
    c = resp(input="And now?", previous_response_id=b.id)
    return need(c.output_text)


@case(L, "conversation")
def _():
    k = client.conversations.create()
    resp(input="My name is Ann.", conversation=k.id)
    return text(input="What is my name?", conversation=k.id)


@case(L, "background + retrieve")
def _():
    r = resp(background=True)
    for _ in range(100):
        if r.status not in ("queued", "in_progress"):
            break
        time.sleep(0.1)
        r = client.responses.retrieve(r.id)
    assert r.status == "completed", r.status
    return need(r.output_text)


@case(L, "cancel")
def _():
    r = resp(input="A slow one", background=True)
    time.sleep(0.5)
    r = client.responses.cancel(r.id)
    for _ in range(50):
        if r.status not in ("queued", "in_progress"):
            break
        time.sleep(0.1)
        r = client.responses.retrieve(r.id)
    assert r.status == "cancelled", r.status
    return r.status


case(L, "retrieve")(lambda: need(client.responses.retrieve(resp().id).output_text))
case(L, "input_items")(lambda: need(client.responses.input_items.list(resp().id).data[0].content[0].text))
case(L, "store=False")(lambda: text(store=False))
case(L, "reasoning effort")(lambda: text(reasoning={"effort": "low"}))
case(L, "reasoning summary")(lambda: text(reasoning={"effort": "low", "summary": "auto"}))
case(L, "include")(lambda: text(include=["reasoning.encrypted_content"], store=False))
case(L, "tools", "tools")(lambda: text(tools=[{"type": "function", "strict": True, **WEATHER}]))


@case(L, "delete")
def _():
    r = resp()
    client.responses.delete(r.id)
    try:
        client.responses.retrieve(r.id)
    except Exception as e:
        return f"deleted; retrieve then: {type(e).__name__}"
    raise AssertionError("still there after delete")


# ---- openai-agents (7)
L = "openai-agents"
import agents

aclient = lambda: AsyncOpenAI(base_url=BASE, api_key="unused", timeout=60)


def amodel(kind):
    return (agents.OpenAIChatCompletionsModel if kind == "chat" else agents.OpenAIResponsesModel)(
        model=MODEL, openai_client=aclient()
    )


async def arun(kind, inputs=("Hello there",), session=False, **kw):
    a = agents.Agent(name="Helper", model=amodel(kind), **kw)
    s = agents.SQLiteSession("s1") if session else None
    for i in inputs:
        r = await agents.Runner.run(a, i, session=s)
    return need(r.final_output)


for kind in ("chat", "responses"):
    case(L, f"{kind} model, no instructions")(lambda kind=kind: asyncio.run(arun(kind)))
    case(L, f"{kind} model, instructions")(
        lambda kind=kind: asyncio.run(arun(kind, instructions="Be brief."))
    )
    case(L, f"{kind} model, SQLiteSession")(
        lambda kind=kind: asyncio.run(
            arun(kind, ("My name is Ann.", "What is my name?", "Sure?"), True, instructions="Be brief.")
        )
    )


@case(L, "function tool", "tools")
def _():
    @agents.function_tool
    def get_weather(city: str) -> str:
        "the weather of a city"
        return "sunny"

    return asyncio.run(arun("responses", tools=[get_weather]))


# ---- langchain (7)
L = "langchain"
from langchain.agents import create_agent
from langchain_core.messages import AIMessage, HumanMessage, SystemMessage
from langchain_core.tools import tool as lc_tool
from langchain_openai import ChatOpenAI

lc = ChatOpenAI(model=MODEL, base_url=BASE, api_key="unused", timeout=60)
case(L, "invoke")(lambda: need(lc.invoke("Hello there").text))
case(L, "stream")(lambda: need("".join(c.text for c in lc.stream("Hello there"))))
case(L, "system")(lambda: need(lc.invoke([("system", "Be brief."), ("human", "Hello")]).text))
case(L, "history")(
    lambda: need(
        lc.invoke(
            [
                SystemMessage("Be brief."),
                HumanMessage("My name is Ann."),
                AIMessage("Hello Ann."),
                HumanMessage("What is my name?"),
            ]
        ).text
    )
)
case(L, "create_agent without tools")(
    lambda: need(
        create_agent(lc, system_prompt="Be brief.").invoke({"messages": [U("Hello")]})["messages"][-1].text
    )
)


@lc_tool
def lc_weather(city: str) -> str:
    "the weather of a city"
    return "sunny"


case(L, "bind_tools", "tools")(lambda: need(lc.bind_tools([lc_weather]).invoke("Hello there").text))
case(L, "with_structured_output")(lambda: str(lc.with_structured_output(City).invoke("Berlin?")))

# ---- litellm (4)
L = "litellm"
import litellm

litellm.suppress_debug_info = True
ll = lambda m, **kw: litellm.completion(
    model="openai/" + MODEL, api_base=BASE, api_key="unused", messages=m, timeout=60, **kw
)
case(L, "prompt")(lambda: need(ll([U("Hello there")]).choices[0].message.content))
case(L, "stream")(
    lambda: need("".join(c.choices[0].delta.content or "" for c in ll([U("Hello there")], stream=True)))
)
case(L, "system")(
    lambda: need(ll([{"role": "system", "content": "Be brief."}, U("Hello")]).choices[0].message.content)
)
case(L, "history")(lambda: need(ll(HIST).choices[0].message.content))

# ---- pydantic-ai (6)
L = "pydantic-ai"
from pydantic_ai import Agent
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

pm = lambda: OpenAIChatModel(MODEL, provider=OpenAIProvider(base_url=BASE, api_key="unused"))
pa = lambda **kw: Agent(pm(), **kw)


async def prun(*a, agent=None, **kw):
    return await (agent or pa()).run(*a, **kw)


case(L, "prompt")(lambda: need(asyncio.run(prun("Hello there")).output))


@case(L, "stream")
def _():
    async def go():
        async with pa().run_stream("Hello there") as r:
            return "".join([t async for t in r.stream_text(delta=True)])

    return need(asyncio.run(go()))


case(L, "instructions")(lambda: need(asyncio.run(prun("Hello", agent=pa(instructions="Be brief."))).output))


@case(L, "message_history")
def _():
    async def go():
        a = pa(instructions="Be brief.")
        r1 = await a.run("My name is Ann.")
        return (await a.run("What is my name?", message_history=r1.all_messages())).output

    return need(asyncio.run(go()))


@case(L, "tools", "tools")
def _():
    a = pa()

    @a.tool_plain
    def get_weather(city: str) -> str:
        "the weather of a city"
        return "sunny"

    return need(asyncio.run(prun("Hello there", agent=a)).output)


case(L, "output_type", "tools")(lambda: str(asyncio.run(prun("Berlin?", agent=pa(output_type=City))).output))


def main():
    print(f"{len(CASES)} cases, base {BASE}, strict {STRICT}, model {MODEL}")
    totals, rows = {}, []
    for lib, name, limit, f in CASES:
        if ONLY and not re.search(ONLY, f"{lib}/{name}"):
            continue
        t0 = time.time()
        try:
            ok, msg = "ok", str(f())
        except BaseException as e:
            if isinstance(e, KeyboardInterrupt):
                raise
            s = f"{type(e).__name__}: {e}"
            # The request was accepted, but the answer of a script is no JSON.
            if re.search("output", name) and re.search(r"(?i)json_invalid|invalid json|OutputParser", s):
                ok, msg = "ok", "ACCEPTED; the scripted answer is no JSON: " + s
            else:
                ok, msg = "refused", s
        msg = " ".join(msg.split())
        n = totals.setdefault(lib, [0, 0, 0])
        n[1] += 1
        if ok == "ok":
            n[0] += 1
        elif limit:
            n[2] += 1
        mark = f" [only {limit}]" if ok != "ok" and limit else ""
        print(
            f"{lib}: {name} | {ok}{mark} | {msg[: int(os.environ.get('WIDTH', 400))]} | {time.time() - t0:.1f}s",
            flush=True,
        )
    print("\nlibrary | ok | of | refused for tools/files/n/logprobs only | other defects")
    for lib, (a, b, c) in totals.items():
        print(f"{lib} | {a} | {b} | {c} | {b - a - c}")
    a, b, c = (sum(x) for x in zip(*totals.values()))
    print(f"total | {a} | {b} | {c} | {b - a - c}")


main()
