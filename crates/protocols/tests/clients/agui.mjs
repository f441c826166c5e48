// The client of AG-UI, whose verifier refuses what the protocol does not allow.
import { HttpAgent } from "@ag-ui/client";

async function run(server, scenario, cut) {
  const messages = [{ id: "client-1", role: "user", content: "hello" }];
  const agent = new HttpAgent({ url: `${server.url(scenario, cut)}/agui`, threadId: "t1", initialMessages: messages });
  const told = { outcome: undefined, error: undefined, custom: [] };
  const subscriber = {
    onRunFinishedEvent: ({ event, outcome }) => Object.assign(told, { outcome, usage: event.usage, metadata: event.metadata }),
    onRunErrorEvent: ({ event }) => (told.error = { code: event.code, message: event.message }),
    onCustomEvent: ({ event }) => told.custom.push({ name: event.name, value: event.value }),
  };
  try {
    await agent.runAgent({ runId: "run-1" }, subscriber);
  } catch (error) {
    told.thrown = error.message;
  }
  return { ...told, messages: agent.messages.slice(1) };
}

export const reads = (server, scenario) => run(server, scenario);

/** Whether a client that was cut takes what it has for the whole. */
export async function isCut(server, scenario, cut) {
  const told = await run(server, scenario, cut);
  return told.thrown === undefined && told.error === undefined;
}
