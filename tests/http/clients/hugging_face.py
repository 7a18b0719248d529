# /// script
# requires-python = ">=3.11"
# dependencies = ["huggingface-hub==2.4.0", "numpy"]
# ///
"""Hugging Face's client: every task that Swiftlet has."""

import json
import sys

from huggingface_hub import InferenceClient
from huggingface_hub.errors import HfHubHTTPError

URL, TEXTS = sys.argv[1], json.loads(sys.argv[2])

client = InferenceClient()


def error(call):
    try:
        call()
    except HfHubHTTPError as failure:
        return [type(failure).__name__, failure.response.status_code, str(failure)]
    return None


def plain(found):
    return [dict(one) for one in found]


def main():
    labels = ["film", "서울"]
    print(
        json.dumps(
            {
                "classify": plain(client.text_classification(TEXTS[0], model=f"{URL}/classify")),
                "by model": plain(client.text_classification(TEXTS[0], model=f"{URL}/models/tiny-classify")),
                "qa": dict(client.question_answering("Who?", TEXTS[0], model=f"{URL}/qa")),
                "fill-mask": plain(client.fill_mask("the [MASK] .", model=f"{URL}/fill-mask")),
                "entities": plain(client.token_classification(TEXTS[0], model=f"{URL}/entities")),
                "zero-shot": plain(client.zero_shot_classification(TEXTS[0], labels, model=f"{URL}/zero-shot")),
                "embed": client.feature_extraction(TEXTS, model=f"{URL}/embed").tolist(),
                "raw": client.feature_extraction(TEXTS[0], normalize=False, model=f"{URL}/embed").tolist(),
                "similar": client.sentence_similarity(TEXTS[0], TEXTS, model=f"{URL}/similarity"),
                "empty": error(lambda: client.text_classification(" ", model=f"{URL}/classify")),
            }
        )
    )


main()
