"""Measures a baseline without a network: logistic regression on TF-IDF features, on SST-2, CoLA and NSMC.

    python -m venv /tmp/baselines
    /tmp/baselines/bin/pip install --editable . scikit-learn==1.9.1
    /tmp/baselines/bin/python -m tests.support.baselines

The features are words and pairs of words for English. For Korean they are one to four characters within a word,
because words have endings. Nothing is tuned: C is scikit-learn's default, and the evaluation files are read once.
"""

from __future__ import annotations

import sys
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from swiftlet_models.datasets import labelled
from swiftlet_models.metrics import Score, matthews, mean
from tests.support.paths import DATA

BASELINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sst2": ("train.tsv", "dev.tsv", {"ngram_range": (1, 2), "token_pattern": r"\S+"}),
    "cola": ("in_domain_train.tsv", "in_domain_dev.tsv", {"ngram_range": (1, 2), "token_pattern": r"\S+"}),
    "nsmc": ("train.tsv", "test.tsv", {"ngram_range": (1, 4), "analyzer": "char_wb", "min_df": 2}),
}


def measure(name: str) -> tuple[Score, Score]:
    """Fits a model to the training file. Returns its accuracy and Matthews correlation on the evaluation file."""
    training_file, evaluation_file, features = BASELINES[name]
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True, **features), LogisticRegression(max_iter=1000))
    training, evaluation = labelled(DATA / name / training_file), labelled(DATA / name / evaluation_file)
    model.fit([one.text for one in training], [one.label for one in training])
    predicted = model.predict([one.text for one in evaluation])
    right = [one.label for one in evaluation]
    accuracy = mean([float(label == one) for label, one in zip(predicted, right, strict=True)])
    return accuracy, matthews(predicted.tolist(), right)


if __name__ == "__main__":
    for name in sys.argv[1:] or BASELINES:
        scores = zip(("accuracy", "matthews"), measure(name), strict=True)
        found = (f"{kind} {one.value:.2f} ({one.low:.2f} to {one.high:.2f}, n = {one.n})" for kind, one in scores)
        print(f"{name}  {', '.join(found)}")
