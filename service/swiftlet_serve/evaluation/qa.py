"""F1 and exact match of answers, on a file in SQuAD's format."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from swiftlet_models import datasets, metrics
from swiftlet_models.datasets import Unlabelled
from swiftlet_models.encodings import Window
from swiftlet_models.metrics import Score, Threshold
from swiftlet_serve import evaluation
from swiftlet_serve.evaluation import Case, Grade
from swiftlet_serve.tasks.qa import Qa, QaParameters, QaRequest, probabilities
from swiftlet_serve.types import Row


class Evaluator(evaluation.Evaluator):
    """Allows the empty answer if some questions have no answer, and then scores the two kinds of questions separately.

    The upper bounds are the scores at the best threshold for "no answer", as in the official script of SQuAD 2.0. The
    questions that are scored also choose that threshold. The second golden context does not answer its question.
    """

    golden_inputs = (
        {
            "question": "Who built the bridge?",
            "context": "The old bridge over the Linn was built by Marta Keller in 1874, after the great flood.",
        },
        {
            "question": "When did the flood come?",
            "context": "Nobody remembers the flood of 1871 now, though the church wall still bears its mark.",
        },
        {
            "question": "What does the baker sell?",
            "context": "Every morning the baker at the corner opens at six. He sells bread, rolls and plum cake.",
        },
    )
    _task: Qa

    def cases(self, data: Path, skip: int, stop: int | None) -> Iterable[Case]:
        questions = datasets.questions(data)[skip:stop]
        some_impossible = not all(question.answers for question in questions)
        return (_case(question, some_impossible) for question in questions)

    def bodies(self, texts: Sequence[Unlabelled]) -> list[dict[str, Any]]:
        """Returns each question with its context, and with the next one, which does not answer it."""
        asked = [text for text in texts if text.question]
        pairs = [
            pair
            for text, after in zip(asked, asked[1:] + asked[:1], strict=True)
            for pair in ((text, text), (text, after))
        ]
        return [{"inputs": {"question": text.question, "context": context.text}} for text, context in pairs]

    def task(self, cases: Sequence[Case]) -> Any:
        return QaWithMargin(self._task.tokenizer, self._task.max_tokens) if _some_impossible(cases) else None

    def baselines(self, cases: Sequence[Case]) -> dict[str, Score]:
        if _some_impossible(cases):
            possible = [float(bool(case.expected)) for case in cases]
            return {
                "always no answer": metrics.mean([1 - share for share in possible]),
                "always an answer, and the right one if there is one": metrics.mean(possible),
            }
        sentences = [re.split(r"(?<=[.!?])\s", case.body["inputs"]["context"], maxsplit=1)[0] for case in cases]
        scores = [metrics.answer_f1(text, case.expected) for text, case in zip(sentences, cases, strict=True)]
        return {"always the first sentence": metrics.mean(scores)}

    def best(self, response: Any) -> str:
        return str(response["answer"])

    def upper_bounds(self, cases: Sequence[Case], responses: Sequence[Any]) -> dict[str, Threshold]:
        if not _some_impossible(cases):
            return {}
        margins, possible = [response["margin"] for response in responses], [bool(case.expected) for case in cases]
        best = [(response["best"], case.expected) for response, case in zip(responses, cases, strict=True)]
        return {
            f"best_{name}": metrics.best_threshold(margins, [score(*pair) for pair in best], possible)
            for name, score in (("f1", metrics.answer_f1), ("exact_match", metrics.exact_match))
        }


class QaWithMargin(Qa):
    """A task whose responses also hold the best answer that is not empty, and log(p(no answer) / p(best answer))."""

    def decode(self, request: QaRequest, encodings: Sequence[Window], rows: Sequence[Row]) -> object:
        """Returns the served response to one question, with the fields `best` and `margin`."""
        served: Any = super().decode(request, encodings, rows)
        parameters = (request.parameters or QaParameters()).model_copy(update={"handle_impossible_answer": False})
        best: Any = super().decode(request.model_copy(update={"parameters": parameters}), encodings, rows)
        none = min(probabilities(window, row)[2] for window, row in zip(encodings, rows, strict=True))
        smallest = sys.float_info.min  # a softmax may underflow to 0
        margin = math.log(max(none, smallest)) - math.log(max(best["score"], smallest))
        return served | {"best": best["answer"], "margin": margin}


def _some_impossible(cases: Sequence[Case]) -> bool:
    return not all(case.expected for case in cases)


def _case(question: datasets.Question, some_impossible: bool) -> Case:
    def grade(response: Any) -> list[Grade]:
        text, answers = response["answer"], question.answers
        scores = {"f1": metrics.answer_f1(text, answers), "exact_match": metrics.exact_match(text, answers)}
        if some_impossible:
            kind = "has_answer" if answers else "no_answer"
            scores |= {f"{kind}_{name}": score for name, score in scores.items()}
        return [Grade(scores, (response["start"], response["end"]))]

    inputs = {"question": question.question, "context": question.context}
    parameters = {"handle_impossible_answer": some_impossible}
    return Case({"inputs": inputs, "parameters": parameters}, question.answers, grade)
