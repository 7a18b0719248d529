"""A tokenizer of a corpus's own: BERT's WordPiece, or ALBERT's unigram pieces.

Both are made by counting, and are the same each time. Accents are stripped without loss to scripts that Unicode takes
apart together with them: Hangul falls into single letters (jamo) on the way and is put together again.
"""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Final

import tokenizers
import torch
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors, trainers
from torch import Tensor

from swiftlet_serve.models.training.vocabulary import SPECIALS

PREFIX: Final = "##"
BLANK: Final = "▁"
LONGEST_LINE: Final = 4096  # characters; SentencePiece drops longer ones


def train_wordpiece(
    texts: Iterable[str], size: int, *, lowercase: bool = True, strip_accents: bool = True, coverage: float = 1.0
) -> tokenizers.Tokenizer:
    """WordPiece of at most `size` pieces (Devlin et al. 2018), with the characters seen, wherever each stands.

    The rarest characters are left out, as far as the others make up the share `coverage` of the text.

    Raises:
        ValueError: the characters alone are more than `size`.
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
    characters = _characters(counts, coverage)
    counts = Counter({word: count for word, count in counts.items() if characters.issuperset(word)})
    # Named beforehand, or their numbers, and with them every tie between pairs, would depend on a hash's order.
    first = [*SPECIALS, *sorted(characters), *(PREFIX + character for character in sorted(characters))]
    if len(first) > size:
        raise ValueError(f"{len(first)} special tokens and characters do not fit into a vocabulary of {size}.")
    trainer = trainers.WordPieceTrainer(
        vocab_size=size, special_tokens=first, limit_alphabet=len(first), show_progress=False
    )
    trained.train_from_iterator(_repeated(counts), trainer)
    made = tokenizers.Tokenizer(tokenizers.models.WordPiece(trained.get_vocab(), unk_token=unknown))
    made.normalizer, made.pre_tokenizer = trained.normalizer, trained.pre_tokenizer
    made.decoder = decoders.WordPiece(prefix=PREFIX)
    made.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS])
    return _framed(made)


def train_unigram(
    texts: Iterable[str], size: int, *, lowercase: bool = True, strip_accents: bool = True, coverage: float = 1.0
) -> tokenizers.Tokenizer:
    """At most `size` unigram pieces (Kudo 2018, arXiv:1804.10959), of the characters seen, after ALBERT's normaliser.

    The rarest characters are left out, as far as the others make up the share `coverage` of the text.

    SentencePiece finds the pieces: the trainer of `tokenizers` finds other ones, or other scores, each time.

    Raises:
        ValueError: the characters alone are more than `size`.
    """
    import sentencepiece

    normalizer = _albert_normalizer(lowercase=lowercase, strip_accents=strip_accents)
    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=_lines(texts, normalizer),
            model_writer=model,
            model_type="unigram",
            vocab_size=size,
            hard_vocab_limit=False,
            character_coverage=coverage,
            normalization_rule_name="identity",
            max_sentence_length=4 * LONGEST_LINE,  # bytes
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
        raise ValueError(f"no vocabulary of {size} pieces can be made: {error}") from error
    processor = sentencepiece.SentencePieceProcessor(model_proto=model.getvalue())
    pieces = [(processor.id_to_piece(number), processor.get_score(number)) for number in range(len(processor))]
    made = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, unk_id=SPECIALS.index("[UNK]")))
    made.normalizer = normalizer
    made.pre_tokenizer = pre_tokenizers.Metaspace(replacement=BLANK, prepend_scheme="always")
    made.decoder = decoders.Metaspace(replacement=BLANK, prepend_scheme="always")
    # The mask, which comes last, is a word of its own and takes the space before it along.
    made.add_special_tokens([AddedToken(token, normalized=False) for token in SPECIALS[:-1]])
    made.add_special_tokens([AddedToken(SPECIALS[-1], normalized=False, lstrip=True)])
    return _framed(made)


def continuing(tokenizer: tokenizers.Tokenizer) -> Tensor:
    """Which pieces (V,) go on with a word, as whole-word masking asks. A piece without letters is a word itself."""
    vocabulary = tokenizer.get_vocab()
    wordpiece = isinstance(tokenizer.model, tokenizers.models.WordPiece)
    found = torch.zeros(len(vocabulary), dtype=torch.bool)
    for piece, number in vocabulary.items():
        found[number] = piece.startswith(PREFIX) if wordpiece else piece[0] != BLANK and piece[-1].isalnum()
    return found


def _characters(counts: Counter[str], coverage: float) -> set[str]:
    """The most frequent characters of the words, up to a share of all."""
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


def _repeated(counts: Counter[str]) -> Iterator[list[str]]:
    """Each word as often as it was seen, a thousand at a time."""
    for word, count in sorted(counts.items()):
        for _ in range(count // 1000):
            yield [word] * 1000
        yield [word] * (count % 1000)


def _lines(texts: Iterable[str], normalizer: normalizers.Normalizer) -> Iterator[str]:
    for text in texts:
        for raw in text.splitlines():
            line = normalizer.normalize_str(raw)
            for at in range(0, len(line), LONGEST_LINE):
                yield line[at : at + LONGEST_LINE]


def _albert_normalizer(*, lowercase: bool, strip_accents: bool) -> normalizers.Normalizer:
    """As `models.checkpoint_tokenizer` reads it from a checkpoint, but with NFKC itself, not a compiled table of it."""
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if strip_accents:
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if lowercase:
        steps.append(normalizers.Lowercase())
    return normalizers.Sequence([*steps, normalizers.NFKC(), normalizers.Replace(Regex(r"\s+"), " ")])


def _framed(tokenizer: tokenizers.Tokenizer) -> tokenizers.Tokenizer:
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(token, SPECIALS.index(token)) for token in ("[CLS]", "[SEP]")],
    )
    return tokenizer
