"""Trains a tokenizer on a corpus: BERT's WordPiece, or ALBERT's unigram model.

Both are deterministic. Stripping accents decomposes Hangul into single letters (jamo), so the normaliser composes it
again.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import tokenizers
import torch
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from swiftlet_train.vocabulary.pruning import SPECIALS

PREFIX: Final = "##"
BLANK: Final = "▁"
MAX_LINE: Final = 4096  # characters; SentencePiece drops longer lines


def train_wordpiece(
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = True,
    strip_accents: bool = True,
    character_coverage: float = 1.0,
) -> tokenizers.Tokenizer:
    """Trains a WordPiece tokenizer of at most `size` pieces (Devlin et al. 2018).

    The vocabulary holds the most frequent characters, which cover the fraction `character_coverage` of the text. Each
    is held both as the start and as the continuation of a word.

    Raises:
        ValueError: the special tokens and the characters alone exceed `size`.
    """
    unknown = SPECIALS[1]
    trained = tokenizers.Tokenizer(tokenizers.models.WordPiece(unk_token=unknown))
    trained.normalizer = normalizers.Sequence(
        [normalizers.BertNormalizer(lowercase=lowercase, strip_accents=strip_accents), normalizers.NFC()]
    )
    trained.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    counts: Counter[str] = Counter()
    for text in texts:
        counts.update(
            word for word, _ in trained.pre_tokenizer.pre_tokenize_str(trained.normalizer.normalize_str(text))
        )
    characters = _frequent_characters(counts, character_coverage)
    counts = Counter({word: count for word, count in counts.items() if characters.issuperset(word)})
    # Listed explicitly: otherwise their ids, and with them ties between pairs, depend on the order of a hash table.
    first = [*SPECIALS, *sorted(characters), *(PREFIX + character for character in sorted(characters))]
    if len(first) > size:
        raise ValueError(f"{len(first)} special tokens and characters do not fit into a vocabulary of {size}.")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=first, limit_alphabet=len(first), show_progress=False
    )
    trained.train_from_iterator(_repeat_words(counts), trainer)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(trained.get_vocab(), unk_token=unknown))
    tokenizer.normalizer, tokenizer.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
    tokenizer.decoder = decoders.WordPiece(prefix=PREFIX)
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    return _add_template(tokenizer)


def train_unigram(
    texts: Iterable[str],
    size: int,
    *,
    lowercase: bool = True,
    strip_accents: bool = True,
    character_coverage: float = 1.0,
) -> tokenizers.Tokenizer:
    """Trains a unigram tokenizer of at most `size` pieces (Kudo 2018, arXiv:1804.10959), with ALBERT's normaliser.

    The vocabulary holds the most frequent characters, which cover the fraction `character_coverage` of the text.
    SentencePiece trains the pieces, because the trainer of `tokenizers` is not deterministic.

    Raises:
        ValueError: the special tokens and the characters alone exceed `size`.
    """
    import sentencepiece

    normalizer = _albert_normalizer(lowercase=lowercase, strip_accents=strip_accents)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_split_lines(texts, normalizer),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=character_coverage,
            normalization_rule_name="identity",
            max_sentence_length=4 * MAX_LINE,  # bytes
            num_threads=1,
            minloglevel=2,
            pad_id=0,
            pad_piece="[PAD]",
            unk_id=1,
            unk_piece="[UNK]",
            bos_id=-1,
            eos_id=-1,
            control_symbols=list(SPECIALS[2:]),
        )
    except RuntimeError as error:
        raise ValueError(f"SentencePiece cannot make a vocabulary of {size} pieces: {error}") from error
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(processor.id_to_piece(number), processor.get_score(number)) for number in range(len(processor))]
    return make_unigram(pieces, SPECIALS.index("[UNK]"), normalizer)


def make_unigram(
    pieces: Sequence[tuple[str, float]], unknown: int, normalizer: normalizers.Normalizer
) -> tokenizers.Tokenizer:
    """Makes a unigram tokenizer of pieces with their scores. `unknown` is the number of [UNK] among them."""
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(list(pieces), unk_id=unknown))
    tokenizer.normalizer = normalizer
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    # The mask is a word of its own and includes the space before it.
    tokenizer.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS[:-1]])
    tokenizer.add_special_tokens([AddedToken(SPECIALS[-1], normalized=False, lstrip=True)])
    return _add_template(tokenizer)


def find_continuations(tokenizer: tokenizers.Tokenizer) -> Tensor:
    """Returns which pieces continue a word, (V,), for whole-word masking. A piece without letters is its own word."""
    vocabulary = tokenizer.get_vocab()
    wordpiece = isinstance(tokenizer.model, tokenizers.models.WordPiece)
    starts = torch.zeros(len(vocabulary), dtype=torch.bool)
    for piece, number in vocabulary.items():
        starts[number] = piece.startswith(PREFIX) if wordpiece else piece[0] != BLANK and piece[-1].isalnum()
    return starts


def _frequent_characters(counts: Counter[str], coverage: float) -> set[str]:
    """Returns the most frequent characters of the words, which cover a fraction of the text."""
    seen: Counter[str] = Counter()
    for word, count in counts.items():
        for character in word:
            seen[character] += count
    wanted, kept = coverage * seen.total(), set[str]()
    for character, count in sorted(seen.items(), key=lambda item: (-item[1], item[0])):
        if wanted <= 0:
            break
        kept.add(character)
        wanted -= count
    return kept


def _repeat_words(counts: Counter[str]) -> Iterator[list[str]]:
    """Yields each word as often as it occurred, in lists of up to 1000."""
    for word, count in sorted(counts.items()):
        for _ in range(count // 1000):
            yield [word] * 1000
        yield [word] * (count % 1000)


def _split_lines(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Iterator[str]:
    for text in texts:
        for raw in text.splitlines():
            line = normalizer.normalize_str(raw)
            for start in range(0, len(line), MAX_LINE):
                yield line[start : start + MAX_LINE]


def _albert_normalizer(*, lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """Returns the normaliser of `swiftlet_models.checkpoint_tokenizer`, with NFKC instead of its compiled table."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence([*steps, normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])


def _add_template(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, tokenizer.token_to_id(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer
