// Serves the golden files as a gateway would: /<scenario>[/cut/<events>]/<path of the protocol>. With /cut the connection is
// destroyed after so many events, as when a gateway dies.
import { createServer } from "node:http";
import { readFileSync, readdirSync } from "node:fs";
import { join } from "node:path";

const STREAM = { "content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache, no-store, no-transform" };

export function golden(folder, protocol, scenario, extension = "txt") {
  return readFileSync(join(folder, protocol, `${scenario}.${extension}`), "utf8");
}

/** The scenarios of a protocol. */
export function namesOf(folder, protocol) {
  const streams = readdirSync(join(folder, protocol)).filter((file) => file.endsWith(".txt"));
  return streams.map((file) => file.slice(0, -4)).sort();
}

export function eventsOf(text) {
  return text.split("\n\n").filter((event) => event !== "").map((event) => `${event}\n\n`);
}

const numberOf = (event) => Number(/"sequence_number":(\d+)/.exec(event)[1]);

/** Starts it. `posted`: every body that a client sent. */
export async function start(folder) {
  const posted = [];
  const server = createServer((request, response) => {
    let body = "";
    request.on("data", (data) => (body += data));
    request.on("end", () => {
      if (body !== "") posted.push(JSON.parse(body));
      answer(folder, request, body === "" ? {} : JSON.parse(body), response);
    });
  });
  await new Promise((listening) => server.listen(0, "127.0.0.1", listening));
  const url = (scenario, cut) =>
    `http://127.0.0.1:${server.address().port}/${scenario}${cut === undefined ? "" : `/cut/${cut}`}`;
  return { url, posted };
}

function answer(folder, request, body, response) {
  const url = new URL(request.url, "http://localhost");
  const [, scenario, cut, path] = /^\/(\w+)(?:\/cut\/(\d+))?(\/.*)$/.exec(url.pathname);
  const object = (protocol) => {
    const text = golden(folder, protocol, scenario, "json");
    response.writeHead(JSON.parse(text).id === undefined ? 503 : 200, { "content-type": "application/json" });
    response.end(text);
  };
  const stream = (protocol, headers = {}, after = -1) => {
    let events = eventsOf(golden(folder, protocol, scenario));
    if (after >= 0) events = events.filter((event) => numberOf(event) > after);
    response.writeHead(200, { ...STREAM, ...headers });
    response.write(": open\n\n");
    if (cut === undefined) return response.end(events.join(""));
    response.write(events.slice(0, Number(cut)).join(""), () => setTimeout(() => response.destroy(), 5));
  };
  if (path === "/agui") return stream("agui");
  if (path === "/v1/chat/completions") return body.stream ? stream("chat_completions") : object("chat_completions");
  if (path.startsWith("/v1/responses")) {
    const after = Number(url.searchParams.get("starting_after") ?? -1);
    const wanted = body.stream || url.searchParams.get("stream") === "true";
    return wanted ? stream("responses", {}, after) : object("responses");
  }
  return stream("ui_message", { "x-vercel-ai-ui-message-stream": "v1" });
}
