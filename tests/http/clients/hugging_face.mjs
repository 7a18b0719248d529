// Hugging Face's client for JavaScript: every task that Swiftlet has. Prints its answers as JSON.
//
//     npm install --prefix DIRECTORY @huggingface/inference@4.13.30
//     node DIRECTORY/hugging_face.mjs http://127.0.0.1:8000 '["A text.", "Another."]'

import { InferenceClient } from "@huggingface/inference";

const [url, texts] = [process.argv[2], JSON.parse(process.argv[3])];
const at = (path) => new InferenceClient("none").endpoint(`${url}/${path}`);

async function error(call) {
  try {
    await call();
  } catch (failure) {
    return [failure.name, failure.httpResponse?.status, failure.message];
  }
}

const parameters = { candidate_labels: ["film", "서울"] };
console.log(
  JSON.stringify({
    classify: await at("classify").textClassification({ inputs: texts[0] }),
    qa: await at("qa").questionAnswering({ inputs: { question: "Who?", context: texts[0] } }),
    "fill-mask": await at("fill-mask").fillMask({ inputs: "the [MASK] ." }),
    entities: await at("entities").tokenClassification({ inputs: texts[0] }),
    "zero-shot": await at("zero-shot").zeroShotClassification({ inputs: texts[0], parameters }),
    embed: await at("embed").featureExtraction({ inputs: texts }),
    similar: await at("similarity").sentenceSimilarity({
      inputs: { source_sentence: texts[0], sentences: texts },
    }),
    empty: await error(() => at("classify").textClassification({ inputs: " " })),
  }),
);
