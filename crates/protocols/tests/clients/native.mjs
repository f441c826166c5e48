// Antiphon's own events, by the library that is in node what browsers have.
import { EventSource } from "eventsource";
import { PAUSE_MS, joined, post } from "./comeback.mjs";

/** The library waits for a second before it comes back, as the gateway asks it to. */
async function impatient(...request) {
  const response = await fetch(...request);
  const transform = (chunk, out) => out.enqueue(Buffer.from(Buffer.from(chunk).toString("latin1").replace("retry: 1000", "retry: 20"), "latin1"));
  const body = response.body?.pipeThrough(new TransformStream({ transform }));
  const { status, headers, url, redirected } = response;
  return { body, status, headers, url, redirected };
}

/** Comes back by itself, or another one begins with the cursor. */
export class Native {
  mistaken = 0;
  seen = [];
  cursor = "0";

  constructor(lane, thread, number) {
    Object.assign(this, { lane, thread, isNew: number % 2 === 1, plain: new URL("/plain", lane.url).href });
  }

  async say(text, id) {
    const address = `/v1/threads/${this.thread}/messages`;
    const said = async () => (await post(this.plain, address, { content: text }, id)).body.message_id;
    const first = this.lane.random() < 0.5 ? await said() : undefined;
    const heard = new Listener(this);
    const answer = first ?? (await said());
    return await heard.whole(answer);
  }
}

/** The events of a thread until an answer is whole. */
class Listener {
  #messages = new Map();
  #ended = new Set();
  #settle = undefined;
  #isDone = false;

  constructor(client) {
    this.client = client;
    this.#open();
  }

  /** Resolves to what the answer says when its end has come. */
  whole(answer) {
    this.answer = answer;
    return new Promise((done, failed) => {
      this.#settle = { done, failed };
      this.#look();
    });
  }

  get #text() {
    return joined(this.#messages.get(this.answer)?.pieces ?? []);
  }

  get #tools() {
    const { calls } = this.#messages.get(this.answer) ?? { calls: new Map() };
    return [...calls.values()].map(({ name, arguments: text, result }) => [name, JSON.parse(text || "{}"), result]);
  }

  #look() {
    if (!this.#settle || !this.#ended.has(this.answer)) return;
    this.#isDone = true;
    this.source.close();
    this.#settle.done({ text: this.#text, tools: this.#tools });
  }

  #open() {
    const { lane, thread, cursor } = this.client;
    const address = `${lane.url}/v1/threads/${thread}/events?after=${encodeURIComponent(cursor)}`;
    this.source = new EventSource(address, { fetch: impatient });
    this.source.onmessage = (event) => this.#hear(event, JSON.parse(event.data));
    this.source.addEventListener("reset", (event) => this.#messages.delete(JSON.parse(event.data).message_id));
    this.source.onerror = (error) => this.#lost(error);
  }

  #hear({ lastEventId }, { message_id: message, chunk_id: number, chunk_type: kind = "content", chunk, compacted, metadata }) {
    this.client.cursor = lastEventId;
    if (lastEventId === this.client.before) this.#fail(`${lastEventId} is the id of two events`);
    this.client.before = lastEventId;
    if (kind === "system") {
      this.#ended.add(message);
      return this.#look();
    }
    if (!this.#messages.has(message)) this.#messages.set(message, { pieces: [], calls: new Map(), next: 0 });
    const known = this.#messages.get(message);
    // What comes from the store after a cut is one chunk, whatever its number.
    if (!compacted && number !== known.next) this.#fail(`chunk ${number} of ${message} instead of ${known.next}`);
    known.next = number + 1;
    if (kind === "content") known.pieces.push(chunk);
    if (kind === "tool_call" || kind === "tool_result") {
      const { tool_call_id: id, tool_name: name } = metadata;
      if (!known.calls.has(id)) known.calls.set(id, { name, arguments: "", result: undefined });
      const call = known.calls.get(id);
      if (kind === "tool_call") call.arguments += chunk;
      else call.result = (call.result ?? "") + chunk;
    }
    if (kind === "error") this.#fail(`${message} failed: ${chunk}`);
  }

  #lost({ code, message }) {
    const { client, source } = this;
    client.seen.push(this.#text);
    // No stream of a thread ever ends by itself.
    client.mistaken += Number(client.lane.last.ended);
    if (code && code !== 200 && code < 500) return this.#fail(`refused: ${code} ${message}`);
    if (!client.isNew && source.readyState !== EventSource.CLOSED) return;
    source.close();
    // The answer may be known to be whole meanwhile: its stream was cut behind the end, and then the message was acknowledged.
    setTimeout(() => this.#isDone || this.#open(), client.lane.random() * PAUSE_MS);
  }

  #fail(why) {
    this.source.close();
    const error = new Error(`${this.client.lane.name}: ${why}`);
    if (!this.#settle) throw error;
    this.#settle.failed(error);
  }
}
