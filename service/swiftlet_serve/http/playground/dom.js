// Creation of elements. Their content is text or other elements, never HTML.

/** Creates an element. Properties with a dash in their name are set as attributes. */
export function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name.includes("-") || name === "role" || name === "scope") element.setAttribute(name, value);
    else element[name] = value;
  }
  element.append(...children);
  return element;
}

/** Creates a list of names and values. */
export function definitions(pairs) {
  return make("dl", {}, ...pairs.flatMap(([name, value]) => [make("dt", {}, name), make("dd", {}, value)]));
}

/** Creates a table. The first column has the names of the rows, the others have numbers. */
export function table(header, rows) {
  const cell = (text, place) => make("td", { className: place ? "number" : "" }, text);
  const head = header.map((text, place) => make("th", { scope: "col", className: place ? "number" : "" }, text));
  const body = rows.map(([name, ...cells]) =>
    make("tr", {}, make("th", { scope: "row" }, name), ...cells.map((text) => cell(text, 1))),
  );
  // A wide table can be scrolled by keyboard too.
  return make(
    "div",
    { className: "scroll", tabIndex: 0, role: "group", "aria-label": header[0] },
    make("table", {}, make("thead", {}, make("tr", {}, ...head)), make("tbody", {}, ...body)),
  );
}

/** Creates a bar chart. Each item has a name (text or element), a share from 0 to 1, and a number as text. */
export function bars(items) {
  return make(
    "ol",
    { className: "bars" },
    ...items.map(({ name, share, number }) => {
      const bar = make("span", { className: "bar" });
      bar.style.width = `${100 * Math.min(Math.max(share, 0), 1)}%`;
      return make(
        "li",
        {},
        make("span", { className: "name" }, name),
        make("span", { className: "track", "aria-hidden": "true" }, bar),
        make("span", { className: "number" }, number),
      );
    }),
  );
}
