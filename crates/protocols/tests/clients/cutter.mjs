// A proxy before the gateways that cuts answers in the middle, as networks and gateways that die do.
import { createServer, request as ask } from "node:http";

const HOP_BY_HOP = new Set(["connection", "keep-alive", "transfer-encoding", "host"]);
/** Bytes of an answer before any was seen. */
const REACH = 1500;
/**
 * How the answers of a lane are cut: anywhere; after one event in twenty; a tenth of a second after they began. Those of a slow one never
 * are, and take a second in each direction.
 */
export const WAYS = ["anywhere", "events", "anywhere", "often", "anywhere", "slow"];
const CUT_EVENTS = 0.05;
const OFTEN_MS = 100;
const SLOW_MS = 1_000;
const RECENT = 5;

/** Numbers from 0 to 1: the same ones for the same seed and name. */
export function randomOf(seed, name) {
  let state = [...`${seed}/${name}`].reduce((hash, letter) => Math.imul(hash ^ letter.codePointAt(0), 0x01000193), 0x811c9dc5);
  return () => {
    state = (state + 0x6d2b79f5) | 0;
    let mixed = Math.imul(state ^ (state >>> 15), state | 1);
    mixed ^= mixed + Math.imul(mixed ^ (mixed >>> 7), mixed | 61);
    return ((mixed ^ (mixed >>> 14)) >>> 0) / 2 ** 32;
  };
}

/** One client's way through the proxy, with one request at a time whose answer may be cut. */
class Lane {
  /** Cuts that are still to be made. */
  due = 0;
  cuts = 0;
  last = Lane.#unsent();
  /** What became of the latest requests, for a report of what went wrong. */
  recent = [];
  #reach = REACH;

  constructor(name, seed, url, way) {
    this.name = name;
    this.random = randomOf(seed, name);
    this.url = url;
    this.way = way;
  }

  get delay() {
    return this.way === "slow" ? SLOW_MS : 0;
  }

  /** The next request may end before it comes here: on a connection that was cut just now. It is the last one then, and not the one before. */
  expect() {
    this.last = Lane.#unsent();
  }

  static #unsent() {
    return { at: Infinity, cut: false, died: true, ended: false, status: 0, passed: "" };
  }

  /** What becomes of a request that goes out now. `at`: after how many bytes of its answer to cut it. */
  begin() {
    // More often early than late: what comes back with a cursor is short.
    const at = this.due > 0 && this.way === "anywhere" ? Math.floor(this.random() ** 2 * this.#reach) : Infinity;
    const began_ms = Math.round(performance.now());
    this.last = { at, cut: false, died: false, ended: false, status: 0, passed: "", began_ms };
    this.recent = [...this.recent, this.last].slice(-RECENT);
    return this.last;
  }

  /** What became of the latest requests, with how much of each answer has passed. */
  summary() {
    return JSON.stringify(this.recent.map(({ passed, ...request }) => ({ ...request, passed: passed.length })));
  }

  /** How many bytes of this piece of an answer pass before it is cut; undefined when all do. */
  reaches(fate, bytes, data) {
    if (bytes + data.length > fate.at) return fate.at - bytes;
    if (this.way !== "events") return undefined;
    for (let at = data.indexOf("\n\n"); at >= 0; at = data.indexOf("\n\n", at + 2)) {
      if (this.random() < CUT_EVENTS) return at + 2;
    }
    return undefined;
  }

  learn(bytes) {
    this.#reach = Math.max(this.#reach, bytes);
  }

  wasCut(fate) {
    this.due -= 1;
    this.cuts += 1;
    fate.cut = true;
  }

  /** Whether what the client says about its last request is no fault of it and of the gateway. */
  get isExcused() {
    return this.last.cut || this.last.died || this.last.status >= 500;
  }
}

export class Cutter {
  /** Connections that a gateway did not take, that it lost, and its answers that it cannot serve now. */
  counts = { refused: 0, died: 0, unavailable: 0 };
  #lanes = new Map();

  constructor(gateways, seed) {
    this.gateways = gateways.map((gateway) => new URL(gateway));
    this.seed = seed;
    this.server = createServer((request, response) => this.#take(request, response));
    // No cuts but those that are made.
    this.server.keepAliveTimeout = 300_000;
  }

  async start() {
    await new Promise((listening) => this.server.listen(0, "127.0.0.1", listening));
    return this;
  }

  lane(name, way = "anywhere") {
    const url = `http://127.0.0.1:${this.server.address().port}/${name}`;
    const lane = new Lane(name, this.seed, url, way);
    this.#lanes.set(name, lane);
    return lane;
  }

  /** Where each lane stands, for a report of what took too long. */
  standing() {
    const lanes = [...this.#lanes.values()].map(({ name, due, cuts, last }) => ({ name, due, cuts, ...last }));
    return JSON.stringify(lanes.map(({ passed, ...lane }) => ({ ...lane, passed: passed?.slice(-80) })));
  }

  async #take(request, response) {
    const [, name, path] = /^\/([^/]+)(\/.*)$/.exec(request.url);
    const lane = this.#lanes.get(name);
    const fate = lane.begin();
    const parts = [];
    for await (const part of request) parts.push(part);
    await pause(lane.delay);
    const first = Math.floor(lane.random() * this.gateways.length);
    const order = this.gateways.map((_, index) => this.gateways[(first + index) % this.gateways.length]);
    this.#forward({ lane, fate, path, request, response, body: Buffer.concat(parts), order });
  }

  /** Asks the first of the gateways; a refused connection is no answer, so another may be asked. */
  #forward(exchange) {
    const { path, request, response, body, order } = exchange;
    const [gateway, ...others] = order;
    const headers = { ...endToEnd(request.headers), connection: "close" };
    const upstream = ask({ host: gateway.hostname, port: gateway.port, method: request.method, path, headers });
    upstream.on("response", (answer) => this.#pass(exchange, answer));
    upstream.on("error", (error) => {
      if (error.code === "ECONNREFUSED" && others.length > 0) {
        this.counts.refused += 1;
        return this.#forward({ ...exchange, order: others });
      }
      this.#lost(exchange);
    });
    response.on("close", () => upstream.destroy());
    upstream.end(body);
  }

  #pass(exchange, answer) {
    const { lane, fate, response } = exchange;
    fate.status = answer.statusCode;
    this.counts.unavailable += Number(answer.statusCode >= 500);
    // Not with `connection: close`: node's fetch takes what it has then for the whole, without the last chunk of HTTP.
    response.writeHead(answer.statusCode, endToEnd(answer.headers));
    response.flushHeaders();
    let bytes = 0;
    const pass = (data, then) => {
      bytes += data.length;
      fate.passed += data.toString("latin1");
      later(lane.delay, () => response.write(data, then));
    };
    const cut = (data) => {
      lane.wasCut(fate);
      pass(data, () => setTimeout(() => hangUp(response.socket, lane), 2));
    };
    if (lane.way === "often") {
      setTimeout(() => fate.cut || fate.ended || response.destroyed || cut(Buffer.from(": cut\n")), OFTEN_MS);
    }
    answer.on("data", (data) => {
      if (fate.cut) return;
      const reach = lane.reaches(fate, bytes, data);
      if (reach === undefined) return pass(data);
      cut(data.subarray(0, reach));
    });
    answer.on("error", () => this.#lost(exchange));
    answer.on("end", () => {
      if (fate.cut) return;
      fate.ended = true;
      lane.learn(bytes);
      later(lane.delay, () => response.end());
    });
  }

  /** The gateway has gone, unless the client went first. */
  #lost({ fate, response }) {
    if (fate.cut || response.destroyed) return;
    this.counts.died += 1;
    fate.died = true;
    response.socket?.destroy();
  }
}

const pause = (ms) => ms && new Promise((done) => setTimeout(done, ms));

/** At once without a delay; timers of the same delay keep their order. */
const later = (ms, then) => (ms ? setTimeout(then, ms) : then());

const endToEnd = (headers) => Object.fromEntries(Object.entries(headers).filter(([name]) => !HOP_BY_HOP.has(name)));

/** With and without a word. */
function hangUp(socket, lane) {
  if (lane.random() < 0.5) socket?.destroy();
  else socket?.resetAndDestroy();
}
