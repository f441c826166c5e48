// node random.mjs <folder>: how each client says that every stream in the folder ended, and the text that it read.
import * as agui from "./agui.mjs";
import * as ai from "./ai.mjs";
import * as openai from "./openai.mjs";
import { namesOf, start } from "./server.mjs";

const folder = process.argv[2];
const server = await start(folder);
const joined = (texts) => texts.filter((text) => text !== undefined).join("");

const readers = {
  async ui_message(scenario) {
    const { status, error, message } = await ai.reads(server, scenario);
    return { ended: error ?? status, text: joined(message.parts.filter((part) => part.type === "text").map((part) => part.text)) };
  },
  async responses(scenario) {
    const { status, thrown, message, output_text } = await openai.whole(server, scenario);
    return { ended: status ?? `${thrown}: ${message}`, text: output_text };
  },
  async chat_completions(scenario) {
    const { choices, thrown, message } = await openai.completed(server, scenario);
    return { ended: choices?.[0].finish_reason ?? `${thrown}: ${message}`, text: choices?.[0].message.content ?? "" };
  },
  async agui(scenario) {
    const { outcome, thrown, messages } = await agui.reads(server, scenario);
    const spoken = messages.filter((message) => message.role === "assistant");
    return { ended: thrown ?? outcome, text: joined(spoken.map((message) => message.content)) };
  },
};

const understood = {};
for (const [protocol, read] of Object.entries(readers)) {
  understood[protocol] = {};
  for (const scenario of namesOf(folder, protocol)) understood[protocol][scenario] = await read(scenario);
}
process.stdout.write(JSON.stringify(understood), () => process.exit(0));
