// The requests of this visit. They are in memory only, and go when the page is closed.

const LIMIT = 20;

/** The requests, newest first: name of the task, model, what the form held, the answer or problem, and the time. */
export const entries = [];

export function remember(entry) {
  entries.unshift(entry);
  entries.length = Math.min(entries.length, LIMIT);
}

export function forget() {
  entries.length = 0;
}
