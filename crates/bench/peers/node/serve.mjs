// The part of the benchmark's protocol that all npm peers share: commands arrive as JSON lines on
// stdin, answers are JSON lines on stdout. The benchmark measures; a peer only obeys commands and
// records what its handler saw.

import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

// The marks of the handler in one round: 2n when task n began, 2n + 1 when it had ended, n = agent
// * tasks + seq.
export class Notes {
  constructor(load, onHandled) {
    this.load = load;
    this.total = load.agents * load.tasks;
    this.marks = [];
    this.ended = 0;
    this.dueAt = new Map();
    this.latenciesUs = [];
    this.onHandled = onHandled;
  }

  get isPaced() {
    return this.load.rate !== null;
  }

  begin({ agent, seq }) {
    this.marks.push(2 * (agent * this.load.tasks + seq));
  }

  end({ agent, seq }) {
    this.marks.push(2 * (agent * this.load.tasks + seq) + 1);
    this.ended += 1;
    if (this.ended === this.total && !this.isPaced) this.onHandled();
  }

  // A task of a paced round is durably completed. The clock started when the task was due, not when
  // it was sent.
  completed({ agent, seq }) {
    const n = agent * this.load.tasks + seq;
    this.latenciesUs.push(Math.round((performance.now() - this.dueAt.get(n)) * 1000));
    if (this.latenciesUs.length === this.total) this.onHandled();
  }
}

// All tasks in the order of their queue positions: the first of every agent, the second of every
// agent, …
export function* rounds({ agents, tasks }) {
  for (let seq = 0; seq < tasks; seq += 1) {
    yield Array.from({ length: agents }, (_, agent) => ({ agent, seq }));
  }
}

async function feed(queue, notes) {
  const begun = performance.now();
  let sent = 0;
  for (const round of rounds(notes.load)) {
    for (const { agent, seq } of round) {
      const due = begun + (sent * 1000) / notes.load.rate;
      const wait = due - performance.now();
      if (wait > 0) await sleep(wait);
      notes.dueAt.set(agent * notes.load.tasks + seq, due);
      await queue.add({ agent, seq });
      sent += 1;
    }
  }
}

const answer = (message) => process.stdout.write(`${JSON.stringify(message)}\n`);

const fail = (error) => {
  answer({ answer: "error", text: String(error?.stack ?? error) });
  process.exit(1);
};

// The methods of `queue`: open(url, load, notes), enqueue(round), add(task), start(), close().
export async function serve(queue) {
  process.on("unhandledRejection", fail);
  let notes = null;
  const commands = {
    async open({ database_url, ...load }) {
      notes = new Notes(load, () => answer({ answer: "handled" }));
      await queue.open(database_url, load, notes);
      answer({ answer: "open" });
    },
    async enqueue() {
      for (const round of rounds(notes.load)) await queue.enqueue(round);
      answer({ answer: "enqueue" });
    },
    async start() {
      await queue.start();
      if (notes.isPaced) feed(queue, notes).catch(fail);
    },
    async close() {
      await queue.close();
      answer({ answer: "report", marks: notes.marks, latencies_us: notes.latenciesUs });
    },
  };
  for await (const line of createInterface({ input: process.stdin })) {
    const { command, ...rest } = JSON.parse(line);
    await commands[command](rest).catch(fail);
  }
  process.exit(0);
}
