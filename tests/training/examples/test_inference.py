"""The examples of zero-shot classification: pairs of inference, and labels as hypotheses."""

from __future__ import annotations

from dataclasses import replace

import pytest

from swiftlet_models.datasets import DatasetError, Named
from swiftlet_train.examples.inference import make_hypotheses
from swiftlet_train.finetuning.finetune import read_examples
from swiftlet_train.recipe import Finetuning
from tests.support.artifacts import make_tokenizer
from tests.support.training import write_lines

TOKENIZER = make_tokenizer()
LABELS = ("not_entailment", "entailment")


def finetuning(**train: int) -> Finetuning:
    files = {name.replace("__", "."): count for name, count in train.items()}
    return Finetuning("zero-shot", "x", (), files, method="inference", labels=LABELS, negatives=2, max_tokens=256)


def decode(example) -> str:
    return "".join(TOKENIZER.tokens[i] for i in example.encoding.input_ids)


def test_make_hypotheses_pairs_each_text_with_its_label_and_wrong_ones():
    texts = [Named(f"text {i}", f"label_{i % 4}") for i in range(12)]
    pairs = make_hypotheses(texts, 2)

    assert len(pairs) == 36
    for number, one in enumerate(texts):
        right, *wrong = pairs[3 * number : 3 * number + 3]
        words = one.label.replace("_", " ")
        assert {pair.premise for pair in (right, *wrong)} == {one.text}
        assert words in right.hypothesis
        assert right.label == "entail"
        assert all(pair.label == "not_entailment" and words not in pair.hypothesis for pair in wrong)
        assert len({pair.hypothesis for pair in (right, *wrong)}) == 3
    assert pairs == make_hypotheses(texts, 2)


def test_make_hypotheses_of_a_single_label_has_no_negatives():
    assert len(make_hypotheses([Named("a", "x"), Named("b", "x")], 2)) == 2


def test_read_examples_reads_inferences_labels_and_articles(tmp_path):
    write_lines(
        tmp_path / "nli.jsonl",
        {"premise": "It rains.", "hypothesis": "It is wet.", "label": "entailment"},
        {"premise": "It rains.", "hypothesis": "It is dry.", "label": "contradiction"},
    )
    write_lines(tmp_path / "labels.jsonl", {"text": "wake me", "label": "alarm"}, {"text": "sing", "label": "music"})
    articles = [
        "= Bees =\nBees dance in the hive. They tell the way to food.",
        "= Snow =\nSnow.",
        "= Rain =\nIt falls for hours.",
    ]
    (tmp_path / "wiki.txt").write_text("\n".join(articles), "utf-8")
    work = finetuning(nli__jsonl=9, labels__jsonl=9, wiki__txt=9)
    examples = read_examples(work, tmp_path, TOKENIZER)
    texts = [decode(example) for example in examples]

    assert [example.target for example in examples[:2]] == [(1,), (0,)]
    assert [example.target for example in examples[2:]] == [(1,), (0,)] * 4
    assert "wakeme" in texts[2].replace("Ġ", "").replace("##", "").replace(" ", "")
    assert len(examples) == 2 + 4 + 4  # no sentence of Snow is long enough, so it is no text and no label


def test_read_examples_rejects_a_relation_that_fits_several_labels(tmp_path):
    write_lines(tmp_path / "nli.jsonl", {"premise": "It rains.", "hypothesis": "It is dry.", "label": "-"})
    work = replace(finetuning(nli__jsonl=9), labels=("contradiction", "neutral", "entailment"))

    with pytest.raises(DatasetError, match="has a relation that is not among the labels of the recipe"):
        read_examples(work, tmp_path, TOKENIZER)


def test_read_examples_rejects_other_lines(tmp_path):
    write_lines(tmp_path / "other.jsonl", {"question": "who?"})

    with pytest.raises(DatasetError, match=r"^other\.jsonl: line 1: it has no (label|text)"):
        read_examples(finetuning(other__jsonl=1), tmp_path, TOKENIZER)
