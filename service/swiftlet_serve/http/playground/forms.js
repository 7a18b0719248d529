// The tab and the panel of a task, made from its description in tasks.js.

import { make } from "./dom.js";

/** Creates the tab of a task. */
export function makeTab(name, { title }) {
  return make("button", { id: `tab-${name}`, role: "tab", "aria-controls": `panel-${name}`, "data-message": title });
}

/** Creates the panel of a task: the form with its model, fields, buttons and parameters, the code and the result. */
export function makePanel(name, { action, fields, buttons = [] }) {
  const model = make("select", { id: `${name}-model`, name: "model", "aria-describedby": `${name}-about` });
  const form = make(
    "form",
    { id: `form-${name}`, noValidate: true }, // the server validates, and its errors are translated
    makeLabel(model.id, "model"),
    model,
    make("p", { id: `${name}-about`, className: "about hint" }),
    ...fields.flatMap((field) => makeField(name, field)),
    make("p", { className: "gloss hint" }),
    make("p", { className: "notice", role: "status" }),
    make(
      "div",
      { className: "buttons" },
      make("button", { "data-message": action }),
      ...buttons.map(([id, text]) => make("button", { id, type: "button", className: "quiet", "data-message": text })),
      make("button", { type: "button", className: "quiet example", "data-message": "example" }),
    ),
    makeDetails("parameters", "parameters", make("div", { className: "controls" })),
  );
  const code = makeDetails("code", "asCode", make("div", { className: "sample" }));
  return make(
    "div",
    { id: `panel-${name}`, role: "tabpanel", "aria-labelledby": `tab-${name}`, hidden: true },
    form,
    code,
    make("div", { className: "result" }),
  );
}

/** Returns what a form holds: the values of its fields, the model included, and the texts of its parameters. */
export function readForm(form) {
  const values = Object.fromEntries(new FormData(form));
  const isParameter = ([name]) => name.startsWith("parameters.");
  const entries = Object.entries(values);
  return {
    fields: Object.fromEntries(entries.filter((entry) => !isParameter(entry))),
    parameters: Object.fromEntries(
      entries.filter(isParameter).map(([name, value]) => [name.slice("parameters.".length), value]),
    ),
  };
}

/** Fills a form with what `readForm` returned. */
export function fillForm(form, { fields, parameters }) {
  for (const [name, value] of Object.entries(fields)) form.elements[name].value = value;
  for (const [name, value] of Object.entries(parameters)) form.elements[`parameters.${name}`].value = value;
}

function makeField(task, { name, label, rows }) {
  const id = `${task}-${name}`;
  const field = rows ? make("textarea", { id, name, rows }) : make("input", { id, name, autocomplete: "off" });
  return [makeLabel(id, label), field];
}

function makeLabel(id, text) {
  return make("label", { htmlFor: id, "data-message": text });
}

function makeDetails(className, text, ...children) {
  return make("details", { className }, make("summary", { "data-message": text }), ...children);
}
