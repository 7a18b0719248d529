"""The special and added tokens that a checkpoint of transformers declares beside its vocabulary.

transformers writes them to `added_tokens_decoder` of `tokenizer_config.json`, and older versions to `added_tokens.json`
and `special_tokens_map.json`. Follows `_from_pretrained` and `PreTrainedTokenizerFast` of transformers 4.57.1.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import tokenizers
from tokenizers import AddedToken

from swiftlet_models.errors import ModelError

ROLES: Final = ("bos", "eos", "unk", "sep", "pad", "cls", "mask")
LISTS: Final = ("additional_special_tokens", "extra_special_tokens")  # the second is the name in transformers 5
OPTIONS: Final = ("single_word", "lstrip", "rstrip", "normalized")


class TokenizerError(ModelError):
    """Raised when a file or directory holds no usable tokenizer. The message is one sentence."""


@dataclass(frozen=True)
class Declared:
    """The tokens that a checkpoint declares."""

    named: Mapping[str, AddedToken]  # special tokens by their role, set by the class or by the files
    more: Sequence[AddedToken]  # additional special tokens
    numbered: Mapping[int, AddedToken]  # tokens with an id, in the order of their ids

    def names(self) -> dict[str, str]:
        """Returns the content of each special token, by its role."""
        return {role: token.content for role, token in self.named.items()}


def declared(
    config: Mapping[str, Any],
    special_map: Mapping[str, Any],
    added: Mapping[str, Any],
    defaults: Declared,
) -> Declared:
    """Reads `tokenizer_config.json`, `special_tokens_map.json` and `added_tokens.json`.

    Only the first counts if it has an `added_tokens_decoder`. `defaults` are the special tokens of the class.

    Raises:
        TokenizerError: an entry is no token.
    """
    is_whole = "added_tokens_decoder" in config
    settings = dict(config) if is_whole else {**config, **special_map}
    named = dict(defaults.named)
    for role in ROLES:
        if (value := settings.get(f"{role}_token")) is not None:
            named[role] = _token(value, defaults.named.get(role))
    lists = [settings[name] for name in LISTS if settings.get(name) is not None]
    values = [value for tokens in lists for value in (tokens.values() if isinstance(tokens, dict) else tokens)]
    more = [_token(value) for value in values] if lists else list(defaults.more)
    special = {token.content for token in (*named.values(), *more)}
    numbered = {}
    for number, entry in config["added_tokens_decoder"].items() if is_whole else ((v, k) for k, v in added.items()):
        if isinstance(number, bool) or not str(number).isdecimal():
            raise TokenizerError(f"the added token {entry!r} has no id.")
        token = AddedToken(entry, normalized=entry not in special) if isinstance(entry, str) else _token(entry)
        token.special = token.content in special or (isinstance(entry, dict) and entry.get("special") is True)
        numbered[int(number)] = token
    return Declared(named, more, dict(sorted(numbered.items())))


def _token(value: object, default: AddedToken | None = None) -> AddedToken:
    """Reads a special token: its text, which then has the options of the default, or an object with its options."""
    if isinstance(value, str):
        options = {key: getattr(default, key) for key in OPTIONS} if default else {"normalized": False}
        return AddedToken(value, special=True, **options)
    if isinstance(value, dict) and isinstance(value.get("content"), str):
        options = {key: value[key] for key in OPTIONS if key in value}
        if all(isinstance(option, bool) for option in options.values()):
            return AddedToken(value["content"], special=True, **options)
    raise TokenizerError(f"the added token {value!r} is neither a text nor an object with its content.")


def add(tokenizer: tokenizers.Tokenizer, tokens: Declared) -> None:
    """Adds tokens to a tokenizer, except special tokens of a role that its vocabulary lacks.

    Raises:
        TokenizerError: a token does not get the id that the checkpoint declares for it.
    """
    tokenizer.add_tokens(list(tokens.numbered.values()))
    for number, token in tokens.numbered.items():
        vocabulary_id = tokenizer.token_to_id(token.content)
        if vocabulary_id != number:
            raise TokenizerError(
                f"the added token {token.content!r} has the id {number}, but the vocabulary gives {vocabulary_id}."
            )
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    named = [token for token in tokens.named.values() if tokenizer.token_to_id(token.content) is not None]
    tokenizer.add_tokens([token for token in (*named, *tokens.more) if token.content not in known])
