"""A teacher without a network: logistic regression on the character n-grams of the texts.

The features are weighted as in Wang and Manning 2012 (ACL P12-2018), and normalised. Where no trained encoder of a
language is at hand, this teacher is hard to beat on short texts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import diags_array
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import normalize

from swiftlet_train.examples.texts import read_texts
from swiftlet_train.finetuning.logits import Logits
from swiftlet_train.finetuning.task_training import Run
from swiftlet_train.loop.run_directory import write_array_atomically
from swiftlet_train.recipe import Finetuning, RecipeError

FOLDS: Final = 5
FEWEST_TEXTS: Final = 3  # that an n-gram must occur in
STRENGTH: Final = 5.0  # the inverse of the regularisation
ITERATIONS: Final = 100
POWER: Final = 0.5  # of an n-gram's log ratio; 1, as in the paper, is worse by 0.3 points on NSMC

FILE: Final = "ngrams.npy"  # in the run's directory

Matrix = Any  # a sparse matrix of scipy, (N, F)


def predict_by_ngrams(work: Finetuning, longest: int, data: Path, run: Run) -> list[Logits]:
    """Returns the logits of each training text, (1, L), from the run's directory if they are there.

    Raises:
        DatasetError: a file is not a table of labelled texts.
        RecipeError: a label is too rare.
    """
    path = run.directory / FILE
    if not path.is_file():
        texts = read_texts(work, data)
        labels = [text.label for text in texts]
        for number, name in enumerate(work.labels):
            if labels.count(number) < FOLDS:
                raise RecipeError(f"the label {name} needs at least {FOLDS} training texts, so that n-grams can teach.")
        joined = [" ".join(filter(None, (text.text, text.pair))) for text in texts]
        logits = cross_fit(joined, labels, longest, run.report)
        write_array_atomically(path, logits)
    return list(np.load(path)[:, None])


def cross_fit(
    texts: Sequence[str], labels: Sequence[int], longest: int, report: Callable[[str], None]
) -> NDArray[np.float32]:
    """Returns the log probabilities of the labels of each text, (N, L).

    They come from a regression on the other folds, which did not see the text: one that did would repeat its label.
    Each label occurs at least once for each fold.
    """
    targets = np.array(labels)
    probabilities = np.zeros((len(texts), len(np.unique(targets))), np.float32)
    folds = StratifiedKFold(FOLDS, shuffle=True, random_state=0)
    for number, (rest, fold) in enumerate(folds.split(targets, targets), start=1):
        probabilities[fold] = _predict([texts[i] for i in rest], targets[rest], [texts[i] for i in fold], longest)
        accuracy = 100 * (probabilities[fold].argmax(1) == targets[fold]).mean()
        report(f"n-grams: fold {number} of {FOLDS}, accuracy {accuracy:.1f} %")
    return probabilities


def _predict(texts: Sequence[str], targets: NDArray[np.int64], others: Sequence[str], longest: int) -> Any:
    """Fits a regression to labelled texts. Returns the log probabilities of the labels of others, (M, L)."""
    counter = CountVectorizer(
        analyzer="char", ngram_range=(1, longest), min_df=FEWEST_TEXTS, binary=True, dtype=np.float32
    )
    ngrams = counter.fit_transform(texts)
    weights = diags_array(_weigh(ngrams, targets))
    regression = LogisticRegression(C=STRENGTH, max_iter=ITERATIONS)
    regression.fit(normalize(ngrams @ weights), targets)
    return regression.predict_log_proba(normalize(counter.transform(others) @ weights))


def _weigh(ngrams: Matrix, targets: NDArray[np.int64]) -> NDArray[np.float32]:
    """Returns the weight of each n-gram, (F,): how much more often it occurs with some labels than with the others."""
    ratios = []
    for label in np.unique(targets):
        with_label, without = (np.asarray(ngrams[chosen].sum(0)).ravel() + 1 for chosen in _split(targets == label))
        ratios.append(np.abs(np.log((with_label / with_label.sum()) / (without / without.sum()))))
    weights: NDArray[np.float32] = (np.mean(ratios, axis=0) ** POWER).astype(np.float32)
    return weights


def _split(chosen: NDArray[np.bool_]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return np.flatnonzero(chosen), np.flatnonzero(~chosen)
