/** Identifies tool calls, so that a tool that changes something does so once. */
import { createHash } from "node:crypto";

export interface ToolCall {
  id: string;
  name: string;
  /** A JSON text. */
  arguments: string;
}

/**
 * A key for each call of a step: the same when the turn is tried again, and another one for another tool or other arguments.
 *
 * A model that is asked again may call other tools or in another order, so that the number of a call alone does not identify it.
 */
export function callKeys(turnId: string, step: number, calls: ToolCall[]): string[] {
  const equal = new Map<string, number>();
  return calls.map((called) => {
    const what = JSON.stringify([called.name, canonical(called.arguments)]);
    const number = equal.get(what) ?? 0;
    equal.set(what, number + 1);
    const digest = createHash("sha256").update(`${number}:${what}`).digest("hex").slice(0, 32);
    return `${turnId}:${step}-${digest}`;
  });
}

/** The same text for the same JSON: the order of keys and white space do not count. */
function canonical(json: string): string {
  const sorted = (_: string, value: unknown): unknown =>
    value !== null && typeof value === "object" && !Array.isArray(value)
      ? Object.fromEntries(Object.entries(value).sort(([a], [b]) => (a < b ? -1 : 1)))
      : value;
  try {
    return JSON.stringify(JSON.parse(json), sorted);
  } catch {
    return json;
  }
}
