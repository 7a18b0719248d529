// Requests to the server. The API key is kept in this module only, until the page is closed.

let key = "";

export function useKey(value) {
  key = value.replace(/[^!-~]/gu, "?"); // a key has no other characters; the server rejects this one
}

/** Returns whether requests are sent with a key. */
export function hasKey() {
  return key !== "";
}

/** An error response. */
export class Problem extends Error {
  constructor(body, response) {
    super(body.detail);
    this.status = response.status;
    this.code = body.code;
    this.fieldErrors = body.errors ?? [];
    this.request = response.headers.get("x-request-id");
    this.retryAfter = response.headers.get("retry-after");
  }
}

/** Requests a path and returns `{ body, headers, ms }`. Throws a Problem for an error, or an error of `fetch`. */
export async function ask(path, { body, signal } = {}) {
  const headers = key ? { "X-API-Key": key } : {};
  const started = performance.now();
  const response = await fetch(path, {
    method: body ? "POST" : "GET",
    headers: body ? { ...headers, "Content-Type": "application/json" } : headers,
    body: body && JSON.stringify(body),
    cache: "no-store",
    credentials: "omit",
    signal,
  });
  const content = await response.json();
  if (!response.ok) throw new Problem(content, response);
  return { body: content, headers: response.headers, ms: performance.now() - started };
}
