// The scripts of texts and languages, to notice a text that is evidently in another language than the model's.

const LEAST = 4; // letters that a text needs for a notice

const PARTS = {
  // of the codes that stand for several scripts
  Hans: ["Hani"],
  Hant: ["Hani"],
  Jpan: ["Hani", "Hira", "Kana"],
  Kore: ["Hang", "Hani"],
};

const SCRIPTS = ["Latn", "Hang", "Hani", "Hira", "Kana", "Cyrl", "Grek", "Arab", "Hebr", "Deva", "Beng", "Taml", "Telu", "Thai"];

const letterOf = (script) => new RegExp(`\\p{Script=${script}}`, "u");

/** Returns the scripts in which a language is written; null if they are not known. */
function scriptsOf(tag) {
  try {
    const { script } = new Intl.Locale(tag).maximize();
    return script ? (PARTS[script] ?? [script]) : null;
  } catch {
    return null; // not a tag
  }
}

/**
 * Returns the script of a text if no language of the model is written in it, else null.
 *
 * At least four letters, and more than half of them, must be of other scripts. Languages that share a script are not
 * told apart. The result is "Zzzz" for a script that has no name here.
 */
export function foreignScript(text, languages) {
  const known = languages.map(scriptsOf);
  if (!known.length || known.includes(null)) return null;
  const own = known.flat().map(letterOf);
  const letters = (text.match(/\p{L}/gu) ?? []).filter((letter) => !/\p{Script=Common}|\p{Script=Inherited}/u.test(letter));
  const others = letters.filter((letter) => !own.some((script) => script.test(letter)));
  if (others.length < LEAST || 2 * others.length <= letters.length) return null;
  const count = (script) => others.filter((letter) => letterOf(script).test(letter)).length;
  const [best] = SCRIPTS.toSorted((one, other) => count(other) - count(one));
  return count(best) ? best : "Zzzz";
}

/** Returns the name of a language in the page's language. */
export function languageName(tag, page) {
  return new Intl.DisplayNames(page, { type: "language" }).of(tag);
}

/** Returns the name of a script in the page's language. */
export function scriptName(script, page) {
  return new Intl.DisplayNames(page, { type: "script" }).of(script);
}
