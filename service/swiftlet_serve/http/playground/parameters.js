// The parameters of a task, as controls made from the server's OpenAPI document. An empty control is not sent.

import { make } from "./dom.js";
import { alternatives, bodyOf, rangeOf, resolve } from "./schema.js";

const LEFT_OUT = ["topk", "max_question_len"]; // an older name, and one without an effect

/** Returns the schemas of a task's parameters by their names, without those that are fields of its form. */
export function parametersOf(api, name, { fields }) {
  const operation = api?.paths[`/${name}`]?.post;
  if (!operation) return {};
  const { properties } = resolve(api, bodyOf(operation));
  const [parameters] = alternatives(api, properties.parameters);
  const others = [...LEFT_OUT, ...fields.map((field) => field.name)];
  return Object.fromEntries(Object.entries(parameters.properties).filter(([one]) => !others.includes(one)));
}

/** Creates the control of a parameter, with a label and a description. */
export function makeControl(api, task, name, schema, preset = "") {
  const id = `${task}-parameter-${name}`;
  const properties = { id, name: `parameters.${name}`, "aria-describedby": `${id}-hint` };
  const kind = kindOf(api, schema);
  const choices = alternatives(api, schema).flatMap(choicesOf);
  const known = schema.default === null || schema.default === undefined ? "" : String(schema.default);
  let control;
  if (choices.length) {
    const empty = make("option", { value: "" }, known ? `(${known})` : "–");
    control = make("select", properties, empty, ...choices.map((value) => make("option", { value }, value)));
  } else if (isNumber(kind)) {
    const { minimum = "", maximum = "" } = kind;
    control = make("input", { ...properties, type: "number", min: minimum, max: maximum, placeholder: known });
  } else {
    control = make("input", { ...properties, autocomplete: "off", placeholder: known });
  }
  control.value = String(preset);
  const range = rangeOf(api, schema);
  return make(
    "div",
    {},
    make("label", { htmlFor: id }, make("code", {}, name), range && ` ${range}`),
    control,
    make("p", { id: `${id}-hint`, className: "hint", "data-parameter": name, "data-english": schema.description }),
  );
}

/** Returns the values of controls as JSON, without the empty ones. */
export function parse(api, schemas, texts) {
  const values = Object.entries(texts).map(([name, text]) => [name, text.trim() && convert(kindOf(api, schemas[name]), text)]);
  return Object.fromEntries(values.filter(([, value]) => value !== ""));
}

function convert(kind, text) {
  if (kind.type === "boolean" && ["true", "false"].includes(text)) return text === "true";
  if (kind.type === "array") return text.split(",").map((one) => one.trim());
  return isNumber(kind) ? Number(text) : text;
}

/** Returns the only values of a kind; none if it has others. */
function choicesOf(kind) {
  return kind.enum ?? (kind.const === undefined ? (kind.type === "boolean" ? ["true", "false"] : []) : [kind.const]);
}

function isNumber(kind) {
  return ["integer", "number"].includes(kind.type);
}

/** Returns the kind of value that a control edits: a list, if the parameter may be one. */
function kindOf(api, schema) {
  const kinds = alternatives(api, schema);
  return kinds.find((kind) => kind.type === "array") ?? kinds[0];
}
