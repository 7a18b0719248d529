// The page: which models there are, what was asked and answered, and how the server does.

import { ask, Problem, useKey } from "./api.js";
import { make } from "./dom.js";
import { drawCard, drawCosts, drawProblem, drawStatus } from "./facts.js";
import { TASKS } from "./tasks.js";
import { language, speak, word } from "./words.js";

const POLL_MS = 2000;

const find = (id) => document.getElementById(id);
const names = Object.keys(TASKS);

let models = []; // as GET /models tells them
let task = ""; // the one whose tab is open
let status = null; // as GET /status tells it
const asked = {}; // of each task, the request that runs: its AbortController
const results = {}; // of each task, what came of the last request

const served = () => names.filter((name) => models.some((model) => model.task === name));
const modelOf = (name) => models.find((model) => model.name === find(`form-${name}`).elements.model.value);

// Drawing: everything from what is known, so that it can be drawn again in another language

function draw() {
  speak(language);
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
    .map((model) => make("option", { value: model.name }, model.name + (model.default ? ` (${word("byDefault")})` : "")));
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

/** Tells those who do not see the page. */
function say(sentence) {
  find("said").textContent = sentence;
}

// Tasks

function open(name) {
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

/** Fills a task's fields with the example after the last one. */
function fill(name) {
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
  asked[name]?.abort(); // the server notices, and does no work for it
  const controller = (asked[name] = new AbortController());
  say(word("asking"));
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
  if (result.problem?.status === 401) return lock(result.problem);
  say(result.problem ? problemSentence(result.problem) : TASKS[name].said(result.answer.body));
  look();
}

function problemSentence(problem) {
  return problem instanceof Problem ? problem.message : word("unreachable");
}

// How the server does

let timer;

async function look() {
  clearTimeout(timer);
  if (!models.length) return;
  try {
    status = (await ask("status")).body;
    find("status").replaceChildren(...drawStatus(status));
  } catch (problem) {
    find("status").replaceChildren(...drawProblem(problem));
    if (problem.status === 401) return;
  }
  clearTimeout(timer); // somebody else may have looked meanwhile
  if (!document.hidden) timer = setTimeout(look, POLL_MS);
}

// Who may ask

/** Begins, with the key there is. */
async function begin() {
  try {
    models = (await ask("models")).body;
  } catch (problem) {
    if (problem.status === 401) return lock(problem);
    return trouble(problem);
  }
  trouble(null);
  find("key-form").hidden = true;
  find("served").hidden = false;
  for (const name of served()) drawModels(name);
  for (const name of served()) if (!find(`form-${name}`).dataset.next) fill(name);
  open(task || served()[0]);
  look();
}

/** Asks for a key, and says what is wrong with the one there is. */
function lock(problem) {
  useKey("");
  models = [];
  find("served").hidden = true;
  find("key-form").hidden = false;
  find("openapi").hidden = true; // the browser would follow it without a key
  trouble(problem.code === "missing_key" ? null : problem);
  find("key").value = "";
  find("key").focus();
}

function trouble(problem) {
  find("trouble").hidden = problem === null;
  find("trouble").textContent = problem === null ? "" : problemSentence(problem);
}

// What the reader does

find("language").value = language;
find("language").addEventListener("change", (event) => {
  speak(event.target.value);
  draw();
});

find("key-form").addEventListener("submit", async (event) => {
  event.preventDefault();
  useKey(find("key").value.trim());
  await begin();
  if (find("key-form").hidden) {
    say(word("keyTaken"));
    find(`tab-${task}`).focus();
  }
});

find("tabs").addEventListener("click", (event) => {
  if (event.target.role === "tab") open(event.target.id.slice("tab-".length));
});
find("tabs").addEventListener("keydown", (event) => {
  const all = served();
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -all.indexOf(task), End: all.length - 1 - all.indexOf(task) };
  if (!(event.key in steps)) return;
  event.preventDefault();
  open(all[(all.indexOf(task) + steps[event.key] + all.length) % all.length]);
  find(`tab-${task}`).focus();
});

for (const name of names) {
  const form = find(`form-${name}`);
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    submit(name);
  });
  form.elements.model.addEventListener("change", () => open(name));
  form.querySelector(".example").addEventListener("click", () => fill(name));
}

find("insert-mask").addEventListener("click", () => {
  const text = find("fill-mask-text");
  text.setRangeText(modelOf("fill-mask").mask, text.selectionStart, text.selectionEnd, "end");
  text.focus();
});

document.addEventListener("visibilitychange", () => {
  if (!document.hidden) look();
});

draw();
begin();
