// The openai client for Node: openai_node.mjs BASE_URL MODEL. One line of JSON a step, as steps.py writes them.

import assert from "node:assert/strict";
import process from "node:process";

import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import { z } from "zod";

const [base, model] = process.argv.slice(2);
const client = new OpenAI({ baseURL: `${base}/v1`, apiKey: "unused", maxRetries: 0 });
const prompt = "The sea is";
const messages = [{ role: "user", content: "Name three whales." }];
const Whale = z.object({
  name: z.enum(["blue whale", "humpback", "orca"]),
  metres: z.number().int().min(1).max(33),
  endangered: z.boolean(),
});
const cities = ["Oslo", "Paris", "Tokyo"];
const weather = {
  type: "function",
  function: {
    name: "get_weather",
    description: "The weather in a city now.",
    parameters: {
      type: "object",
      properties: { city: { type: "string", enum: cities } },
      required: ["city"],
      additionalProperties: false,
    },
  },
};
const askWeather = [{ role: "user", content: "What is the weather in Oslo?" }];

async function models() {
  const found = [];
  for await (const entry of client.models.list()) found.push(entry.id);
  assert.deepEqual(found, [model]);
  assert.equal((await client.models.retrieve(model)).id, model);
}

async function completions() {
  const fields = { model, prompt, max_tokens: 24, temperature: 0 };
  const whole = await client.completions.create(fields);
  assert.equal(whole.usage.completion_tokens, 24);
  let text = "";
  let usage = null;
  const stream = await client.completions.create({ ...fields, stream: true, stream_options: { include_usage: true } });
  for await (const chunk of stream) {
    text += chunk.choices[0]?.text ?? "";
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, whole.choices[0].text);
  assert.deepEqual(usage, whole.usage);
}

async function logprobs() {
  const scored = await client.completions.create({ model, prompt, max_tokens: 0, echo: true, logprobs: 1 });
  assert.equal(scored.choices[0].text, prompt);
  assert.equal(scored.choices[0].logprobs.token_logprobs[0], null);
  const chat = await client.chat.completions.create({
    model, messages, max_tokens: 4, temperature: 0, logprobs: true, top_logprobs: 2,
  });
  assert.equal(chat.choices[0].logprobs.content.length, 4);
  assert.ok(chat.choices[0].logprobs.content.every((entry) => entry.top_logprobs.length === 2 && entry.bytes));
}

async function chat() {
  const fields = { model, messages, max_tokens: 200, temperature: 0, stop: ["."] };
  const whole = (await client.chat.completions.create(fields)).choices[0];
  let text = "";
  for await (const chunk of await client.chat.completions.create({ ...fields, stream: true }))
    text += chunk.choices[0]?.delta?.content ?? "";
  assert.equal(text, whole.message.content);
  const runner = client.chat.completions.stream(fields);
  assert.equal((await runner.finalChatCompletion()).choices[0].message.content, whole.message.content);
}

async function together() {
  const ask = async (n) =>
    (await client.completions.create({ model, prompt: `${n},`, max_tokens: 10, temperature: 0 })).choices[0].text;
  const alone = [];
  for (let n = 0; n < 6; n++) alone.push(await ask(n));
  assert.deepEqual(await Promise.all([0, 1, 2, 3, 4, 5].map(ask)), alone);
}

async function structured() {
  for (const temperature of [0, 1.5]) {
    const answer = await client.chat.completions.parse({
      model, messages, max_tokens: 200, temperature, seed: 1, response_format: zodResponseFormat(Whale, "whale"),
    });
    Whale.parse(answer.choices[0].message.parsed);
    assert.equal(answer.choices[0].finish_reason, "stop");
  }
}

async function tools() {
  const fields = {
    model, messages: askWeather, tools: [weather], tool_choice: "required", parallel_tool_calls: false,
    max_tokens: 120, temperature: 0,
  };
  const whole = (await client.chat.completions.create(fields)).choices[0];
  assert.equal(whole.finish_reason, "tool_calls");
  const [call] = whole.message.tool_calls;
  assert.equal(call.function.name, "get_weather");
  assert.ok(cities.includes(JSON.parse(call.function.arguments).city));
  let streamed = "";
  for await (const chunk of await client.chat.completions.create({ ...fields, stream: true }))
    for (const part of chunk.choices[0]?.delta?.tool_calls ?? []) streamed += part.function?.arguments ?? "";
  assert.equal(streamed, call.function.arguments);
  const results = [{ role: "tool", tool_call_id: call.id, content: "12 degrees, rain" }];
  const answer = await client.chat.completions.create({
    model, messages: [...askWeather, whole.message, ...results], max_tokens: 20,
  });
  assert.ok(answer.choices[0].message.content);
}

async function errors() {
  await assert.rejects(client.chat.completions.create({ model: "no-such-model", messages }), (error) => {
    assert.ok(error instanceof OpenAI.NotFoundError);
    assert.equal(error.code, "model_not_found");
    return true;
  });
  await assert.rejects(client.chat.completions.create({ model, messages, temperature: 3 }), (error) => {
    assert.ok(error instanceof OpenAI.BadRequestError);
    assert.equal(error.param, "temperature");
    return true;
  });
}

async function leaving() {
  const stream = await client.chat.completions.create({ model, messages, max_tokens: 2000, stream: true });
  for await (const chunk of stream) {
    assert.ok(chunk.choices);
    break; // the client aborts the request
  }
}

const steps = [
  ["models: list and retrieve", models],
  ["completion, whole and streamed: the same text and usage", completions],
  ["logprobs: echo with max_tokens 0; chat with top_logprobs", logprobs],
  ["chat: whole, streamed, and the client's stream helper", chat],
  ["six at once, each its own text", together],
  ["structured output: parse by a zod schema, at temperature 0 and 1.5", structured],
  ["tools: required, streamed, and a result sent back", tools],
  ["errors: status, code and param as the client's exceptions", errors],
  ["chat, streamed: left after the first words", leaving],
];
let failed = 0;
for (const [step, act] of steps) {
  let error = null;
  try {
    await act();
  } catch (problem) {
    console.error(problem);
    error = `${problem.name}: ${String(problem.message).replace(/\s+/g, " ").slice(0, 300)}`;
    failed += 1;
  }
  console.log(JSON.stringify({ step, error }));
}
console.log(JSON.stringify({ steps: steps.length }));
process.exit(failed ? 1 : 0);
