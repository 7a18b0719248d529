"""Writes base-sized checkpoints with random weights, as `save_pretrained` of transformers does.

    python -m loadtest.random_checkpoints TEXTS OUT [--names bert roberta ...]

TEXTS holds a JSON string in each line. The tokenizers are trained on it. The networks have the shapes and vocabulary
sizes of bert-base, roberta-base and distilbert-base. The head is scaled on the first texts, such that each output has
the mean 0 and the standard deviation 2: labels and spans vary.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import tokenizers
import torch
import transformers

SEQUENCES: Final = "SequenceClassification"
KINDS: Final[dict[str, tuple[str, str, dict[str, Any]]]] = {
    "bert": ("BertConfig", SEQUENCES, {"num_labels": 4}),
    "roberta": ("RobertaConfig", SEQUENCES, {"num_labels": 4}),
    "distilbert": ("DistilBertConfig", SEQUENCES, {"num_labels": 4}),
    "distilbert-entities": (
        "DistilBertConfig",
        "TokenClassification",
        {"id2label": dict(enumerate(["O", "B-PER", "I-PER", "B-LOC", "I-LOC"]))},
    ),
    "distilbert-qa": ("DistilBertConfig", "QuestionAnswering", {}),
}
ROBERTA: Final = {"vocab_size": 50_265, "max_position_embeddings": 514, "type_vocab_size": 1, "layer_norm_eps": 1e-5}
SPECIAL: Final = {
    "RobertaConfig": ["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
    "other": ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"],
}
SCALED_ON: Final = 32  # texts
SCALED_TOKENS: Final = 64


def save_tokenizer(config: str, texts: Sequence[str], directory: Path) -> Any:
    """Trains the tokenizer of a network, and writes its vocabulary. Returns it as transformers reads it."""
    roberta = config == "RobertaConfig"
    kind = tokenizers.ByteLevelBPETokenizer if roberta else tokenizers.BertWordPieceTokenizer
    trained = kind()
    size = 50_265 if roberta else 30_522
    trained.train_from_iterator(texts, vocab_size=size, special_tokens=SPECIAL["RobertaConfig" if roberta else "other"])
    directory.mkdir(parents=True)
    trained.save_model(str(directory))
    settings = {"tokenizer_class": config.replace("Config", "Tokenizer"), "model_max_length": 512}
    (directory / "tokenizer_config.json").write_text(json.dumps(settings), "utf-8")
    (directory / "config.json").write_text(json.dumps({"model_type": config.removesuffix("Config").lower()}), "utf-8")
    tokenizer = transformers.AutoTokenizer.from_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return tokenizer


@torch.no_grad()
def scale(model: Any, tokenizer: Any, texts: Sequence[str]) -> None:
    """Draws weights with which activations stay near 1, and scales the outputs of the head over texts."""
    for name, parameter in model.named_parameters():
        if parameter.ndim > 1 and "embedding" not in name:
            parameter.normal_(0, parameter.shape[-1] ** -0.5)
    rows = []
    for text in texts:
        outputs = model(**tokenizer(text, truncation=True, max_length=SCALED_TOKENS, return_tensors="pt"))
        spans = [outputs[name] for name in ("start_logits", "end_logits") if name in outputs]
        logits = torch.stack(spans, -1) if spans else outputs.logits
        rows.append(logits.reshape(-1, logits.shape[-1]))
    found = torch.cat(rows)
    head = [module for module in model.modules() if isinstance(module, torch.nn.Linear)][-1]
    factor = 2 / found.std(0)
    head.bias.copy_((head.bias - found.mean(0)) * factor)
    head.weight.mul_(factor[:, None])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("texts", type=Path)
    parser.add_argument("out", type=Path)
    parser.add_argument("--names", nargs="+", default=[*KINDS], choices=KINDS, metavar="NAME")
    arguments = parser.parse_args()
    texts = [json.loads(line) for line in arguments.texts.read_text("utf-8").rstrip("\n").split("\n")]
    for name in arguments.names:
        torch.manual_seed(0)
        config, head, settings = KINDS[name]
        directory = arguments.out / name
        tokenizer = save_tokenizer(config, texts, directory)
        sizes = ROBERTA if config == "RobertaConfig" else {}
        if "id2label" in settings:
            settings = {**settings, "label2id": {label: number for number, label in settings["id2label"].items()}}
        made = getattr(transformers, config)(**sizes, **settings)
        model = getattr(transformers, f"AutoModelFor{head}").from_config(made).eval()
        scale(model, tokenizer, texts[:SCALED_ON])
        model.save_pretrained(directory)
        print(directory, flush=True)


if __name__ == "__main__":
    main()
