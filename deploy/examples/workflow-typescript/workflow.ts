/**
 * A workflow service in TypeScript: takes turn requests and publishes answers, chunk by chunk.
 *
 * The contract is proto/antiphon/v1/work.proto. Put your model in the place of `think`.
 */
import { randomUUID } from "node:crypto";
import { setTimeout as sleep } from "node:timers/promises";
import { AckPolicy, jetstream, jetstreamManager, type JetStreamClient, type JsMsg } from "@nats-io/jetstream";
import { connect, nanos, type NatsConnection } from "@nats-io/transport-node";

const workflow = process.env.ANTIPHON_WORKFLOW ?? "default";
const atATime = Number(process.env.ANTIPHON_WORKFLOW_CONCURRENCY ?? 16);

/** The part of a turn request that is used here; the whole is in work.proto. */
interface TurnRequest {
  turn_id: string;
  run: number;
  attempt: number;
  thread_id: string;
  message_id: string;
  turn_token: string;
  subject: string;
  stop_subject: string;
  deadline_ms: number;
  /** RFC 3339: after it a first delivery is not begun. */
  expires_at?: string;
  /** The history, oldest first, then the input. */
  context: { role: string; content: string }[];
}

/** What Antiphon is told of a failure. */
interface Hint {
  class?: "transient" | "permanent" | "auth";
  /** Seconds. */
  retry_after?: number;
}

class Failed extends Error {
  constructor(text: string, readonly hint: Hint) {
    super(text);
  }
}

/** A call of a model, for the ledger. */
interface ModelCall {
  id: string;
  model: string;
  input_tokens: number;
  output_tokens?: number;
  estimated?: boolean;
}

/**
 * Yields the answer piece by piece: here the input, word by word. It reports a call of a model when it begins, so that it is counted if the turn is
 * stopped, and with the provider's counts when it has ended.
 */
async function* think(request: TurnRequest, signal: AbortSignal): AsyncGenerator<string | ModelCall> {
  const bytes = (text: string): number => new TextEncoder().encode(text).length;
  const read = request.context.reduce((sum, message) => sum + bytes(message.content), 0);
  yield { id: "call-0", model: "echo", input_tokens: Math.floor((read * 5) / 16), estimated: true };
  const text = request.context.at(-1)?.content ?? "";
  if (text.startsWith("fail")) throw new Failed("it was told to fail", { class: "permanent" });
  for (const word of `TypeScript heard: ${text}`.split(" ")) {
    await sleep(20, undefined, { signal });
    yield `${word} `;
  }
  yield { id: "call-0", model: "echo", input_tokens: read, output_tokens: bytes(text) };
}

/** Publishes the chunks of one attempt: numbered from 0, each until it is stored, the last one final. */
async function answer(js: JetStreamClient, request: TurnRequest, attempt: number, signal: AbortSignal): Promise<void> {
  let number = 0;
  const delivery = randomUUID();
  const say = async (text: string, more: object = {}): Promise<void> => {
    const chunk = JSON.stringify({
      session_id: request.thread_id,
      message_id: request.message_id,
      turn_token: request.turn_token,
      attempt,
      delivery_id: delivery,
      chunk_id: number++,
      chunk: text,
      ...more,
    });
    // The same chunk again does no harm: it is dropped.
    for (;;) {
      signal.throwIfAborted();
      try {
        await js.publish(request.subject, chunk, { timeout: 5_000 });
        return;
      } catch (error) {
        console.log(`${request.turn_id}: publishing again: ${error}`);
        await sleep(500);
      }
    }
  };
  try {
    const pieces = think(request, signal);
    for (;;) {
      const piece = pieces.next();
      // A sign of life when nothing comes for long: a silent run would fail.
      while ((await Promise.race([piece, silence(request.deadline_ms / 3)])) === "silence") {
        await say("", { chunk_type: "metadata" });
      }
      const { done, value } = await piece;
      if (done) return await say("", { is_final: true, metadata: { model: "echo" } });
      if (typeof value === "string") await say(value);
      else await say("", { chunk_type: "metadata", metadata: { model_calls: [value] } });
    }
  } catch (error) {
    if (!(error instanceof Failed)) throw error;
    await say(error.message, { chunk_type: "error", is_final: true, metadata: error.hint });
  }
}

const silence = (ms: number): Promise<"silence"> => sleep(ms, "silence" as const, { ref: false });

/** Answers one request, unless somebody stops it. Acknowledged only when the last chunk is stored. */
async function take(nc: NatsConnection, js: JetStreamClient, message: JsMsg): Promise<void> {
  const request = message.json<TurnRequest>();
  // Each delivery is an attempt of its own and fences those before it.
  const attempt = request.attempt + message.info.deliveryCount - 1;
  // The run has failed before anybody began it. A later delivery goes on with a run that was alive.
  const hasExpired = request.expires_at !== undefined && Date.now() > Date.parse(request.expires_at);
  if (hasExpired && message.info.deliveryCount === 1) return void message.ack();
  const key = `${request.turn_id} ${request.run} ${attempt}`;
  // A NATS server that was killed may deliver again under the same number: the answer under way goes on.
  if (inHand.has(key)) return;
  inHand.set(key, message);
  const stopping = new AbortController();
  const stop = nc.subscribe(request.stop_subject, {
    callback: (_error, notice) => {
      // Whatever else comes is not from the fleet.
      if (notice?.string() === "stop") stopping.abort();
    },
  });
  const working = setInterval(() => message.working(), 10_000);
  try {
    await answer(js, request, attempt, stopping.signal).catch((error) => {
      if (!stopping.signal.aborted) throw error;
    });
    // Where it fails, the request is delivered again, and the chunks of that attempt are dropped: the turn has ended.
    await message.ackAck({ timeout: 5_000 });
  } catch (error) {
    console.log(`${request.turn_id}: handing the request back: ${error}`);
    message.nak(1_000);
  } finally {
    inHand.delete(key);
    clearInterval(working);
    stop.unsubscribe();
  }
}

// A list of nats://user:password@host:port, of which the host alone is needed.
const servers = (process.env.NATS_URL ?? "nats://127.0.0.1:4222").split(",").map((text) => {
  const [, user, pass, host] = /^(?:[a-z]+:\/\/)?(?:([^:@]*)(?::(.*))?@)?([^@/]+)\/?$/.exec(text.trim()) ?? [];
  if (host === undefined) throw new Error(`NATS_URL has no server in ${JSON.stringify(text)}`);
  return { user, pass, host };
});
const nc = await connect({
  servers: servers.map((server) => server.host),
  // The client takes them from here alone: it drops those of a URL.
  user: servers[0]?.user,
  pass: servers[0]?.pass,
  // A user of NATS may be answered on subjects of its own only.
  inboxPrefix: process.env.ANTIPHON_NATS_INBOX_PREFIX ?? "_INBOX",
  maxReconnectAttempts: -1,
});
const js = jetstream(nc);
// Without a look at the account, which a user of NATS may not.
const jsm = await jetstreamManager(nc, { checkAPI: false });
// One durable consumer for all services of a workflow: `antiphon migrate` makes it, or the first service that may.
const durable = `WORKFLOW_${workflow}`;
await jsm.consumers.info("WORK", durable).catch(() =>
  jsm.consumers.add("WORK", {
    durable_name: durable,
    filter_subject: `work.${workflow}`,
    ack_policy: AckPolicy.Explicit,
    ack_wait: nanos(30_000),
    max_deliver: 16,
  }),
);
const requests = await js.consumers.get("WORK", durable);
const turns = new Set<Promise<void>>();
const inHand = new Map<string, JsMsg>();
let draining = false;
nc.closed().then((error) => {
  if (draining) return;
  console.log(`the connection to NATS was closed for good: ${error ?? ""}`);
  process.exit(1);
});
const drained = new Promise<void>((resolve) => {
  for (const name of ["SIGINT", "SIGTERM"] as const) {
    process.once(name, () => {
      draining = true;
      resolve();
    });
  }
});
console.log(`taking turn requests for ${workflow}`);
while (!draining) {
  // Ask only when there is somebody who can answer.
  if (turns.size >= atATime) await Promise.race([...turns, drained]);
  if (draining) break;
  // None for some seconds, or NATS is away. A shorter time would be given up by the client where NATS is far away.
  const message = await requests.next({ expires: 3_000 }).catch(() => sleep(500, null));
  if (!message) continue;
  const turn = take(nc, js, message).finally(() => turns.delete(turn));
  turns.add(turn);
}
// What is in hand is finished; what takes longer is handed back.
await Promise.race([Promise.allSettled(turns), sleep(20_000)]);
inHand.forEach((message) => message.nak());
await nc.drain();
process.exit(0);
