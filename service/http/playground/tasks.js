// The three tasks: examples, request bodies, and results as elements and as a sentence for screen readers.

import { bars, make } from "./dom.js";
import { byMask, cut, score } from "./format.js";
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

export const TASKS = { classify, qa, "fill-mask": fillMask };

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
