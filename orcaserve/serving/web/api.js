// Speaking with the server: the key, errors in words, events as they come.

const KEY = "orcaserve-key";
// Relative to the page, so that it works behind a proxy's prefix too.
const base = new URL(".", document.baseURI);

/** What the server, or the way to it, has answered instead of what was asked for. */
export class ApiError extends Error {
  constructor(message, status = 0, code = null, retryAfter = null) {
    super(message);
    this.status = status;
    this.code = code;
    this.retryAfter = retryAfter; // seconds
  }
}

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: (value) => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
  /** What is wrong with a key, or null. */
  problem: (value) => (/^[\x21-\x7e]+$/.test(value) ? null : "A key consists of visible ASCII characters, without blanks."),
};

let askForKey = async () => false;
/** `ask(hadKey)` shows the dialog, and resolves to whether there is another key now. */
export function onKeyNeeded(ask) {
  askForKey = ask;
}

/** fetch, with the key; asks for it when the server does. Throws ApiError; AbortError if the signal says so. */
export async function request(path, { body, signal, quiet = false, method } = {}) {
  for (;;) {
    const had = key.get();
    const headers = {};
    if (had !== null) headers.Authorization = `Bearer ${had}`;
    if (body !== undefined) headers["Content-Type"] = "application/json";
    let response;
    try {
      response = await fetch(new URL(path, base), {
        method: method ?? (body === undefined ? "GET" : "POST"),
        headers,
        body: body === undefined ? undefined : JSON.stringify(body),
        signal,
        cache: "no-store",
        credentials: "omit",
      });
    } catch (error) {
      if (error.name === "AbortError") throw error;
      throw new ApiError("The server cannot be reached.");
    }
    if (response.ok) return response;
    const error = await asError(response);
    if (error.status !== 401 || quiet) throw error;
    if (key.get() === had && !(await askForKey(had !== null))) throw error;
    signal?.throwIfAborted();
  }
}

async function asError(response) {
  let said = {};
  try {
    said = (await response.json()).error ?? {};
  } catch {
    // no JSON: somebody on the way has answered
  }
  const message = typeof said === "string" ? said : said.message;
  const seconds = Number.parseFloat(response.headers.get("retry-after") ?? "");
  return new ApiError(
    inWords(response.status, message, said.param),
    response.status,
    said.code ?? null,
    Number.isFinite(seconds) ? Math.min(Math.max(seconds, 0), 3600) : null,
  );
}

const STATUS = {
  401: "The API key is missing or wrong",
  403: "The server refuses this",
  404: "The server does not know this path",
  408: "The request took too long to arrive",
  413: "The request is too large",
  429: "The server has too much to do now",
  500: "The request failed in the server",
  502: "A proxy could not reach the server",
  503: "The server cannot serve now",
  504: "The server did not answer in time",
};

function inWords(status, message, param) {
  const what = STATUS[status] ?? `The server answered ${status}`;
  const field = param ? `${param}: ` : "";
  return message ? `${what}: ${field}${message}` : `${what}.`;
}

/** The data of each event of a stream; comments are passed over. */
export async function* events(response) {
  const reader = response.body.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      const lines = (rest + decoder.decode(value, { stream: true })).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (data.length) yield data.join("\n");
          data = [];
        } else if (line.startsWith("data:")) {
          data.push(line.slice(line[5] === " " ? 6 : 5));
        }
      }
    }
  } finally {
    reader.cancel().catch(() => {});
  }
}

/** The model's name and what else the server says of it; null while it loads. */
export async function servedModel() {
  const { data } = await (await request("v1/models")).json();
  return data[0] ?? null;
}
