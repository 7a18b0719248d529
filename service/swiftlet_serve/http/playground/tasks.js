// The tasks: forms, inputs of the requests, and results as elements and as a sentence for screen readers.
// `rows` makes a field several lines high. `presets` are the parameters that the page starts with.

import { bars, definitions, make } from "./dom.js";
import { byMask, cosine, cut, lines, number, numbers, pieces, score } from "./format.js";
import { language, message } from "./messages.js";

const TOP = 5;
const COLOURS = 5; // of marks, in style.css

const classify = {
  title: "classify",
  action: "doClassify",
  fields: [{ name: "text", label: "text", rows: 4 }, { name: "text_pair", label: "secondText", rows: 1 }],
  presets: { top_k: TOP },
  inputs: ({ text, text_pair }) => (text_pair ? { text, text_pair } : text),
  draw([labels]) {
    const items = labels.map((one) => ({ name: one.label, share: one.score, number: score(one.score, language) }));
    return [heading("labels"), bars(items)];
  },
  summary: ([[best]]) => sentence(best.label, best.score),
};

const qa = {
  title: "qa",
  action: "doQa",
  fields: [{ name: "question", label: "question" }, { name: "context", label: "context", rows: 6 }],
  presets: { top_k: 3 },
  inputs: ({ question, context }) => ({ question, context }),
  draw(answer, { context }) {
    const answers = [answer].flat();
    const choice = chooser(answers, (one) => one.answer || message("noAnswer"), show);
    const shown = make("p", { className: "answer" });
    function show(chosen) {
      const [before, inside, after] = cut(context, chosen.start, chosen.end);
      shown.replaceChildren(before, make("mark", {}, inside), after);
    }
    show(answers[0]);
    return [heading("inContext"), shown, heading("answers"), choice];
  },
  summary(answer) {
    const [best] = [answer].flat();
    return sentence(best.answer || message("noAnswer"), best.score);
  },
};

const fillMask = {
  title: "fillMask",
  action: "doFillMask",
  fields: [{ name: "text", label: "maskedText", rows: 4 }],
  buttons: [["insert-mask", "insertMask"]],
  presets: { top_k: TOP },
  inputs: ({ text }) => text,
  draw(answer, { text }, { mask }) {
    const masks = byMask(answer);
    const places = masks.map(([best]) => make("mark", {}, best.token_str));
    const parts = text.split(mask).flatMap((part, place) => (place ? [places[place - 1], part] : [part]));
    const choices = masks.flatMap((candidates, place) => [
      masks.length > 1 ? heading("candidatesOf", { number: place + 1 }) : heading("candidates"),
      chooser(candidates, (one) => one.token_str, (chosen) => places[place].replaceChildren(chosen.token_str)),
    ]);
    return [heading("inPlace"), make("p", { className: "answer" }, ...parts), ...choices];
  },
  summary: (answer) =>
    byMask(answer)
      .map(([best]) => sentence(best.token_str, best.score))
      .join(" "),
};

const entities = {
  title: "entities",
  action: "doEntities",
  fields: [{ name: "text", label: "text", rows: 4 }],
  inputs: ({ text }) => text,
  draw(found, { text }) {
    const kinds = [...new Set(found.map(kindOf))];
    const shown = pieces(text, found).map(({ part, entity }) => {
      if (!entity) return part;
      const className = `kind${kinds.indexOf(kindOf(entity)) % COLOURS}`;
      return make("mark", { className }, part, make("sub", {}, labelOf(entity)));
    });
    const items = found.map((one) => ({
      name: `${cut(text, one.start, one.end)[1]} (${labelOf(one)})`,
      share: one.score,
      number: score(one.score, language),
    }));
    return [heading("inContext"), make("p", { className: "answer" }, ...shown), heading("foundEntities"), bars(items)];
  },
  summary: (found) => (found.length ? found.map((one) => sentence(one.word, one.score)).join(" ") : message("noEntities")),
};

const zeroShot = {
  title: "zeroShot",
  action: "doZeroShot",
  fields: [{ name: "text", label: "text", rows: 4 }, { name: "candidate_labels", label: "candidateLabels", parameter: true }],
  inputs: ({ text }) => text,
  draw(labels) {
    const items = labels.map((one) => ({ name: one.label, share: one.score, number: score(one.score, language) }));
    return [heading("labels"), bars(items)];
  },
  summary: ([best]) => sentence(best.label, best.score),
};

const rerank = {
  title: "rerank",
  action: "doRerank",
  fields: [{ name: "query", label: "query" }, { name: "texts", label: "oneEachLine", rows: 4 }],
  inputs: ({ query, texts }) => ({ query, texts: lines(texts) }),
  draw(ranked, { texts }) {
    const all = lines(texts);
    const items = ranked.map((one) => ({ name: all[one.index], share: one.score, number: score(one.score, language) }));
    return [heading("ranking"), bars(items)];
  },
  summary: ([best], { texts }) => sentence(lines(texts)[best.index], best.score),
};

const embed = {
  title: "embed",
  action: "doEmbed",
  fields: [{ name: "text", label: "text", rows: 2 }, { name: "others", label: "oneEachLine", rows: 4 }],
  inputs: ({ text, others }) => [text, ...lines(others)],
  draw(answer, { others }, _, { encoding_format }) {
    const [vector, ...vectors] = answer.map((one) => numbers(one, encoding_format));
    const items = lines(others).map((name, place) => {
      const value = cosine(vector, vectors[place]);
      return { name, share: value, number: number(value, language, 3) };
    });
    return [heading("similarities"), bars(items)];
  },
  summary(answer, { others }, { encoding_format }) {
    const [vector, ...vectors] = answer.map((one) => numbers(one, encoding_format));
    const similarity = (place) => number(cosine(vector, vectors[place]), language, 3);
    return lines(others)
      .map((name, place) => `${name}, ${similarity(place)}.`)
      .join(" ");
  },
};

const likelihood = {
  title: "likelihood",
  action: "doScore",
  fields: [{ name: "prompt", label: "prompt", rows: 2 }, { name: "text", label: "text", rows: 4 }],
  inputs: ({ prompt, text }) => (prompt ? { prompt, continuation: text } : text),
  draw(answer) {
    const [one] = [answer].flat();
    return [
      heading("likelihood"),
      definitions([
        [message("logLikelihood"), number(one.log_likelihood, language, 2)],
        [message("perplexity"), number(one.perplexity, language, 1)],
      ]),
    ];
  },
  summary: (answer) => `${message("perplexity")}: ${number([answer].flat()[0].perplexity, language, 1)}.`,
};

export const TASKS = {
  classify,
  qa,
  "fill-mask": fillMask,
  entities,
  "zero-shot": zeroShot,
  embed,
  rerank,
  score: likelihood,
};

/** Returns the body of a request. The parameters are JSON values. */
export function bodyOf(name, model, fields, parameters) {
  const task = TASKS[name];
  const own = task.fields.filter((field) => field.parameter).map((field) => [field.name, fields[field.name]]);
  const all = { ...Object.fromEntries(own), ...parameters };
  return { model, inputs: task.inputs(fields), ...(Object.keys(all).length ? { parameters: all } : {}) };
}

/** Creates a bar chart with buttons as names, the first one pressed. Calls `show` with the chosen item. */
function chooser(items, name, show) {
  const buttons = items.map((item, place) => {
    const button = make("button", { type: "button", "aria-pressed": String(place === 0) }, name(item));
    button.addEventListener("click", () => {
      for (const other of buttons) other.setAttribute("aria-pressed", String(other === button));
      show(item);
    });
    return button;
  });
  const drawn = items.map((item, place) => ({
    name: buttons[place],
    share: item.score,
    number: score(item.score, language),
  }));
  return bars(drawn);
}

function heading(name, values) {
  return make("h3", {}, message(name, values));
}

/** Returns the label of an entity, or of a token if tokens are not grouped. */
function labelOf(one) {
  return one.entity_group ?? one.entity;
}

/** Returns the label without the place of a token in its entity, as in B-PER. */
function kindOf(one) {
  return labelOf(one).replace(/^[BIES]-/, "");
}

function sentence(what, value) {
  return `${what}, ${score(value, language)}.`;
}
