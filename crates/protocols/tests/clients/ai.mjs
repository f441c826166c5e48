// Vercel's AI SDK, without React.
import { AbstractChat, DefaultChatTransport } from "ai";

/** What a page keeps of a chat. */
export class State {
  status = "ready";
  error = undefined;
  messages = [];
  pushMessage = (message) => (this.messages = this.messages.concat(message));
  popMessage = () => (this.messages = this.messages.slice(0, -1));
  replaceMessage = (index, message) => (this.messages = this.messages.with(index, this.snapshot(message)));
  snapshot = (value) => structuredClone(value);
}

class Chat extends AbstractChat {
  constructor(api) {
    let made = 0;
    super({
      id: "t1",
      generateId: () => `client-${(made += 1)}`,
      state: new State(),
      transport: new DefaultChatTransport({ api }),
      onFinish: (finish) => (this.finished = finish),
    });
  }
}

function understood(chat) {
  const { message, messages, finishReason, isAbort, isDisconnect, isError } = chat.finished;
  const { status, error } = chat;
  return { status, error: error?.message, finishReason, isAbort, isDisconnect, isError, message, messages: messages.length };
}

export async function reads(server, scenario) {
  const chat = new Chat(`${server.url(scenario)}/api/chat`);
  await chat.sendMessage({ text: "hello" });
  return understood(chat);
}

/** Cut after so many events: what is told then, and what is there after it was read again. */
export async function isCut(server, scenario, cut) {
  const chat = new Chat(`${server.url(scenario, cut)}/api/chat`);
  await chat.sendMessage({ text: "hello" });
  const tookItForWhole = chat.status !== "error";
  chat.transport.api = `${server.url(scenario)}/api/chat`;
  await chat.resumeStream();
  return { tookItForWhole, after: understood(chat) };
}
