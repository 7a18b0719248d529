"""Writes the golden files: the answers of transformers 4.57.1's pipelines to the cases of `cases.py`.

    python -m venv /tmp/oracle
    /tmp/oracle/bin/pip install transformers==4.57.1 torch sentencepiece protobuf
    /tmp/oracle/bin/python tests/goldens/write.py

The files hold ids, spans, scores and hashes, and no text of a data set. Without `../shared/data`, only the files of our
own sentences are written. The pipelines are unmodified; their network is the hash network of `cases.py`.
"""

from __future__ import annotations

import tempfile
import warnings
import zlib
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import sentencepiece
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AlbertTokenizerFast,
    BertConfig,
    BertTokenizerFast,
    CamembertTokenizerFast,
    RobertaTokenizerFast,
    XLMRobertaTokenizerFast,
    pipeline,
)
from transformers.modeling_outputs import (
    MaskedLMOutput,
    QuestionAnsweringModelOutput,
    SequenceClassifierOutput,
    TokenClassifierOutput,
)

from tests.goldens import families, kinds, label_cases
from tests.goldens.cases import (
    DATA,
    HERE,
    LABELS,
    MAX_TOKENS,
    NETWORKS,
    SENTENCES,
    VARIANTS,
    Case,
    classify_data,
    classify_logits,
    classify_own,
    fill_data,
    fill_mask_logits,
    fill_own,
    flatten,
    network_cases,
    qa_data,
    qa_logits,
    qa_own,
    strings,
    weights,
)

PROBLEM_TYPES = {"single_label": None, "multi_label": "multi_label_classification"}
SPECIALS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


def write_vocab() -> None:
    """Writes a WordPiece vocabulary of our sentences: their letters and frequent words."""
    words = Counter(word for line in SENTENCES for word in line.lower().replace(",", " ").replace(".", " ").split())
    letters = sorted({letter for word in words for letter in word})
    pieces = sorted({word[:3] for word in words} | {f"##{word[i : i + 2]}" for word in words for i in range(3, 8)})
    frequent = [word for word, count in words.most_common(150) if len(word) > 1]
    vocab = [*SPECIALS, *letters, *(f"##{letter}" for letter in letters), *frequent, *pieces]
    (HERE / "vocab.txt").write_text("\n".join(dict.fromkeys(vocab)) + "\n", "utf-8")


def write_rules(directory: str) -> str:
    """Writes normalisation rules for SentencePiece, and returns their file."""
    file = Path(directory) / "rules.tsv"
    file.write_text("FB01\t66 69\nA0\t20\n9\t20\nA\t20\n200B\t\nBD\t31 20 32\n", "utf-8")
    return str(file)


def write_spiece() -> None:
    """Writes a SentencePiece model like ALBERT's, with normalisation rules for a ligature, spaces and ½."""
    with tempfile.TemporaryDirectory() as scratch:
        sentencepiece.SentencePieceTrainer.train(
            input=str(HERE / "sentences.txt"),
            model_prefix=f"{scratch}/spiece",
            model_type="unigram",
            vocab_size=420,
            hard_vocab_limit=False,
            normalization_rule_tsv=write_rules(scratch),
            pad_id=0,
            unk_id=1,
            bos_id=-1,
            eos_id=-1,
            control_symbols=["[CLS]", "[SEP]", "[MASK]"],
            user_defined_symbols=["(", ")", '"', "-", ".", "–", "£", "€"],
            num_threads=1,
            minloglevel=2,
        )
        (HERE / "spiece.model").write_bytes((Path(scratch) / "spiece.model").read_bytes())


def write_merges() -> None:
    """Writes a byte-level BPE of our sentences: vocab.json and merges.txt."""
    trained = Tokenizer(models.BPE())
    trained.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    specials = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=500, special_tokens=specials, initial_alphabet=alphabet)
    trained.train_from_iterator(SENTENCES, trainer)
    trained.model.save(str(HERE))


def write_fairseq() -> None:
    """Writes a SentencePiece model like XLM-RoBERTa's, with the normalisation rules of ours."""
    with tempfile.TemporaryDirectory() as scratch:
        sentencepiece.SentencePieceTrainer.train(
            input=str(HERE / "sentences.txt"),
            model_prefix=f"{scratch}/spiece",
            model_type="unigram",
            vocab_size=420,
            hard_vocab_limit=False,
            normalization_rule_tsv=write_rules(scratch),
            unk_id=0,
            bos_id=1,
            eos_id=2,
            pad_id=-1,
            num_threads=1,
            minloglevel=2,
        )
        (HERE / "sentencepiece.bpe.model").write_bytes((Path(scratch) / "spiece.model").read_bytes())


def tokenizer(name: str, *, specials_are_text: bool, **options: Any) -> Any:
    options |= {"model_max_length": MAX_TOKENS, "split_special_tokens": specials_are_text}
    if name.startswith("bpe"):
        options |= families.OPTIONS.get(name, {})
        return RobertaTokenizerFast(str(HERE / "vocab.json"), str(HERE / "merges.txt"), **options)
    if name == "xlm" and options.pop("tokenizer_class", "") == "CamembertTokenizer":
        return CamembertTokenizerFast(str(HERE / "sentencepiece.bpe.model"), **options)
    if name == "xlm":
        return XLMRobertaTokenizerFast(str(HERE / "sentencepiece.bpe.model"), **options)
    if name == "spiece":
        return AlbertTokenizerFast(str(HERE / "spiece.model"), **options)
    file = HERE / "vocab.txt" if name == "vocab" else DATA / "bert-base-uncased-vocab.txt"
    return BertTokenizerFast(str(file), **options)


def numpy_rows(input_ids: torch.Tensor, token_type_ids: torch.Tensor | None) -> tuple[Any, Any]:
    """Returns the ids and token types of one sequence. A tokenizer without token types gives none."""
    assert input_ids.shape[0] == 1
    types = torch.zeros_like(input_ids) if token_type_ids is None else token_type_ids
    return input_ids[0].numpy(), types[0].numpy()


class Classifier(transformers.BertForSequenceClassification):
    def forward(self, input_ids: Any, token_type_ids: Any = None, **_: Any) -> Any:
        logits = classify_logits(*numpy_rows(input_ids, token_type_ids), self.config.num_labels)
        return SequenceClassifierOutput(logits=torch.from_numpy(logits)[None])


class Tagger(transformers.BertForTokenClassification):
    def forward(self, input_ids: Any, token_type_ids: Any = None, **_: Any) -> Any:
        logits = label_cases.entity_logits(*numpy_rows(input_ids, token_type_ids), self.config.num_labels)
        return TokenClassifierOutput(logits=torch.from_numpy(logits)[None])


Tagger.__name__ = "BertForTokenClassification"  # the pipeline looks at the name


class Answerer(transformers.BertForQuestionAnswering):
    def forward(self, input_ids: Any, token_type_ids: Any = None, **_: Any) -> Any:
        logits = torch.from_numpy(qa_logits(*numpy_rows(input_ids, token_type_ids)))[None]
        return QuestionAnsweringModelOutput(start_logits=logits[..., 0], end_logits=logits[..., 1])


class Filler(transformers.BertForMaskedLM):
    def forward(self, input_ids: Any, token_type_ids: Any = None, **_: Any) -> Any:
        ids, types = numpy_rows(input_ids, token_type_ids)
        masks = np.flatnonzero(ids == self.config.mask_id)
        logits = np.zeros((len(ids), self.config.vocab_size), np.float32)
        logits[masks] = fill_mask_logits(ids, types, masks, self.config.vocab_size)
        return MaskedLMOutput(logits=torch.from_numpy(logits)[None])


AUTO = {
    "text-classification": transformers.AutoModelForSequenceClassification,
    "question-answering": transformers.AutoModelForQuestionAnswering,
    "fill-mask": transformers.AutoModelForMaskedLM,
}
HASHES = {
    "text-classification": Classifier,
    "token-classification": Tagger,
    "zero-shot-classification": Classifier,
    "question-answering": Answerer,
    "fill-mask": Filler,
}


def make(task: str, case: Case) -> Any:
    """Returns the pipeline for a case."""
    reader = tokenizer(case.tokenizer, specials_are_text=task != "fill-mask")
    if case.network == "distilbert":
        reader.model_input_names = ["input_ids", "attention_mask"]  # as of its tokenizer's class
    options: dict[str, Any] = {"vocab_size": len(reader), "mask_id": reader.mask_token_id}
    if task in ("text-classification", "token-classification", "zero-shot-classification"):
        options["id2label"] = dict(enumerate(case.names))
        options["label2id"] = {label: i for i, label in enumerate(case.names)}
    options["problem_type"] = PROBLEM_TYPES.get(case.problem, case.problem)
    if case.network:
        settings = (NETWORKS | families.NETWORKS)[case.network][1]
        config = transformers.AutoConfig.for_model(case.network, **options, **settings)
        model = AUTO[task].from_config(config).eval()
        for name, parameter in model.named_parameters():
            parameter.data = torch.from_numpy(weights(name, tuple(parameter.shape)))
    else:
        shape = {"hidden_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2}
        model = HASHES[task](BertConfig(**options, **shape))
    return pipeline(task, model=model, tokenizer=reader, device="cpu")


def hash_of(text: str) -> int:
    return zlib.crc32(text.encode())


def classified(pipe: Any, case: Case) -> list[list[float]]:
    results = pipe(case.inputs, truncation=True, **case.parameters)
    lists = results if isinstance(results[0], list) else [results]
    return [[LABELS.index(found["label"]), found["score"]] for each in lists for found in each]


def answered(pipe: Any, case: Case) -> list[list[float]]:
    """Returns start, end and score of each answer with a score above 0. A panic in Rust gives one row of -1."""
    try:
        results = pipe(case.inputs, **case.parameters)
    except BaseException as error:  # a panic in Rust is not an Exception
        if type(error).__name__ != "PanicException":
            raise
        return [[-1, -1, -1]]
    many = results if isinstance(results, list) else [results]
    flat = [found for each in many for found in (each if isinstance(each, list) else [each])]
    return [[found["start"], found["end"], found["score"]] for found in flat if found["score"] > 0]


def filled(pipe: Any, case: Case) -> list[list[float]]:
    results = pipe(case.inputs, tokenizer_kwargs={"truncation": True}, **case.parameters)
    return [[f["token"], f["score"], hash_of(f["token_str"] + "\n" + f["sequence"])] for f in flatten(results)]


def tagged(pipe: Any, case: Case) -> list[list[float]]:
    results = pipe(case.inputs, **case.parameters)
    lists = results if results and isinstance(results[0], list) else [results]
    key = "entity" if case.parameters["aggregation_strategy"] == "none" else "entity_group"
    found = [[one[key], one["start"], one["end"], one["word"], one["score"]] for each in lists for one in each]
    return [label_cases.record(found)]


def named(pipe: Any, case: Case) -> list[list[float]]:
    results = pipe(case.inputs, **case.parameters)
    lists = results if isinstance(results, list) else [results]
    rankings = [label_cases.settled(list(zip(one["labels"], one["scores"], strict=True))) for one in lists]
    return [label_cases.record(flatten(rankings))]


def write_tokens(file: str, variants: dict[str, tuple[str, dict[str, Any]]]) -> None:
    """Writes a hash of the ids and offsets for each string and tokenizer variant."""
    hashes = {}
    for variant, (name, options) in variants.items():
        reader = tokenizer(name, specials_are_text=True, **options)
        found = reader(strings(600), add_special_tokens=False, return_offsets_mapping=True)
        pairs = zip(found["input_ids"], found["offset_mapping"], strict=True)
        hashes[variant] = [hash_of(f"{ids} {[tuple(span) for span in spans]}") for ids, spans in pairs]
    np.savez_compressed(HERE / file, **{name: np.array(column, "u4") for name, column in hashes.items()})


def write(name: str, task: str, cases: list[Case], ask: Any) -> None:
    pipes: dict[Any, Any] = {}
    types = {
        "classify": ("u1", "f4"),
        "qa": ("i4", "i4", "f4"),
        "fill_mask": ("u4", "f4", "u4"),
        "entities": ("u4", "f4"),
        "zero_shot": ("u4", "f4"),
    }[name.split("-")[0]]
    found = []
    for case in cases:
        key = (case.tokenizer, case.problem, case.network, case.labels)
        pipes[key] = pipes.get(key) or make(task, case)
        found.append(np.array(ask(pipes[key], case), np.float64).reshape(-1, len(types)))
    columns = np.concatenate(found)
    arrays = {f"column{i}": columns[:, i].astype(kind) for i, kind in enumerate(types)}
    np.savez_compressed(HERE / f"{name}.npz", counts=np.array([len(rows) for rows in found], "u2"), **arrays)
    print(name, len(cases), "cases,", len(columns), "rows,", (HERE / f"{name}.npz").stat().st_size, "bytes")


def main() -> None:
    assert transformers.__version__ == "4.57.1"
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    torch.set_num_threads(1)
    makers = {
        "vocab.txt": write_vocab,
        "spiece.model": write_spiece,
        "vocab.json": write_merges,
        "sentencepiece.bpe.model": write_fairseq,
    }
    for name, make_file in makers.items():
        if not (HERE / name).exists():
            make_file()
    write_tokens("tokens.npz", VARIANTS)
    write_tokens("tokens-families.npz", families.VARIANTS)
    write("classify-families", "text-classification", list(families.classify()), classified)
    write("classify-kinds", "text-classification", list(kinds.classify()), classified)
    write("fill_mask-families", "fill-mask", list(families.fill_mask()), filled)
    write("qa-families", "question-answering", list(families.qa()), answered)
    write("entities", "token-classification", list(label_cases.entities()), tagged)
    write("zero_shot", "zero-shot-classification", list(label_cases.zero_shot()), named)
    write("classify-own", "text-classification", list(classify_own()), classified)
    write("fill_mask-own", "fill-mask", list(fill_own()), filled)
    write("qa-own", "question-answering", list(qa_own()), answered)
    write("classify-network", "text-classification", list(network_cases("classify")), classified)
    write("fill_mask-network", "fill-mask", list(network_cases("fill_mask")), filled)
    write("qa-network", "question-answering", list(network_cases("qa")), answered)
    if DATA.is_dir():
        write("classify-data", "text-classification", list(classify_data()), classified)
        write("fill_mask-data", "fill-mask", list(fill_data()), filled)
        write("qa-data", "question-answering", list(qa_data()), answered)


if __name__ == "__main__":
    main()
