// One answer of the model, as it comes: its text, and the figures of it.

import { ApiError, events, request } from "./api.js";

/**
 * Ask for an answer and call `onText(answer)` as it grows. Resolves to the answer when it is complete:
 * {text, reason, prompt, tokens, cached, first, seconds, plain}
 * first: seconds until the first text. plain: the model has no chat template, and continues a plain prompt.
 * Throws ApiError, or AbortError; the answer so far has been shown by then.
 */
export async function ask(model, messages, settings, plain, signal, onText) {
  const answer = { text: "", reason: null, prompt: null, tokens: null, cached: 0, first: null, seconds: null, plain };
  const streaming = { stream: true, stream_options: { include_usage: true, continuous_usage_stats: true } };
  const body = { model, ...settings, ...streaming };
  if (plain) body.prompt = messages.map((message) => message.content).join("\n\n");
  else body.messages = messages;
  const start = performance.now();
  const since = () => (performance.now() - start) / 1e3;
  const path = plain ? "v1/completions" : "v1/chat/completions";
  let complete = false;
  for await (const data of events(await request(path, { body, signal }))) {
    if (data === "[DONE]") {
      complete = true;
      break;
    }
    const event = JSON.parse(data);
    if (event.error) throw new ApiError(`The answer broke off: ${event.error.message}`, 0, event.error.code);
    if (event.usage) {
      answer.prompt = event.usage.prompt_tokens;
      answer.tokens = event.usage.completion_tokens;
      answer.cached = event.usage.prompt_tokens_details?.cached_tokens ?? 0;
    }
    const choice = event.choices?.[0];
    if (choice === undefined) continue;
    const text = plain ? choice.text : choice.delta?.content;
    answer.reason = choice.finish_reason ?? answer.reason;
    if (text) {
      answer.first ??= since();
      answer.text += text;
    }
    answer.seconds = since();
    onText(answer);
  }
  if (!complete) throw new ApiError("The answer broke off: the connection has ended.");
  return answer;
}

const REASONS = {
  stop: "ended by itself",
  length: "ended at max_tokens",
  tool_calls: "ended with tool calls",
  abort: "cancelled on the server",
};

/** The figures of an answer in one line. */
export function inFigures(answer) {
  const parts = [];
  if (answer.first !== null) parts.push(`first text after ${seconds(answer.first)}`);
  const rest = answer.seconds - answer.first;
  if (answer.first !== null && answer.tokens > 1 && rest > 0) {
    parts.push(`${((answer.tokens - 1) / rest).toFixed(1)} tokens/s`);
  }
  if (answer.tokens !== null) {
    const cached = answer.cached ? ` (${answer.cached} cached)` : "";
    parts.push(`${answer.prompt}${cached} + ${answer.tokens} tokens`);
  }
  if (answer.reason !== null) parts.push(REASONS[answer.reason] ?? answer.reason);
  return parts.join(" · ");
}

function seconds(value) {
  return value < 0.9995 ? `${Math.round(value * 1e3)} ms` : `${value.toFixed(2)} s`;
}
