// The language of the page, and its texts.

import { ENGLISH } from "./english.js";
import { KOREAN, KOREAN_ERRORS, KOREAN_PARAMETERS } from "./korean.js";

const MESSAGES = { en: ENGLISH, ko: KOREAN };
const ERRORS = { ko: KOREAN_ERRORS }; // the server's own sentences are English
const PARAMETERS = { ko: KOREAN_PARAMETERS };

/** The language of the page: the first of the browser's languages that has texts here. */
export let language = navigator.languages.map((one) => one.slice(0, 2)).find((one) => one in MESSAGES) ?? "en";

/** Returns a text by its name, with values for its placeholders. */
export function message(name, values = {}) {
  return MESSAGES[language][name].replace(/\{(\w+)\}/g, (_, placeholder) => values[placeholder]);
}

/** Returns the sentence for an error code; undefined if the server's own is the only one. */
export function errorText(code) {
  return ERRORS[language]?.[code];
}

/** Returns the description of a parameter: translated, or the server's own. */
export function parameterText(name, english) {
  return PARAMETERS[language]?.[name] ?? english;
}

/** Sets the language, and updates all elements that name their text. */
export function setLanguage(name) {
  language = name;
  document.documentElement.lang = name;
  for (const element of document.querySelectorAll("[data-message]")) element.textContent = message(element.dataset.message);
  for (const element of document.querySelectorAll("[data-label]")) {
    element.setAttribute("aria-label", message(element.dataset.label));
  }
  for (const element of document.querySelectorAll("[data-parameter]")) {
    element.textContent = parameterText(element.dataset.parameter, element.dataset.english);
  }
}
