"""The certificate of an artifact: where it comes from, and how its answers agree with those of its network in fp32.

`certificate.json` lies beside the manifest and holds its hash. `certificate.sig` is its signature.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import TypeAdapter, ValidationError

from swiftlet_models.artifact import CERTIFICATE, FORMATS, MANIFEST, OF_LABELS, SIGNATURE, Artifact
from swiftlet_models.metrics import Score
from swiftlet_serve import build_info, evaluation
from swiftlet_serve.errors import SetupError
from swiftlet_serve.machine.cores import usable_cores
from swiftlet_serve.offline.environment import processor
from swiftlet_serve.offline.evaluate import Evaluation, agreement, summary
from swiftlet_serve.offline.fidelity import Fidelity
from swiftlet_serve.offline.int8_gate import loss_of

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

FORMAT: Final = 1
BUILT_IN: Final = "built-in texts"


@dataclass(frozen=True)
class Comparison:
    """What some texts tell about a network."""

    texts: str  # the name of a file, or BUILT_IN
    sha256: str  # of the file
    n: int  # requests
    agreement: Mapping[str, Score]  # with fp32, by what agrees; empty for fp32
    scores: Mapping[str, Any] = field(default_factory=dict)  # by precision, if the file has labels
    loss: Score | None = None  # of the first score, in points
    task: str | None = None  # that the model was compared in, if it is not that of its manifest

    @classmethod
    def of_texts(cls, data: Path | None, n: int, kept: Fidelity, answers: Score | None) -> Comparison:
        """Returns what texts without labels tell. Without a file, they are the built-in ones."""
        same = {} if answers is None else {"answers": answers}
        return cls(
            data.name if data else BUILT_IN, sha256(data or evaluation.BUILT_IN), n, {kept.measure: kept.score} | same
        )

    @classmethod
    def of_labels(cls, data: Path, fp32: Evaluation, precision: str, served: Evaluation | None) -> Comparison:
        """Returns what a file with labels tells. `served` is None for a network that is served in fp32."""
        scores, n = {"fp32": summary(fp32)["scores"]}, len(fp32.answers)
        if served is None:
            return cls(data.name, sha256(data), n, {}, scores)
        same = {fp32.compared: agreement(fp32, served)}
        scores[precision] = summary(served)["scores"]
        return cls(data.name, sha256(data), n, same, scores, loss_of(fp32, served))


def write(
    artifact: Artifact,
    source: Mapping[str, Any],
    engine: str,
    latencies: Mapping[str, Mapping[str, Any]],
    comparisons: Sequence[Comparison],
) -> None:
    """Writes the certificate of an artifact. A signature that is there is removed.

    Args:
        artifact: the artifact.
        source: the origin of its network, with the hashes of its files.
        engine: the title of the engine that was compared.
        latencies: the latency of a sequence on one core by engine, as the card records it.
        comparisons: what was compared.

    Raises:
        SetupError: the directory cannot be written.
    """
    manifest = artifact.manifest
    document = {
        "format": FORMAT,
        "manifest": sha256(artifact.path / MANIFEST),
        "model": {"name": manifest.name, "version": manifest.version, "task": manifest.task},
        "source": source,
        "swiftlet": build_info.version(),
        "date": f"{datetime.now(UTC):%Y-%m-%d}",
        "machine": {"processor": processor(), "cores": usable_cores()},
        "engine": engine,
        "precision": manifest.precision,
        "weights_bytes": sum(
            file.size for name, file in manifest.files.items() if name.removeprefix(OF_LABELS) in FORMATS
        ),
        "latency": {
            engine: {"cores": 1} | {key: value for key, value in latency.items() if key != "machine"}
            for engine, latency in latencies.items()
        },
        "comparisons": [asdict(comparison) for comparison in comparisons],
    }
    content = json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
    _replace(artifact.path, CERTIFICATE, content.encode())


def comparisons(artifact: Artifact) -> list[Comparison]:
    """Returns what the certificate of an artifact tells; nothing without one.

    Raises:
        SetupError: the certificate has another form.
    """
    document = artifact.certificate()
    try:
        return [] if document is None else TypeAdapter(list[Comparison]).validate_python(document["comparisons"])
    except (KeyError, ValidationError):
        raise SetupError(
            f"{artifact.path.name}: {CERTIFICATE} has another form than this version of Swiftlet writes. Remove it and "
            f"{SIGNATURE}, and run swiftlet certify {artifact.path}."
        ) from None


def sha256(file: Path) -> str:
    """Returns the SHA-256 of a file's content, in hexadecimal digits."""
    with file.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def sign(path: Path, key: Ed25519PrivateKey) -> None:
    """Signs the certificate of the artifact in `path`.

    Raises:
        SetupError: the directory cannot be written.
    """
    _replace(path, SIGNATURE, key.sign((path / CERTIFICATE).read_bytes()))


def _replace(path: Path, name: str, content: bytes) -> None:
    """Writes a file of an artifact as a whole, and removes an earlier signature.

    The temporary file lies beside the artifact, which must not hold other files.
    """
    try:
        (path / SIGNATURE).unlink(missing_ok=True)
        with tempfile.TemporaryDirectory(prefix=".certify-", dir=path.parent) as temporary:
            new = Path(temporary, name)
            new.write_bytes(content)
            new.rename(path / name)
    except OSError as error:
        raise SetupError(
            f"The certificate cannot be written to {path}: {error.strerror}. Copy the artifact, and certify the copy."
        ) from None
