"""Writes the tables of the reference pages that follow from the code.

A generated region of a page stands between `<!-- generated: NAME -->` and `<!-- end of generated -->`.

    python docs/generate.py            writes every region
    python docs/generate.py --check    exits with 1 if a region differs from the code
"""

from __future__ import annotations

import ast
import asyncio
import inspect
import json
import re
import sys
import tomllib
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cache, partial
from itertools import takewhile
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final, Literal, get_args, get_origin

import click
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from swiftlet_models import architectures
from swiftlet_models.artifact import CARD, MANIFEST, find_artifacts
from swiftlet_serve import tasks
from swiftlet_serve.cli.main import main as command_line
from swiftlet_serve.errors import SwiftletError
from swiftlet_serve.http import dialects
from swiftlet_serve.http.app import create_app
from swiftlet_serve.http.connections.limits import MAX_CONNECTIONS, ConnectionLimits
from swiftlet_serve.http.dialect_parts import questions
from swiftlet_serve.http.dialects import cohere, decisions, openai
from swiftlet_serve.http.endpoints.model_endpoint import MAX_RESPONSE_RATIO
from swiftlet_serve.inference import pipeline
from swiftlet_serve.inference.loading import BUNDLED
from swiftlet_serve.inference.local_runtime import LocalRuntime
from swiftlet_serve.settings import Settings
from swiftlet_serve.tasks import _entities_requests, _zero_shot_requests, fill_mask, qa, rerank
from swiftlet_serve.tasks._requests import MAX_INPUTS
from swiftlet_serve.telemetry import prometheus
from swiftlet_serve.telemetry.endpoint_stats import EndpointStats
from swiftlet_serve.telemetry.shadow_stats import ShadowStats
from swiftlet_serve.telemetry.snapshot import RepositoryState, VersionState
from swiftlet_serve.types.body_model import BodyModel
from swiftlet_train import recipe as recipes

PAGES: Final = Path(__file__).parent
ROOT: Final = PAGES.parent
RULES: Final = (ROOT / "docker/prometheus/rules.yml", ROOT / "k8s/monitoring/rules.yaml")
CONTACT: Final = ROOT / "SECURITY.md"
RECIPE: Final = (*(ROOT / "models/swiftlet_train/recipe").glob("*.py"), ROOT / "models/swiftlet_models/weakness.py")
RECIPE_TABLES: Final = (
    "Recipe",
    "TokenizerTraining",
    "Pretraining",
    "KnowledgeTransfer",
    "Finetuning",
    "Distillation",
    "Weakness",
)
CHOICES: Final = {name: get_args(kind) for name, kind in vars(recipes).items() if get_origin(kind) is Literal}
LABELS_WITHOUT_SAMPLES: Final = {
    "swiftlet_http_responses_total": ("route", "status"),
    "swiftlet_worker_resident_memory_bytes": ("worker",),
    "swiftlet_worker_cpu_seconds_total": ("worker",),
}
SELF_EXPLANATORY: Final = {
    "architecture": "The architecture of the network, such as `albert`, `mobilebert`, `bert` or `gpt2`.",
    "attention_weight": "The weight of the attention maps in the loss.",
    "config": "The configuration of the architecture, such as its widths.",
    "distillation": "A table, see below.",
    "epochs": "Passes over the training examples.",
    "labels": "The labels of the model. For classify, in the order of the numbers in the data.",
    "learning_rate": "The highest learning rate.",
    "max_tokens": "Tokens of the longest sequence.",
    "feature_weight": "The weight of the hidden states in the loss.",
    "kind": "The kind of tokenizer.",
    "knowledge_transfer": "A table, see below.",
    "lowercase": "Whether text is converted to lower case.",
    "mask_probability": "The share of the tokens to predict.",
    "name": "The recipe's name.",
    "objective": "The task that the network learns.",
    "optimiser": "The optimiser.",
    "pretraining": "A table, see below.",
    "seed": "The seed of all random numbers.",
    "sentence_objective": "A further objective about pairs of segments.",
    "steps": "Optimiser steps.",
    "strategy": "The order of transfer and training.",
    "strip_accents": "Whether accents are removed.",
    "task": "The task.",
    "teacher_epochs": "Passes of the teacher over the training examples.",
    "teacher_learning_rate": "The teacher's highest learning rate.",
    "tokenizer": "A table, see below.",
    "variance_weight": "The weight of the features' variances.",
    "vocab_size": "The number of tokens in the vocabulary.",
    "weaknesses": "A list of tables, see below.",
}
REGION: Final = re.compile(r"(?<=<!-- generated: )([\w -]+)( -->\n).*?(?=<!-- end of generated -->)", re.DOTALL)


def pages() -> Iterator[tuple[Path, str, str]]:
    """Yields each file with generated parts, with its text and with the text it should have.

    These are the pages with generated regions, and the files that have an address of the publication.
    """
    addresses = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["urls"]
    documentation, contact = addresses["Documentation"], addresses["Security"].removeprefix("mailto:")
    for path in (*RULES, CONTACT):
        text = path.read_text("utf-8")
        wanted = re.sub(r"https?://\S+(?=/how-to/alerts\.html#)", documentation, text)
        yield path, text, re.sub(r"\[\S+@\S+\]\(mailto:\S+\)", f"[{contact}](mailto:{contact})", wanted)
    for path in sorted(PAGES.rglob("*.md")):
        text = path.read_text("utf-8")
        if REGION.search(text):
            yield path, text, REGION.sub(_fill, text)


def _fill(region: re.Match[str]) -> str:
    return f"{region[1]}{region[2]}\n{GENERATORS[region[1]]()}\n\n"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a pipe table."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in line)} |" for line in lines)


def code(value: object) -> str:
    return f"`{value}`"


def settings() -> str:
    rows = []
    for name, field in Settings.model_fields.items():
        default = field.default_factory or field.default
        shown = "–" if callable(default) or default in ((), "", None) else code(str(default).lower())
        rows.append([code(name), shown, str(field.description)])
    return table(["Setting", "Default", "Description"], rows)


def error_classes() -> str:
    kinds = sorted(SwiftletError.__subclasses__(), key=lambda kind: kind.status)
    rows = [
        [str(kind.status), kind.title, ", ".join(map(code, sorted(kind.codes))), "yes" if kind.retryable else "no"]
        for kind in kinds
    ]
    return table(["Status", "Title", "Codes", "Retryable"], rows)


def error_example() -> str:
    with TestClient(create_app(LocalRuntime.load(Settings(engine="echo")))) as client:
        response = client.post("/fill-mask", json={"inputs": "Paris"}, headers={"X-Request-Id": "4f1d2c"})
    return f"```json\n{json.dumps(response.json(), indent=2)}\n```"


def dialect_routes(name: str) -> str:
    dialect = dialects.load(name)
    rows = [[code(f"POST {operation.path}"), operation.summary] for operation in dialect.OPERATIONS]
    rows += [[code(f"{page.method} {page.path}"), page.summary] for page in getattr(dialect, "PAGES", ())]
    return table(["Route", "Content"], rows)


def clients() -> str:
    """Returns what the tests of unmodified clients have shown, which `tests/http/dialects/test_clients.py` compares."""
    rows = []
    for name, client in json.loads((ROOT / "tests/http/clients/shown.json").read_text("utf-8")).items():
        tasks_of = {
            form: ", ".join(task for task, forms in client["tasks"].items() if form in forms)
            for form in ("one", "batch")
        }
        single, batch = tasks_of["one"], tasks_of["batch"] or "–"
        kinds = [client.get(kind) for kind in ("error", "deadline", "rate limit", "full queue")]
        errors = [code(kind) if kind not in (None, "retries") else "retries" if kind else "–" for kind in kinds]
        rows.append([name, client["version"], single, "the same" if batch == single else batch, *errors])
    return table(
        ["Client", "Version", "One text", "Several texts", "Bad text", "Deadline", "Rate limit", "Full queue"], rows
    )


def request_limits() -> str:
    parameters = {task: schema(task, "Parameters")["properties"] for task in ("classify", "qa", "fill-mask")}
    targets = next(part for part in parameters["fill-mask"]["targets"]["anyOf"] if "maxItems" in part)
    body, answer, tokens = (
        Settings.model_fields[name].default for name in ("max_body_bytes", "max_response_bytes", "max_queued_tokens")
    )
    rows = [
        ["Request body", f"{body:,} bytes (`max_body_bytes`)"],
        [
            "Response body",
            f"{answer:,} bytes (`max_response_bytes`), or {MAX_RESPONSE_RATIO} times the request body if larger",
        ],
        ["List items and fields of the body together", f"{BodyModel.max_items:,}"],
        *(
            [f"List items and fields of the body together, {name}", f"{model.max_items:,}"]
            for name, model in (
                ("`/v1/rerank` and `/v2/rerank`", cohere.RerankRequest),
                ("`/v1/decisions` and `/v1/systemone`", decisions.DecisionsRequest),
                ("`/v1/embeddings`", openai.EmbeddingsRequest),
            )
        ),
        ["Texts or questions", f"{MAX_INPUTS}"],
        ["Tokens of all inputs together", f"{tokens:,} (`max_queued_tokens`)"],
        ["Labels (`top_k`), classify", bound(parameters["classify"]["top_k"], "maximum")],
        ["Characters of all texts, qa", f"{qa.MAX_CHARACTERS:,}"],
        ["Windows, qa", f"{qa.MAX_WINDOWS}"],
        ["Answers (`top_k`), qa", bound(parameters["qa"]["top_k"], "maximum")],
        ["Tokens of an answer (`max_answer_len`), qa", bound(parameters["qa"]["max_answer_len"], "maximum")],
        ["Masks, fill-mask", f"{fill_mask.MAX_MASKS}"],
        ["Tokens for each mask (`top_k`), fill-mask", bound(parameters["fill-mask"]["top_k"], "maximum")],
        ["Characters of all sequences in the answer, fill-mask", f"{fill_mask.MAX_WRITTEN:,}"],
        ["Targets (`targets`), fill-mask", f"{targets['maxItems']}"],
        ["Characters of one target, fill-mask", f"{targets['items']['maxLength']}"],
        ["Texts to rank, rerank", f"{rerank.MAX_TEXTS:,}"],
        ["Characters of all texts, entities with a stride or with labels", f"{_entities_requests.MAX_CHARACTERS:,}"],
        ["Windows, entities", f"{_entities_requests.MAX_SEQUENCES}"],
        ["Labels, entities", f"{_entities_requests.MAX_LABELS}"],
        ["Characters of a label, entities", f"{_entities_requests.MAX_LABEL:,}"],
        ["Words times labels, entities", f"{_entities_requests.MAX_PAIRS:,}"],
        ["Texts times labels, zero-shot", f"{_zero_shot_requests.MAX_PAIRS}"],
        ["Characters of labels in one text, zero-shot", f"{_zero_shot_requests.MAX_LABELS_CHARACTERS:,}"],
        ["Characters of all hypotheses, zero-shot", f"{_zero_shot_requests.MAX_CHARACTERS:,}"],
        ["Questions, decisions", f"{questions.MAX_QUESTIONS}"],
        [
            "Different options of all questions, decisions by a zero-shot or embedding model",
            f"{pipeline.MAX_SEQUENCES}",
        ],
    ]
    return table(["Of a request", "At most"], rows)


def connection_limits() -> str:
    limits = ConnectionLimits(connections=MAX_CONNECTIONS)
    rows = [
        ["Request line and headers", f"{limits.head_bytes:,} bytes"],
        ["Headers", f"{limits.headers}"],
        ["Request target (path and query)", f"{limits.target_bytes:,} bytes"],
        ["Time until the headers have arrived", f"{limits.head_timeout_s:g} s"],
        ["Time until the whole request has arrived", f"{limits.request_timeout_s:g} s"],
        ["Time until the client has read the response", f"{limits.write_timeout_s:g} s"],
        ["Keep-alive time without a request", f"{limits.idle_timeout_s:g} s"],
        ["Requests processed at the same time", "1; pipelined requests are answered in order"],
        ["Pages (all requests that run no model) and pipelined requests", "a fifth of the event loop's time, in turns"],
        ["Connections of the server", f"{limits.connections:,}, and half of the open file limit (`ulimit -n`)"],
    ]
    return table(["Of a connection", "At most"], rows)


def commands() -> str:
    return "\n\n".join(_command(name, command) for name, command in command_line.commands.items())


def _command(name: str, command: click.Command) -> str:
    context = click.Context(command, info_name=f"swiftlet {name}")
    usage = " ".join(command.collect_usage_pieces(context))
    help_ = re.sub(r"(?<!\n)\n(?!\n)", " ", inspect.cleandoc(str(command.help)))
    parts = [f"## swiftlet {name}", f"```text\nswiftlet {name} {usage}\n```", help_]
    options = [parameter for parameter in command.params if isinstance(parameter, click.Option)]
    if name == "serve":
        parts.append("The options are the [settings](settings.md), for example `--timeout-ms` for `timeout_ms`.")
    elif options:
        parts.append(table(["Option", "Default", "Description"], [_option(option) for option in options]))
    return "\n\n".join(parts)


def _option(option: click.Option) -> list[str]:
    choices = f" One of {', '.join(map(code, option.type.choices))}." if isinstance(option.type, click.Choice) else ""
    plain = option.default if isinstance(option.default, str | int | float) and not option.is_flag else None
    default = "required" if option.required else "–" if plain in (None, "") else code(plain)
    return [code(option.opts[0]), default, f"{option.help or ''}{choices}".strip()]


@cache
def server() -> LocalRuntime:
    """Returns a runtime of the bundled models that computes nothing."""
    return LocalRuntime.load(Settings(engine="echo"))


@cache
def openapi() -> Any:
    return create_app(server()).openapi()


def schema(task: str, kind: str) -> Any:
    """Returns the JSON schema of a task's `Parameters` or `Request`."""
    whole = tasks.load(task).TASK.Request.model_json_schema()
    name = "".join(part.capitalize() for part in task.split("-")) + kind
    return whole if kind == "Request" else whole["$defs"][name]


def bound(field: Any, name: str) -> str:
    return str(next(part[name] for part in field.get("anyOf", [field]) if name in part))


def parameters(task: str) -> str:
    rows = [
        [code(name), _type(field), _default(field), field["description"]]
        for name, field in schema(task, "Parameters")["properties"].items()
    ]
    return table(["Parameter", "Type", "Default", "Description"], rows)


def _default(field: Any) -> str:
    value = field.get("default")
    return "–" if value is None else code(str(value).lower() if isinstance(value, bool) else value)


def _type(field: Any) -> str:
    kinds = [part for part in field.get("anyOf", [field]) if part.get("type") != "null"]
    return " or ".join(_kind(part) for part in kinds)


def _kind(part: Any) -> str:
    if "enum" in part:
        return ", ".join(code(choice) for choice in part["enum"])
    if part["type"] == "array":
        return f"list of {_kind(part['items'])}s"
    limits = [f"{word} {part[name]}" for word, name in (("from", "minimum"), ("to", "maximum")) if name in part]
    return " ".join([part["type"], *limits])


def request_fields() -> str:
    shared = {"inputs", "parameters"}
    rows = [
        [code(name), field["description"]]
        for name, field in schema("classify", "Request")["properties"].items()
        if name not in shared
    ]
    return table(["Field", "Description"], rows)


def response_fields(path: str) -> str:
    """Returns the fields of the response to a GET request, nested ones with their path."""
    content = openapi()["paths"][path]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
    return table(["Field", "Description"], [[code(name), text] for name, text in _fields(content)])


def _fields(part: Any, path: str = "") -> Iterator[tuple[str, str]]:
    part = openapi()["components"]["schemas"][part["$ref"].rpartition("/")[2]] if "$ref" in part else part
    if "items" in part:
        yield from _fields(part["items"], f"{path}[]." if path else "")
    for name, field in part.get("properties", {}).items():
        nested = list(_fields(field, f"{path}{name}." if "items" not in field else f"{path}{name}"))
        yield from nested or [(f"{path}{name}", field["description"])]


def metrics() -> str:
    async def scrape() -> bytes:
        await server().open()
        served = VersionState("model", 2, "ready", "", ["default"], 0.0)
        shadows = {("model", 2): ShadowStats()}
        state = RepositoryState(True, {("model", "loaded"): 1}, 0, [served], shadows)
        server().use_repository(SimpleNamespace(state=lambda: state))
        server().stats.add_model("model", "classify", 2)
        server().stats.endpoint = endpoint = EndpointStats()
        endpoint.kinds["choice"].agreed.add(1, 1)
        endpoint.existing.outcomes["200"] = 1
        return await prometheus.scrape(server())

    rows = []
    for family in text_string_to_metric_families(asyncio.run(scrape()).body.decode()):
        if family.name.startswith(prometheus.PREFIX):
            name = f"{family.name}_total" if family.type == "counter" else family.name
            names = dict.fromkeys(key for sample in family.samples for key in sample.labels)
            labels = names or LABELS_WITHOUT_SAMPLES.get(name, ())
            shown = ", ".join(code(label) for label in labels if label != "le") or "–"
            rows.append([code(name), family.type, shown, family.documentation])
    return table(["Metric", "Type", "Labels", "Description"], rows)


def modules(package: str) -> str:
    """Returns the modules of a top-level package with the first sentences of their docstrings."""
    paths = [path for path in sorted((ROOT / package).rglob("*.py")) if path.name != "__init__.py"]
    return table(["Module", "Content"], [[code(path.relative_to(ROOT)), _first_sentence(path)] for path in paths])


def networks() -> str:
    """Returns the networks that `swiftlet import` reads, by their names in a checkpoint's configuration."""
    folder = ROOT / "models/swiftlet_models/architectures"
    rows = [
        [code(name.replace("_", "-")), _first_sentence(folder / f"{name}.py")] for name in architectures.model_types()
    ]
    return table(["`model_type`", "Network"], rows)


# Tests with a reference of their own, because transformers does not have the network.
OWN_REFERENCES = frozenset({("jina_bert", "classify"), ("jina_bert", "embed")})


def tested_heads() -> str:
    """Returns the weights with which each network was tested, for the tasks of each head."""
    parity = (ROOT / "loadtest/results/parity.md").read_text("utf-8")
    random = {*re.findall(r"^\| (\w+) \| ([a-z-]+) \|", parity, re.MULTILINE), *OWN_REFERENCES}
    trained = [
        (row["model_type"].replace("-", "_"), row["task"], name) for name, row in _data("trained_checkpoints").items()
    ]
    for path in find_artifacts(BUNDLED):
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
        trained.append((manifest["architecture"], manifest["task"], code(manifest["name"])))
    heads: dict[str, list[str]] = {}
    for task in tasks.names():
        heads.setdefault(tasks.load(task).HEAD, []).append(task)
    rows = []
    for network in architectures.model_types():
        cells = []
        for served in heads.values():
            models = [name for kind, task, name in trained if kind == network and task in served]
            weights = ["random weights"] if any((network, task) in random for task in served) else []
            cells.append(", ".join(weights + models) or "–")
        rows.append([code(network.replace("_", "-")), *cells])
    return table(["`model_type`", *(", ".join(served) for served in heads.values())], rows)


def trained_checkpoints() -> str:
    """Returns the checkpoints of `tests/offline/test_trained_checkpoints.py`."""
    rows = []
    for name, row in _data("trained_checkpoints").items():
        cells = [name, code(row["model_type"]), row["task"], row["package"], row["licence"], f"{row['texts']:,}"]
        rows.append([*cells, f"{row['difference']:.1e}", "each run" if "directory" in row else "by hand"])
    header = ["Checkpoint", "`model_type`", "Task", "Package", "Licence", "Texts", "Difference", "Tested"]
    return table(header, rows)


def odd_checkpoints(outcome: Literal["served", "refused"]) -> str:
    """Returns the checkpoints of `tests/offline/test_odd_checkpoints.py`."""
    rows = _data("odd_checkpoints")[outcome].items()
    shown = [[name, code(text.replace("{}", "DIR")) if outcome == "refused" else text] for name, text in rows]
    return table(["Checkpoint", "Task" if outcome == "served" else "Refused with"], shown)


def _data(name: str) -> Any:
    return json.loads((ROOT / f"tests/offline/{name}.json").read_text("utf-8"))


def _first_sentence(path: Path) -> str:
    """Returns the first sentence of a module's docstring."""
    text = ast.get_docstring(ast.parse(path.read_text("utf-8"))) or ""
    sentence = re.split(r"(?<=\.)(?<! al\.)\s", text.partition("\n\n")[0].replace("\n", " "))[0]
    return sentence.rstrip(":.") + "."


def licences() -> str:
    """Returns a table of the bundled models, with the training data that their cards name."""
    rows = []
    for path in find_artifacts(BUNDLED):
        card = json.loads((path / CARD).read_text("utf-8"))
        rows.append([code(path.name), f"{size_mb(path):.1f} MB", ", ".join(card["licences"])])
    return table(["Model", "Size", "Data and its licence"], rows)


def size_mb(path: Path) -> float:
    """Returns the size of the files of a directory, in megabytes."""
    return sum(file.stat().st_size for file in path.iterdir()) / 1e6


def native_files() -> str:
    """Returns the C++ files with the first sentences of their leading comments."""
    rows = []
    for path in sorted(ROOT.glob("*/*/native/*.[hc]*")):
        if path.suffix in (".h", ".cpp"):
            lines = path.read_text("utf-8").splitlines()
            comment = " ".join(line[2:].strip() for line in takewhile(lambda line: line[2:].strip(), lines))
            rows.append([code(path.relative_to(ROOT)), re.split(r"(?<=\.)\s", comment)[0]])
    return table(["File", "Content"], rows)


def recipe(name: str) -> str:
    """Returns the keys of a table of a recipe, with the docstrings that follow the dataclass's fields."""
    trees = [ast.parse(path.read_text("utf-8")) for path in sorted(RECIPE)]
    classes = {node.name: node for tree in trees for node in tree.body if isinstance(node, ast.ClassDef)}
    bases = [base.id for base in classes[name].bases if isinstance(base, ast.Name)]
    rows = {key: row for table in [name, *bases] for key, row in _keys(classes[table])}
    return table(["Key", "Default", "Description"], rows.values())


def _keys(node: ast.ClassDef) -> Iterator[tuple[str, list[str]]]:
    for field, after in zip(node.body, [*node.body[1:], None], strict=True):
        if isinstance(field, ast.AnnAssign) and isinstance(field.target, ast.Name):
            text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else ""
            description = " ".join(str(text).split()) or SELF_EXPLANATORY.get(field.target.id, "")
            choices = CHOICES.get(ast.unparse(field.annotation))
            if choices:
                description = f"{description} One of {', '.join(map(code, choices))}.".strip()
            yield field.target.id, [code(field.target.id), _literal(field.value), description]


def _literal(value: ast.expr | None) -> str:
    """Returns the default of a dataclass's field, given as a value or within a call of `field`."""
    if value is None:
        return "required"
    if isinstance(value, ast.Call):
        keywords = {keyword.arg: keyword.value for keyword in value.keywords}
        if "default" not in keywords:
            return "–"
        value = keywords["default"]
    default = ast.literal_eval(value)
    return "–" if default in ((), "", None) else code(str(default).lower() if isinstance(default, bool) else default)


GENERATORS: Final[dict[str, Callable[[], str]]] = {
    "settings": settings,
    "error classes": error_classes,
    "error example": error_example,
    **{f"dialect {name}": partial(dialect_routes, name) for name in dialects.names()},
    "clients": clients,
    "request limits": request_limits,
    "connection limits": connection_limits,
    "commands": commands,
    "request fields": request_fields,
    "classify parameters": partial(parameters, "classify"),
    "qa parameters": partial(parameters, "qa"),
    "fill-mask parameters": partial(parameters, "fill-mask"),
    "entities parameters": partial(parameters, "entities"),
    "score parameters": partial(parameters, "score"),
    "embed parameters": partial(parameters, "embed"),
    "rerank parameters": partial(parameters, "rerank"),
    "zero-shot parameters": partial(parameters, "zero-shot"),
    "models fields": partial(response_fields, "/models"),
    "status fields": partial(response_fields, "/status"),
    "metrics": metrics,
    "modules service": partial(modules, "service"),
    "licences": licences,
    "native files": native_files,
    "networks": networks,
    "tested heads": tested_heads,
    "trained checkpoints": trained_checkpoints,
    "served checkpoints": partial(odd_checkpoints, "served"),
    "refused checkpoints": partial(odd_checkpoints, "refused"),
    "modules models": partial(modules, "models"),
    **{f"recipe {name}": partial(recipe, name) for name in RECIPE_TABLES},
}


def main(arguments: Sequence[str]) -> int:
    stale = [(path, wanted) for path, text, wanted in pages() if text != wanted]
    for path, wanted in stale:
        print(path.relative_to(PAGES.parent))
        if "--check" not in arguments:
            path.write_text(wanted, "utf-8")
    return int("--check" in arguments and bool(stale))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
