"""Imports a transformers checkpoint as an artifact."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Final

from swiftlet_models import (
    checkpoint_card,
    checkpoint_files,
    pair_prompts,
    sources,
    tokenizer_check,
)
from swiftlet_models import sentence_transformers as sentences
from swiftlet_models.artifact import (
    IMPORTED,
    LANGUAGE,
    NAME,
    NAME_RULE,
    AdapterForm,
    Artifact,
    Embedding,
    Manifest,
    PairPrompt,
    PoolingOption,
    Precision,
)
from swiftlet_models.label_scorer import LabellingError
from swiftlet_models.parameters import configure
from swiftlet_models.task_inference import infer_task
from swiftlet_models.tensorflow_checkpoint import as_transformers
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError
from swiftlet_serve.inference.model_source import model_name
from swiftlet_serve.offline import checkpoint_kinds
from swiftlet_serve.offline.certificate import sha256
from swiftlet_serve.offline.checkpoint_kinds import Checkpoint, Wanted
from swiftlet_serve.offline.draft import Draft
from swiftlet_serve.offline.evaluate import Measure, Progress
from swiftlet_serve.offline.label_network import open_label_network
from swiftlet_serve.offline.release import release

log = logging.getLogger(__name__)

OTHER: Final = "Leave out --strict, so that the next precision is tried"
DATA: Final = f"{OTHER}, or let your own examples decide: --data FILE with some hundreds of them."
MORE_DATA: Final = f"{OTHER}, measure on more examples with --data, or allow a larger loss with --max-loss."


NAMELESS: Final = re.compile(r"LABEL_\d+")  # a label as transformers calls it by default


def import_checkpoint(
    source: str,
    task: str | None,
    out: Path,
    *,
    name: str | None = None,
    revision: str | None = None,
    precision: Precision = "int8",
    measure: Measure | None = None,
    max_loss: float,
    keep_fp32: bool = False,
    pooling: PoolingOption | None = None,
    adapter_form: AdapterForm | None = None,
    languages: Sequence[str] = (),
    strict: bool = False,
    accept_tokenizer: bool = False,
    special_tokens: Sequence[str] = (),
    labels: Sequence[str] = (),
    pair_separator: str | None = None,
    report: Callable[[str], None],
    progress: Progress | None = None,
) -> tuple[Artifact, tuple[str, ...]]:
    """Converts `source`, a directory or a hub id, and releases it as `out/name`.

    Without a `task`, the files of the checkpoint tell it. `pooling` makes an encoder of transformers an embedding
    model. A directory of sentence-transformers has its own. `strict` refuses a network that int8 hurts, instead of
    writing it in fp32. `languages` are BCP 47 tags. Default: the tags of the checkpoint's model card.
    `accept_tokenizer` leaves out the check of the tokenizer on built-in texts. Texts may contain `special_tokens`.
    GLiNER finds `labels` for requests that name none. `adapter_form` merges an adapter into its base; default: if
    it cannot stay apart. `pair_separator` is a token between the two texts of a pair, for a tokenizer that puts no
    token there; empty: nothing.

    Returns the artifact and the names of the ignored tensors.

    Raises:
        ConversionError: the checkpoint cannot be converted exactly.
        TokenizerError: the tokenizer is not supported.
        ReleaseError, ArtifactError: as `release`.
        SetupError: the task does not exist, the name or a language is invalid, or the tokenizer does not fit or does
            not pass its check.
    """
    if refusal := sources.refusal(source):
        raise SetupError(refusal)
    directory, origin = checkpoint_files.locate(source, revision)
    if refusal := sources.refusal(str(directory)):  # of a repository on the hub
        raise SetupError(refusal)
    directory = as_transformers(directory, report)
    adapter = checkpoint_files.find_adapter(directory)
    if adapter_form and adapter is None:
        raise SetupError("Only an adapter of PEFT has a use for --adapter. Leave it out.")
    if adapter:
        adapter = replace(adapter, is_merged=adapter_form == "merged")
    if task is None:
        task = "embed" if pooling else infer_task(directory, source, adapter.settings if adapter else None)
        report(f"the task is {task}")
    name = name or model_name(source)
    if not NAME.fullmatch(name):
        raise SetupError(f"{name!r} is not a valid name. Set one with --name: {NAME_RULE}.")
    for language in languages:
        if not LANGUAGE.fullmatch(language):
            raise SetupError(f"{language!r} is not a language tag. Write one such as en, ko or zh-Hant.")
    languages = tuple(languages) or checkpoint_card.languages(directory)
    report("reading the checkpoint")
    parts = {"": directory} | ({"base/": adapter.base} if adapter else {})
    origin_files = ThreadPoolExecutor(1).submit(_hash, parts)  # on another core
    directory = adapter.base if adapter and not sentences.is_encoder(directory) else directory
    found = checkpoint_kinds.read(Wanted(directory, source, task, adapter, pooling))
    labelled, static = found.labelled, found.static
    if labels and not (labelled and task == "entities"):
        raise SetupError("Only GLiNER has a use for --label. Leave it out.")
    weights, *unread = checkpoint_files.weights(found.directory) or [[]]
    if unread:
        others = " nor ".join(form[0].name for form in unread)
        report(f"the weights are those in {weights[0].name}, and not those in {others}")
    with (
        found.open(origin) as converted,
        open_label_network(labelled.of_labels if labelled else None, converted.width) as of_labels,
    ):
        if converted.merged:
            report(f"the adapter is merged into its base: {converted.merged}")
        if "auto_map" in sources.read_config(found.directory / "config.json"):
            network = converted.architecture
            report(f"config.json names code (auto_map), which is not run: the network is read as {network}")
        tokenizer = found.tokenizer()
        differences: list[Future[str | None]] = []
        if not static and not accept_tokenizer:
            read = [(tokenizer, found.tokens)]
            if labelled and labelled.of_labels and of_labels:
                read.append((of_labels.tokenizer, labelled.of_labels.tokenizer))
            for each, _ in read:
                _check_letters(each, languages, report)
            # transformers takes seconds to import, mostly while the network is computed.
            thread = ThreadPoolExecutor(1)
            differences = [thread.submit(_difference, each, directory) for each, directory in read]
        config = configure(converted.architecture, converted.config)
        max_tokens = min(converted.positions, found.max_tokens or converted.positions)
        _check_masks(found.embedding, config)
        tokenizer = _configured(tokenizer, special_tokens, pair_separator)
        prompt = found.pair_prompt if pair_separator is None else None
        if labelled and not of_labels and tokenizer.token_to_id(labelled.labelling.marker) != labelled.token:
            raise SetupError("class_token_index is not the token in front of labels. Take the tokenizer of training.")
        if not labelled and not static:
            _tell_special_tokens(tokenizer, report)
        if prompt:
            report("a pair is read in the prompt of " + _origin(prompt))
        elif found.head == "classification":
            _check_pairs(tokenizer, task, pair_separator, report)
        _check_reading(tokenizer, found, task, config, max_tokens)
        types = getattr(config, "type_vocab_size", None) if config.traits().embedding.token_types else None
        if types is not None and tokenizer.token_types > types:
            raise SetupError(
                f"config.json: type_vocab_size {types} has no token type for the second text of a "
                'pair. If the model was trained without them, write "model_input_names": ["input_ids", '
                '"attention_mask"] into tokenizer_config.json.'
            )
        if tokenizer.vocab_size > config.vocab_size:
            raise SetupError(
                f"The tokenizer has {tokenizer.vocab_size} tokens, and the network only {config.vocab_size}. Take the "
                "tokenizer of the training; tokens that were added later need resize_token_embeddings and training."
            )
        manifest = Manifest(
            name=name,
            version="1",
            architecture=converted.architecture,
            task=task,
            head=found.head,
            precision=precision,
            max_tokens=max_tokens,
            vocab_size=config.vocab_size,
            width=converted.width,
            labels=found.labels or converted.labels,
            problem=found.problem or converted.problem,
            tolerance=1.0,
            config=converted.config,
            source=converted.source,
            embedding=converted.embedding,
            reading=replace(tokenizer.reading, pair_prompt=prompt),
            labelling=replace(labelled.labelling, labels=tuple(labels), encoder=of_labels.about if of_labels else None)
            if labelled
            else None,
            languages=languages,
        )
        try:
            label_tokenizer = of_labels.tokenizer if of_labels else None
            tasks.create(task, tokenizer, manifest, found.head_weights, label_tokenizer)  # before what takes long
        except LabellingError as error:
            raise SetupError(f"The head does not fit its settings: {error}. Save the whole model again.") from None
        except ValueError as error:
            fits = sources.seems_for(sources.read_config(found.directory / "config.json"))
            step = f" config.json fits --task {fits}." if fits and fits != task else ""
            raise SetupError(f"The checkpoint cannot serve the task {task}: {error}{step}") from None
        if len(manifest.labels) > 1 and all(map(NAMELESS.fullmatch, manifest.labels)):
            report('the labels have no names. "id2label": {"0": "NAME", "1": "NAME"} in config.json names them')
        summary = f"{IMPORTED}{origin.get('hub') or origin['directory']}."
        card = {"summary": summary, "ignored_tensors": list(converted.ignored)}
        draft = Draft(
            converted.weights, tokenizer, manifest, card, found.head_weights, of_labels, finite=static is None
        )
        try:
            artifact = release(
                draft,
                out / name,
                measure,
                max_loss=max_loss,
                keep_fp32=keep_fp32,
                strict=strict,
                advice=MORE_DATA if measure else DATA,
                source=lambda: {**converted.source, "files": origin_files.result()},
                confirm=partial(_check_differences, differences),
                report=report,
                progress=progress,
            )
        except OSError as error:
            raise SetupError(
                f"The artifact cannot be written: {error.strerror or error}. Make room, or choose another directory: "
                "--out, or model_cache of swiftlet serve."
            ) from None
    return artifact, converted.ignored


def _hash(parts: Mapping[str, Path]) -> dict[str, str]:
    """Returns the SHA-256 of each file that an import reads, by its name."""
    return {
        f"{prefix}{file.relative_to(directory)}": sha256(file)
        for prefix, directory in parts.items()
        for file in checkpoint_files.files(directory)
    }


def _configured(tokenizer: Tokenizer, special_tokens: Sequence[str], pair_separator: str | None) -> Tokenizer:
    try:
        if pair_separator:
            tokenizer = tokenizer.separating(pair_separator)
        return tokenizer.recognising(special_tokens) if special_tokens else tokenizer
    except ValueError as error:
        raise SetupError(f"--special-token or --pair-separator: {error}") from None


def _origin(prompt: PairPrompt) -> str:
    published = prompt.before == pair_prompts.QWEN3_RERANKER.before
    return "Qwen3-Reranker" if published else "its chat template"


def _tell_special_tokens(tokenizer: Tokenizer, report: Callable[[str], None]) -> None:
    others = [token for token in tokenizer.other_specials() if token not in tokenizer.reading.special_tokens]
    if others:
        named = ", ".join(others[:5]) + (f" and {len(others) - 5} more" if len(others) > 5 else "")
        report(
            f"{named} in a text will be read as common text. If texts of this model are to contain special tokens, "
            "name each with --special-token"
        )


def _check_pairs(tokenizer: Tokenizer, task: str, pair_separator: str | None, report: Callable[[str], None]) -> None:
    """Refuses a task that reads pairs if nothing says what is between the texts, and tells it for one that may."""
    if tokenizer.special_count(pair=True) or pair_separator is not None:
        return
    message = "The tokenizer puts nothing between the two texts of a pair"
    choice = "--pair-separator TOKEN if the model was trained with one, such as '<|endoftext|>'"
    if task == "classify":
        report(f"{message}. Add {choice}")
    else:
        raise SetupError(
            f"{message}, which the task {task} reads. Add {choice}, or --pair-separator '' if not. The prompt of a "
            f"reranker belongs into {pair_prompts.TEMPLATE}."
        )


def _check_reading(tokenizer: Tokenizer, found: Checkpoint, task: str, config: Any, max_tokens: int) -> None:
    """Refuses settings that make transformers number positions differently or read texts in another order.

    Raises:
        SetupError: a setting is not supported, or no text fits the limit.
    """
    if max_tokens <= tokenizer.special_count(pair=True):
        raise SetupError(f"The limit of {max_tokens} tokens (model_max_length, max_seq_length) has no room for a text.")
    traits = config.traits()
    # Positions follow the padding token's, and each occurrence of this token would repeat it. GPT-2 and Qwen classify
    # the last token that is not padding.
    padding = traits.embedding.position_offset - 1 if traits.embedding.position_offset else None
    if traits.classifies_last and found.head == "classification":
        padding = sources.read_config(found.directory / "config.json").get("pad_token_id")
    if isinstance(padding, int) and padding >= 0 and tokenizer.may_hold(padding):
        raise SetupError(
            f"config.json: pad_token_id {padding} is the token {tokenizer.token(padding)!r}, which texts contain. "
            "Set it to the padding token that the model was trained with."
        )
    settings = sources.read_config(found.tokens / "tokenizer_config.json")
    if task == "qa" and settings.get("padding_side") == "left":
        raise SetupError(
            "tokenizer_config.json: padding_side 'left' makes pipelines put the context before the question, which is "
            "not supported. If the model was trained with the question first, set it to 'right'."
        )


def _check_masks(embedding: Embedding | None, config: Any) -> None:
    """Refuses windows of attention in which a token that fills a query may find no token to attend to."""
    several = embedding.multi_vector if embedding else None
    if several is None or several.mask is None or several.reads_masks:
        return
    reach = [part.window // 2 for part in config.traits().attention if part.window is not None]
    if reach and (several.query_tokens or 0) > min(reach):
        raise SetupError(
            f"The queries are filled up to {several.query_tokens} tokens, and a token attends to the next {min(reach)} "
            "only. Lower query_length to that."
        )


def _check_letters(tokenizer: Tokenizer, languages: Sequence[str], report: Callable[[str], None]) -> None:
    lost = tokenizer_check.lost_share(tokenizer)
    if lost > tokenizer_check.MAX_LOST:
        raise SetupError(
            f"The tokenizer makes unknown tokens of {lost:.0%} of the letters of a built-in text. Probably the "
            "checkpoint needs another class of tokenizer than it names: save a tokenizer.json with the code that it "
            "was trained with. If the model reads no natural language, add --accept-tokenizer."
        )
    own = tokenizer_check.lost_share(tokenizer, languages)
    if own > tokenizer_check.MAX_LOST:
        report(f"the tokenizer makes unknown tokens of {own:.0%} of the letters of {' or '.join(languages)}")


def _difference(tokenizer: Tokenizer, directory: Path) -> str | None:
    """Returns what transformers reads otherwise, if it is installed and reads the tokenizer at all."""
    try:
        return tokenizer_check.difference(tokenizer, directory)
    except Exception as error:  # transformers is not installed, or its code for this checkpoint fails in some way
        log.debug("the tokenizer is not compared with transformers: %s", type(error).__name__)
        return None


def _check_differences(differences: Sequence[Future[str | None]]) -> None:
    for found in filter(None, (difference.result() for difference in differences)):
        raise SetupError(
            f"transformers reads the tokenizer otherwise: {found}. Save a tokenizer.json with "
            "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR). If its ids are wrong, add --accept-tokenizer."
        )
