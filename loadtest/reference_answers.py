"""Prints the answers of transformers or sentence-transformers to texts, one in each line as JSON; null if it raises.

    python reference_answers.py DIRECTORY TASK TEXTS

It imports nothing of Swiftlet, so that it runs in an environment of its own. `own_models.py` calls it. TEXTS holds a
JSON string in each line, or for qa an object with `question` and `context`. Special tokens in a text are read as text.
"""

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "classify": ("text-classification", {}),
    "entities": ("token-classification", {"aggregation_strategy": "simple"}),
    "qa": ("question-answering", {}),
}


def vectors(directory: str, texts: Sequence[str]) -> list[Any]:
    from sentence_transformers import SentenceTransformer

    encoder = SentenceTransformer(directory, device="cpu")
    encoder.tokenizer.split_special_tokens = True
    return encoder.encode(texts, show_progress_bar=False).tolist()  # type: ignore[no-any-return]


def pipeline(directory: str, task: str) -> Callable[[Any], Any]:
    import transformers

    name, options = KINDS[task]
    made: Any = transformers.pipeline(name, model=directory, device="cpu", **options)
    made.tokenizer.split_special_tokens = True

    def answer(text: Any) -> Any:
        try:
            if task == "classify":
                return made(text, top_k=None, truncation=True)
            return made(**text) if task == "qa" else made(text)
        except Exception:  # what the pipeline raises for texts without a token differs by task
            return None

    return answer


def main() -> None:
    directory, task, file = sys.argv[1:]
    texts = [json.loads(line) for line in Path(file).read_text("utf-8").rstrip("\n").split("\n")]
    answers = vectors(directory, texts) if task == "embed" else map(pipeline(directory, task), texts)
    for answer in answers:
        print(json.dumps(answer, default=float))


if __name__ == "__main__":
    main()
