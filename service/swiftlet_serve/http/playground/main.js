// The page: models, requests and results, the history, the server status, and the documentation of the API.

import { ask, hasKey, Problem, useKey } from "./api.js";
import { make } from "./dom.js";
import { EXAMPLES } from "./examples.js";
import { fillForm, makePanel, makeTab, readForm } from "./forms.js";
import { entries, forget, remember } from "./history.js";
import { errorText, language, message, setLanguage } from "./messages.js";
import { drawCard, drawCosts, drawHistory, drawProblem, drawRaw, drawSample, drawStatus, drawTruncation } from "./panels.js";
import { makeControl, parametersOf, parse } from "./parameters.js";
import { drawReference } from "./reference.js";
import { SAMPLES } from "./samples.js";
import { bodyOf, TASKS } from "./tasks.js";
import { foreignScript, languageName, scriptName } from "./writing.js";

const POLL_MS = 2000;
const READ_FOR_NOTICE = 2000; // characters

const find = (id) => document.getElementById(id);
const names = Object.keys(TASKS);
const titles = Object.fromEntries(names.map((name) => [name, TASKS[name].title]));

let models = []; // the response of GET /models
let api = null; // the response of GET /openapi.json
let task = ""; // the task of the open tab
let status = null; // the response of GET /status
let sample = Object.keys(SAMPLES)[0]; // the programming language of the shown code
const parameters = {}; // the schemas of the parameters, by task
const examples = {}; // number of the example in the form, by task; null after an edit
const pending = {}; // AbortController of the request in progress, by task
const results = {}; // the last request with its answer or problem, by task

// The models that answer a task, those for the task itself first.
const modelsOf = (name) => [
  ...models.filter((model) => model.task === name),
  ...models.filter((model) => model.other_tasks.includes(name)),
];
const served = () => names.filter((name) => modelsOf(name).length);
const formOf = (name) => find(`form-${name}`);
const modelOf = (name) => models.find((model) => model.name === formOf(name).elements.model.value);
const inPanel = (name, selector) => find(`panel-${name}`).querySelector(selector);

// Drawing. Everything is drawn from the state above, so that a change of language can draw it again.

function draw() {
  setLanguage(language);
  for (const name of served()) {
    drawModels(name);
    if (examples[name] !== null) fillExample(name, examples[name]);
    else drawForm(name);
    drawResult(name);
  }
  if (task) find("card").replaceChildren(...drawCard(modelOf(task)));
  if (status) find("status").replaceChildren(...drawStatus(status));
  showHistory();
  if (!find("reference").hidden) showReference();
}

function drawModels(name) {
  const select = formOf(name).elements.model;
  const chosen = select.value;
  const known = modelsOf(name);
  const byDefault = known.find((model) => model.task === name && model.default) ?? known[0];
  const options = known.map((model) =>
    make("option", { value: model.name }, model.name + (model === byDefault ? ` (${message("byDefault")})` : "")),
  );
  select.replaceChildren(...options);
  if (options.some((option) => option.value === chosen)) select.value = chosen;
}

function drawParameters(name) {
  parameters[name] = parametersOf(api, name, TASKS[name]);
  const controls = Object.entries(parameters[name]).map(([one, schema]) =>
    makeControl(api, name, one, schema, TASKS[name].presets?.[one]),
  );
  inPanel(name, ".parameters").hidden = !controls.length;
  inPanel(name, ".controls").replaceChildren(...controls);
}

/** Draws what follows from the content of a form: facts of the model, the notice about the language, and the code. */
function drawForm(name) {
  const model = modelOf(name);
  const languages = model.languages.map((tag) => languageName(tag, language)).join(", ");
  const facts = [languages, message("maxTokensText", { count: model.max_tokens }), model.precision];
  inPanel(name, ".about").textContent = facts.filter(Boolean).join(" · ");
  const { fields } = readForm(formOf(name));
  const texts = TASKS[name].fields.map((field) => fields[field.name]).join("\n");
  const script = foreignScript(texts.slice(0, READ_FOR_NOTICE), model.languages);
  const named = script === "Zzzz" ? message("otherScript") : script && scriptName(script, language);
  const notice = script ? message("foreignText", { script: named, languages }) : "";
  if (inPanel(name, ".notice").textContent !== notice) inPanel(name, ".notice").textContent = notice;
  drawGloss(name);
  if (inPanel(name, ".code").open) showSample(name);
}

/** Draws the meaning of an example that is not in the language of the page. */
function drawGloss(name) {
  const example = EXAMPLES[name][examples[name] ?? 0];
  const foreign = examples[name] !== null && exampleLanguage(modelOf(name)) !== language;
  const text = foreign ? Object.values(example[language]).join(" / ").replaceAll("[MASK]", "___") : "";
  inPanel(name, ".gloss").textContent = text && message("translation", { text });
}

function drawResult(name) {
  const result = results[name];
  if (!result) return;
  const drawn = result.problem
    ? drawProblem(result.problem)
    : [
        ...drawTruncation(result.answer.headers),
        ...TASKS[name].draw(result.answer.body, result.fields, result.model, result.parameters),
        ...drawCosts(result.answer),
        drawRaw(result.answer.body),
      ];
  inPanel(name, ".result").replaceChildren(...drawn);
}

function showSample(name) {
  const code = SAMPLES[sample](new URL(name, document.baseURI).href, bodyOfForm(name), hasKey());
  const choose = (other) => {
    sample = other;
    showSample(name);
    inPanel(name, ".sample [aria-pressed=true]").focus();
  };
  inPanel(name, ".sample").replaceChildren(...drawSample(sample, code, hasKey(), choose, copy));
}

function showHistory() {
  const clear = () => {
    forget();
    showHistory();
    find("history-heading").focus();
  };
  find("history").replaceChildren(...drawHistory(entries, titles, reopen, clear));
}

/** Announces a sentence to screen readers. */
function announce(sentence) {
  find("announcement").textContent = sentence;
}

/** Copies the text of an element. Pages that are not served over HTTPS have no clipboard, but may copy a selection. */
async function copy(element) {
  getSelection().selectAllChildren(element);
  const copied = await (navigator.clipboard?.writeText(element.textContent) ?? Promise.reject()).then(
    () => true,
    () => document.execCommand("copy"),
  );
  announce(message(copied ? "copied" : "notCopied"));
}

// Tasks

function openTab(name) {
  task = name;
  for (const other of names) {
    const tab = find(`tab-${other}`);
    tab.hidden = !served().includes(other);
    tab.setAttribute("aria-selected", String(other === name));
    tab.tabIndex = other === name ? 0 : -1;
    find(`panel-${other}`).hidden = other !== name;
  }
  find("card").replaceChildren(...drawCard(modelOf(name)));
}

/** Returns the language of the examples for a model: that of the page, unless the model was trained for others. */
function exampleLanguage(model) {
  const known = model.languages.map((tag) => tag.split("-")[0]).filter((tag) => ["en", "ko"].includes(tag));
  return !known.length || known.includes(language) ? language : known[0];
}

/** Fills the form of a task with an example. */
function fillExample(name, number) {
  examples[name] = number;
  const model = modelOf(name);
  for (const [field, text] of Object.entries(EXAMPLES[name][number][exampleLanguage(model)])) {
    formOf(name).elements[field].value = text.replaceAll("[MASK]", model.mask ?? "");
  }
  drawForm(name);
}

function fillNextExample(name) {
  const next = Number(formOf(name).dataset.next ?? 0);
  formOf(name).dataset.next = (next + 1) % EXAMPLES[name].length;
  for (const field of TASKS[name].fields) formOf(name).elements[field.name].value = "";
  fillExample(name, next);
}

function bodyOfForm(name) {
  const { fields, parameters: texts } = readForm(formOf(name));
  return bodyOf(name, fields.model, fields, parse(api, parameters[name], texts));
}

async function submit(name) {
  const entry = { task: name, model: modelOf(name), time: new Date(), ...readForm(formOf(name)) };
  pending[name]?.abort(); // the server then cancels the work
  const controller = (pending[name] = new AbortController());
  announce(message("asking"));
  try {
    entry.answer = await ask(name, { body: bodyOfForm(name), signal: controller.signal });
  } catch (problem) {
    if (controller.signal.aborted) return;
    entry.problem = problem;
  }
  results[name] = entry;
  drawResult(name);
  remember(entry);
  showHistory();
  if (entry.problem?.status === 401) return askForKey(entry.problem);
  const { answer, problem, fields } = entry;
  announce(problem ? describe(problem) : TASKS[name].summary(answer.body, fields, entry.parameters));
  refreshStatus();
}

/** Shows a request of the history again, with its answer. */
function reopen(entry) {
  examples[entry.task] = null;
  fillForm(formOf(entry.task), entry);
  results[entry.task] = entry;
  openTab(entry.task);
  drawForm(entry.task);
  drawResult(entry.task);
  find(`tab-${entry.task}`).focus();
}

function describe(problem) {
  if (!(problem instanceof Problem)) return message("unreachable");
  return errorText(problem.code) ?? problem.message;
}

// Server status

let timer;

async function refreshStatus() {
  clearTimeout(timer);
  if (!models.length) return;
  try {
    status = (await ask("status")).body;
    find("status").replaceChildren(...drawStatus(status));
  } catch (problem) {
    find("status").replaceChildren(...drawProblem(problem));
    if (problem.status === 401) return;
  }
  clearTimeout(timer); // another refresh may have started meanwhile
  if (!document.hidden) timer = setTimeout(refreshStatus, POLL_MS);
}

// Access

/** Loads the models and the description of the API with the current API key, and shows the page. */
async function load() {
  try {
    const described = ask("openapi.json").catch(() => null); // without it, the page has no parameters
    models = (await ask("models")).body;
    api = (await described)?.body ?? null;
  } catch (problem) {
    if (problem.status === 401) return askForKey(problem);
    return showError(problem);
  }
  showError(null);
  find("key-form").hidden = true;
  for (const name of served()) {
    drawModels(name);
    drawParameters(name);
    if (examples[name] === undefined) fillNextExample(name);
  }
  setLanguage(language);
  openTab(task || served()[0]);
  showView();
  refreshStatus();
}

/** Shows the playground or the documentation, by the fragment of the page's address. */
function showView() {
  if (!models.length) return;
  const isReference = location.hash.startsWith("#api") && api !== null;
  find("served").hidden = isReference;
  find("reference").hidden = !isReference;
  find("to-try").ariaCurrent = isReference ? null : "page";
  find("to-api").ariaCurrent = isReference ? "page" : null;
  find("to-api").hidden = api === null;
  if (isReference) showReference();
}

const drawn = {}; // the document and the language that the documentation shows, and a file to download

function showReference() {
  if (drawn.api !== api || drawn.language !== language) {
    if (drawn.file) URL.revokeObjectURL(drawn.file);
    drawn.file = URL.createObjectURL(new Blob([JSON.stringify(api, null, 2)], { type: "application/json" }));
    Object.assign(drawn, { api, language });
    find("reference").replaceChildren(...drawReference(api, drawn.file, hasKey()));
  }
  const section = find(location.hash.slice(1));
  (section ?? document.body).scrollIntoView();
  (section ?? find("reference-heading")).focus({ preventScroll: true });
}

/** Shows the form for the API key, and the error of the current one. */
function askForKey(problem) {
  useKey("");
  models = [];
  find("served").hidden = true;
  find("reference").hidden = true;
  find("key-form").hidden = false;
  showError(problem.code === "missing_key" ? null : problem);
  find("key").value = "";
  find("key").focus();
}

function showError(problem) {
  find("error").hidden = problem === null;
  find("error").textContent = problem === null ? "" : describe(problem);
}

// Events

find("tabs").append(...names.map((name) => makeTab(name, TASKS[name])));
find("panels").append(...names.map((name) => makePanel(name, TASKS[name])));

find("language").value = language;
find("language").addEventListener("change", (event) => {
  setLanguage(event.target.value);
  draw();
});

find("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  useKey(find("key").value.trim());
  await load();
  if (find("key-form").hidden) {
    announce(message("keyTaken"));
    find(`tab-${task}`).focus();
  }
});

find("tabs").addEventListener("click", (event) => {
  if (event.target.role === "tab") openTab(event.target.id.slice("tab-".length));
});
find("tabs").addEventListener("keydown", (event) => {
  const all = served();
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -all.indexOf(task), End: all.length - 1 - all.indexOf(task) };
  if (!(event.key in steps)) return;
  event.preventDefault();
  openTab(all[(all.indexOf(task) + steps[event.key] + all.length) % all.length]);
  find(`tab-${task}`).focus();
});

for (const name of names) {
  const form = formOf(name);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(name);
  });
  form.addEventListener("input", (event) => {
    if (TASKS[name].fields.some((field) => field.name === event.target.name)) examples[name] = null;
    drawForm(name);
  });
  form.elements.model.addEventListener("change", () => {
    if (examples[name] !== null) fillExample(name, examples[name]);
    openTab(name);
  });
  form.querySelector(".example").addEventListener("click", () => fillNextExample(name));
  inPanel(name, ".code").addEventListener("toggle", () => drawForm(name));
}

find("insert-mask").addEventListener("click", () => {
  const text = find("fill-mask-text");
  text.setRangeText(modelOf("fill-mask").mask, text.selectionStart, text.selectionEnd, "end");
  examples["fill-mask"] = null;
  drawForm("fill-mask");
  text.focus();
});

addEventListener("hashchange", showView);
document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refreshStatus();
});

draw();
load();
