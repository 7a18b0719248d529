// The panels of the page: answer as JSON, costs of a request, errors, code, history, server status and model card.

import { bars, definitions, make, table } from "./dom.js";
import { number, timings } from "./format.js";
import { errorText, language, message } from "./messages.js";
import { SAMPLES } from "./samples.js";
import { languageName } from "./writing.js";

/** Draws a notice that the model did not read all of the texts; nothing if it did. */
export function drawTruncation(headers) {
  if (!Number(headers.get("x-truncated"))) return [];
  const [read, whole] = ["x-compute-tokens", "x-input-tokens"].map((name) => number(Number(headers.get(name)), language));
  return [make("p", { className: "truncated" }, message("truncated", { read, whole }))];
}

/** Draws the times, the batch size and the number of tokens of a request. */
export function drawCosts({ headers, ms }) {
  const stages = timings(headers.get("server-timing"));
  const longest = Math.max(...stages.map((stage) => stage.ms));
  const items = stages.map((stage) => ({
    name: message(stage.name),
    share: stage.ms / longest,
    number: `${number(stage.ms, language, 2)} ${message("ms")}`,
  }));
  const batch = stages.find((stage) => stage.sequences !== null); // missing if a proxy drops the header
  return [
    make("h3", {}, message("took")),
    bars(items),
    definitions([
      ...(batch ? [[message("batchSize"), number(batch.sequences, language)]] : []),
      [message("tokens"), number(Number(headers.get("x-compute-tokens")), language)],
      [message("serverTotal"), `${number(1000 * Number(headers.get("x-compute-time")), language)} ${message("ms")}`],
      [message("roundTrip"), `${number(ms, language)} ${message("ms")}`],
      [message("engine"), headers.get("x-compute-type")],
    ]),
  ];
}

/** Draws an answer as JSON, folded. */
export function drawRaw(body) {
  return folded("raw", JSON.stringify(body, null, 2));
}

/** Draws an error in the page's language, with the server's own message and the fields that are wrong. */
export function drawProblem(problem) {
  if (problem.code === undefined) return [make("p", { className: "problem" }, message("unreachable"))];
  const translated = errorText(problem.code);
  const details = [
    `${problem.status} ${problem.code}`,
    ...problem.fieldErrors.map((error) => [error.pointer, error.code, error.limit, error.nearest].filter(Boolean).join(" ")),
    ...(problem.retryAfter ? [message("retryAfter", { seconds: problem.retryAfter })] : []),
    ...(problem.request ? [message("requestId", { id: problem.request })] : []),
  ];
  const own = make("p", { lang: "en", className: translated ? "hint" : "" }, problem.message);
  return [
    make(
      "div",
      { className: "problem" },
      ...(translated ? [make("p", {}, translated)] : []),
      own,
      make("p", { className: "hint" }, details.join(" · ")),
    ),
  ];
}

/** Draws a request as code. Calls `choose` with the name of another language, and `copy` with the element to copy. */
export function drawSample(chosen, code, needsKey, choose, copy) {
  const shown = make("pre", { tabIndex: 0, role: "group", "aria-label": chosen }, make("code", {}, code));
  const buttons = Object.keys(SAMPLES).map((name) => {
    const button = make("button", { type: "button", className: "quiet", "aria-pressed": String(name === chosen) }, name);
    button.addEventListener("click", () => choose(name));
    return button;
  });
  const copyButton = make("button", { type: "button" }, message("copy"));
  copyButton.addEventListener("click", () => copy(shown));
  return [
    make("div", { className: "buttons", role: "group", "aria-label": message("programmingLanguage") }, ...buttons, copyButton),
    shown,
    ...(needsKey ? [make("p", { className: "hint" }, message("apiKeyVariable"))] : []),
  ];
}

/** Draws the requests of this visit. Calls `open` with the chosen one. */
export function drawHistory(entries, titles, open, clear) {
  if (!entries.length) return [make("p", { className: "hint" }, message("noHistory"))];
  const items = entries.map((entry) => {
    const [, text] = Object.entries(entry.fields).find(([name, value]) => name !== "model" && value) ?? ["", ""];
    const about = message("historyEntry", {
      time: entry.time.toLocaleTimeString(language),
      task: message(titles[entry.task]),
      model: entry.model.name,
    });
    const failed = entry.problem ? ` ${entry.problem.status ?? ""} ${entry.problem.code ?? message("unreachable")}` : "";
    const button = make("button", { type: "button", className: "quiet" }, make("span", { className: "line" }, text));
    button.append(make("span", { className: "hint line" }, about + failed));
    button.addEventListener("click", () => open(entry));
    return make("li", {}, button);
  });
  const clearButton = make("button", { type: "button", className: "quiet" }, message("clearHistory"));
  clearButton.addEventListener("click", clear);
  return [
    make("ol", { className: "history" }, ...items),
    make("p", { className: "hint" }, message("historyHint")),
    make("div", { className: "buttons" }, clearButton),
  ];
}

/** Draws the status of the server. */
export function drawStatus(status) {
  const { queue } = status;
  const latency = (value) => (value === null ? "–" : number(value, language, 1));
  const restarts = status.engine_restarts ? `, ${message("restarts", { count: status.engine_restarts })}` : "";
  return [
    definitions([
      [message("ready"), message(status.ready ? "yes" : "no") + restarts],
      [message("cores"), message("outOf", { part: status.calls, whole: status.cores })],
      [
        message("waiting"),
        message("waitingText", { sequences: number(queue.sequences, language), tokens: number(queue.tokens, language) }),
      ],
      [message("wait"), `${number(queue.wait_ms, language, 1)} ${message("ms")}`],
      [message("refused"), number(status.refused, language)],
    ]),
    table(
      [message("model"), "p50", "p99", message("answered"), message("inFlight")],
      status.models.map((model) => [
        model.name,
        latency(model.recent.p50_ms),
        latency(model.recent.p99_ms),
        number(model.answered, language),
        number(model.in_flight, language),
      ]),
    ),
    make("p", { className: "hint" }, message("recently")),
  ];
}

/** Draws a model card. The fields of a card are optional. */
export function drawCard(model) {
  const { card } = model;
  const entries = [
    ["summary", card.summary],
    ["task", [model.task, ...model.other_tasks].join(", ")],
    ["architecture", model.architecture],
    ["precision", model.precision],
    ["engine", model.engine],
    ["version", model.version],
    ["languages", model.languages.map((tag) => languageName(tag, language)).join(", ")],
    ["maxTokens", message("maxTokensText", { count: number(model.max_tokens, language) })],
    ["labelNames", model.labels.join(", ")],
    ["trainedOn", list(card.trained_on)],
    ["licences", list(card.licences)],
  ];
  const scores = Object.entries(card.scores?.[model.precision] ?? {}).filter(([, one]) => Number.isFinite(one?.value));
  const rows = scores.map(([name, { value, low, high, n }]) => [
    name,
    number(value, language, 1),
    Number.isFinite(low) ? `${number(low, language, 1)}–${number(high, language, 1)}` : "",
    Number.isFinite(n) ? number(n, language) : "",
  ]);
  return [
    make("p", {}, make("strong", {}, model.name)),
    definitions(entries.filter(([, value]) => typeof value === "string" && value).map(([name, value]) => [message(name), value])),
    ...(rows.length ? [table([message("score"), message("percent"), message("interval"), "n"], rows)] : []),
    folded("wholeCard", JSON.stringify(card, null, 2)),
  ];
}

/** Creates a text that is shown when the user opens it. */
function folded(name, text) {
  const title = message(name);
  const shown = make("pre", { tabIndex: 0, role: "group", "aria-label": title }, text);
  return make("details", { className: name }, make("summary", {}, title), shown);
}

function list(value) {
  return Array.isArray(value) ? value.join(", ") : value;
}
