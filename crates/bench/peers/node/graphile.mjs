// graphile-worker with one named queue per agent. Its only argument is JSON. `batched` selects the
// configuration that its documentation recommends for throughput. `concurrency` is the number of
// handlers, `nats_url` makes the handler ask the workflow, and `rows` makes it insert that number
// of messages.

import { connect } from "@nats-io/transport-node";
import { Logger, makeWorkerUtils, run, runMigrations } from "graphile-worker";
import pg from "pg";

import { serve } from "./serve.mjs";

// Enough for 24 handlers that all use the database, and for the listener.
const CONNECTIONS = 25;
const CONTENT = "x".repeat(400);
// Shorter than the default of 2 s: with batches, a fetch can be empty while completions are still
// in flight.
const POLL_MS = 50;

const CREATE_MESSAGES = `create table messages (
  thread_id text not null, seq bigint not null, role text not null, content text not null,
  created_at timestamptz not null default now(), primary key (thread_id, seq))`;
const INSERT_MESSAGES = {
  name: "insert_messages",
  text: "insert into messages (thread_id, seq, role, content) select $1, * from unnest($2::bigint[], $3::text[], $4::text[])",
};

const { batched = false, concurrency = 24, nats_url = null, rows = 0 } = JSON.parse(process.argv[2] ?? "{}");
const logger = new Logger(() => () => {});
const workflow = nats_url ? await connect({ servers: nats_url }) : null;
const batching = {
  localQueue: { size: 500 },
  completeJobBatchDelay: 0,
  failJobBatchDelay: 0,
  pollInterval: POLL_MS,
};

// Reports completions once the database has them; the library's own event comes earlier.
function watchCompletions(client, known, notes) {
  const query = client.query.bind(client);
  client.query = (...args) => {
    const asked = query(...args);
    if (!args[0]?.name?.startsWith("complete_job")) return asked;
    return asked.then((result) => {
      for (const id of [args[0].values[0]].flat()) notes.completed(known.get(id));
      return result;
    });
  };
}

class Queue {
  async open(url, load, notes) {
    this.notes = notes;
    this.known = new Map();
    this.pool = new pg.Pool({ connectionString: url, max: CONNECTIONS });
    // Otherwise the library warns that a lost connection would end the process.
    this.pool.on("error", () => {});
    this.pool.on("connect", (client) => client.on("error", () => {}));
    if (notes.isPaced) this.pool.on("connect", (client) => watchCompletions(client, this.known, notes));
    await runMigrations({ pgPool: this.pool, logger });
    if (rows > 0) await this.pool.query(CREATE_MESSAGES);
    this.utils = await makeWorkerUtils({ pgPool: this.pool, logger });
    // A long-running service has its connections open already.
    const clients = await Promise.all(Array.from({ length: CONNECTIONS }, () => this.pool.connect()));
    for (const client of clients) client.release();
  }

  async enqueue(round) {
    const specs = round.map((task) => ({ identifier: "noop", payload: task, queueName: `agent-${task.agent}` }));
    await this.utils.addJobs(specs);
  }

  async add(task) {
    await this.utils.addJob("noop", task, { queueName: `agent-${task.agent}` });
  }

  async start() {
    this.runner = await run({
      pgPool: this.pool,
      logger,
      noHandleSignals: true,
      taskList: { noop: (task, context) => this.handle(task, context) },
      preset: { worker: { concurrentJobs: concurrency, ...(batched ? batching : {}) } },
    });
  }

  async handle(task, { job }) {
    const { notes } = this;
    if (notes.isPaced) this.known.set(job.id, task);
    notes.begin(task);
    let answer = CONTENT;
    if (workflow) {
      const request = JSON.stringify({ ...task, content: CONTENT });
      const reply = await workflow.request(`noop.${task.agent}`, request, { timeout: 60_000 });
      answer = reply.string();
    }
    if (rows > 0) await this.insert(task, answer);
    notes.end(task);
  }

  async insert({ agent, seq }, answer) {
    const numbers = Array.from({ length: rows }, (_, row) => seq * rows + row);
    const roles = numbers.map((_, row) => (row === 0 ? "user" : "assistant"));
    const contents = numbers.map((_, row) => (row === 0 ? CONTENT : answer));
    await this.pool.query({ ...INSERT_MESSAGES, values: [`agent-${agent}`, numbers, roles, contents] });
  }

  async close() {
    await this.runner?.stop();
    this.runner = null;
    await this.utils.release();
    await this.pool.end();
  }
}

await serve(new Queue());
