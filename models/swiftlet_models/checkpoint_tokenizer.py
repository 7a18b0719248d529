"""Reads the tokenizer of a transformers checkpoint as a tokenizer of the `tokenizers` library.

Ids and offsets equal `AutoTokenizer`'s in transformers 4.57.1 (`convert_slow_tokenizer.py`: `BertConverter`,
`AlbertConverter`, `MPNetConverter`, `RobertaConverter`, `GPT2Converter`, `XLMRobertaConverter`, `CamembertConverter`,
`DebertaV2Converter`).
A class that is not reproduced exactly is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import tokenizers
from tokenizers import AddedToken, Regex, decoders, normalizers, pre_tokenizers, processors

from swiftlet_models import added_tokens, sources
from swiftlet_models.added_tokens import Declared, TokenizerError
from swiftlet_models.artifact import Side

NO_LIMIT: Final = 1e20  # from here on, a length means none: transformers writes 1e30
TOKENIZER_JSON: Final = "tokenizer.json"
ADDED_TOKENS: Final = "added_tokens.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"

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
_MPNET: Final = _ROBERTA | {"unk": "[UNK]"}
_ALBERT: Final = _BERT | {"bos": "[CLS]", "eos": "[SEP]", "unk": "<unk>", "pad": "<pad>"}
_DEBERTA: Final = _BERT | {"bos": "[CLS]", "eos": "[SEP]"}
_GPT2: Final = dict.fromkeys(("bos", "eos", "unk"), "<|endoftext|>")
_AS_WRITTEN: Final = {"normalized": False}
_CAMEMBERT_MORE: Final = ("<s>NOTUSED", "</s>NOTUSED", "<unk>NOTUSED")

# Other classes whose fast form in transformers takes `tokenizer.json` as it is.
_FILE_ONLY: Final = frozenset(
    {
        *(
            "Bart",
            "BigBird",
            "ConvBert",
            "DPRContextEncoder",
            "DPRQuestionEncoder",
            "DPRReader",
            "Gemma",
            "Herbert",
        ),
        *("LayoutLM", "Longformer", "Qwen2", "RetriBert", "SqueezeBert", "T5"),
    }
)
# The classes whose options override the normaliser of `tokenizer.json`.
_LOWERING: Final = frozenset(
    {
        *("Bert", "ConvBert", "DistilBert", "DPRContextEncoder", "DPRQuestionEncoder", "DPRReader", "Electra"),
        *("LayoutLM", "MobileBert", "MPNet", "RetriBert", "SqueezeBert"),
    }
)
_GENERIC: Final = "PreTrained"  # no class of its own, so that `tokenizer.json` tells all
_MODEL_TYPES: Final = {
    "albert": "Albert",
    "bert": "Bert",
    "camembert": "Camembert",
    "deberta-v2": "DebertaV2",
    "distilbert": "DistilBert",
    "electra": "Electra",
    "gemma3_text": "Gemma",
    "gpt2": "GPT2",
    "gte": "XLMRoberta",
    "jina_embeddings_v3": "XLMRoberta",
    "mobilebert": "MobileBert",
    "mpnet": "MPNet",
    "nomic_bert": "Bert",
    "qwen3": "Qwen2",
    "roberta": "Roberta",
    "t5": "T5",
    "xlm-roberta": "XLMRoberta",
}  # the class of each `model_type`, for checkpoints that do not name it

# Options, with the values that make all forms and versions of a class in transformers read a text the same way.
_SETTLED: Final[Mapping[str, tuple[object, ...]]] = {
    "add_bos_token": (None, False),
    "do_basic_tokenize": (None, True),
    "never_split": (None, []),
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
}
_SAVE: Final = (
    "Save a tokenizer.json with transformers: AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR), and compare its "
    "ids with those of the training."
)
_COPY: Final = (
    "Copy the tokenizer's files into it from the model that was trained: AutoTokenizer.from_pretrained(MODEL)"
    ".save_pretrained(DIR)."
)
_OWN_FILE: Final = (
    "If a tokenizer.json gives the same ids, put it into the directory and set tokenizer_class to "
    "PreTrainedTokenizerFast."
)


@dataclass(frozen=True)
class _Source:
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


T = TypeVar("T")
_Reader = Callable[[_Source], tokenizers.Tokenizer]


@dataclass(frozen=True)
class _Class:
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
    """Reads the tokenizer of a checkpoint, of the class that `AutoTokenizer` would take.

    `tokenizer_config.json`, `config.json` or its `model_type` names the class. Without any, the files tell it.
    `tokenizer.json` has precedence over the vocabulary of the class. Options come from `tokenizer_config.json`. Missing
    options have the defaults of transformers.

    Raises:
        TokenizerError: the class is not supported, its files are missing, or a file is invalid.
    """
    config, network = _read_config(path / "tokenizer_config.json"), _read_config(path / "config.json")
    _check_code(config, network)
    name = _class_name(config, network) or _guess(path)
    known, file = CLASSES.get(name), path / TOKENIZER_JSON
    if not file.is_file() and known:
        file = path / known.file
        _check_options(config, name)
    elif known is None and name != _GENERIC and (name not in _FILE_ONLY or not file.is_file()):
        without, step = (f" without {TOKENIZER_JSON}", _SAVE) if name in _FILE_ONLY else ("", _OWN_FILE)
        raise TokenizerError(f"the tokenizer class {name}Tokenizer is not supported{without}. {step}")
    if not file.is_file():
        files = " or ".join(dict.fromkeys([TOKENIZER_JSON, file.name]))
        raise TokenizerError(f"{path.name} holds no {files}, which {name}Tokenizer reads. {_COPY}")
    tokenizer = _read(lambda: _build(path, file, config, name, known), file)
    if config.get("clean_up_tokenization_spaces", file.name == "vocab.txt"):  # the default of transformers 4.57.1
        tokenizer.decoder = _with_cleanup(tokenizer.decoder)
    return tokenizer


@dataclass(frozen=True)
class Limits:
    """How a checkpoint's tokenizer cuts long texts."""

    truncation_side: Side
    max_tokens: int | None  # special tokens included; None: no limit


def read_limits(path: Path) -> Limits:
    """Reads the limits of a checkpoint's tokenizer: `tokenizer_config.json`, then `tokenizer.json`.

    Raises:
        TokenizerError: a limit has an invalid value.
    """
    config = _read_config(path / "tokenizer_config.json")
    truncation = _read_config(path / TOKENIZER_JSON).get("truncation")
    direction = truncation.get("direction", "right") if isinstance(truncation, dict) else "right"
    side = config.get("truncation_side", str(direction).lower())
    if side not in get_args(Side):
        raise TokenizerError(f"tokenizer_config.json: truncation_side {side!r} is neither left nor right.")
    limit = config.get("model_max_length", config.get("max_len"))
    if limit is None:
        return Limits(side, None)
    if isinstance(limit, int | float) and limit >= NO_LIMIT:
        return Limits(side, None)
    if isinstance(limit, bool) or not isinstance(limit, int | float) or limit < 1 or limit != limit // 1:
        raise TokenizerError(
            "tokenizer_config.json: model_max_length has an invalid value. Set a number of tokens, or remove it."
        )
    return Limits(side, int(limit))


def _check_code(config: Mapping[str, Any], network: Mapping[str, Any]) -> None:
    """Refuses a tokenizer that is code of the checkpoint."""
    classes = (config if {"tokenizer_class", "auto_map"} & config.keys() else network).get("auto_map")
    classes = classes.get("AutoTokenizer") if isinstance(classes, dict) else classes
    if classes:
        names = ", ".join(str(name) for name in (classes if isinstance(classes, list) else [classes]) if name)
        raise TokenizerError(
            f"auto_map names the tokenizer {names}, which is code of the checkpoint and is not run. {_OWN_FILE} "
            "Then remove auto_map."
        )


def _check_options(config: Mapping[str, Any], name: str) -> None:
    """Refuses options that not all forms of a class in transformers follow."""
    for option, values in _SETTLED.items():
        if config.get(option) not in values:
            raise TokenizerError(
                f"tokenizer_config.json: {option} {config[option]!r} is not supported, because the forms of "
                f"{name}Tokenizer in transformers differ with it. {_SAVE}"
            )


def _class_name(config: Mapping[str, Any], network: Mapping[str, Any]) -> str | None:
    """Returns the name of the class without "Tokenizer", such as "Bert". None if no file tells it."""
    name = config.get("tokenizer_class") or network.get("tokenizer_class")
    if name is None:
        return _MODEL_TYPES.get(str(network.get("model_type")))
    return _GENERIC if name == "TokenizersBackend" else str(name).removesuffix("Fast").removesuffix("Tokenizer")


def _guess(path: Path) -> str:
    """Returns the class for the files of a directory that does not name it."""
    file = next((file for file in _BY_FILE if (path / file).is_file()), None)
    if file is None:
        raise TokenizerError(f"{path.name} holds none of {', '.join(_BY_FILE)}. {_COPY}")
    name = _BY_FILE[file]
    if name == "Bert" and _read(lambda: _lines(path / file), path / file).keys() >= {*_MPNET.values()}:
        return "MPNet"  # which has BERT's special tokens, too, as common tokens
    if name == "Roberta" and "</s>" not in _read(lambda: _vocabulary(path / file), path / file):
        return "GPT2"
    return name


def _build(folder: Path, file: Path, config: dict[str, Any], name: str, known: _Class | None) -> tokenizers.Tokenizer:
    tokens = added_tokens.declared(
        config,
        _read_config(folder / SPECIAL_TOKENS),
        _read_config(folder / ADDED_TOKENS),
        known.defaults() if known else Declared({}, (), {}),
    )
    source = _Source(file, config, tokens.names())
    if known is None or file.name == TOKENIZER_JSON:
        tokenizer = _from_tokenizer_json(source, name)
    else:
        tokenizer = known.read(source)
    added_tokens.add(tokenizer, tokens)
    return tokenizer


def _read(read: Callable[[], T], path: Path) -> T:
    try:
        return read()
    except (TokenizerError, ImportError, KeyboardInterrupt, SystemExit):
        raise
    except BaseException as error:  # the library raises bare Exception for any invalid file, or panics
        what = "not in UTF-8; save it in that encoding" if isinstance(error, UnicodeError) else sources.instead(path)
        reason = f"it is {what}." if what else f"{str(error).rstrip('.')}. Download it once more."
        raise TokenizerError(f"{path.name} cannot be read as a tokenizer: {reason}") from error


def _read_config(path: Path) -> dict[str, Any]:
    try:
        config = sources.read_json(path)
    except FileNotFoundError:
        return {}
    except sources.JsonError as error:
        raise TokenizerError(f"{path.name} {error}.") from None
    if not isinstance(config, dict):
        raise TokenizerError(f"{path.name} is not a JSON object.")
    return config


def _lines(path: Path) -> dict[str, int]:
    """Reads a vocabulary with one token per line."""
    with path.open(encoding="utf-8") as lines:
        return {line.rstrip("\n"): index for index, line in enumerate(lines)}


def _vocabulary(path: Path) -> dict[str, int]:
    """Reads a vocabulary in JSON."""
    vocab: dict[str, int] = json.loads(path.read_text("utf-8"))
    return vocab


def _from_tokenizer_json(source: _Source, name: str) -> tokenizers.Tokenizer:
    tokenizer = tokenizers.Tokenizer.from_file(str(source.path))
    # As in transformers, the configuration overrides the file.
    normalizer, pre_tokenizer, processor = tokenizer.normalizer, tokenizer.pre_tokenizer, tokenizer.post_processor
    if isinstance(normalizer, normalizers.BertNormalizer) and name in _LOWERING:
        normalizer.lowercase = source.option("do_lower_case", True)
        normalizer.strip_accents = source.option("strip_accents", None)
        if name != "MPNet":
            normalizer.handle_chinese_chars = source.option("tokenize_chinese_chars", True)
    if isinstance(pre_tokenizer, pre_tokenizers.ByteLevel):
        pre_tokenizer.add_prefix_space = bool(source.option("add_prefix_space", False))
    if isinstance(processor, processors.RobertaProcessing) and name != _GENERIC:
        processor.add_prefix_space = bool(source.option("add_prefix_space", False))
        processor.trim_offsets = source.option("trim_offsets", True)
    if name == "Gemma":
        _check_ends(tokenizer, source)
    return tokenizer


def _check_ends(tokenizer: tokenizers.Tokenizer, source: _Source) -> None:
    """Refuses a file whose special tokens around a text are not those of the options.

    transformers 4 follows the options, and version 5 the file. What version 5 wrote names its `backend`.
    """
    if "backend" in source.config:
        return
    ids, named = tokenizer.get_vocab(), replace(source, specials={"bos": "<bos>", "eos": "<eos>", **source.specials})
    ends = {
        role: named.special(role, ids)
        for role, default in (("bos", True), ("eos", False))
        if source.option(f"add_{role}_token", default)
    }

    def around(text: str, kind: int) -> str:
        slots = [ends.get("bos", ("",))[0], f"${text}", ends.get("eos", ("",))[0]]
        return " ".join(f"{slot}:{kind}" for slot in slots if slot)

    file = json.loads(tokenizer.to_str())["post_processor"]
    tokenizer.post_processor = processors.TemplateProcessing(
        single=around("A", 0), pair=f"{around('A', 0)} {around('B', 1)}", special_tokens=[*ends.values()]
    )
    if file != json.loads(tokenizer.to_str())["post_processor"]:
        raise TokenizerError(
            "tokenizer.json puts other special tokens around a text than add_bos_token and add_eos_token in "
            f"tokenizer_config.json say, and versions of transformers differ. {_OWN_FILE}"
        )


def _from_vocab(source: _Source) -> tokenizers.Tokenizer:
    """Reads a WordPiece vocabulary. Equals `BertConverter` of transformers."""
    return _word_pieces(source, single="$CLS:0 $A:0 $SEP:0", pair="$CLS:0 $A:0 $SEP:0 $B:1 $SEP:1")


def _from_mpnet_vocab(source: _Source) -> tokenizers.Tokenizer:
    """Reads a WordPiece vocabulary. Equals `MPNetConverter` of transformers: a pair has two separators."""
    return _word_pieces(source, single="$CLS:0 $A:0 $SEP:0", pair="$CLS:0 $A:0 $SEP:0 $SEP:0 $B:1 $SEP:1")


def _word_pieces(source: _Source, single: str, pair: str) -> tokenizers.Tokenizer:
    vocab = _lines(source.path)
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


def _from_merges(source: _Source) -> tokenizers.Tokenizer:
    """Reads a byte-level BPE: `vocab.json` and its `merges.txt`."""
    merges = source.path.with_name("merges.txt")
    if not merges.is_file():
        raise TokenizerError(f"{source.path.name} has no {merges.name} beside it.")
    vocab = _vocabulary(source.path)
    if any(token.endswith("</w>") for token in vocab):
        raise TokenizerError(
            f"{source.path.name} holds a BPE whose words end in </w>, which is not byte-level. {_OWN_FILE}"
        )
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE.from_file(str(source.path), str(merges)))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=bool(source.option("add_prefix_space", False)))
    tokenizer.decoder = decoders.ByteLevel()
    return tokenizer


def _from_roberta(source: _Source) -> tokenizers.Tokenizer:
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


def _from_gpt2(source: _Source) -> tokenizers.Tokenizer:
    """Reads a byte-level BPE. Equals `GPT2Converter` of transformers: nothing surrounds a text."""
    tokenizer = _from_merges(source)
    tokenizer.post_processor = processors.ByteLevel(trim_offsets=False)
    return tokenizer


def _from_fairseq(source: _Source, *, is_camembert: bool = False) -> tokenizers.Tokenizer:
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


def _from_camembert(source: _Source) -> tokenizers.Tokenizer:
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


def _from_sentencepiece(source: _Source) -> tokenizers.Tokenizer:
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


def _from_deberta(source: _Source) -> tokenizers.Tokenizer:
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


def _albert_normalizer(source: _Source, charsmap: bytes) -> normalizers.Normalizer:
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


def _with_cleanup(decoder: decoders.Decoder) -> decoders.Decoder:
    """Appends `clean_up_tokenization` of transformers, so that `tokenizer.json` is complete."""
    separated = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
    replacements = [decoders.Replace(text, text.strip()) for text in separated]
    return decoders.Sequence([decoder, decoders.Fuse(), *replacements])


_SPACE_BEFORE: Final = {"lstrip": True}  # the mask token includes it
CLASSES: Final[Mapping[str, _Class]] = {
    "Bert": _Class("vocab.txt", _from_vocab, _BERT),
    "DistilBert": _Class("vocab.txt", _from_vocab, _BERT),
    "Electra": _Class("vocab.txt", _from_vocab, _BERT),
    "MobileBert": _Class("vocab.txt", _from_vocab, _BERT),
    "MPNet": _Class("vocab.txt", _from_mpnet_vocab, _MPNET, _SPACE_BEFORE),
    "Albert": _Class("spiece.model", _from_sentencepiece, _ALBERT, _SPACE_BEFORE),
    "DebertaV2": _Class("spm.model", _from_deberta, _DEBERTA),
    "Roberta": _Class("vocab.json", _from_roberta, _ROBERTA, _SPACE_BEFORE),
    "GPT2": _Class("vocab.json", _from_gpt2, _GPT2),
    "XLMRoberta": _Class("sentencepiece.bpe.model", _from_fairseq, _ROBERTA, _SPACE_BEFORE | {"normalized": True}),
    "Camembert": _Class("sentencepiece.bpe.model", _from_camembert, _ROBERTA, _SPACE_BEFORE, _CAMEMBERT_MORE),
}
_BY_FILE: Final = {
    TOKENIZER_JSON: _GENERIC,
    **{CLASSES[name].file: name for name in ("Bert", "Albert", "Roberta", "XLMRoberta")},
}
