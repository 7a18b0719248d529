"""Builds tokenizers from a `tokenizer.json`, whole or without a part of it."""

from __future__ import annotations

import json
from collections.abc import Collection
from typing import Any

import tokenizers


def unknown_id(model: dict[str, Any], tokenizer: tokenizers.Tokenizer) -> int | None:
    """Returns the id that stands for text without a token of its own, or None if there is always one."""
    token, number = model.get("unk_token"), model.get("unk_id")  # Unigram has the id only
    vocabulary_id: int | None = number if token is None else tokenizer.token_to_id(token)
    return vocabulary_id


def build(document: dict[str, Any]) -> tokenizers.Tokenizer:
    """Returns the tokenizer, which treats special tokens in texts as text."""
    tokenizer = tokenizers.Tokenizer.from_str(json.dumps(document))
    tokenizer.encode_special_tokens = True
    return tokenizer


def decoder(document: dict[str, Any]) -> tokenizers.decoders.Decoder | None:
    """Returns the decoder of tokens, without the removal of spaces that `checkpoint_tokenizer` adds to it."""
    kept = document["decoder"]
    if kept is not None and kept["type"] == "Sequence":
        first, *others = kept["decoders"]
        if [step["type"] for step in others[:2]] == ["Fuse", "Replace"]:
            kept = first
    empty = {"type": "WordLevel", "vocab": {}, "unk_token": ""}
    parts = {"model": empty, "added_tokens": [], "post_processor": None, "decoder": kept}
    decoder: tokenizers.decoders.Decoder | None = tokenizers.Tokenizer.from_str(json.dumps(document | parts)).decoder
    return decoder


def without_model(document: dict[str, Any]) -> dict[str, Any]:
    """Returns a tokenizer that maps tokens to ids and decodes ids, and encodes nothing.

    For 250,000 pieces, as many as XLM-RoBERTa has, it takes 60 MB of memory. A Unigram model takes 400 MB.
    """
    model = document["model"]
    vocab = model["vocab"]
    if isinstance(vocab, list):
        vocab = {piece: number for number, (piece, _) in enumerate(vocab)}
    if len(vocab) != len(model["vocab"]):  # a piece that occurs twice has two ids
        return document
    words = {"type": "WordLevel", "vocab": vocab, "unk_token": ""}
    return document | {"model": words, "normalizer": None, "pre_tokenizer": None, "post_processor": None}


def with_separator(document: dict[str, Any], token: str) -> dict[str, Any]:
    """Returns the same tokenizer, which puts nothing around a text, with a token between the texts of a pair.

    Raises:
        ValueError: the vocabulary lacks the token.
    """
    number = tokenizers.Tokenizer.from_str(json.dumps(document)).token_to_id(token)
    if number is None:
        raise ValueError(f"the vocabulary has no token {token!r}.")
    return document | {"post_processor": _template([0], [0, token, 1], {token: number})}


def with_one_type(document: dict[str, Any]) -> dict[str, Any]:
    """Returns the same tokenizer, whose pairs have one token type for both texts."""
    return document | {"post_processor": _with_one_type(document["post_processor"])}


def _with_one_type(processor: dict[str, Any] | None) -> dict[str, Any]:
    kind = None if processor is None else processor["type"]
    if processor is None or kind == "ByteLevel":  # which puts nothing around a text, and gives each text a type
        template = _template([0], [0, 1], {})
        return template if processor is None else {"type": "Sequence", "processors": [processor, template]}
    if kind == "Sequence":
        parts = processor["processors"]
        return processor | {"processors": [*parts[:-1], _with_one_type(parts[-1] if parts else None)]}
    if kind == "BertProcessing":
        (end, last), (start, first) = processor["sep"], processor["cls"]
        return _template([start, 0, end], [start, 0, end, 1, end], {start: first, end: last})
    if kind == "TemplateProcessing":
        forms = {
            name: [{slot: about | {"type_id": 0} for slot, about in part.items()} for part in processor[name]]
            for name in ("single", "pair")
        }
        return processor | forms
    return processor  # RoBERTa's


def _template(single: list[int | str], pair: list[int | str], tokens: dict[str, int]) -> dict[str, Any]:
    """Returns a post-processor with one token type. A form lists numbers of texts, and tokens."""

    def slots(form: list[int | str]) -> list[dict[str, Any]]:
        named = [("SpecialToken", part) if isinstance(part, str) else ("Sequence", "AB"[part]) for part in form]
        return [{kind: {"id": name, "type_id": 0}} for kind, name in named]

    return {
        "type": "TemplateProcessing",
        "single": slots(single),
        "pair": slots(pair),
        "special_tokens": {
            token: {"id": token, "ids": [number], "tokens": [token]} for token, number in tokens.items()
        },
    }


def without_specials(document: dict[str, Any], keep: Collection[str] = ()) -> dict[str, Any]:
    """Returns the same tokenizer, except that text never yields a special token other than those to `keep`.

    `encode_special_tokens` turns marked special tokens into text. A Unigram model would still find a piece such as
    `<pad>` in a text, and a BPE could merge to one, so those pieces get a space in their name. A space never matches,
    because the normalizer or pre-tokenizer has replaced every space by `▁` or `Ġ`.
    """
    added, model = [dict(token) for token in document["added_tokens"]], dict(document["model"])
    document = document | {"added_tokens": added, "model": model}  # a deep copy of the vocabulary takes 0.1 s
    for token in added:
        token["special"] = token["special"] and token["content"] not in keep
    if model["type"] in ("Unigram", "BPE"):
        specials = {token["content"] for token in added if token["special"]}
        pieces = model["vocab"] if model["type"] == "BPE" else [piece for piece, _ in model["vocab"]]
        renamed = {piece: f" {piece}" for piece in specials.intersection(pieces)}
        document["added_tokens"] = [token for token in added if token["content"] not in renamed]
        if model["type"] == "Unigram":
            model["vocab"] = [[renamed.get(piece, piece), score] for piece, score in model["vocab"]]
        else:
            model["vocab"] = {renamed.get(piece, piece): number for piece, number in model["vocab"].items()}
            pairs = (merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"])
            model["merges"] = [pair for pair in pairs if renamed.keys().isdisjoint((*pair, "".join(pair)))]
    return document
