// node fleet.mjs '{"gateways": ["http://127.0.0.1:8080", …], "cuts": 200, "seed": 1, "agent": "talk", "limit_ms": 90000}':
// the real clients talk to real gateways through a proxy that cuts their answers. Prints the line `half` in the middle, from when on a
// gateway may die, and at last as JSON what each client has in the end.
import { HttpAgent } from "@ag-ui/client";
import { Agui, Completer, Page, Responder, openai, post, saidByPage, saidByResponse } from "./comeback.mjs";
import { Cutter, WAYS, randomOf } from "./cutter.mjs";
import { Native } from "./native.mjs";

// The client of AG-UI rejects a promise of nobody's when a connection is cut; node would end.
process.on("unhandledRejection", () => {});
// It also complains of every cut here.
console.error = () => {};

const CLIENTS = { native: Native, ui_message: Page, agui: Agui, responses: Responder, chat_completions: Completer };
const CUTS_A_TURN = [3, 8];

const { gateways, cuts, seed, agent, limit_ms } = JSON.parse(process.argv[2]);
/** Threads of a protocol. Most of a turn is waiting: many cuts are made beside each other. */
const AT_ONCE = cuts > 1_000 ? 10 : 3;
const cutter = await new Cutter(gateways, seed).start();
const plain = cutter.lane("plain");

/** What is said in a thread; by its words the scripted service knows what to answer. It counts its calls in each turn anew. */
const TEXTS = [
  (name) => `slowly, ${name}: Grüße aus Zürich, привет, 你好`,
  (name) => `${name} with tools: 🦀 and 👩‍👩‍👧`,
  (name) => `slowly ${name}`,
  (name) => `${name}, once more with tools`,
  (name) => `${name}: plain ñandú`,
];

/** A thread whose turns bring no tasks after them. */
const named = (thread_id) => post(plain.url, "/v1/threads", { thread_id, agent_id: agent });

/** One thread with a turn for each text. */
async function talk(protocol, number, told) {
  const thread = `${protocol}-${seed}-${number}`;
  // Each protocol is cut in every way, however few threads there are.
  const lane = cutter.lane(thread, WAYS[(number + Object.keys(CLIENTS).indexOf(protocol)) % WAYS.length]);
  const client = new CLIENTS[protocol](lane, thread, number);
  const random = randomOf(seed, `turns of ${thread}`);
  const [least, most] = CUTS_A_TURN;
  await named(thread);
  for (const [turn, text] of TEXTS.entries()) {
    const [input, before] = [text(`${protocol} ${number}`), lane.cuts];
    lane.due = least + Math.floor(random() * (most - least + 1));
    client.seen = [];
    const said = await client.say(input, `${thread}-${turn}`);
    const wrong = client.seen.filter((text) => !said.text.startsWith(text));
    told.turns.push({ protocol, thread, input, ...said, wrong });
    told.cuts[protocol] += lane.cuts - before;
    told.ways[lane.way] = (told.ways[lane.way] ?? 0) + lane.cuts - before;
  }
  told.mistaken[protocol] += client.mistaken;
  told.gone[protocol] += client.gone ?? 0;
}

/** Thread after thread, until the protocol has been cut often enough. */
async function threads(protocol, first, told, middle) {
  const share = cuts / Object.keys(CLIENTS).length;
  for (let number = first; told.cuts[protocol] < share; number += AT_ONCE) {
    if (told.cuts[protocol] >= share / 2) await middle;
    await talk(protocol, number, told);
  }
  await middle;
}

async function talks(middle) {
  const zeros = () => Object.fromEntries(Object.keys(CLIENTS).map((protocol) => [protocol, 0]));
  const told = { turns: [], cuts: zeros(), ways: {}, mistaken: zeros(), gone: zeros() };
  const all = Object.keys(CLIENTS).flatMap((protocol) =>
    Array.from({ length: AT_ONCE }, (_, first) => threads(protocol, first, told, middle)),
  );
  await Promise.all(all);
  return told;
}

const until = async (done) => {
  while (!(await done())) await new Promise((later) => setTimeout(later, 20));
};

/** The page's own stop ends its connection only; the turn is stopped by the route. */
async function stoppedPage() {
  const thread = `stopped-${seed}`;
  await named(thread);
  const { chat } = new Page(plain, thread, 0);
  const asked = chat.sendMessage({ text: `slowly ${"and on ".repeat(40)}` });
  await until(() => chat.lastMessage?.role === "assistant" && saidByPage(chat.lastMessage).text.length > 10);
  const { status } = await post(plain.url, `/api/chat/${thread}/stop?message=${chat.lastMessage.id}`);
  await asked;
  return { thread, status, page: chat.status, ...saidByPage(chat.lastMessage) };
}

async function cancelledResponse() {
  const { responses } = openai(plain);
  const thread = `cancelled-${seed}`;
  const runner = responses.stream({ model: agent, input: `slowly ${"and on ".repeat(40)}`, conversation: thread });
  const shown = await new Promise((some, failed) => {
    runner.on("response.output_text.delta", ({ snapshot }) => snapshot.length > 10 && some(snapshot));
    runner.on("error", failed);
    runner.on("event", ({ response }) => (runner.id = response?.id ?? runner.id));
  });
  const cancelled = await responses.cancel(runner.id);
  const final = await runner.finalResponse();
  const retrieved = await responses.retrieve(runner.id);
  const said = saidByResponse(final);
  return {
    thread,
    ...said,
    statuses: [cancelled.status, final.status, retrieved.status],
    isSame: [cancelled, retrieved].every((response) => saidByResponse(response).text === said.text) && said.text.startsWith(shown),
  };
}

async function backgroundResponse() {
  const { responses } = openai(plain);
  const thread = `background-${seed}`;
  // It takes a dozen seconds, so that a client on a busy machine sees it in progress as well.
  const body = { model: agent, input: `slowly in the background ${"and on ".repeat(60)}`, conversation: thread, background: true };
  const headers = { "Idempotency-Key": thread };
  const asked = () => responses.create({ ...body, metadata: { order: "7" } }, { headers });
  const first = await asked();
  const seen = [first, await asked()];
  await until(async () => {
    seen.push(await responses.retrieve(first.id));
    return !["queued", "in_progress"].includes(seen.at(-1).status);
  });
  const kept = seen.map(({ id, created_at, background, metadata }) => JSON.stringify([id, created_at, background, metadata]));
  // The library's own helper asks for everything and drops what is not above its number, also long after the end.
  const helper = responses.stream({ response_id: first.id, starting_after: 7 });
  const events = [];
  for await (const event of helper) events.push({ type: event.type, text: event.text, number: event.sequence_number });
  const again = saidByResponse(await helper.finalResponse()).text;
  return {
    thread,
    helper: { events, again },
    statuses: seen.map(({ status }) => status),
    kept: [...new Set(kept)].map(JSON.parse),
    ...saidByResponse(seen.at(-1)),
  };
}

async function chainedResponses() {
  const { responses } = openai(plain);
  const first = await responses.create({ model: agent, input: "first with tools" });
  const second = await responses.create({ model: agent, input: "second", previous_response_id: first.id });
  const again = await responses.retrieve(second.id);
  const refused = await refusal(responses.create({ model: agent, input: "third", previous_response_id: first.id }));
  return {
    threads: [first.conversation.id, second.conversation.id],
    follows: second.previous_response_id === first.id,
    isSame: JSON.stringify(again) === JSON.stringify(second),
    said: [first, second].map(saidByResponse),
    refused,
  };
}

/** A completion that names no thread says in which it was. */
async function newThread() {
  const body = { model: agent, messages: [{ role: "user", content: "hello" }] };
  const { data, response } = await openai(plain).chat.completions.create(body).withResponse();
  return { thread: response.headers.get("x-antiphon-thread"), text: data.choices[0].message.content };
}

async function refusal(promise) {
  try {
    return { answered: await promise };
  } catch (error) {
    const { status, code, message, payload } = error;
    return { name: error.constructor.name, status, code, message, payload };
  }
}

/** What each library shows of an input without text. */
async function refusals() {
  const { chat } = new Page(plain, `empty-${seed}`, 0);
  await chat.sendMessage({ text: " " });
  const initialMessages = [{ id: "q", role: "user", content: " " }];
  const { responses, chat: { completions } } = openai(plain);
  return {
    ui_message: { page: chat.status, message: chat.error?.message },
    agui: await refusal(new HttpAgent({ url: `${plain.url}/agui`, threadId: `empty-${seed}`, initialMessages }).runAgent()),
    responses: await refusal(responses.create({ model: agent, input: " " })),
    chat_completions: await refusal(completions.create({ model: agent, messages: [{ role: "user", content: " " }] })),
  };
}

async function others() {
  const made = { stopped: stoppedPage(), cancelled: cancelledResponse(), background: backgroundResponse() };
  Object.assign(made, { chained: chainedResponses(), new_thread: newThread(), refusals: refusals() });
  const all = await Promise.all(Object.entries(made).map(async ([name, promise]) => [name, await promise]));
  return Object.fromEntries(all);
}

function fail(error) {
  const lines = [`seed ${seed}`, error.stack ?? error, JSON.stringify(cutter.counts)];
  process.stderr.write(`${lines.join("\n")}\n`, () => process.exit(1));
}

setTimeout(() => fail(new Error(`not done after ${limit_ms} ms: ${cutter.standing()}`)), limit_ms).unref();
try {
  const asked = others();
  const [told, other] = await Promise.all([talks(asked.then(() => process.stdout.write("half\n"))), asked]);
  // Some clients keep connections open, and a pipe takes only so much at once.
  const report = JSON.stringify({ ...told, ...cutter.counts, others: other });
  process.stdout.write(report, () => process.exit(0));
} catch (error) {
  fail(error);
}
