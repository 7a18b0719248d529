// Texts and numbers. All of this is pure.

/** A text before, inside and after a stretch that the server tells in code points, as Python counts. */
export function cut(text, start, end) {
  const points = [...text];
  return [points.slice(0, start), points.slice(start, end), points.slice(end)].map((part) => part.join(""));
}

/** The candidates of each mask: the server gives those of a single one without the outer list. */
export function byMask(answer) {
  return Array.isArray(answer[0]) ? answer : [answer];
}

/** What a Server-Timing header says: for each metric its name, milliseconds, and what its description holds. */
export function timings(header) {
  return (header ?? "")
    .split(",")
    .map((metric) => metric.trim().split(/\s*;\s*/))
    .filter(([name]) => name)
    .map(([name, ...parameters]) => {
      const told = Object.fromEntries(parameters.map((one) => one.split(/=(.*)/s, 2)));
      const rows = /^"rows=(\d+)"$/.exec(told.desc ?? "");
      return { name, ms: Number(told.dur), rows: rows && Number(rows[1]) };
    });
}

/** A number in the words of a language. */
export function number(value, language, digits = 0) {
  return value.toLocaleString(language, { minimumFractionDigits: digits, maximumFractionDigits: digits });
}

/** A probability in percent; any other score as it is. */
export function score(value, language) {
  return value >= 0 && value <= 1 ? `${number(100 * value, language, 1)} %` : number(value, language, 3);
}
