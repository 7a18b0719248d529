// A request as code, to copy. The code names the variable API_KEY, and never holds the key.

const quote = (text) => `'${text.replaceAll("'", String.raw`'\''`)}'`; // for a shell

function curl(url, body, needsKey) {
  const key = needsKey ? `  -H "X-API-Key: $API_KEY" \\\n` : "";
  const data = quote(JSON.stringify(body, null, 2));
  return `curl ${quote(url)} \\\n  -H 'Content-Type: application/json' \\\n${key}  -d ${data}\n`;
}

function python(url, body, needsKey) {
  const key = needsKey ? `    headers={"X-API-Key": os.environ["API_KEY"]},\n` : "";
  return [
    ...(needsKey ? ["import os", ""] : []),
    "import requests",
    "",
    "response = requests.post(",
    `    ${JSON.stringify(url)},`,
    `    json=${literal(body, "    ")},`,
    `${key})`,
    "response.raise_for_status()",
    "print(response.json())",
    "",
  ].join("\n");
}

function javascript(url, body, needsKey) {
  const key = needsKey ? `, "X-API-Key": process.env.API_KEY` : "";
  const data = JSON.stringify(body, null, 2).replaceAll("\n", "\n  ");
  return [
    `const response = await fetch(${JSON.stringify(url)}, {`,
    `  method: "POST",`,
    `  headers: { "Content-Type": "application/json"${key} },`,
    `  body: JSON.stringify(${data}),`,
    "});",
    "if (!response.ok) throw new Error(await response.text());",
    "console.log(await response.json());",
    "",
  ].join("\n");
}

/** Returns a JSON value as Python. Its strings are those of JSON. */
function literal(value, indent) {
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  const inner = `${indent}    `;
  const [open, close] = Array.isArray(value) ? ["[", "]"] : ["{", "}"];
  const items = Array.isArray(value)
    ? value.map((one) => literal(one, inner))
    : Object.entries(value).map(([name, one]) => `${JSON.stringify(name)}: ${literal(one, inner)}`);
  return `${open}\n${items.map((item) => `${inner}${item},\n`).join("")}${indent}${close}`;
}

/** The code of a POST request, by the language's name: functions of the URL, the body and whether a key is needed. */
export const SAMPLES = { curl, Python: python, JavaScript: javascript };
