// The real libraries as clients that come back when their connection was cut, one class for each protocol.
//
// `say(text, id)` says one thing in the client's thread, returns until the answer is whole, and resolves to what the client has then:
// `{ text, tools, pieces? }`. `seen` has the texts that it had at each cut.
import { HttpAgent } from "@ag-ui/client";
import { inspect } from "node:util";
import { AbstractChat, DefaultChatTransport } from "ai";
import OpenAI from "openai";
import { accumulateResponse } from "openai/lib/responses/ResponseAccumulator";
import { State } from "./ai.mjs";

const TRIES = 60;
export const PAUSE_MS = 250;

const pause = (ms) => new Promise((done) => setTimeout(done, ms));
export const joined = (texts) => texts.filter((text) => typeof text === "string").join("");

/** Tries until an attempt has an answer. `isWhole`: what the proxy let pass of a cut answer has the protocol's end. */
async function persist(client, isWhole, attempt) {
  const { lane } = client;
  for (let tries = 0; tries < TRIES; tries += 1) {
    lane.expect();
    const answer = await attempt(tries);
    if (answer !== undefined) {
      client.mistaken += Number(lane.last.cut && !isWhole.test(lane.last.passed));
      return answer;
    }
    await pause(lane.random() * PAUSE_MS);
  }
  throw new Error(`${lane.name}: no whole answer after ${TRIES} tries; the last was ${JSON.stringify(lane.last)}`);
}

/** What no cut accounts for. */
class Fault extends Error {}

/** Passes over an error that a cut, or a gateway without its services, accounts for. */
function excuse(lane, error) {
  if (error instanceof Fault || !lane.isExcused) {
    throw new Error(`${lane.name}: ${inspect(error)}; its latest requests: ${lane.summary()}`, { cause: error });
  }
}

/** What browsers say of a lost connection, and node does not: the AI SDK tells one by these words. */
async function fetchAsABrowser(...request) {
  const response = await fetch(...request).catch(() => {
    throw new TypeError("Failed to fetch");
  });
  if (response.body === null) return response;
  const reader = response.body.getReader();
  const body = new ReadableStream({
    async pull(controller) {
      const { done, value } = await reader.read().catch(() => {
        throw new TypeError("network error");
      });
      if (done) controller.close();
      else controller.enqueue(value);
    },
    cancel: (reason) => reader.cancel(reason),
  });
  return new Response(body, { status: response.status, headers: response.headers });
}

class Chat extends AbstractChat {
  constructor(lane, thread, isBrowser) {
    const fetch = isBrowser ? fetchAsABrowser : undefined;
    super({ id: thread, state: new State(), transport: new DefaultChatTransport({ api: `${lane.url}/api/chat`, fetch }) });
  }
}

/** A page with Vercel's AI SDK: its stream is resumed, and an answer that ended meanwhile is in the history. */
export class Page {
  static end = /data: \[DONE\]\n\n/;
  mistaken = 0;
  gone = 0;
  seen = [];

  constructor(lane, thread, number) {
    Object.assign(this, { lane, thread, chat: new Chat(lane, thread, number % 2 === 1) });
  }

  async say(text, id) {
    const { chat, lane } = this;
    const before = chat.messages;
    const known = new Set(before.map((message) => message.id));
    const post = () => {
      chat.messages = before;
      return chat.sendMessage({ id, role: "user", parts: [{ type: "text", text }] });
    };
    // A resume shows the answer before for a while after its end: only another one shows that this message was taken.
    const isAnswered = (request) => {
      const shown = /"type":"start","messageId":"([^"]+)"/.exec(lane.last.passed)?.[1];
      return lane.last.status === 200 && (request === post || (shown !== undefined && !known.has(shown)));
    };
    let [next, isTaken] = [post, false];
    return persist(this, Page.end, async (tries) => {
      const request = next;
      await request();
      next = () => chat.resumeStream();
      isTaken ||= isAnswered(request);
      if (lane.last.status === 204) {
        this.gone += 1;
        next = post;
        return lane.random() < 0.5 ? undefined : this.fromHistory(text, isTaken);
      }
      if (chat.status === "ready") {
        if (chat.lastMessage.role === "assistant") return saidByPage(chat.lastMessage);
        // Ready without an answer to this message: right only when no gateway has taken it. Then it is sent again.
        const stands = JSON.stringify({ ...lane.last, isTaken, tries, messages: chat.messages });
        if (isTaken) throw new Error(`${lane.name}: the page is ready without an answer: ${stands}; ${lane.summary()}`);
        next = post;
        return undefined;
      }
      excuse(lane, chat.error);
      // A post that failed before it was answered leaves the page with its own message alone.
      if (chat.lastMessage.role === "assistant") this.seen.push(saidByPage(chat.lastMessage).text);
    });
  }

  /** Nothing is under way, so an answer to a message that was taken is there. */
  async fromHistory(text, isTaken) {
    const { lane, thread } = this;
    lane.expect();
    const asked = fetch(`${lane.url}/v1/threads/${thread}/history?limit=200`);
    const page = await asked.then((answer) => answer.json()).catch((error) => excuse(lane, error));
    if (page === undefined || lane.last.status >= 500) return undefined;
    const last = page.messages?.findLastIndex((message) => message.role === "user");
    if (page.messages?.[last]?.content !== text) {
      if (isTaken) throw new Error(`${lane.name}: nothing is under way, and the history does not end with ${text}`);
      return undefined;
    }
    const rest = page.messages.slice(last + 1);
    const results = new Map(rest.map((message) => [message.tool_call_id, message.content]));
    const calls = rest.flatMap((message) => message.tool_calls ?? []);
    const tools = calls.map((call) => [call.name, JSON.parse(call.arguments), results.get(call.id)]);
    this.chat.messages = page.messages
      .filter((message) => message.role !== "tool")
      .map(({ message_id: id, role, content }) => ({ id, role, parts: [{ type: "text", text: content }] }));
    return { text: joined(rest.filter((message) => message.role === "assistant").map((message) => message.content)), tools };
  }
}

export function saidByPage(message) {
  const tools = message.parts.filter((part) => part.type === "dynamic-tool");
  return {
    text: joined(message.parts.filter((part) => part.type === "text").map((part) => part.text)),
    tools: tools.map((part) => [part.toolName, part.input, part.output]),
  };
}

/** A thread is named and spoken in by plain requests; again until a gateway answers, for one may die in the middle of it. */
export async function post(url, path, body, key) {
  const headers = { "content-type": "application/json", ...(key && { "idempotency-key": key }) };
  for (;;) {
    const asked = fetch(`${url}${path}`, { method: "POST", headers, body: JSON.stringify(body) });
    const answer = await asked.catch(() => undefined);
    const text = await answer?.text().catch(() => undefined);
    if (answer?.ok && text !== undefined) return { status: answer.status, body: text && JSON.parse(text) };
    if (answer?.status < 500) throw new Error(`${path}: ${answer.status} ${text}`);
    await pause(20);
  }
}

/** The library has no way of its own to connect to a run: whoever hosts the agent says where. */
class Agent extends HttpAgent {
  connect(input) {
    return new HttpAgent({ url: `${this.url}/connect` }).run(input);
  }
}

/** AG-UI: a run that was heard of is connected to, one that was not is posted again under its id. */
export class Agui {
  static end = /"type":"RUN_(FINISHED|ERROR)".*\n\n/;
  mistaken = 0;
  seen = [];

  constructor(lane, thread) {
    Object.assign(this, { lane, agent: new Agent({ url: `${lane.url}/agui`, threadId: thread }) });
  }

  async say(text, id) {
    const { agent } = this;
    const kept = [...agent.messages, { id: `${id}-q`, role: "user", content: text }];
    const told = { isKnown: false };
    const subscriber = {
      onRunStartedEvent: () => (told.isKnown = true),
      onRunFinishedEvent: ({ outcome }) => (told.outcome = outcome),
      onRunErrorEvent: ({ event }) => (told.error = event),
    };
    return persist(this, Agui.end, async () => {
      // The replay begins with the run: what is there of it would be there twice.
      agent.setMessages(kept);
      try {
        await (told.isKnown ? agent.connectAgent({ runId: id }, subscriber) : agent.runAgent({ runId: id }, subscriber));
      } catch (error) {
        excuse(this.lane, error);
        this.seen.push(textOf(agent.messages.slice(kept.length)));
        return undefined;
      }
      if (told.outcome !== "success") throw new Error(`${this.lane.name}: ended as ${JSON.stringify(told)}`);
      return saidByAgent(agent.messages.slice(kept.length));
    });
  }
}

/** Of a part of an answer, too, whose arguments may not be whole. */
const textOf = (messages) =>
  joined(messages.filter((message) => message.role === "assistant").map((message) => message.content));

function saidByAgent(messages) {
  const results = new Map(messages.map((message) => [message.toolCallId, message.content]));
  const calls = messages.flatMap((message) => message.toolCalls ?? []);
  return {
    text: textOf(messages),
    tools: calls.map((call) => [call.function.name, JSON.parse(call.function.arguments), results.get(call.id)]),
  };
}

export const openai = (lane) => new OpenAI({ apiKey: "none", baseURL: `${lane.url}/v1`, maxRetries: 0 });

/** OpenAI's Responses: the rest of the events is asked for by the last number, or the library's helper reads all again. */
export class Responder {
  static end = /event: response\.(completed|incomplete|failed)\n.*\n\n/;
  mistaken = 0;
  gone = 0;
  seen = [];

  constructor(lane, thread, number) {
    Object.assign(this, { lane, responses: openai(lane).responses, thread, isHelped: number % 2 === 1 });
  }

  async say(text, id) {
    const body = { model: "talk", input: text, conversation: this.thread };
    const heard = new Heard();
    const headers = { "idempotency-key": id };
    return persist(this, Responder.end, async () => {
      try {
        await (this.isHelped ? this.help(heard, body, headers) : this.read(heard, body, headers));
      } catch (error) {
        excuse(this.lane, error);
        this.seen.push(heard.pieces);
        return undefined;
      }
      this.gone += Number(heard.isEndAlone);
      return heard.said(this.isHelped);
    });
  }

  async read(heard, body, headers) {
    const resumed = () => this.responses.retrieve(heard.id, { stream: true, starting_after: heard.last });
    const stream = await (heard.id ? resumed() : this.responses.create({ ...body, stream: true }, { headers }));
    heard.begin();
    for await (const event of stream) heard.take(event);
  }

  async help(heard, body, headers) {
    const resumed = () => this.responses.stream({ response_id: heard.id, starting_after: heard.last });
    const runner = heard.id ? resumed() : this.responses.stream(body, { headers });
    runner.on("event", (event) => heard.note(event));
    heard.whole = await runner.finalResponse();
  }
}

/** The library's own way to a response from its events. */
function accumulated(event, snapshot) {
  try {
    return accumulateResponse(event, snapshot);
  } catch (error) {
    throw new Fault(`after ${event.type} ${event.sequence_number}: ${error.message}`);
  }
}

/** The events of one response over all its connections. */
class Heard {
  id = undefined;
  last = -1;
  pieces = "";
  whole = undefined;
  isEndAlone = false;
  #isFirst = true;

  begin() {
    this.#isFirst = true;
  }

  note(event) {
    this.id = event.response?.id ?? this.id;
    this.last = event.sequence_number;
  }

  take(event) {
    const isEnd = /^response\.(completed|incomplete|failed)$/.test(event.type);
    // An answer that has ended meanwhile is told by its end alone, whatever was missed before it.
    this.isEndAlone ||= isEnd && this.#isFirst && this.last >= 0;
    this.#isFirst = false;
    if (!this.isEndAlone && event.sequence_number !== this.last + 1) {
      throw new Fault(`event ${event.sequence_number} (${event.type}) of ${this.id} follows ${this.last}`);
    }
    this.note(event);
    if (event.type === "response.output_text.delta") this.pieces += event.delta;
    this.snapshot = accumulated(event, this.snapshot);
    if (isEnd) this.whole = this.snapshot;
  }

  said(isHelped) {
    if (this.whole?.status !== "completed") throw new Error(`${this.id} ended as ${this.whole?.status}`);
    // The helper does not give away what it builds on.
    const pieces = isHelped || this.isEndAlone ? undefined : this.pieces;
    return { ...saidByResponse(this.whole), pieces };
  }
}

/** Not by `output_text`, which the library adds to some responses only. */
export function saidByResponse({ output }) {
  const parts = output.filter((item) => item.type === "message").flatMap((item) => item.content);
  const calls = output.filter((item) => item.type === "mcp_call");
  return { text: joined(parts.map((part) => part.text)), tools: calls.map((call) => [call.name, JSON.parse(call.arguments), call.output]) };
}

/** OpenAI's chat completions cannot be resumed: the same post under the same key has the whole answer. */
export class Completer {
  static end = /data: \[DONE\]\n\n/;
  mistaken = 0;
  seen = [];

  constructor(lane, thread, number) {
    Object.assign(this, { lane, thread, completions: openai(lane).chat.completions, isStreamed: number % 3 !== 2 });
  }

  async say(text, id) {
    const body = { model: "talk", messages: [{ role: "user", content: text }] };
    const headers = { "idempotency-key": id, "x-antiphon-thread": this.thread };
    return persist(this, Completer.end, async () => {
      let shown = "";
      try {
        const { choices } = await (this.isStreamed
          ? this.completions.stream(body, { headers }).on("content", (_, all) => (shown = all)).finalChatCompletion()
          : this.completions.create(body, { headers }));
        return { text: choices[0].message.content, pieces: this.isStreamed ? shown : undefined };
      } catch (error) {
        excuse(this.lane, error);
        this.seen.push(shown);
        return undefined;
      }
    });
  }
}
