// OpenAI's own library: Responses and chat completions.
import OpenAI from "openai";

const client = (server, scenario, cut) =>
  new OpenAI({ apiKey: "none", baseURL: `${server.url(scenario, cut)}/v1`, maxRetries: 0 });

async function orError(promise) {
  try {
    return await promise;
  } catch (error) {
    return { thrown: error.constructor.name, message: error.message, code: error.code };
  }
}

/** What matters of a response, without what the library's helper adds. */
function said({ id, status, output_text, error, incomplete_details, usage, output }) {
  const added = (key, value) => (key.startsWith("parsed") ? undefined : value);
  return JSON.parse(JSON.stringify({ id, status, output_text, error, incomplete_details, usage, output }, added));
}

/** The last state of a streamed response. */
export async function whole(server, scenario) {
  const { responses } = client(server, scenario);
  return orError(responses.stream({ model: "talk", input: "hello" }).finalResponse());
}

export async function completed(server, scenario) {
  const messages = [{ role: "user", content: "hello" }];
  return orError(client(server, scenario).chat.completions.stream({ model: "talk", messages }).finalChatCompletion());
}

export async function responses(server, scenario) {
  const { responses } = client(server, scenario);
  const numbers = [];
  const whole = await orError((async () => {
    const stream = responses.stream({ model: "talk", input: "hello" });
    stream.on("event", (event) => numbers.push(event.sequence_number));
    return said(await stream.finalResponse());
  })());
  const object = said(await responses.retrieve("resp_1"));
  // The one asks the server for the rest, the other reads all and drops what it has.
  const half = numbers[Math.floor(numbers.length / 2)];
  const rest = [];
  for await (const event of await responses.retrieve("resp_1", { stream: true, starting_after: half })) {
    rest.push(event.sequence_number);
  }
  const dropped = [];
  const again = responses.stream({ response_id: "resp_1", starting_after: half });
  again.on("event", (event) => dropped.push(event.sequence_number));
  const finalAgain = said(await again.finalResponse());
  const wanted = JSON.stringify(numbers.filter((number) => number > half));
  const same = (value) => JSON.stringify(value) === JSON.stringify(whole);
  return {
    whole,
    events: numbers.length,
    isObjectTheSame: same(object),
    isRestTheSame: JSON.stringify(rest) === wanted && JSON.stringify(dropped) === wanted && same(finalAgain),
  };
}

export async function responsesIsCut(server, scenario, cut) {
  const { responses } = client(server, scenario, cut);
  const told = await orError(responses.stream({ model: "talk", input: "hello" }).finalResponse());
  return told.thrown === undefined;
}

export async function completions(server, scenario) {
  const { completions } = client(server, scenario).chat;
  const body = { model: "talk", messages: [{ role: "user", content: "hello" }] };
  const streamed = completions.stream({ ...body, stream_options: { include_usage: true } });
  const seen = [];
  streamed.on("content", (delta) => seen.push(delta));
  const whole = await orError(streamed.finalChatCompletion());
  const object = await orError(completions.create(body));
  return { whole, seen: seen.join(""), object };
}

export async function completionsIsCut(server, scenario, cut) {
  const { completions } = client(server, scenario, cut).chat;
  const messages = [{ role: "user", content: "hello" }];
  const told = await orError(completions.stream({ model: "talk", messages }).finalChatCompletion());
  return told.thrown === undefined;
}
