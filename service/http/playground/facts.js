// What the server tells of a request, of itself and of a model, as elements.

import { bars, facts, make, table } from "./dom.js";
import { number, timings } from "./text.js";
import { language, word } from "./words.js";

/** What a request took: its stages, its batch and its size. */
export function drawCosts({ headers, ms }) {
  const stages = timings(headers.get("server-timing"));
  const most = Math.max(...stages.map((stage) => stage.ms));
  const items = stages.map((stage) => ({
    name: word(stage.name),
    share: stage.ms / most,
    number: `${number(stage.ms, language, 2)} ${word("ms")}`,
  }));
  const batch = stages.find((stage) => stage.rows !== null); // missing where a proxy drops the header
  return [
    make("h3", {}, word("took")),
    bars(items),
    facts([
      ...(batch ? [[word("batchRows"), number(batch.rows, language)]] : []),
      [word("tokens"), number(Number(headers.get("x-compute-tokens")), language)],
      [word("serverTotal"), `${number(1000 * Number(headers.get("x-compute-time")), language)} ${word("ms")}`],
      [word("roundTrip"), `${number(ms, language)} ${word("ms")}`],
      [word("engine"), headers.get("x-compute-type")],
    ]),
  ];
}

/** Why a request was not answered, as the server says it. */
export function drawProblem(problem) {
  if (problem.code === undefined) return [make("p", { className: "problem" }, word("unreachable"))];
  const more = [
    `${problem.status} ${problem.code}`,
    ...problem.faults.map((fault) => [fault.pointer, fault.code, fault.limit].filter(Boolean).join(" ")),
    ...(problem.retryAfter ? [word("retryAfter", { seconds: problem.retryAfter })] : []),
    ...(problem.request ? [word("requestId", { id: problem.request })] : []),
  ];
  return [make("div", { className: "problem" }, problem.message, make("p", { className: "hint" }, more.join(" · ")))];
}

/** How the server does now. */
export function drawStatus(status) {
  const { queue } = status;
  const latency = (value) => (value === null ? "–" : number(value, language, 1));
  const restarts = status.engine_restarts ? `, ${word("restarts", { count: status.engine_restarts })}` : "";
  return [
    facts([
      [word("ready"), word(status.ready ? "yes" : "no") + restarts],
      [word("cores"), word("outOf", { part: status.calls, whole: status.cores })],
      [
        word("waiting"),
        word("waitingText", { rows: number(queue.rows, language), tokens: number(queue.tokens, language) }),
      ],
      [word("wait"), `${number(queue.wait_ms, language, 1)} ${word("ms")}`],
      [word("refused"), number(status.refused, language)],
    ]),
    table(
      [word("model"), "p50", "p99", word("answered"), word("inFlight")],
      status.models.map((model) => [
        model.name,
        latency(model.recent.p50_ms),
        latency(model.recent.p99_ms),
        number(model.answered, language),
        number(model.in_flight, language),
      ]),
    ),
    make("p", { className: "hint" }, word("recently")),
  ];
}

/** A model's card. Artifacts of one's own may have cards with less on them, or other things. */
export function drawCard(model) {
  const { card } = model;
  const told = [
    ["summary", card.summary],
    ["task", model.task],
    ["architecture", model.architecture],
    ["precision", model.precision],
    ["engine", model.engine],
    ["version", model.version],
    ["maxTokens", word("maxTokensText", { count: number(model.max_tokens, language) })],
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
    facts(told.filter(([, value]) => typeof value === "string" && value).map(([name, value]) => [word(name), value])),
    ...(rows.length ? [table([word("score"), word("percent"), word("interval"), "n"], rows)] : []),
    make(
      "details",
      {},
      make("summary", {}, word("wholeCard")),
      make("pre", { tabIndex: 0, role: "group", "aria-label": word("wholeCard") }, JSON.stringify(card, null, 2)),
    ),
  ];
}

function list(value) {
  return Array.isArray(value) ? value.join(", ") : value;
}
