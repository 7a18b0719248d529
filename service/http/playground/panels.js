// The panels of the page: costs of a request, errors, server status and model card.

import { bars, definitions, make, table } from "./dom.js";
import { number, timings } from "./format.js";
import { language, message } from "./messages.js";

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

/** Draws an error with the server's own message. */
export function drawProblem(problem) {
  if (problem.code === undefined) return [make("p", { className: "problem" }, message("unreachable"))];
  const details = [
    `${problem.status} ${problem.code}`,
    ...problem.fieldErrors.map((error) => [error.pointer, error.code, error.limit].filter(Boolean).join(" ")),
    ...(problem.retryAfter ? [message("retryAfter", { seconds: problem.retryAfter })] : []),
    ...(problem.request ? [message("requestId", { id: problem.request })] : []),
  ];
  return [make("div", { className: "problem" }, problem.message, make("p", { className: "hint" }, details.join(" · ")))];
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
    ["task", model.task],
    ["architecture", model.architecture],
    ["precision", model.precision],
    ["engine", model.engine],
    ["version", model.version],
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
    make(
      "details",
      {},
      make("summary", {}, message("wholeCard")),
      make("pre", { tabIndex: 0, role: "group", "aria-label": message("wholeCard") }, JSON.stringify(card, null, 2)),
    ),
  ];
}

function list(value) {
  return Array.isArray(value) ? value.join(", ") : value;
}
