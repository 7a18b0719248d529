"""Measures what takes no network: logistic regression on TF-IDF, for the sentiment of SST-2 and of NSMC.

    python -m venv /tmp/baselines
    /tmp/baselines/bin/pip install --editable . scikit-learn==1.9.1
    /tmp/baselines/bin/python tests/support/baselines.py

English is read as words and pairs of words. Korean puts endings on its words, so it is read as one to four characters
of each word. Nothing is tuned: C is scikit-learn's default, and the evaluation files are looked at once.
"""

from __future__ import annotations

import sys
from typing import Any

from sklearn.feature_extraction.text import TfidfVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline

from swiftlet_serve.models.datasets import labelled
from swiftlet_serve.models.metrics import Score, mean
from tests.support.paths import DATA

BASELINES: dict[str, tuple[str, str, dict[str, Any]]] = {
    "sst2": ("train.tsv", "dev.tsv", {"ngram_range": (1, 2), "token_pattern": r"\S+"}),
    "nsmc": ("train.tsv", "test.tsv", {"ngram_range": (1, 4), "analyzer": "char_wb", "min_df": 2}),
}


def measure(name: str) -> Score:
    """Accuracy on the evaluation file of a model fitted to the training file."""
    learn, test, reading = BASELINES[name]
    model = make_pipeline(TfidfVectorizer(sublinear_tf=True, **reading), LogisticRegression(max_iter=1000))
    known, asked = labelled(DATA / name / learn), labelled(DATA / name / test)
    model.fit([one.text for one in known], [one.label for one in known])
    found = model.predict([one.text for one in asked])
    return mean([float(label == one.label) for label, one in zip(found, asked, strict=True)])


if __name__ == "__main__":
    for name in sys.argv[1:] or BASELINES:
        score = measure(name)
        print(f"{name}  accuracy {score.value:.2f} %  (95 %: {score.low:.2f} to {score.high:.2f}, n = {score.n})")
