"""Reads the tokenizer of a transformers checkpoint as a tokenizer of the `tokenizers` library.

Ids and offsets equal those of transformers 4.57.1 (`convert_slow_tokenizer.py`: `BertConverter`, `AlbertConverter`,
`MPNetConverter`, `RobertaConverter`, `GPT2Converter`, `XLMRobertaConverter`, `CamembertConverter`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

from swiftlet_serve.models.errors import ModelError

WORDPIECE_SPECIALS: Final = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
MPNET_SPECIALS: Final = ("<s>", "<pad>", "</s>", "[UNK]", "<mask>")
ROBERTA_SPECIALS: Final = ("<s>", "<pad>", "</s>", "<unk>", "<mask>")
ALBERT_SPECIALS: Final = ("<pad>", "<unk>", "[CLS]", "[SEP]", "[MASK]")
GENERIC: Final = ("PreTrainedTokenizerFast", "TokenizersBackend")  # classes that take the file as it is

_Reader = Callable[[Path, dict[str, Any]], tokenizers.Tokenizer]


class TokenizerError(ModelError):
    """Raised when a file or directory holds no usable tokenizer. The message is one sentence."""


class TokenizerFault(TokenizerError):
    """Raised when the tokenizers library fails on a text or a token. The tokenizer of the model is at fault."""


@contextmanager
def library_calls() -> Iterator[None]:
    """Turns every failure of the tokenizers library into a `TokenizerFault`.

    The library raises bare `Exception`. Its panics are not even that, so that nobody would handle them. Their messages
    may quote the text.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:
        raise TokenizerFault(f"The tokenizer failed: {type(error).__name__}.") from error


def read_directory(path: Path) -> tokenizers.Tokenizer:
    """Reads the first of these files: `tokenizer.json`, `vocab.txt` (WordPiece), `spiece.model` (ALBERT), `vocab.json`
    with `merges.txt` (byte-level BPE), `sentencepiece.bpe.model` (XLM-RoBERTa, CamemBERT).

    Options come from `tokenizer_config.json`. Missing options have the defaults of transformers.

    Raises:
        TokenizerError: the directory has none of these files, or the file is invalid.
    """
    config = _read_config(path / "tokenizer_config.json")
    for name, read in _READERS.items():
        if (path / name).is_file():
            tokenizer = _read(read, path / name, config)
            break
    else:
        raise TokenizerError(f"{path.name} holds none of {', '.join(_READERS)}.")
    if config.get("clean_up_tokenization_spaces", name == "vocab.txt"):  # the default of transformers 4.57.1
        tokenizer.decoder = _with_cleanup(tokenizer.decoder)
    return tokenizer


def _read(reader: _Reader, path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    try:
        return reader(path, config)
    except (TokenizerError, ImportError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception for any invalid file, or panics
        raise TokenizerError(f"{path.name} cannot be read as a tokenizer: {error}") from error


def _read_config(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        config = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise TokenizerError(f"{path.name} is not valid JSON.") from error
    return config if isinstance(config, dict) else {}


def _from_tokenizer_json(path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(str(path))
    class_name = config.get("tokenizer_class") or "Bert"
    # As in transformers, the configuration overrides the file.
    if isinstance(tokenizer.normalizer, normalizers.BertNormalizer) and re.search("Bert|Electra|MPNet", class_name):
        tokenizer.normalizer = _bert_normalizer(config)
    if isinstance(tokenizer.pre_tokenizer, pre_tokenizers.ByteLevel):
        tokenizer.pre_tokenizer.add_prefix_space = bool(config.get("add_prefix_space"))
    if isinstance(tokenizer.post_processor, processors.RobertaProcessing) and class_name not in GENERIC:
        tokenizer.post_processor.add_prefix_space = bool(config.get("add_prefix_space"))
        tokenizer.post_processor.trim_offsets = config.get("trim_offsets", True)
    return tokenizer


def _bert_normalizer(config: dict[str, Any]) -> normalizers.Normalizer:
    return normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
        strip_accents=config.get("strip_accents"),  # None: only with lower-casing
        lowercase=config.get("do_lower_case", True),
    )


def _from_vocab(path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """Reads a WordPiece vocabulary with one token per line.

    Equals `BertConverter` of transformers, or `MPNetConverter` if the vocabulary has MPNet's special tokens.
    """
    with path.open(encoding="utf-8") as lines:
        vocab = {line.rstrip("\n"): index for index, line in enumerate(lines)}
    if vocab.keys() >= {*MPNET_SPECIALS}:  # beside BERT's, which are common tokens then
        return _mpnet(vocab, config)
    for token in ("[UNK]", "[CLS]", "[SEP]"):
        if token not in vocab:
            raise TokenizerError(f"{path.name} lacks the token {token}.")
    tokenizer = _word_pieces(vocab, config)
    tokenizer.post_processor = _template(vocab["[CLS]"], vocab["[SEP]"])
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True) for token in WORDPIECE_SPECIALS if token in vocab]
    )
    return tokenizer


def _mpnet(vocab: dict[str, int], config: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = _word_pieces(vocab, config)
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s>:0 $A:0 </s>:0",
        pair="<s>:0 $A:0 </s>:0 </s>:0 $B:1 </s>:1",
        special_tokens=[(token, vocab[token]) for token in ("<s>", "</s>")],
    )
    # The mask token includes the space before it.
    tokenizer.add_special_tokens(
        [AddedToken(token, normalized=False, special=True, lstrip=token == "<mask>") for token in MPNET_SPECIALS]  # noqa: S105
    )
    return tokenizer


def _word_pieces(vocab: dict[str, int], config: dict[str, Any]) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token="[UNK]"))  # noqa: S106
    tokenizer.normalizer = _bert_normalizer(config)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    return tokenizer


def _from_merges(path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """Reads a byte-level BPE: `vocab.json` and its `merges.txt`.

    RoBERTa puts special tokens around a text. A vocabulary without them is that of GPT-2, which adds none.
    """
    merges = path.with_name("merges.txt")
    if not merges.is_file():
        raise TokenizerError(f"{path.name} has no {merges.name} beside it.")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(path), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(config.get("add_prefix_space")))
    tokenizer.decoder = decoders.ByteLevel()
    ids = tokenizer.get_vocab()
    specials = [token for token in (*ROBERTA_SPECIALS, "<|endoftext|>") if token in ids]
    if {"<s>", "</s>"}.issubset(specials):
        tokenizer.post_processor = processors.RobertaProcessing(
            ("</s>", ids["</s>"]),
            ("<s>", ids["<s>"]),
            trim_offsets=config.get("trim_offsets", True),
            add_prefix_space=bool(config.get("add_prefix_space")),
        )
    else:
        tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    tokenizer.add_special_tokens([_special(token) for token in specials])
    return tokenizer


def _special(token: str, *, normalized: bool = False) -> AddedToken:
    """Returns a special token. The mask token includes the space before it."""
    return AddedToken(token, normalized=normalized, special=True, lstrip=token == ROBERTA_SPECIALS[-1])


def _from_fairseq(path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """Reads a SentencePiece unigram model whose ids are shifted, because fairseq had special tokens of its own."""
    proto = _read_unigram(path)
    own: list[tuple[str, float]] = [(piece.piece, piece.score) for piece in proto.pieces]
    head: list[tuple[str, float]] = [(token, 0.0) for token in ROBERTA_SPECIALS[:4]]
    is_camembert = str(config.get("tokenizer_class", "")).startswith("Camembert")
    if is_camembert:
        head = [("<s>NOTUSED", 0.0), head[1], ("</s>NOTUSED", 0.0), head[3], ("<unk>NOTUSED", -100.0)]
        pieces = [*head, *own[1:], ("<mask>", 0.0)]
    else:
        pieces = [*head, *own[3:], ("<mask>", 0.0)]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    for token in ("<s>", "</s>"):
        if token not in ids:
            raise TokenizerError(f"{path.name} lacks the piece {token}.")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, ids["<unk>"]))
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Strip(left=False, right=True),
            normalizers.Replace(Regex(" {2,}"), "▁"),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single="<s> $A </s>",
        pair="<s> $A </s> </s> $B </s>",
        special_tokens=[(token, ids[token]) for token in ("<s>", "</s>")],
    )
    user_defined = [piece.piece for piece in proto.pieces if piece.type == proto.SentencePiece.USER_DEFINED]
    tokenizer.add_tokens([AddedToken(piece, normalized=False) for piece in user_defined])
    specials = dict.fromkeys((*ROBERTA_SPECIALS[:4], *(token for token, _ in head)))
    tokenizer.add_special_tokens([_special(token) for token in specials])
    tokenizer.add_special_tokens([_special("<mask>", normalized=not is_camembert)])
    return tokenizer


def _read_unigram(path: Path) -> Any:
    """Reads the message of a SentencePiece unigram model.

    Raises:
        TokenizerError: it is a model of another kind.
    """
    from sentencepiece import sentencepiece_model_pb2

    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # generated at run time
    proto.ParseFromString(path.read_bytes())
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise TokenizerError(f"{path.name} is not a unigram model.")
    return proto


def _from_sentencepiece(path: Path, config: dict[str, Any]) -> tokenizers.Tokenizer:
    """Reads a SentencePiece unigram model. Equals `AlbertConverter` of transformers 4.57.1.

    The tokenizers of transformers 5.x drop a single `▁` before a user-defined symbol. SentencePiece itself, with which
    ALBERT was trained, keeps it.
    """
    proto = _read_unigram(path)
    pieces = [(piece.piece, _albert_score(piece.piece, piece.score)) for piece in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    for token in ALBERT_SPECIALS[2:4]:
        if token not in ids:
            raise TokenizerError(f"{path.name} lacks the piece {token}.")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, proto.trainer_spec.unk_id))
    tokenizer.normalizer = _albert_normalizer(config, proto.normalizer_spec.precompiled_charsmap)
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = _template(ids["[CLS]"], ids["[SEP]"])
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    control, user_defined = proto.SentencePiece.CONTROL, proto.SentencePiece.USER_DEFINED
    tokenizer.add_tokens(
        [
            # The mask token includes the space before it.
            AddedToken(p.piece, normalized=False, special=p.type == control, lstrip=p.piece == "[MASK]")
            for p in proto.pieces
            if p.type in (control, user_defined)
        ]
    )
    tokenizer.add_special_tokens([AddedToken(t, normalized=False) for t in ALBERT_SPECIALS[:2] if t in ids])
    return tokenizer


def _albert_score(piece: str, score: float) -> float:
    """Penalises pieces such as `9,`, because ALBERT separates a number from the comma after it."""
    return score - 100 if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() else score


def _albert_normalizer(config: dict[str, Any], charsmap: bytes) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not config.get("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if config.get("do_lower_case", True):
        steps.append(normalizers.Lowercase())
    if charsmap:
        steps.append(normalizers.Precompiled(charsmap))
    steps.append(normalizers.Replace(Regex(" {2,}"), " "))
    return normalizers.Sequence(steps)


def _template(cls: int, sep: int) -> processors.PostProcessor:
    return processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[("[CLS]", cls), ("[SEP]", sep)],
    )


def _with_cleanup(decoder: decoders.Decoder) -> decoders.Decoder:
    """Appends `clean_up_tokenization` of transformers, so that `tokenizer.json` is complete."""
    separated = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
    replacements = [decoders.Replace(text, text.strip()) for text in separated]
    return decoders.Sequence([decoder, decoders.Fuse(), *replacements])


_READERS: Final[dict[str, _Reader]] = {
    "tokenizer.json": _from_tokenizer_json,
    "vocab.txt": _from_vocab,
    "spiece.model": _from_sentencepiece,
    "vocab.json": _from_merges,
    "sentencepiece.bpe.model": _from_fairseq,
}
