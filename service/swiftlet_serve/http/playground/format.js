// Formatting of texts and numbers.

/** Splits a text before, inside and after a span. The server counts offsets in code points. */
export function cut(text, start, end) {
  const points = [...text];
  return [points.slice(0, start), points.slice(start, end), points.slice(end)].map((part) => part.join(""));
}

/** Splits a text into its parts, in order, with the entity of each part that is one. */
export function pieces(text, entities) {
  const points = [...text];
  const part = (start, end) => points.slice(start, end).join("");
  let done = 0;
  const found = entities.flatMap((entity) => {
    const before = { part: part(done, entity.start) };
    done = entity.end;
    return [before, { part: part(entity.start, entity.end), entity }];
  });
  return [...found, { part: part(done) }];
}

/** Returns the lines of a text that are not blank. */
export function lines(text) {
  return text.split("\n").filter((line) => line.trim());
}

/** Returns the numbers of a vector in one of the formats of the parameter `encoding_format`. */
export function numbers(vector, format) {
  if (format === "base64") return [...new Float32Array(Uint8Array.from(atob(vector), (byte) => byte.charCodeAt(0)).buffer)];
  if (format === "uint8") return vector.map((value) => value - 128);
  if (!format?.endsWith("binary")) return vector;
  const bytes = format === "binary" ? vector.map((value) => value + 128) : vector;
  return bytes.flatMap((byte) => [...byte.toString(2).padStart(8, "0")].map((bit) => 2 * bit - 1));
}

/** Returns the cosine of two vectors. */
export function cosine(one, other) {
  const product = (a, b) => a.reduce((sum, value, place) => sum + value * b[place], 0);
  return product(one, other) / Math.sqrt(product(one, one) * product(other, other));
}

/** Returns the candidates of each mask. The response for a single mask has no outer list. */
export function byMask(answer) {
  return Array.isArray(answer[0]) ? answer : [answer];
}

/** Parses a Server-Timing header into the name, the milliseconds and the batch size of each metric. */
export function timings(header) {
  return (header ?? "")
    .split(",")
    .map((metric) => metric.trim().split(/\s*;\s*/))
    .filter(([name]) => name)
    .map(([name, ...parameters]) => {
      const values = Object.fromEntries(parameters.map((one) => one.split(/=(.*)/s, 2)));
      const sequences = /^"sequences=(\d+)"$/.exec(values.desc ?? "");
      return { name, ms: Number(values.dur), sequences: sequences && Number(sequences[1]) };
    });
}

/** Formats a number for a language. */
export function number(value, language, digits = 0) {
  return value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** Formats a probability in percent, and any other score as a number. */
export function score(value, language) {
  return value >= 0 && value <= 1 ? `${number(100 * value, language, 1)} %` : number(value, language, 3);
}
