"""The response of GET /models: the served models with their cards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import BaseModel, Field

from swiftlet_serve.inference.pipeline import Pipeline
from swiftlet_serve.telemetry.snapshot import VersionState


class VersionInfo(BaseModel):
    """A version of a model that the server serves, or has tried to."""

    version: Annotated[int, Field(description='Its number, for the field "model" of a request as `name@version`.')]
    state: Annotated[
        Literal["unloaded", "loading", "ready", "failed"],
        Field(description="Whether it is in memory. An unloaded version is loaded on request."),
    ]
    reason: Annotated[str, Field(description="Why a failed version could not be loaded.")]
    aliases: Annotated[list[str], Field(description="Other names, for `name@alias`.")]
    share: Annotated[float, Field(description="Share of the requests that name no version, if they are split.")]


class ModelInfo(BaseModel):
    """A served model."""

    name: Annotated[str, Field(description='Name of the model, for the field "model" of a request.')]
    version: Annotated[str, Field(description="Version of the artifact.")]
    task: Annotated[str, Field(description="Task that the model was made for, which is also its route.")]
    other_tasks: Annotated[
        list[str],
        Field(description="Other tasks that the model answers. It may be their default if no model was made for them."),
    ]
    default: Annotated[bool, Field(description="Whether the model answers requests of its task that name no model.")]
    architecture: Annotated[str, Field(description="Architecture of the network.")]
    precision: Annotated[str, Field(description="Precision of the weights: fp32, bf16 or int8.")]
    engine: Annotated[str, Field(description="Engine that runs the model.")]
    runtime: Annotated[
        str,
        Field(description="Kernel that runs the model, and the reason if a faster one is not used."),
    ]
    max_tokens: Annotated[int, Field(description="Maximum length of a sequence in tokens, including special tokens.")]
    labels: Annotated[list[str], Field(description="Labels of the model; empty if its outputs have no names.")]
    languages: Annotated[
        list[str],
        Field(description="Languages of the texts that the model was trained for, as BCP 47 tags; empty if not known."),
    ]
    mask: Annotated[str | None, Field(description="Mask token of a fill-mask model; null for other tasks.")]
    members: Annotated[
        list[str], Field(description="Models that answer together as this one; empty unless it is an ensemble.")
    ]
    card: Annotated[dict[str, Any], Field(description="Model card: sources, data, scores and speed.")]
    certificate: Annotated[
        dict[str, Any] | None,
        Field(
            description="Certificate: the files of the source, and how the model's answers agree with those of its "
            "network in fp32; null for a model without one."
        ),
    ]
    versions: Annotated[
        list[VersionInfo],
        Field(description="Versions of the model in the model repository; empty for a model that is from none."),
    ]


def describe(pipeline: Pipeline, default: bool, runtime: str, versions: Sequence[VersionState] = ()) -> dict[str, Any]:
    """Returns the description of a model in GET /models.

    Args:
        pipeline: the pipeline of its default version.
        default: whether it answers requests of its task that name no model.
        runtime: the title of its engine.
        versions: its versions in the model repository.
    """
    manifest = pipeline.model.manifest
    return ModelInfo(
        name=manifest.name,
        version=pipeline.version_name,
        task=manifest.task,
        other_tasks=list(pipeline.model.task_names[1:]),
        default=default,
        architecture=manifest.architecture,
        precision=manifest.precision,
        engine=pipeline.model.engine_name,
        runtime=runtime,
        max_tokens=manifest.max_tokens,
        labels=list(manifest.labels),
        languages=list(manifest.languages),
        mask=getattr(pipeline.model.task, "mask", None),
        members=list(pipeline.model.member_names),
        card=pipeline.model.card,
        certificate=pipeline.model.certificate,
        versions=[
            VersionInfo(
                version=version.version,
                state=version.state,
                reason=version.reason,
                aliases=list(version.aliases),
                share=version.share,
            )
            for version in versions
        ],
    ).model_dump()
