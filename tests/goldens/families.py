"""The golden cases of RoBERTa's and XLM-RoBERTa's tokenizers, and of the families that came after the first three.

`bpe` is a byte-level BPE (`vocab.json` and `merges.txt`), `xlm` a unigram model (`sentencepiece.bpe.model`). Their mask
is written `<mask>`. This module needs only numpy, like `cases.py`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import chain
from typing import Any

from tests.goldens.cases import SMALL, Case, classify_own, fill_own, network_cases, qa_own

TOKENIZERS = ("bpe", "xlm")
FILES = {
    "vocab": ("vocab.txt",),
    "spiece": ("spiece.model",),
    "bpe": ("vocab.json", "merges.txt"),
    "xlm": ("sentencepiece.bpe.model",),
}
OPTIONS: dict[str, dict[str, Any]] = {"bpe-space": {"add_prefix_space": True}}

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "bpe": ("bpe", {}),
    "bpe, prefix space": ("bpe", {"add_prefix_space": True}),
    "bpe, untrimmed": ("bpe", {"trim_offsets": False}),
    "bpe, prefix space, untrimmed": ("bpe", {"add_prefix_space": True, "trim_offsets": False}),
    "xlm": ("xlm", {}),
    "camembert": ("xlm", {"tokenizer_class": "CamembertTokenizer"}),
}

_ROBERTA = SMALL | {"max_position_embeddings": 514, "type_vocab_size": 1}
_DISTILBERT = {"dim": 32, "n_heads": 4, "hidden_dim": 48, "n_layers": 2}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "roberta": ("bpe", _ROBERTA),
    "xlm-roberta": ("xlm", _ROBERTA),
    "electra": ("vocab", SMALL | {"embedding_size": 16}),
    "distilbert": ("vocab", _DISTILBERT),
}


def classify() -> Iterator[Case]:
    return chain(classify_own(TOKENIZERS), network_cases("classify", NETWORKS))


def qa() -> Iterator[Case]:
    return chain(qa_own((*TOKENIZERS, "bpe-space")), network_cases("qa", NETWORKS))


def fill_mask() -> Iterator[Case]:
    return map(_written, chain(fill_own(TOKENIZERS), network_cases("fill_mask", NETWORKS)))


def _written(case: Case) -> Case:
    """Writes the mask of a case as its tokenizer does."""
    if case.tokenizer not in TOKENIZERS:
        return case
    texts = case.inputs if isinstance(case.inputs, list) else [case.inputs]
    written = [text.replace("[MASK]", "<mask>") for text in texts]
    return replace(case, inputs=written if isinstance(case.inputs, list) else written[0])
