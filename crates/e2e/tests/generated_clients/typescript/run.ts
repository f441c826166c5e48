// Makes the calls of calls.ts, and prints the operation, the status and the text of each answer as JSON. The text is empty if the call
// has succeeded: some streams do not end.

import createClient from "openapi-fetch";

import { calls } from "./calls.js";
import type { paths } from "./schema.js";

const client = createClient<paths>({ baseUrl: process.argv[2] ?? "" });
const answers: { operation: string; status: number; text: string }[] = [];
for (const [operation, call] of calls) {
  const { response, error } = await call(client);
  await response.body?.cancel().catch(() => undefined);
  answers.push({ operation, status: response.status, text: response.ok ? "" : JSON.stringify(error) });
}
console.log(JSON.stringify(answers));
process.exit(0);
