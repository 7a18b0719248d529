// Asks the server. The key, where one is needed, is kept here and nowhere else, and is gone with the page.

let key = "";

export function useKey(given) {
  key = given.replace(/[^!-~]/gu, "?"); // what no header can hold is in no key: the server shall say that it is wrong
}

/** An answer that is an error: what the server says of it. */
export class Problem extends Error {
  constructor(body, response) {
    super(body.detail);
    this.status = response.status;
    this.code = body.code;
    this.faults = body.errors ?? [];
    this.request = response.headers.get("x-request-id");
    this.retryAfter = response.headers.get("retry-after");
  }
}

/** An address's answer, as `{ body, headers, ms }`. Throws a Problem, or whatever `fetch` does. */
export async function ask(path, { body, signal } = {}) {
  const headers = key ? { "X-API-Key": key } : {};
  const began = performance.now();
  const response = await fetch(path, {
    method: body ? "POST" : "GET",
    headers: body ? { ...headers, "Content-Type": "application/json" } : headers,
    body: body && JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    signal,
  });
  const answer = await response.json();
  if (!response.ok) throw new Problem(answer, response);
  return { body: answer, headers: response.headers, ms: performance.now() - began };
}
