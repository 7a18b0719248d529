// The tasks: examples, request bodies, and results as elements and as a sentence for screen readers.

import { bars, definitions, make } from "./dom.js";
import { byMask, cosine, cut, lines, number, pieces, score } from "./format.js";
import { language, message } from "./messages.js";

const TOP = 5;

const classify = {
  examples: [
    { text: "The soup was cold, and nobody at the counter seemed to care." },
    { text: "I laughed all the way through, and the ending stayed with me for days." },
    { text: "A long film that has one good idea and never stops repeating it." },
  ],
  body: ({ text }) => ({ inputs: text, parameters: { top_k: TOP } }),
  draw([labels]) {
    const items = labels.map((one) => ({ name: one.label, share: one.score, number: score(one.score, language) }));
    return [heading("labels"), bars(items)];
  },
  summary: ([[best]]) => sentence(best.label, best.score),
};

const qa = {
  examples: [
    {
      question: "When was the bridge built?",
      context:
        "A storm took the wooden bridge. The stone bridge was built in 1874, two hundred metres up the river, and " +
        "is still open to carts and bicycles.",
    },
    {
      question: "Where does the ferry stop?",
      context:
        "The ferry leaves the harbour at seven every morning. It stops at the old lighthouse for ten minutes, and " +
        "reaches the island before nine.",
    },
    {
      question: "Who repaired the clock?",
      context:
        "The clock of the town hall stood still for eleven years. In spring a retired watchmaker named Ida repaired " +
        "it in one weekend, and asked for nothing but a cup of tea 🫖.",
    },
  ],
  body: ({ question, context }) => ({ inputs: { question, context }, parameters: { top_k: 3 } }),
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
  examples: [
    { text: "The school was built in the nineteenth [MASK]." },
    { text: "He was born in a small [MASK] in the north of the country." },
    { text: "Snow falls in the [MASK] and melts in the [MASK]." },
  ],
  body: ({ text }) => ({ inputs: text, parameters: { top_k: TOP } }),
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
  examples: [
    { text: "Clara Keller moved from Bern to New York to work for the United Nations." },
    { text: "The ferry to Jeju left Mokpo with forty guests of Hyundai." },
  ],
  body: ({ text }) => ({ inputs: text }),
  draw(found, { text }) {
    const shown = pieces(text, found).map(({ part, entity }) =>
      entity ? make("mark", {}, part, make("sub", {}, entity.entity_group)) : part,
    );
    const items = found.map((one) => ({
      name: `${cut(text, one.start, one.end)[1]} (${one.entity_group})`,
      share: one.score,
      number: score(one.score, language),
    }));
    return [heading("inContext"), make("p", { className: "answer" }, ...shown), heading("foundEntities"), bars(items)];
  },
  summary: (found) => (found.length ? found.map((one) => sentence(one.word, one.score)).join(" ") : message("noEntities")),
};

const zeroShot = {
  examples: [
    { text: "The new phone has a better camera.", labels: "technology, cooking, travel" },
    { text: "Fold in the flour slowly, then let it rest for an hour.", labels: "technology, cooking, travel" },
  ],
  body: ({ text, labels }) => ({ inputs: text, parameters: { candidate_labels: labels } }),
  draw(labels) {
    const items = labels.map((one) => ({ name: one.label, share: one.score, number: score(one.score, language) }));
    return [heading("labels"), bars(items)];
  },
  summary: ([best]) => sentence(best.label, best.score),
};

const rerank = {
  examples: [
    {
      query: "How do bees tell the way?",
      texts: "Rain fell all night on the tin roof.\nBees dance to show where flowers are.\nThe museum opens at nine.",
    },
  ],
  body: ({ query, texts }) => ({ inputs: { query, texts: lines(texts) } }),
  draw(ranked, { texts }) {
    const all = lines(texts);
    const items = ranked.map((one) => ({ name: all[one.index], share: one.score, number: score(one.score, language) }));
    return [heading("ranking"), bars(items)];
  },
  summary: ([best], { texts }) => sentence(lines(texts)[best.index], best.score),
};

const embed = {
  examples: [
    {
      text: "A man is playing a guitar.",
      others: "Somebody makes music.\nThe train leaves at seven.\nA woman plays the violin.",
    },
  ],
  body: ({ text, others }) => ({ inputs: [text, ...lines(others)] }),
  draw([vector, ...vectors], { others }) {
    const items = lines(others).map((name, place) => {
      const value = cosine(vector, vectors[place]);
      return { name, share: value, number: number(value, language, 3) };
    });
    return [heading("similarities"), bars(items)];
  },
  summary: ([vector, ...vectors], { others }) =>
    lines(others)
      .map((name, place) => `${name}, ${number(cosine(vector, vectors[place]), language, 3)}.`)
      .join(" "),
};

const likelihood = {
  examples: [{ text: "The ferry leaves the harbour at seven." }, { text: "Seven the leaves at harbour ferry the." }],
  body: ({ text }) => ({ inputs: text }),
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

function sentence(what, value) {
  return `${what}, ${score(value, language)}.`;
}
