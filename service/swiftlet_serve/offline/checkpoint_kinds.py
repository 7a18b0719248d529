"""The kinds of checkpoints that are imported: a reader for each, which says what network, head and tokenizer it has."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from swiftlet_models import convert, pair_prompts, setfit, static_embeddings
from swiftlet_models import sentence_transformers as sentences
from swiftlet_models.adapters import Adapter
from swiftlet_models.artifact import Embedding, Head, Outputs, PairPrompt, PoolingOption, Problem
from swiftlet_models.checkpoint_tensors import ConversionError
from swiftlet_models.checkpoint_tokenizer import read_limits
from swiftlet_models.convert import ConvertedCheckpoint
from swiftlet_models.label_checkpoints import LabelCheckpoint, find_label_checkpoint
from swiftlet_models.static_embeddings import StaticEmbeddings
from swiftlet_models.task_inference import infer_task
from swiftlet_models.tensors import HeadWeights, Weights
from swiftlet_models.tokenizer import Tokenizer
from swiftlet_serve import tasks
from swiftlet_serve.errors import SetupError


@dataclass(frozen=True)
class Wanted:
    """A directory, and what it is to be imported as."""

    directory: Path  # of the base, if it is an adapter
    source: str  # what the user calls it
    task: str
    adapter: Adapter | None = None
    pooling: PoolingOption | None = None

    @property
    def reads_vectors(self) -> bool:
        """Whether the task can read vectors."""
        definition = tasks.load(self.task)
        return "embedding" in (definition.HEAD, *getattr(definition, "OTHER_HEADS", {}))

    def refuse_pooling(self) -> None:
        if self.pooling:
            raise SetupError(f"The task {self.task} has no use for --pooling. Leave it out.")


@dataclass(frozen=True)
class Checkpoint:
    """What a checkpoint holds. `open` gives its network."""

    directory: Path  # of transformers, or of static embeddings
    head: Head
    outputs: Outputs
    max_tokens: int | None  # of a text; None: as many as the network has positions
    embedding: Embedding | None = None
    parameters: Weights = field(default_factory=dict)  # of the head, which are not among the network's tensors
    adapter: Adapter | None = None
    labels: tuple[str, ...] = ()  # other than those of config.json
    problem: Problem | None = None  # another than that of config.json
    labelled: LabelCheckpoint | None = None
    head_weights: HeadWeights | None = None
    static: StaticEmbeddings | None = None
    pair_prompt: PairPrompt | None = None

    @property
    def tokens(self) -> Path:
        """The directory of the tokenizer."""
        return self.adapter.tokenizer if self.adapter else self.directory

    def tokenizer(self) -> Tokenizer:
        """Raises TokenizerError if the tokenizer is not supported."""
        return self.static.tokenizer if self.static else Tokenizer.from_directory(self.tokens)

    def open(self, origin: Mapping[str, Any]) -> AbstractContextManager[ConvertedCheckpoint]:
        """Opens the network for the duration of a block, as `convert` does."""
        if self.static:
            return nullcontext(self.static.converted(origin))
        return convert.convert(
            self.directory,
            self.head,
            self.outputs,
            source=origin,
            embedding=self.embedding,
            parameters=self.parameters,
            adapter=self.labelled or self.adapter,
        )


def read(wanted: Wanted) -> Checkpoint:
    """Reads what a checkpoint holds, but not its network.

    Raises:
        ConversionError: a file is missing or invalid, or a setting is not supported.
        SetupError: an option is of no use for this kind of checkpoint.
    """
    return next(found for reader in READERS if (found := reader(wanted)))


def _labelled(wanted: Wanted) -> Checkpoint | None:
    """Reads a GLiNER or a GLiClass."""
    if (labelled := find_label_checkpoint(wanted.directory)) is None:
        return None
    wanted.refuse_pooling()
    if wanted.adapter:
        raise SetupError("An adapter of GLiNER or GLiClass is not supported. Merge it with peft, and save that.")
    if wanted.task != (own := infer_task(wanted.directory, wanted.source)):
        raise SetupError(f"The checkpoint reads labels for the task {own}, not {wanted.task}.")
    embedding, projection = labelled.read_projection()
    return Checkpoint(
        wanted.directory,
        "embedding",
        "hidden",
        labelled.max_tokens,
        embedding,
        projection,
        labelled=labelled,
        head_weights=labelled.read_head(),
    )


def _static(wanted: Wanted) -> Checkpoint | None:
    """Reads static embeddings."""
    if not static_embeddings.is_static(wanted.directory):
        return None
    classifies = wanted.task == "classify" and static_embeddings.is_classifier(wanted.directory)
    if wanted.pooling or not (wanted.reads_vectors or classifies):
        choice = "--pooling" if wanted.pooling else f"--task {wanted.task}"
        raise SetupError(f"The directory holds static embeddings, which have no use for {choice}. Leave it out.")
    static = static_embeddings.read(wanted.directory, classifies=classifies)
    return Checkpoint(wanted.directory, "embedding", "hidden", None, static=static)


def _setfit(wanted: Wanted) -> Checkpoint | None:
    """Reads a classifier of SetFit."""
    if wanted.task != "classify" or not setfit.is_classifier(wanted.directory):
        return None
    wanted.refuse_pooling()
    encoder, labels = setfit.read_encoder(wanted.directory)
    return _of_encoder(encoder, wanted.adapter, labels=labels, problem="single_label")


def _vectors(wanted: Wanted) -> Checkpoint | None:
    """Reads a model of sentence-transformers, or an encoder of transformers with a pooling."""
    needed = tasks.load(wanted.task).HEAD == "embedding"
    if not wanted.reads_vectors or not (needed or wanted.pooling or sentences.is_encoder(wanted.directory)):
        return None
    return _of_encoder(sentences.read_encoder(wanted.directory, wanted.pooling), wanted.adapter)


def _of_encoder(encoder: sentences.SentenceEncoder, adapter: Adapter | None, **more: Any) -> Checkpoint:
    return Checkpoint(
        encoder.checkpoint,
        "embedding",
        "hidden",
        encoder.max_tokens,
        encoder.embedding,
        encoder.dense,
        adapter,
        head_weights=None if encoder.query_weights is None else {tasks.QUERY_WEIGHTS: encoder.query_weights},
        **more,
    )


def _with_head(wanted: Wanted) -> Checkpoint:
    """Reads a checkpoint of transformers with the head of the task."""
    wanted.refuse_pooling()
    definition, directory = tasks.load(wanted.task), wanted.directory
    limit = read_limits(wanted.adapter.tokenizer if wanted.adapter else directory).max_tokens
    found = Checkpoint(directory, definition.HEAD, definition.OUTPUTS, limit, adapter=wanted.adapter)
    if definition.HEAD != "classification" or not getattr(definition, "CROSS_ENCODER", False):
        return found
    problem = sentences.cross_encoder_problem(directory)
    prompt = pair_prompts.find_prompt(directory, wanted.source)
    prompts, default = sentences.read_prompts(directory)
    if prompt is None and default and prompts[default]:
        raise ConversionError(
            f"{sentences.SETTINGS}: the default prompt of a cross-encoder is not supported. Remove "
            "default_prompt_name, and have clients put its words in front of their queries."
        )
    if head := pair_prompts.read_head(directory, found.tokenizer):
        prompt = prompt or pair_prompts.QWEN3_RERANKER
        found = replace(found, outputs=1, parameters=head, labels=(pair_prompts.LABEL,))
    return replace(found, problem=problem, pair_prompt=prompt)


READERS: Final[Sequence[Callable[[Wanted], Checkpoint | None]]] = (_labelled, _static, _setfit, _vectors, _with_head)
