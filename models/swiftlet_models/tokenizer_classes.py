"""The classes of tokenizers that transformers has: how each makes a tokenizer of its vocabulary.

They equal the converters of transformers 4.57.1 (`convert_slow_tokenizer.py`: `BertConverter`, `AlbertConverter`,
`MPNetConverter`, `RobertaConverter`, `GPT2Converter`, `XLMRobertaConverter`, `CamembertConverter`,
`DebertaV2Converter`).
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

from swiftlet_models.added_tokens import Declared, TokenizerError

# The special tokens of each class, which a checkpoint may rename.
_BERT: Final = {"unk": "[UNK]", "sep": "[SEP]", "pad": "[PAD]", "cls": "[CLS]", "mask": "[MASK]"}
_ROBERTA: Final = {
    "bos": "<s>",
    "eos": "</s>",
    "unk": "<unk>",
    "sep": "</s>",
    "pad": "<pad>",
    "cls": "<s>",
    "mask": "<mask>",
}
MPNET: Final = _ROBERTA | {"unk": "[UNK]"}
_ALBERT: Final = _BERT | {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"}
_DEBERTA: Final = _BERT | {"bos": "[CLS]", "eos": "[SEP]"}
_GPT2: Final = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_AS_WRITTEN: Final = {"normalized": False}
_CAMEMBERT_MORE: Final = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")
OWN_FILE: Final = (
    "If a tokenizer.json gives the same ids, put it into the directory and set tokenizer_class to "
    "PreTrainedTokenizerFast."
)


@dataclass(frozen=True)
class Source:
    """The vocabulary of a tokenizer, and its settings."""

    path: Path
    config: Mapping[str, Any]  # tokenizer_config.json
    specials: Mapping[str, str]  # the special tokens by their role

    def option(self, name: str, default: Any) -> Any:
        """Returns a setting."""
        return self.config.get(name, default)

    def special(self, role: str, ids: Mapping[str, int]) -> tuple[str, int]:
        """Returns a special token and its id.

        Raises:
            TokenizerError: the vocabulary lacks it.
        """
        token = self.specials[role]
        if token not in ids:
            raise TokenizerError(
                f"{self.path.name} lacks the token {token}. Name its own as {role}_token in tokenizer_config.json."
            )
        return token, ids[token]


_Reader = Callable[[Source], tokenizers.Tokenizer]


@dataclass(frozen=True)
class Class:
    """A class of transformers, whose vocabulary a function reads."""

    file: str
    read: _Reader
    specials: Mapping[str, str]
    mask: Mapping[str, bool] = field(default_factory=dict)  # options of the mask token
    more: tuple[str, ...] = ()

    def defaults(self) -> Declared:
        """Returns the special tokens of the class."""
        named = {
            role: AddedToken(
                token, special=True, **({"normalized": False, **self.mask} if role == "mask" else _AS_WRITTEN)
            )
            for role, token in self.specials.items()
        }
        return Declared(named, [AddedToken(token, special=True, normalized=False) for token in self.more], {})


def read_lines(path: Path) -> dict[str, int]:
    """Reads a vocabulary with one token per line."""
    with path.open(encoding="utf-8") as lines:
        return {line.rstrip("\n"): index for index, line in enumerate(lines)}


def read_vocabulary(path: Path) -> dict[str, int]:
    """Reads a vocabulary in JSON."""
    vocab: dict[str, int] = json.loads(path.read_text("utf-8"))
    return vocab


def _from_vocab(source: Source) -> tokenizers.Tokenizer:
    """Reads a WordPiece vocabulary. Equals `BertConverter` of transformers."""
    return _word_pieces(source, single="$CLS:0 $A:0 $SEP:0", pair="$CLS:0 $A:0 $SEP:0 $B:1 $SEP:1")


def _from_mpnet_vocab(source: Source) -> tokenizers.Tokenizer:
    """Reads a WordPiece vocabulary. Equals `MPNetConverter` of transformers: a pair has two separators."""
    return _word_pieces(source, single="$CLS:0 $A:0 $SEP:0", pair="$CLS:0 $A:0 $SEP:0 $SEP:0 $B:1 $SEP:1")


def _word_pieces(source: Source, single: str, pair: str) -> tokenizers.Tokenizer:
    vocab = read_lines(source.path)
    unknown, _ = source.special("unk", vocab)
    cls, sep = source.special("cls", vocab), source.special("sep", vocab)
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordPiece(vocab, unk_token=unknown))
    tokenizer.normalizer = normalizers.BertNormalizer(
        clean_text=True,
        handle_chinese_chars=source.option("tokenize_chinese_chars", True),
        strip_accents=source.option("strip_accents", None),  # None: only with lower-casing
        lowercase=source.option("do_lower_case", True),
    )
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.decoder = decoders.WordPiece(prefix="##")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=single.replace("$CLS", cls[0]).replace("$SEP", sep[0]),
        pair=pair.replace("$CLS", cls[0]).replace("$SEP", sep[0]),
        special_tokens=[cls, sep],
    )
    return tokenizer


def _from_merges(source: Source) -> tokenizers.Tokenizer:
    """Reads a byte-level BPE: `vocab.json` and its `merges.txt`."""
    merges = source.path.with_name("merges.txt")
    if not merges.is_file():
        raise TokenizerError(f"{source.path.name} has no {merges.name} beside it.")
    vocab = read_vocabulary(source.path)
    if any(token.endswith("</w>") for token in vocab):
        raise TokenizerError(
            f"{source.path.name} holds a BPE whose words end in </w>, which is not byte-level. {OWN_FILE}"
        )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(source.path), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(source.option("add_prefix_space", False)))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _from_roberta(source: Source) -> tokenizers.Tokenizer:
    """Reads a byte-level BPE, with special tokens around a text. Equals `RobertaConverter` of transformers."""
    tokenizer = _from_merges(source)
    ids = tokenizer.get_vocab()
    tokenizer.post_processor = processors.RobertaProcessing(
        source.special("sep", ids),
        source.special("cls", ids),
        trim_offsets=source.option("trim_offsets", True),
        add_prefix_space=bool(source.option("add_prefix_space", False)),
    )
    return tokenizer


def _from_gpt2(source: Source) -> tokenizers.Tokenizer:
    """Reads a byte-level BPE. Equals `GPT2Converter` of transformers: nothing surrounds a text."""
    tokenizer = _from_merges(source)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _from_fairseq(source: Source, *, is_camembert: bool = False) -> tokenizers.Tokenizer:
    """Reads a SentencePiece unigram model whose ids are shifted, because fairseq had special tokens of its own."""
    proto = _read_unigram(source.path)
    own: list[tuple[str, float]] = [(piece.piece, piece.score) for piece in proto.pieces]
    head: list[tuple[str, float]] = [(token, 0.0) for token in ("<s>", "<pad>", "</s>", "<unk>")]
    if is_camembert:
        head = [("<s>NOTUSED", 0.0), head[1], ("</s>NOTUSED", 0.0), head[3], ("<unk>NOTUSED", -100.0)]
        pieces = [*head, *own[1:], ("<mask>", 0.0)]
    else:
        pieces = [*head, *own[3:], ("<mask>", 0.0)]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    for token in ("<s>", "</s>"):
        if token not in ids:
            raise TokenizerError(f"{source.path.name} lacks the piece {token}.")
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
    return tokenizer


def _from_camembert(source: Source) -> tokenizers.Tokenizer:
    return _from_fairseq(source, is_camembert=True)


def _read_unigram(path: Path) -> Any:
    """Reads the message of a SentencePiece unigram model.

    Raises:
        TokenizerError: it is a model of another kind, or the package that reads it is not installed.
    """
    try:
        from sentencepiece import sentencepiece_model_pb2
    except ModuleNotFoundError:
        raise TokenizerError(
            f"{path.name} needs the packages sentencepiece and protobuf. Run: pip install sentencepiece protobuf. Or "
            "save a tokenizer.json: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) of transformers."
        ) from None

    proto: Any = sentencepiece_model_pb2.ModelProto()  # type: ignore[attr-defined]  # generated at run time
    proto.ParseFromString(path.read_bytes())
    if proto.trainer_spec.model_type != proto.trainer_spec.UNIGRAM:
        raise TokenizerError(f"{path.name} is not a unigram model.")
    return proto


def _from_sentencepiece(source: Source) -> tokenizers.Tokenizer:
    """Reads a SentencePiece unigram model. Equals `AlbertConverter` of transformers 4.57.1.

    The tokenizers of transformers 5.x drop a single `▁` before a user-defined symbol. SentencePiece itself, which
    trained ALBERT's vocabulary, keeps it.
    """
    proto = _read_unigram(source.path)
    pieces = [(piece.piece, _albert_score(piece.piece, piece.score)) for piece in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    for token in ("[CLS]", "[SEP]"):
        if token not in ids:
            raise TokenizerError(f"{source.path.name} lacks the piece {token}.")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, proto.trainer_spec.unk_id))
    tokenizer.normalizer = _albert_normalizer(source, proto.normalizer_spec.precompiled_charsmap)
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
    return tokenizer


def _from_deberta(source: Source) -> tokenizers.Tokenizer:
    """Reads a SentencePiece unigram model. Equals `DebertaV2Converter` of transformers 4.57.1."""
    proto = _read_unigram(source.path)
    pieces = [(piece.piece, piece.score) for piece in proto.pieces]
    ids = {piece: index for index, (piece, _) in enumerate(pieces)}
    (cls, first), (sep, last) = source.special("cls", ids), source.special("sep", ids)
    charsmap = proto.normalizer_spec.precompiled_charsmap
    tokenizer = tokenizers.Tokenizer(tokenizers.models.Unigram(pieces, proto.trainer_spec.unk_id))
    tokenizer.normalizer = normalizers.Sequence(
        [
            *([normalizers.Lowercase()] if source.option("do_lower_case", False) else []),
            normalizers.Strip(),
            *([normalizers.Precompiled(charsmap)] if charsmap else []),
            normalizers.Replace(Regex(" {2,}"), " "),
        ]
    )
    split = [pre_tokenizers.Punctuation("isolated")] if source.option("split_by_punct", False) else []
    words = pre_tokenizers.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([*split, words])
    tokenizer.decoder = decoders.Metaspace(replacement="▁", prepend_scheme="always")
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{cls}:0 $A:0 {sep}:0",
        pair=f"{cls}:0 $A:0 {sep}:0 $B:1 {sep}:1",
        special_tokens=[(cls, first), (sep, last)],
    )
    control, user_defined = proto.SentencePiece.CONTROL, proto.SentencePiece.USER_DEFINED
    tokenizer.add_tokens(
        [
            AddedToken(piece.piece, normalized=False, special=piece.type == control)
            for piece in proto.pieces
            if piece.type in (control, user_defined)
        ]
    )
    return tokenizer


def _albert_score(piece: str, score: float) -> float:
    """Penalises pieces such as `9,`, because ALBERT separates a number from the comma after it."""
    return score - 100 if len(piece) > 1 and piece[-1] == "," and piece[-2].isdigit() else score


def _albert_normalizer(source: Source, charsmap: bytes) -> normalizers.Normalizer:
    steps: list[normalizers.Normalizer] = [normalizers.Replace("``", '"'), normalizers.Replace("''", '"')]
    if not source.option("keep_accents", False):
        steps += [normalizers.NFKD(), normalizers.StripAccents()]
    if source.option("do_lower_case", True):
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


_SPACE_BEFORE: Final = {"lstrip": True}  # the mask token includes it
CLASSES: Final[Mapping[str, Class]] = {
    "Bert": Class("vocab.txt", _from_vocab, _BERT),
    "DistilBert": Class("vocab.txt", _from_vocab, _BERT),
    "Electra": Class("vocab.txt", _from_vocab, _BERT),
    "MobileBert": Class("vocab.txt", _from_vocab, _BERT),
    "MPNet": Class("vocab.txt", _from_mpnet_vocab, MPNET, _SPACE_BEFORE),
    "Albert": Class("spiece.model", _from_sentencepiece, _ALBERT, _SPACE_BEFORE),
    "DebertaV2": Class("spm.model", _from_deberta, _DEBERTA),
    "Roberta": Class("vocab.json", _from_roberta, _ROBERTA, _SPACE_BEFORE),
    "GPT2": Class("vocab.json", _from_gpt2, _GPT2),
    "XLMRoberta": Class("sentencepiece.bpe.model", _from_fairseq, _ROBERTA, _SPACE_BEFORE | {"normalized": True}),
    "Camembert": Class("sentencepiece.bpe.model", _from_camembert, _ROBERTA, _SPACE_BEFORE, _CAMEMBERT_MORE),
}
