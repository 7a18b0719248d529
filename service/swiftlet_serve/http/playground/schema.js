// Reading of the server's OpenAPI document.

/** Returns a schema without its reference to another one. */
export function resolve(api, schema) {
  return schema.$ref ? api.components.schemas[schema.$ref.split("/").at(-1)] : schema;
}

/** Returns the schemas that a value may have, without null. */
export function alternatives(api, schema) {
  const found = schema.anyOf ?? schema.oneOf;
  if (found) return found.flatMap((one) => alternatives(api, one));
  const resolved = resolve(api, schema);
  if (resolved !== schema) return alternatives(api, resolved);
  return schema.type === "null" ? [] : [schema];
}

/** Returns the schema of the body of an operation; undefined if it has none. */
export function bodyOf(operation) {
  return operation.requestBody?.content["application/json"]?.schema;
}

/** Returns the type of a value in words. */
export function typeOf(api, schema) {
  const names = alternatives(api, schema).map((one) => {
    if (one.enum) return one.enum.map((value) => JSON.stringify(value)).join(" | ");
    if (one.const !== undefined) return JSON.stringify(one.const);
    if (one.type === "array") return `array<${one.items ? typeOf(api, one.items) : "any"}>`;
    return one.type ?? "any";
  });
  return [...new Set(names)].join(" | ");
}

/** Returns the bounds of a value, such as "1–100"; empty if it has none. */
export function rangeOf(api, schema) {
  const [one] = alternatives(api, schema).filter(({ minimum, maximum }) => minimum !== undefined || maximum !== undefined);
  if (!one) return "";
  return one.maximum === undefined ? `≥ ${one.minimum}` : `${one.minimum ?? ""}–${one.maximum}`;
}
