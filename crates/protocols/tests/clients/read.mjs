// node read.mjs <golden files>: lets the real clients read the golden files, and prints what they understood as JSON.
import { createParser } from "eventsource-parser";
import * as agui from "./agui.mjs";
import * as ai from "./ai.mjs";
import * as openai from "./openai.mjs";
import { eventsOf, golden, namesOf, start } from "./server.mjs";

// The client of AG-UI rejects a promise of nobody's when a connection is cut; node would end.
process.on("unhandledRejection", () => {});

const folder = process.argv[2];
const server = await start(folder);

async function each(protocol, read) {
  const told = {};
  for (const scenario of namesOf(folder, protocol)) told[scenario] = await read(server, scenario);
  return told;
}

/** Cuts a stream after each of its events but the last; how often a client took what it had for the whole. */
async function cuts(protocol, scenario, terminals, isCut) {
  const events = eventsOf(golden(folder, protocol, scenario)).length - terminals;
  let mistaken = 0;
  for (let cut = 0; cut <= events; cut += 1) mistaken += Number(await isCut(server, scenario, cut));
  return { cuts: events + 1, mistaken };
}

/** A cut and a return must leave the same message as no cut. */
async function cutsAndReturns(scenario) {
  const whole = JSON.stringify((await ai.reads(server, scenario)).message);
  let differ = 0;
  const told = await cuts("ui_message", scenario, 2, async (server, scenario, cut) => {
    const { tookItForWhole, after } = await ai.isCut(server, scenario, cut);
    differ += Number(JSON.stringify(after.message) !== whole || after.messages !== 2 || after.status !== "ready");
    return tookItForWhole;
  });
  return { ...told, differ };
}

/** Byte by byte and at once: how many events, and whether every datum is JSON. */
function parsed(protocol, scenario) {
  const bytes = new TextEncoder().encode(golden(folder, protocol, scenario));
  const read = (size) => {
    const events = [];
    const parser = createParser({ onEvent: (event) => events.push(event) });
    const decoder = new TextDecoder();
    for (let at = 0; at < bytes.length; at += size) {
      parser.feed(decoder.decode(bytes.subarray(at, at + size), { stream: true }));
    }
    return events;
  };
  const events = read(bytes.length);
  events.filter((event) => event.data !== "[DONE]").forEach((event) => JSON.parse(event.data));
  return { events: events.length, isSameByteByByte: JSON.stringify(read(1)) === JSON.stringify(events) };
}

const understood = {
  ui_message: await each("ui_message", ai.reads),
  responses: await each("responses", openai.responses),
  chat_completions: await each("chat_completions", openai.completions),
  agui: await each("agui", agui.reads),
  parser: Object.fromEntries(
    ["ui_message", "responses", "chat_completions", "agui"].map((protocol) => [
      protocol,
      Object.fromEntries(namesOf(folder, protocol).map((scenario) => [scenario, parsed(protocol, scenario)])),
    ]),
  ),
  cuts: {
    ui_message: await cutsAndReturns("steps"),
    responses: await cuts("responses", "steps", 1, openai.responsesIsCut),
    chat_completions: await cuts("chat_completions", "steps", 3, openai.completionsIsCut),
    agui: await cuts("agui", "steps", 1, agui.isCut),
  },
};
const bodies = [...new Set(server.posted.map((body) => JSON.stringify(body)))].map((body) => JSON.parse(body));
understood.posted = bodies;
// Some clients keep connections open, and a pipe takes only so much at once.
process.stdout.write(JSON.stringify(understood), () => process.exit(0));
