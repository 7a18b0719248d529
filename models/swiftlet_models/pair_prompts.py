"""The prompt of a reranker that reads a query and a document as one text, and the head of one that answers yes or no.

The prompt is in a chat template, whose messages have the roles query, document and, for an instruction, system. A
template is a program of Jinja. It is not run: a small part of the language is read, and everything else is refused.

The Qwen3-Reranker (Zhang et al. 2025, arXiv:2506.05176) is a language model. The score is the difference between the
logits of yes and no for the next token. sentence-transformers has the two tokens in the module `LogitScore`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from swiftlet_models import sources
from swiftlet_models.artifact import PairPrompt
from swiftlet_models.checkpoint_card import MODEL_CARD
from swiftlet_models.checkpoint_tensors import ConversionError, open_tensors, read_object
from swiftlet_models.regular_file import check_regular
from swiftlet_models.sentence_transformers import MODULES, read_modules, read_prompts
from swiftlet_models.tensors import Weights
from swiftlet_models.tokenizer import Tokenizer

TEMPLATE: Final = "chat_template.jinja"
LABEL: Final = "LABEL_0"  # as transformers calls the only one
CAUSAL: Final = "Qwen3ForCausalLM"
# The prompt that the model card of Qwen3-Reranker gives.
QWEN3_RERANKER: Final = PairPrompt(
    before=(
        "<|im_start|>system\nJudge whether the Document meets the requirements based on the Query and the Instruct "
        'provided. Note that the answer can only be "yes" or "no".<|im_end|>\n<|im_start|>user\n<Instruct>: ',
        "instruction",
        "\n<Query>: ",
        "query",
        "\n<Document>: ",
    ),
    after="<|im_end|>\n<|im_start|>assistant\n<think>\n\n</think>\n\n",
    instruction="Given a web search query, retrieve relevant passages that answer the query",
)

_NAME: Final = "Qwen3-Reranker"
_TAG: Final = re.compile(r"\{([%{#])([-+]?)(.*?)([-+]?)[%}#]\}", re.DOTALL)
_SET: Final = re.compile(r"set\s+(\w+)\s*=(.*)", re.DOTALL)
_STRING: Final = r'"(?:[^"\\]|\\.)*"|\'(?:[^\'\\]|\\.)*\''
_ATOM: Final = re.compile(
    r"""\(?\s*messages\s*\|\s*selectattr\(\s*["']role["']\s*,\s*["']eq(?:ualto)?["']\s*,\s*["'](?P<role>\w+)["']\s*\)"""
    r"""\s*\|\s*(?:map\(\s*attribute\s*=\s*["']content["']\s*\)\s*\|\s*first|first\s*\)\s*\.content(?:\[0\]\.text)?)"""
    rf"""(?:\s*\|\s*default\(\s*(?P<default>{_STRING})\s*\))?|(?P<string>{_STRING})|(?P<name>\w+)""",
    re.DOTALL,
)
_FIELDS: Final = {"system": "instruction", "query": "query", "document": "document"}


class Part(NamedTuple):
    """A text of a template, or a field with its default."""

    text: str
    field: str = ""  # "query", "document" or "instruction"


class PairPromptError(ConversionError):
    """Raised when a chat template cannot be read. The message is one sentence."""

    def __init__(self, what: str) -> None:
        super().__init__(
            f"the chat template writes a pair in a way that is not supported ({what}). Write a {TEMPLATE} of texts and "
            '{{ messages | selectattr("role", "eq", "query") | map(attribute="content") | first }}, with the roles '
            "system, query and document."
        )


def find_prompt(directory: Path, source: str = "") -> PairPrompt | None:
    """Returns the prompt of a checkpoint, or None if there is none: a pair is then two texts.

    It is that of a chat template for pairs, or the published one if the checkpoint says that it is a Qwen3-Reranker.

    Raises:
        PairPromptError: the template is not supported.
    """
    settings = sources.read_config(directory / "sentence_bert_config.json")
    options = settings.get("processing_kwargs")
    options = options.get("chat_template") if isinstance(options, dict) else None
    options = options if isinstance(options, dict) else {}
    template = next((text for text in _templates(directory, options) if _is_for_pairs(text)), None)
    if template is None:
        return QWEN3_RERANKER if is_qwen3_reranker(directory, source) else None
    prompts, default = read_prompts(directory)
    return read_template(template, prompts[default] if default else None, options)


def is_qwen3_reranker(directory: Path, source: str = "") -> bool:
    """Returns whether a checkpoint says that it is a Qwen3-Reranker: by its name, its base, or its model card."""
    config = sources.read_config(directory / "config.json")
    if config.get("model_type") != "qwen3":
        return False
    try:
        check_regular(directory / MODEL_CARD)
        with (directory / MODEL_CARD).open(encoding="utf-8", errors="replace") as card:
            text = card.read(1 << 16)
    except OSError:
        text = ""
    said = re.match(r"\s*(?:---\n.*?\n---\s*)?(?:#[^\n]*)?", text, re.DOTALL)  # the metadata and the title
    names = (source, directory.name, str(config.get("_name_or_path", "")), said[0] if said else "")
    return any(_NAME.lower() in name.lower() for name in names)


def answers_yes_or_no(directory: Path, source: str = "") -> bool:
    """Returns whether a checkpoint is a language model that says that it is a reranker."""
    if (directory / MODULES).is_file():
        return [kind for kind, _ in read_modules(directory)] == ["Transformer", "LogitScore"]
    return _is_causal(directory) and find_prompt(directory, source) is not None


def read_head(directory: Path, read_tokenizer: Callable[[], Tokenizer]) -> Weights | None:
    """Returns the head of a language model whose answer is yes or no: (1, H), a difference of two words' rows.

    The tokenizer is read for a model without LogitScore. None if the checkpoint is no such model.

    Raises:
        ConversionError: the vocabulary or the network lacks the words.
    """
    score: Mapping[str, Any] = {}
    if (directory / MODULES).is_file():
        score = next((read_object(path / "config.json") for kind, path in read_modules(directory)[1:]), {})
    if not score and not _is_causal(directory):
        return None
    if score:
        ids = [score.get("true_token_id"), score.get("false_token_id")]
    else:
        ids = [*map(read_tokenizer().token_to_id, ("yes", "no"))]
    if ids[0] is None or (ids[1] is None and not score):
        raise ConversionError("the vocabulary lacks the words yes and no, which a reranker answers.")
    tied = sources.read_config(directory / "config.json").get("tie_word_embeddings", True)
    with open_tensors(directory) as tensors:
        ends = ("embed_tokens.weight",) if tied else ("lm_head.weight",)
        table = next((tensors[name] for name in sorted(tensors) if name.endswith(ends)), None)
        if table is None or len(table.shape) != 2:
            raise ConversionError(f"the checkpoint has no {ends[0]}, whose rows yes and no score a pair.")
        rows = []
        for number in ids:
            if number is None:
                continue
            if type(number) is not int or not 0 <= number < len(table):
                raise ConversionError("LogitScore names a token that the network does not have.")
            rows.append(np.asarray(table[number : number + 1], np.float32))
    return {"head.output.weight": rows[0] - rows[1] if len(rows) > 1 else rows[0]}


def read_template(text: str, instruction: str | None = None, options: Mapping[str, Any] | None = None) -> PairPrompt:
    """Reads a chat template. `instruction` replaces its own, and `options` are those of the call.

    Raises:
        PairPromptError: the template has other parts than texts, the roles, and what is set to them.
    """
    before: list[str] = [""]
    after: str | None = None
    own = ""
    for part in _parts(text, options or {}):
        if not part.field:
            if after is None:
                before[-1] += part.text
            else:
                after += part.text
        elif after is not None:
            raise PairPromptError("the document is not the last of them")
        elif part.field == "document":
            after = ""
        else:
            before += [part.field, ""]
            own = part.text if part.field == "instruction" else own
    if after is None or "query" not in before[1::2]:
        raise PairPromptError("it lacks a query or a document")
    return PairPrompt(tuple(before), after, own if instruction is None else instruction)


def _is_causal(directory: Path) -> bool:
    return sources.read_config(directory / "config.json").get("architectures") == [CAUSAL]


def _is_for_pairs(template: str) -> bool:
    return all(re.search(rf"""["']{role}["']""", template) for role in ("query", "document"))


def _templates(directory: Path, options: Mapping[str, Any]) -> Iterator[str]:
    """Yields the chat templates of a checkpoint: first the one that sentence-transformers is to take."""
    named = options.get("chat_template")
    if isinstance(named, str) and re.fullmatch(r"[\w-]+", named):
        yield from _read(directory / "additional_chat_templates" / f"{named}.jinja")
    yield from _read(directory / TEMPLATE)
    own = sources.read_config(directory / "tokenizer_config.json").get("chat_template")
    for one in own if isinstance(own, list) else [own]:
        template = one.get("template") if isinstance(one, dict) else one
        if isinstance(template, str):
            yield template


def _read(file: Path) -> Iterator[str]:
    if file.is_file():
        try:
            yield file.read_text("utf-8")
        except (OSError, UnicodeDecodeError) as error:
            raise ConversionError(f"{file.name} cannot be read ({type(error).__name__}).") from None


def _parts(text: str, options: Mapping[str, Any]) -> Iterator[Part]:
    """Yields the texts and the fields of a template.

    Spaces are left out as transformers has Jinja do it: around a tag with a hyphen, in front of a statement that begins
    a line, and the end of the line behind a statement.
    """
    text = text.replace("\r\n", "\n").removesuffix("\n")
    known: dict[str, list[Part]] = {}
    at, strips, shown = 0, "", [True]
    for tag in [*_TAG.finditer(text), None]:
        literal = text[at : tag.start() if tag else len(text)]
        begins_line = at == 0 or (strips == "%" and literal.startswith("\n"))
        literal = literal.lstrip() if strips == "-" else literal.removeprefix("\n") if strips == "%" else literal
        if tag:
            at = tag.end()
            strips = tag[4] if tag[4] or tag[1] == "{" else "%"
            if tag[2] == "-":
                literal = literal.rstrip()
            elif tag[1] != "{" and not tag[2]:
                literal = re.sub(r"(^|\n)[ \t]+$" if begins_line else r"(\n)[ \t]+$", r"\1", literal)
        if shown[-1]:
            yield Part(literal)
        if tag is None or tag[1] == "#":
            continue
        content = tag[3].strip()
        if tag[1] == "{":
            if shown[-1]:
                yield from _value(content, known)
        elif match := _SET.fullmatch(content):
            known[match[1]] = list(_value(match[2], known))
        elif content == "if add_generation_prompt" and len(shown) == 1:
            shown.append(options.get("add_generation_prompt") is True)
        elif content == "endif" and len(shown) > 1:
            shown.pop()
        else:
            raise PairPromptError("it has a statement other than set")


def _value(expression: str, known: Mapping[str, Sequence[Part]]) -> Iterator[Part]:
    """Yields the parts of an expression, which ~ joins: messages of a role, strings, and names that were set."""
    rest = expression.strip()
    while rest:
        match = _ATOM.match(rest)
        rest = rest[match.end() :].lstrip() if match else rest
        if match is None or (rest and rest[0] not in "~+"):
            raise PairPromptError("it has another expression than a message of a role")
        rest = rest[1:].lstrip()
        if match["string"]:
            yield Part(_unquoted(match["string"]))
        elif match["name"]:
            if match["name"] not in known:
                raise PairPromptError("it has an unknown name")
            yield from known[match["name"]]
        elif match["role"] not in _FIELDS:
            raise PairPromptError("it has a role other than system, query and document")
        else:
            yield Part(_unquoted(match["default"]) if match["default"] else "", _FIELDS[match["role"]])


def _unquoted(string: str) -> str:
    """Returns the text of a string in quotes, which Jinja writes as Python does."""
    try:
        return str(ast.literal_eval(string))
    except (SyntaxError, ValueError):
        raise PairPromptError("it has a string that cannot be read") from None
