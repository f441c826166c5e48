// Four ordinary calls of the AI SDK's providers, for a fleet with default settings. See README.md.
import { generateText, streamText } from 'ai';
import { createOpenAI } from '@ai-sdk/openai';
import { createOpenAICompatible } from '@ai-sdk/openai-compatible';
const baseURL = process.env.BASE ?? 'http://127.0.0.1:8080/v1';
const model = process.env.MODEL ?? 'support';
const openai = createOpenAI({ baseURL, apiKey: 'unused' });
const compatible = createOpenAICompatible({ name: 'antiphon', baseURL, apiKey: 'unused', includeUsage: true });
const messages = [
  { role: 'user', content: 'My name is Ann.' },
  { role: 'assistant', content: 'Hello Ann.' },
  { role: 'user', content: 'What is my name?' },
];
const need = t => { if (!t) throw new Error('the answer has no text'); return t; };
const gen = m => async () => need((await generateText({ model: m, system: 'Be brief.', messages })).text);
const str = m => async () => {
  let text = '', error;
  const r = streamText({ model: m, system: 'Be brief.', messages, onError: e => { error = e.error; } });
  for await (const t of r.textStream) text += t;
  if (error) throw error;
  return need(text) + ' ' + (await r.finishReason) + ' ' + JSON.stringify((await r.usage).totalTokens);
};
const cases = [
  ['ai-sdk', '@ai-sdk/openai generateText', gen(openai(model))],
  ['ai-sdk', '@ai-sdk/openai streamText', str(openai(model))],
  ['ai-sdk', '@ai-sdk/openai-compatible generateText', gen(compatible(model))],
  ['ai-sdk', '@ai-sdk/openai-compatible streamText', str(compatible(model))],
];
const totals = {};
for (const [lib, name, f] of cases) {
  let ok = 'ok', msg;
  try { msg = await f(); } catch (e) { ok = 'refused'; msg = `${e.name}: ${e.message}`; }
  (totals[lib] ??= [0, 0])[1]++; if (ok === 'ok') totals[lib][0]++;
  console.log(`${lib}: ${name} | ${ok} | ${msg.replace(/\s+/g, ' ').slice(0, 400)}`);
}
for (const [lib, [a, b]] of Object.entries(totals)) console.log(`\n${lib} | ${a} | ${b}`);
