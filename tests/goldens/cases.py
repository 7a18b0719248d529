"""The cases of the golden files, and the made-up network whose logits both sides use.

This module needs only numpy, because `write.py` imports it in an environment with transformers 4.57.1.
"""

from __future__ import annotations

import json
import lzma
import random
import zlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HERE = Path(__file__).parent
DATA = HERE.parents[2] / "shared" / "data"
SENTENCES = (HERE / "sentences.txt").read_text("utf-8").splitlines()
LABELS = ("bad", "fair", "good")
MAX_TOKENS = 512
TOKENIZERS = ("vocab", "spiece")

Floats = NDArray[np.float32]
Ids = NDArray[np.int64]


@dataclass(frozen=True)
class Case:
    """A call of a pipeline. `tokenizer` is vocab (our small WordPiece), spiece, or bert (Google's vocabulary)."""

    tokenizer: str
    inputs: Any
    parameters: dict[str, Any]
    problem: str = "single_label"
    network: str = ""  # one of NETWORKS; empty: the hash network
    labels: int | tuple[str, ...] = 0  # their number or names; 0: one for a regression, and otherwise all

    @property
    def names(self) -> tuple[str, ...]:
        """The labels of the classifier."""
        if isinstance(self.labels, tuple):
            return self.labels
        return LABELS[: self.labels or (1 if self.problem == "regression" else None)]


# The hash network: a wrong token, position or type anywhere changes its output


def hashed(*parts: Any) -> Floats:
    """Returns numbers in [-1, 1) that depend on every part. Parts are integers, or arrays that broadcast."""
    state: Any = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        for part in parts:
            state = (state ^ np.asarray(part).astype(np.uint64)) * np.uint64(0xBF58476D1CE4E5B9)
            state = state ^ (state >> np.uint64(29))
    numbers: Floats = ((state >> np.uint64(40)).astype(np.float32) / np.float32(2**23) - 1).astype(np.float32)
    return numbers


def digest(input_ids: Ids, token_type_ids: Ids) -> int:
    """Returns one number for a whole sequence."""
    each = hashed(input_ids, token_type_ids, np.arange(len(input_ids)))
    return int(np.round(each.astype(np.float64) * 2**23).astype(np.int64).sum() % 2**31)


def classify_logits(input_ids: Ids, token_type_ids: Ids, labels: int) -> Floats:
    """Returns (labels,)."""
    return 4 * hashed(digest(input_ids, token_type_ids), np.arange(labels))


def qa_logits(input_ids: Ids, token_type_ids: Ids) -> Floats:
    """Returns (L, 2)."""
    place = np.arange(len(input_ids))
    return 6 * np.stack([hashed(input_ids, token_type_ids, place, side) for side in (0, 1)], axis=1)


def fill_mask_logits(input_ids: Ids, token_type_ids: Ids, masks: Ids, vocabulary: int) -> Floats:
    """Returns (F, vocabulary)."""
    return 8 * hashed(digest(input_ids, token_type_ids), masks[:, None], np.arange(vocabulary))


# Small real networks, whose weights follow from the parameter names

SMALL = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 48, "num_hidden_layers": 2}
BOTTLENECK = {"embedding_size": 16, "intra_bottleneck_size": 16, "classifier_activation": False}
NETWORKS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("vocab", SMALL),
    "albert": ("spiece", SMALL | {"embedding_size": 16}),
    "mobilebert": (
        "vocab",
        SMALL | BOTTLENECK,
    ),
}


def weights(name: str, shape: tuple[int, ...]) -> Floats:
    """Returns the parameter `name`. The weights of norms are near 1, to keep the signal."""
    noise = np.random.Generator(np.random.PCG64(zlib.crc32(name.encode()))).standard_normal(shape)
    centre = 1.0 if "norm.weight" in name.lower() else 0.0
    return (centre + 0.15 * noise).astype(np.float32)


def network_cases(task: str, networks: Mapping[str, tuple[str, Any]] = NETWORKS) -> Iterator[Case]:
    for network, (tokenizer, _) in networks.items():
        if task == "qa":
            for inputs in (*own_questions()[:5], *own_questions()[-3:-1]):
                for parameters in ({"top_k": 3}, {"max_seq_len": 96, "doc_stride": 24}):
                    yield Case(tokenizer, inputs, parameters, network=network)
        for i, text in enumerate(SENTENCES[:20]):
            if task == "classify":
                yield Case(tokenizer, text, {"top_k": None}, network=network)
            if task == "fill_mask":
                yield Case(tokenizer, masked(text, (i,)), {"top_k": 4}, network=network)


# Tokens

VARIANTS: dict[str, tuple[str, dict[str, Any]]] = {
    "lower": ("vocab", {}),
    "cased": ("vocab", {"do_lower_case": False}),
    "lower, accents kept": ("vocab", {"do_lower_case": True, "strip_accents": False}),
    "cased, accents stripped": ("vocab", {"do_lower_case": False, "strip_accents": True}),
    "Chinese characters together": ("vocab", {"tokenize_chinese_chars": False}),
    "albert": ("spiece", {}),
    "albert, cased": ("spiece", {"do_lower_case": False}),
    "albert, accents kept": ("spiece", {"keep_accents": True}),
}

ALPHABETS = (
    "abcdefghij ABC .,-'\"`()[]<>",
    "가나다라마바사아자차카타파하각난닫 ",
    "👍🏽👨\u200d👩\u200d👧❤\ufe0f🌧\ufe0f 𝒳𝔄",
    "aeiou\u0301\u0300\u0327\u20dd\u0345 é",
    "\x00\x01\x1f\x7f\x85\u200b\u200d\ufeff\u00ad\u202e\ufffd \t\n\r\u00a0\u3000",
    "ßİŞıΣςﬁﬃ½²①㎏ŉǰΐ ﷺ",
    "東京中文漢字かなカナ。、 ｱｲｳ",
    "▁ ▁▁x(£)€–0123456789,",
)


def strings(count: int) -> list[str]:
    """Returns unusual texts, the same ones in every run."""
    pick = random.Random(7)
    texts = [
        "",
        " ",
        "\x00",
        "a" * 101,
        "a" * 100,
        "é" * 3000,
        "<pad> [MASK] [SEP]<unk>[CLS]",
        "［ＭＡＳＫ］ [mask]",
        "9,",
        "``x''",
    ]
    while len(texts) < count:
        letters = "".join(pick.sample(ALPHABETS, pick.choice((1, 1, 2, 8))))
        text = "".join(pick.choice(letters) for _ in range(pick.choice((1, 3, 10, 30, 150))))
        texts.append(text if pick.random() < 0.7 else f"{pick.choice(SENTENCES)}{text} {pick.choice(SENTENCES)}")
    return texts


# Question answering

GRID: list[dict[str, Any]] = [
    {},
    {"top_k": 3},
    {"top_k": 5, "align_to_words": False},
    {"top_k": 12, "max_answer_len": 30},
    {"handle_impossible_answer": True},
    {"top_k": 3, "handle_impossible_answer": True, "max_answer_len": 4},
    {"max_seq_len": 128, "doc_stride": 32},
    {"max_seq_len": 64, "doc_stride": 16, "top_k": 3, "handle_impossible_answer": True},
    {"max_seq_len": 100, "doc_stride": 0, "top_k": 2, "align_to_words": False},
    {"max_answer_len": 1, "topk": 2},
    {"max_seq_len": 512, "max_answer_len": 400, "top_k": 2},
    {"max_seq_len": 384, "doc_stride": 200, "max_question_len": 5},
]


def own_questions() -> list[dict[str, str]]:
    contexts = [" ".join(SENTENCES[i : i + 9]) for i in range(0, len(SENTENCES) - 8, 5)]
    contexts += ["\t".join(SENTENCES), "  \n".join(SENTENCES[44:]), "Bern", "in  Bern \n", " ".join(SENTENCES * 3)]
    asked = [
        "Who bakes bread?",
        "What was lost\u00a0in March, and why ?",
        "언제 시장에 갔어?",
        "Wo [SEP] ist ½ e\u0301 👍?",
    ]
    return [{"question": asked[i % 4], "context": context} for i, context in enumerate(contexts)]


def squad_questions(count: int, step: int) -> list[dict[str, str]]:
    articles = json.loads((DATA / "squad" / "squad-v1.1.eval.json").read_text("utf-8"))["data"]
    every = [
        {"question": qa["question"], "context": paragraph["context"]}
        for article in articles
        for paragraph in article["paragraphs"]
        for qa in paragraph["qas"]
    ]
    return every[::step][:count]


def qa_own(tokenizers: Iterable[str] = TOKENIZERS) -> Iterator[Case]:
    for tokenizer in tokenizers:
        for inputs in own_questions():
            for parameters in GRID:
                yield Case(tokenizer, inputs, parameters)
        samples = own_questions()
        yield Case(tokenizer, samples[:3], {"top_k": 2})
        yield Case(tokenizer, samples[:2], {})
        yield Case(tokenizer, samples[:1], {})


def qa_data() -> Iterator[Case]:
    for tokenizer, count, step in (("bert", 504, 3), ("spiece", 60, 29)):
        for inputs in squad_questions(count, step):
            for parameters in GRID:
                yield Case(tokenizer, inputs, parameters)


# Classification

CLASSIFY_GRID: list[tuple[str, dict[str, Any]]] = [
    ("single_label", {"top_k": None}),
    ("single_label", {"top_k": 1}),
    ("single_label", {"top_k": 2, "function_to_apply": "sigmoid"}),
    ("multi_label", {"top_k": None}),
    ("multi_label", {"top_k": 2, "function_to_apply": "softmax"}),
    ("regression", {"top_k": None}),
    ("single_label", {"top_k": None, "function_to_apply": "none"}),
]


def classify_own(tokenizers: Iterable[str] = TOKENIZERS) -> Iterator[Case]:
    long = " ".join(SENTENCES * 4)
    inputs: list[Any] = [*SENTENCES, long, {"text": SENTENCES[0], "text_pair": SENTENCES[1]}]
    inputs += [{"text": long, "text_pair": SENTENCES[3]}, {"text": SENTENCES[4], "text_pair": long}]
    inputs += [{"text": long, "text_pair": long[100:]}, SENTENCES[:3], [{"text": SENTENCES[5]}, {"text": long}]]
    for tokenizer in tokenizers:
        for i, one in enumerate(inputs):
            problem, parameters = CLASSIFY_GRID[i % len(CLASSIFY_GRID)]
            yield Case(tokenizer, one, parameters, problem)


def classify_data() -> Iterator[Case]:
    lines = (DATA / "sst2" / "dev.tsv").read_text("utf-8").splitlines()[1:]
    for i, line in enumerate(lines):
        problem, parameters = CLASSIFY_GRID[i % len(CLASSIFY_GRID)]
        yield Case(("bert", "spiece")[i % 5 == 0], line.split("\t")[1], parameters, problem)


# Fill-mask

FILL_GRID: list[dict[str, Any]] = [
    {},
    {"top_k": 1},
    {"top_k": 8},
    {"targets": ["good", "bad", "unfathomably", "good"], "top_k": 3},
    {"targets": "river"},
    {"targets": ["the", "##s", "▁the", "Zürich"], "top_k": 10},
]


def masked(text: str, places: tuple[int, ...]) -> str:
    words = text.split(" ")
    for place in places:
        words[place % len(words)] = "[MASK]"
    return " ".join(words)


def fill_own(tokenizers: Iterable[str] = TOKENIZERS) -> Iterator[Case]:
    for tokenizer in tokenizers:
        for i, text in enumerate(SENTENCES):
            places = (i,) if i % 4 else (i, i + 2)
            yield Case(tokenizer, masked(text, places), FILL_GRID[i % len(FILL_GRID)])
        for text in ("[MASK]", "a[MASK]b , [MASK] .", "it ' s not [MASK] 's do n't  [MASK]!", "[mask] [MASK]"):
            yield Case(tokenizer, text, {"top_k": 3})
        yield Case(tokenizer, [masked(SENTENCES[0], (2,)), masked(SENTENCES[1], (1, 3))], {"top_k": 2})
        yield Case(tokenizer, [masked(SENTENCES[2], (2,))], {"top_k": 2})
        yield Case(tokenizer, masked(" ".join(SENTENCES * 3), (5,)), {"top_k": 2})


def fill_data() -> Iterator[Case]:
    with lzma.open(DATA / "corpora" / "enwiki2015_cap8k.txt.xz", "rt", encoding="utf-8") as lines:
        found = list(islice((line.strip()[:600] for line in lines if len(line) > 120), 300))
    for i, text in enumerate(found):
        places = (3 * i,) if i % 3 else (i, i + 4)
        yield Case(("bert", "spiece")[i % 5 == 0], masked(text, places), FILL_GRID[i % len(FILL_GRID)])


def flatten(nested: Any) -> list[Any]:
    return [leaf for each in nested for leaf in flatten(each)] if isinstance(nested, list) else [nested]
