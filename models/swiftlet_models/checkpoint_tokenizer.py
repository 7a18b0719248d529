"""Reads the tokenizer of a transformers checkpoint as a tokenizer of the `tokenizers` library.

Ids and offsets equal `AutoTokenizer`'s in transformers 4.57.1. `tokenizer_classes.py` has the classes.
A class that is not reproduced exactly is refused by its name.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TypeVar, get_args

import tokenizers
from tokenizers import decoders, normalizers, pre_tokenizers, processors

from swiftlet_models import added_tokens, sources
from swiftlet_models.added_tokens import Declared, TokenizerError
from swiftlet_models.artifact import Side
from swiftlet_models.tokenizer_classes import CLASSES, MPNET, OWN_FILE, Class, Source, read_lines, read_vocabulary

NO_LIMIT: Final = 1e20  # from here on, a length means none: transformers writes 1e30
TOKENIZER_JSON: Final = "tokenizer.json"
ADDED_TOKENS: Final = "added_tokens.json"
SPECIAL_TOKENS: Final = "special_tokens_map.json"

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


T = TypeVar("T")


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
        without, step = (f" without {TOKENIZER_JSON}", _SAVE) if name in _FILE_ONLY else ("", OWN_FILE)
        raise TokenizerError(f"the tokenizer class {name}Tokenizer is not supported{without}. {step}")
    if not file.is_file():
        files = " or ".join(dict.fromkeys([TOKENIZER_JSON, file.name]))
        raise TokenizerError(f"{path.name} holds no {files}, which {name}Tokenizer reads. {_COPY}")
    tokenizer = _read(lambda: _build(path, file, config, name, known), file)
    if config.get("clean_up_tokenization_spaces", file.name == "vocab.txt"):  # the default of transformers 4.57.1
        tokenizer.decoder = _with_cleanup(tokenizer.decoder)
    return tokenizer


def reads_types(path: Path) -> bool:
    """Returns whether the network of a checkpoint reads token types, and not type 0 for both texts of a pair.

    `model_input_names` tells it. The class that transformers 5 calls TokenizersBackend has none by default.

    Raises:
        TokenizerError: the names are no list of texts.
    """
    config = _read_config(path / "tokenizer_config.json")
    if (names := config.get("model_input_names")) is None:
        return config.get("tokenizer_class") != "TokenizersBackend"
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise TokenizerError("tokenizer_config.json: model_input_names is not a list of names. Remove it.")
    return "token_type_ids" in names


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
            f"auto_map names the tokenizer {names}, which is code of the checkpoint and is not run. {OWN_FILE} "
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
    if name == "Bert" and _read(lambda: read_lines(path / file), path / file).keys() >= {*MPNET.values()}:
        return "MPNet"  # which has BERT's special tokens, too, as common tokens
    if name == "Roberta" and "</s>" not in _read(lambda: read_vocabulary(path / file), path / file):
        return "GPT2"
    return name


def _build(folder: Path, file: Path, config: dict[str, Any], name: str, known: Class | None) -> tokenizers.Tokenizer:
    tokens = added_tokens.declared(
        config,
        _read_config(folder / SPECIAL_TOKENS),
        _read_config(folder / ADDED_TOKENS),
        known.defaults() if known else Declared({}, (), {}),
    )
    source = Source(file, config, tokens.names())
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


def _from_tokenizer_json(source: Source, name: str) -> tokenizers.Tokenizer:
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


def _check_ends(tokenizer: tokenizers.Tokenizer, source: Source) -> None:
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
            f"tokenizer_config.json say, and versions of transformers differ. {OWN_FILE}"
        )


def _with_cleanup(decoder: decoders.Decoder) -> decoders.Decoder:
    """Appends `clean_up_tokenization` of transformers, so that `tokenizer.json` is complete."""
    separated = (" .", " ?", " !", " ,", " ' ", " n't", " 'm", " 's", " 've", " 're")
    replacements = [decoders.Replace(text, text.strip()) for text in separated]
    return decoders.Sequence([decoder, decoders.Fuse(), *replacements])


_BY_FILE: Final = {
    TOKENIZER_JSON: _GENERIC,
    **{CLASSES[name].file: name for name in ("Bert", "Albert", "Roberta", "XLMRoberta")},
}
