"""A smaller vocabulary for a small model: the pieces of a WordPiece or unigram vocabulary that a corpus uses.

The teacher's word embeddings are reduced to the same pieces, so that teacher and student read the same tokens.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable
from itertools import islice
from typing import Final

import tokenizers

SPECIALS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CHUNK: Final = 1000  # documents per call of the tokenizer


def count_pieces(tokenizer: tokenizers.Tokenizer, texts: Iterable[str]) -> Counter[str]:
    """Counts the occurrences of each piece."""
    ids: Counter[int] = Counter()
    iterator = iter(texts)
    while chunk := list(islice(iterator, CHUNK)):
        for encoding in tokenizer.encode_batch_fast(chunk, add_special_tokens=False):
            ids.update(encoding.ids)
    return Counter({tokenizer.id_to_token(number) or "": count for number, count in ids.items()})


def find_characters(counts: Counter[str], min_count: int) -> set[str]:
    """Returns the characters whose pieces occur at least `min_count` times in all."""
    occurrences: Counter[str] = Counter()
    for piece, count in counts.items():
        for character in set(piece.removeprefix("##")):
            occurrences[character] += count
    return {character for character, count in occurrences.items() if count >= min_count}


def prune(
    tokenizer: tokenizers.Tokenizer, counts: Counter[str], size: int, min_character_count: int = 1
) -> tuple[tokenizers.Tokenizer, list[int]]:
    """Reduces a tokenizer to `size` pieces.

    Keeps the special tokens, every character whose pieces occur at least `min_character_count` times, and the most
    frequent pieces of such characters. Returns the smaller tokenizer, and the old id of each of its pieces.

    Raises:
        ValueError: the special tokens and the characters alone exceed `size`.
    """
    vocabulary = tokenizer.get_vocab()
    document = json.loads(tokenizer.to_str())
    is_unigram = document["model"]["type"] == "Unigram"
    frequent = find_characters(counts, min_character_count)
    characters = sorted(frequent)
    if not is_unigram:  # a character may start or continue a word, wherever it occurred
        characters = [piece for character in characters for piece in (character, f"##{character}")]
    characters = [piece for piece in characters if piece in vocabulary]
    kept = dict.fromkeys([*SPECIALS, *characters])
    if len(kept) > size:
        raise ValueError(f"{len(kept)} special tokens and characters do not fit into a vocabulary of {size}.")
    for piece, _ in counts.most_common():
        if len(kept) == size:
            break
        if piece in vocabulary and frequent.issuperset(piece.removeprefix("##")):
            kept[piece] = None
    pieces = sorted(kept, key=vocabulary.__getitem__)
    numbers = {piece: number for number, piece in enumerate(pieces)}
    if is_unigram:
        scores = document["model"]["vocab"]
        document["model"] |= {"vocab": [scores[vocabulary[piece]] for piece in pieces], "unk_id": numbers["[UNK]"]}
    else:
        document["model"]["vocab"] = numbers
    document["truncation"] = document["padding"] = None
    for token in document["added_tokens"]:
        token["id"] = numbers[token["content"]]
    for token in document["post_processor"].get("special_tokens", {}).values():
        token["ids"] = [numbers[name] for name in token["tokens"]]
    for end in ("sep", "cls"):
        if end in document["post_processor"]:
            name, _ = document["post_processor"][end]
            document["post_processor"][end] = [name, numbers[name]]
    return tokenizers.Tokenizer.from_str(json.dumps(document)), [vocabulary[piece] for piece in pieces]
