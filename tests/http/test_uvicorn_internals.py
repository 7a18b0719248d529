"""The service's use of uvicorn, starlette and httptools beyond their documented interfaces."""

from __future__ import annotations

import ast
import hashlib
import inspect
from collections.abc import Iterator

import pytest

from swiftlet_serve.http.connections.uvicorn_internals import FINGERPRINTS, USED
from tests.support.paths import ROOT

MODULES = sorted((ROOT / "service").rglob("*.py"))
HOLDERS = {"cycle": {"cycle", "_cycle"}, "flow": {"flow"}, "lifespan": {"lifespan"}}
"""The names of the variables and attributes that hold each object."""

LIBRARIES = {"fastapi", "httptools", "starlette", "uvicorn", "uvloop"}


def nodes(*names: str) -> Iterator[ast.AST]:
    for path in MODULES:
        if not names or path.stem in names:
            yield from ast.walk(ast.parse(path.read_text("utf-8")))


@pytest.mark.parametrize("internal", FINGERPRINTS, ids=lambda internal: internal.__name__)
def test_uvicorn_source_is_unchanged(internal):
    digest = hashlib.sha256(inspect.getsource(internal).encode()).hexdigest()[:16]

    assert digest == FINGERPRINTS[internal], (
        f"uvicorn's {internal.__name__} has changed. Compare it with the use in service/, then update FINGERPRINTS."
    )


def test_uvicorn_is_imported_in_one_module_besides_its_config():
    imports = {
        (path.stem, module)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        for module in (
            [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [node.module or ""]
            if isinstance(node, ast.ImportFrom)
            else []
        )
        if module.partition(".")[0] == "uvicorn"
    }

    assert {module for module, _ in imports} == {"front_main", "server", "uvicorn_internals"}
    assert {imported for module, imported in imports if module != "uvicorn_internals"} == {"uvicorn"}
    config = {
        node.attr
        for node in nodes("front_main", "server")
        if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "uvicorn"
    }
    assert config == {"Config"}


@pytest.mark.parametrize("name", USED)
def test_used_attributes_of_uvicorn_are_listed(name):
    used = {
        node.attr
        for node in nodes("connection", "exchange", "server")
        if isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name | ast.Attribute)
        and (node.value.id if isinstance(node.value, ast.Name) else node.value.attr) in HOLDERS[name]
    }

    assert used == USED[name]


def test_modules_use_no_private_names_of_the_web_libraries():
    private = {
        (node.module, alias.name)
        for node in nodes()
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] in LIBRARIES
        for alias in node.names
        if alias.name.startswith("_") or any(part.startswith("_") for part in (node.module or "").split("."))
    }

    assert private == set()


def test_modules_access_private_attributes_of_themselves_only():
    private = {
        (ast.unparse(node.value), node.attr)
        for path in MODULES
        if {"grpc", "http", "machine", "server.py"} & set(path.parts) and not path.stem.endswith("_pb2")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.Attribute)
        and node.attr.startswith("_")
        and not node.attr.startswith("__")
        and node.attr not in ("_asdict", "_replace")  # of named tuples, which document them
    }

    assert {pair for pair in private if pair[0] not in ("self", "cls")} == {("os", "_exit"), ("sys", "_current_frames")}
