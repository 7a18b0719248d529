// Hugging Face's client for JavaScript: every task that Swiftlet has. Prints its answers as the other programs.
//
//     npm install --prefix DIRECTORY @huggingface/inference@4.13.30
//     node DIRECTORY/hugging_face.mjs SERVERS TEXTS

import { readFileSync } from "node:fs";

import { InferenceClient } from "@huggingface/inference";

const [servers, texts] = process.argv.slice(2, 4).map((argument) => JSON.parse(argument));
const [question, labels, masked] = ["Who?", ["film", "서울"], "the [MASK] ."];
const at = (path, server = "url") => new InferenceClient("none").endpoint(`${servers[server]}/${path}`);
const classify = (inputs, server, options) => at("classify", server).textClassification({ inputs }, options);

// The client has no option for headers of its own, but one for the function that sends a request.
const withDeadline = {
  fetch: (url, init) => fetch(url, { ...init, headers: { ...init.headers, "X-Request-Timeout-Ms": "100" } }),
};

async function failure(call) {
  try {
    await call();
  } catch (error) {
    return [error.name, error.message];
  }
  return null;
}

async function overload(call) {
  const errors = [];
  for (let i = 0; i < 2; i += 1) {
    errors.push(await failure(call));
    if (errors[i]) await call();
  }
  return errors;
}

const [first] = await classify(texts[0]);
const answer = await at("qa").questionAnswering({ inputs: { question, context: texts[0] } });
const tokens = await at("fill-mask").fillMask({ inputs: masked });
const entities = await at("entities").tokenClassification({ inputs: texts[0] });
const ranked = await at("zero-shot").zeroShotClassification({
  inputs: texts[0],
  parameters: { candidate_labels: labels },
});
const source = { source_sentence: texts[0], sentences: texts };
const manifest = new URL("node_modules/@huggingface/inference/package.json", import.meta.url);
const found = {
  version: JSON.parse(readFileSync(manifest, "utf8")).version,
  answers: {
    classify: { one: [first.label, first.score] },
    qa: { one: [answer.answer, answer.start, answer.end] },
    "fill-mask": { one: tokens.map((one) => one.token_str) },
    entities: { one: entities.map((one) => [one.word, one.start, one.end]) },
    "zero-shot": { one: ranked.map((one) => one.label) },
    embed: {
      one: (await at("embed").featureExtraction({ inputs: texts.slice(0, 1) }))[0],
      batch: await at("embed").featureExtraction({ inputs: texts }),
    },
    similarity: { one: await at("similarity").sentenceSimilarity({ inputs: source }) },
  },
  error: await failure(() => classify(" ")),
  deadline: await failure(() => classify(texts[0], "slow_url", withDeadline)),
  overload: await overload(() => classify(texts[0], "limited_url")),
};
console.log(JSON.stringify({ "@huggingface/inference": found }));
