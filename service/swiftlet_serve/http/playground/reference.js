// The documentation of the API, made from the server's OpenAPI document.

import { make } from "./dom.js";
import { language, message, parameterText } from "./messages.js";
import { SAMPLES } from "./samples.js";
import { alternatives, bodyOf, rangeOf, resolve, typeOf } from "./schema.js";

const MAX_DEPTH = 4; // of fields in fields

/** Draws the documentation. `file` is the address of the document, to download. */
export function drawReference(api, file, needsKey) {
  const operations = Object.entries(api.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, operation]) => ({ path, method: method.toUpperCase(), operation })),
  );
  const groups = Map.groupBy(operations, groupOf);
  const chapters = [...groups].map(([title, members]) => [
    title,
    members.map((member) => drawOperation(api, member, needsKey)),
    members.map((member) => make("li", {}, make("a", { href: `#${idOf(member)}` }, nameOf(member)))),
  ]);
  return [
    make("h2", { id: "reference-heading", tabIndex: -1 }, `${message("reference")} – ${api.info.title} ${api.info.version}`),
    make("p", { className: "hint" }, message("aboutReference")),
    make("p", {}, make("a", { href: file, download: "openapi.json" }, message("downloadOpenapi"))),
    make(
      "nav",
      { className: "contents", "aria-label": message("contents") },
      ...chapters.flatMap(([title, , links]) => [make("h3", {}, title), make("ul", {}, ...links)]),
    ),
    ...chapters.flatMap(([title, sections]) => [make("h3", { className: "chapter" }, title), ...sections]),
  ];
}

/** Returns the address of an operation in the page. It begins with that of the documentation, `api`. */
function idOf({ path, method }) {
  return `api${path.replace(/[^a-z0-9]+/gi, "-")}-${method.toLowerCase()}`;
}

function nameOf({ path, method }) {
  return `${method} ${path}`;
}

function groupOf({ method, operation }) {
  if (operation.tags) return message("dialect", { name: operation.tags[0] });
  return message(method === "POST" ? "tasksOfThisServer" : "serverRoutes");
}

function drawOperation(api, member, needsKey) {
  const { path, method, operation } = member;
  const responses = Object.entries(operation.responses ?? {});
  const body = bodyOf(operation);
  const [example] = (body && resolve(api, body).examples) ?? [];
  const url = new URL(path.slice(1), document.baseURI).href;
  return make(
    "section",
    { id: idOf(member), tabIndex: -1, "aria-label": nameOf(member) },
    make("h4", {}, make("code", {}, nameOf(member))),
    make("p", { lang: "en" }, operation.summary ?? ""),
    ...(operation.description ? [make("p", { className: "hint", lang: "en" }, operation.description)] : []),
    ...(body ? [make("h5", {}, message("requestBody")), drawFields(api, body)] : []),
    ...(example
      ? [make("h5", {}, message("exampleBody")), preformatted(nameOf(member), SAMPLES.curl(url, example, needsKey))]
      : []),
    ...responses.filter(([status]) => status < 400).flatMap(([status, response]) => drawResponse(api, status, response)),
    ...drawHeaders(api, operation.parameters ?? []),
    ...drawErrors(responses.filter(([status]) => status >= 400)),
  );
}

function drawResponse(api, status, response) {
  const schema = response.content?.["application/json"]?.schema;
  return [
    make("h5", {}, message("response", { status })),
    ...(schema ? [make("p", {}, make("code", {}, typeOf(api, schema))), drawFields(api, schema)] : [response.description ?? ""]),
  ];
}

function drawHeaders(api, parameters) {
  if (!parameters.length) return [];
  const rows = parameters.map(({ name, description, schema = {}, required }) =>
    fieldRow(api, name, { ...schema, description }, required),
  );
  return [unfolding("requestHeaders", grid(["field", "type", "description"], rows))];
}

function drawErrors(responses) {
  if (!responses.length) return [];
  const rows = responses.map(([status, { description }]) => [make("code", {}, status), make("span", { lang: "en" }, description)]);
  return [unfolding("errors", grid(["status", "description"], rows))];
}

/** Draws the fields of a value, with those of the objects in it. Empty if it has no fields. */
function drawFields(api, schema) {
  const rows = new Map(fieldsOf(api, schema, "", 0).reverse()); // of fields that occur twice, the first
  return rows.size ? grid(["field", "type", "description"], [...rows.values()].reverse()) : "";
}

/** Returns the path and the row of each field, with those of the objects in it. */
function fieldsOf(api, schema, prefix, depth) {
  if (depth > MAX_DEPTH) return [];
  return alternatives(api, schema).flatMap((one) => {
    if (one.type === "array") return one.items ? fieldsOf(api, one.items, prefix, depth + 1) : [];
    return Object.entries(one.properties ?? {}).flatMap(([name, field]) => [
      [prefix + name, fieldRow(api, prefix + name, field, one.required?.includes(name), name)],
      ...fieldsOf(api, field, `${prefix}${name}.`, depth + 1),
    ]);
  });
}

function fieldRow(api, path, schema, required, name = path) {
  const hasDefault = schema.default !== undefined && schema.default !== null;
  const notes = [
    ...(required ? [message("requiredField")] : []),
    ...(hasDefault ? [message("defaultValue", { value: JSON.stringify(schema.default) })] : []),
    rangeOf(api, schema),
  ].filter(Boolean);
  const text = parameterText(name, schema.description ?? "");
  return [
    make("code", {}, path),
    make("span", {}, make("code", {}, typeOf(api, schema)), make("span", { className: "hint" }, ` ${notes.join(", ")}`)),
    make("span", { lang: text === schema.description ? "en" : language }, text),
  ];
}

function grid(header, rows) {
  const head = header.map((name) => make("th", { scope: "col" }, message(name)));
  const body = rows.map(([first, ...others]) =>
    make("tr", {}, make("th", { scope: "row" }, first), ...others.map((cell) => make("td", {}, cell))),
  );
  return make(
    "div",
    { className: "scroll", tabIndex: 0, role: "group", "aria-label": message(header[0]) },
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)),
  );
}

function preformatted(label, text) {
  return make("pre", { tabIndex: 0, role: "group", "aria-label": label }, make("code", {}, text));
}

function unfolding(name, content) {
  return make("details", {}, make("summary", {}, message(name)), content);
}
