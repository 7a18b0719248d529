// The page: models, requests and results, and the server status.

import { ask, Problem, useKey } from "./api.js";
import { make } from "./dom.js";
import { drawCard, drawCosts, drawProblem, drawStatus } from "./panels.js";
import { TASKS } from "./tasks.js";
import { language, message, setLanguage } from "./messages.js";

const POLL_MS = 2000;

const find = (id) => document.getElementById(id);
const names = Object.keys(TASKS);

let models = []; // the response of GET /models
let task = ""; // the task of the open tab
let status = null; // the response of GET /status
const pending = {}; // AbortController of the request in progress, by task
const results = {}; // result of the last request, by task

const served = () => names.filter((name) => models.some((model) => model.task === name));
const modelOf = (name) => models.find((model) => model.name === find(`form-${name}`).elements.model.value);

// Drawing. Everything is drawn from the state above, so that a change of language can draw it again.

function draw() {
  setLanguage(language);
  for (const name of served()) {
    drawModels(name);
    drawResult(name);
  }
  if (task) find("card").replaceChildren(...drawCard(modelOf(task)));
  if (status) find("status").replaceChildren(...drawStatus(status));
}

function drawModels(name) {
  const select = find(`form-${name}`).elements.model;
  const chosen = select.value;
  const options = models
    .filter((model) => model.task === name)
    .map((model) => make("option", { value: model.name }, model.name + (model.default ? ` (${message("byDefault")})` : "")));
  select.replaceChildren(...options);
  if (options.some((option) => option.value === chosen)) select.value = chosen;
}

function drawResult(name) {
  const result = results[name];
  if (!result) return;
  const drawn = result.problem
    ? drawProblem(result.problem)
    : [...TASKS[name].draw(result.answer.body, result.fields, result.model), ...drawCosts(result.answer)];
  find(`panel-${name}`).querySelector(".result").replaceChildren(...drawn);
}

/** Announces a sentence to screen readers. */
function announce(sentence) {
  find("announcement").textContent = sentence;
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

/** Fills the form of a task with its next example. */
function fillExample(name) {
  const form = find(`form-${name}`);
  const examples = TASKS[name].examples;
  const next = Number(form.dataset.next ?? 0);
  form.dataset.next = (next + 1) % examples.length;
  const mask = modelOf(name).mask ?? "";
  for (const [field, text] of Object.entries(examples[next])) {
    form.elements[field].value = text.replaceAll("[MASK]", mask);
  }
}

async function submit(name) {
  const form = find(`form-${name}`);
  const fields = Object.fromEntries(new FormData(form));
  const model = modelOf(name);
  pending[name]?.abort(); // the server then cancels the work
  const controller = (pending[name] = new AbortController());
  announce(message("asking"));
  let result;
  try {
    const body = { ...TASKS[name].body(fields), model: model.name };
    result = { fields, model, answer: await ask(name, { body, signal: controller.signal }) };
  } catch (problem) {
    if (controller.signal.aborted) return;
    result = { problem };
  }
  results[name] = result;
  drawResult(name);
  if (result.problem?.status === 401) return askForKey(result.problem);
  announce(result.problem ? describe(result.problem) : TASKS[name].summary(result.answer.body, fields));
  refreshStatus();
}

function describe(problem) {
  return problem instanceof Problem ? problem.message : message("unreachable");
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

/** Loads the models with the current API key, and shows the page. */
async function load() {
  try {
    models = (await ask("models")).body;
  } catch (problem) {
    if (problem.status === 401) return askForKey(problem);
    return showError(problem);
  }
  showError(null);
  find("key-form").hidden = true;
  find("served").hidden = false;
  for (const name of served()) drawModels(name);
  for (const name of served()) if (!find(`form-${name}`).dataset.next) fillExample(name);
  openTab(task || served()[0]);
  refreshStatus();
}

/** Shows the form for the API key, and the error of the current one. */
function askForKey(problem) {
  useKey("");
  models = [];
  find("served").hidden = true;
  find("key-form").hidden = false;
  find("openapi").hidden = true; // the browser would request it without the key
  showError(problem.code === "missing_key" ? null : problem);
  find("key").value = "";
  find("key").focus();
}

function showError(problem) {
  find("error").hidden = problem === null;
  find("error").textContent = problem === null ? "" : describe(problem);
}

// Events

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
  const form = find(`form-${name}`);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(name);
  });
  form.elements.model.addEventListener("change", () => openTab(name));
  form.querySelector(".example").addEventListener("click", () => fillExample(name));
}

find("insert-mask").addEventListener("click", () => {
  const text = find("fill-mask-text");
  text.setRangeText(modelOf("fill-mask").mask, text.selectionStart, text.selectionEnd, "end");
  text.focus();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) refreshStatus();
});

draw();
load();
