# /// script
# requires-python = ">=3.11"
# dependencies = ["huggingface-hub==2.4.0", "numpy"]
# ///
"""Hugging Face's client: every task that Swiftlet has."""

from common import DEADLINE_HEADERS, END, LABELS, LONG, MASKED, QUESTION, SERVERS, TEXTS, failure, overload, report
from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

URL, TEXT = SERVERS["url"], TEXTS[0]


def ask(name, headers=None, text=TEXT):
    return InferenceClient(headers=headers).text_classification(text, model=f"{SERVERS[name]}/classify")


def main():
    client = InferenceClient()
    (classified, *_) = client.text_classification(TEXT, model=f"{URL}/classify")
    by_model = client.text_classification(TEXT, model=f"{URL}/models/tiny-classify")
    answer = client.question_answering(QUESTION, TEXT, model=f"{URL}/qa")
    masked = client.fill_mask(MASKED[0], model=f"{URL}/fill-mask")
    entities = client.token_classification(TEXT, model=f"{URL}/entities")
    labels = client.zero_shot_classification(TEXT, LABELS, model=f"{URL}/zero-shot")
    answers = {
        "classify": {"one": [classified.label, classified.score]},
        "qa": {"one": [answer.answer, answer.start, answer.end]},
        "fill-mask": {"one": [one.token_str for one in masked]},
        "entities": {"one": [[one.word, one.start, one.end] for one in entities]},
        "zero-shot": {"one": [one.label for one in labels]},
        "embed": {
            "one": client.feature_extraction(TEXT, model=f"{URL}/embed").tolist()[0],
            "batch": client.feature_extraction(TEXTS, model=f"{URL}/embed").tolist(),
        },
        "similarity": {"one": client.sentence_similarity(TEXT, TEXTS, model=f"{URL}/similarity")},
    }
    cut = client.feature_extraction(LONG, truncate=True, truncation_direction="left", model=f"{URL}/embed")
    found = {
        "package": "huggingface-hub",
        "answers": answers,
        "error": failure(lambda: ask("url", text=" "), HfHubHTTPError),
        "deadline": failure(lambda: ask("slow_url", DEADLINE_HEADERS), HfHubHTTPError),
        "overload": overload(lambda: ask("limited_url"), HfHubHTTPError),
        "by model": [by_model[0].label, by_model[0].score],
        "cut": bool((cut == client.feature_extraction(END, model=f"{URL}/embed")).all()),
        "raw": client.feature_extraction(TEXT, normalize=False, model=f"{URL}/embed").tolist(),
    }
    report(huggingface_hub=found)


main()
