"""Chooses test files by what they import: `python -m tests.support.selection quick` or `changed`.

The marks of a test follow from what it imports, itself or by other modules. `quick` are the files without a mark.
`changed` are the files that import a module that differs from the branch `main`, also as a plug-in, and those that
start the server, which imports everything. Imports inside functions do not count, since they would connect nearly all
modules. If another file than a module or a page of the documentation differs, all are.
"""

from __future__ import annotations

import ast
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

ROOT: Final = Path(__file__).parents[2]
STORE: Final = ROOT / "build/imports.json"
PACKAGES: Final = {
    "tests": ROOT / "tests",
    "loadtest": ROOT / "loadtest",
    "swiftlet_serve": ROOT / "service/swiftlet_serve",
    "swiftlet_models": ROOT / "models/swiftlet_models",
    "swiftlet_train": ROOT / "models/swiftlet_train",
}
NEEDS: Final = {
    "torch": {"torch", "transformers", "sentence_transformers"},
    "browser": {"playwright"},
    "emulated": {"tests.support.compiler"},
    "network": {"grpc", "ray", "loadtest.prometheus_server"},
}
STARTS: Final = {"subprocess", "multiprocessing"} | {
    f"swiftlet_serve.workers.{name}" for name in ("process_executor", "supervisor", "worker_process")
}
"""A test that imports one of these itself, or by a module of the tests or load tests, starts processes."""
SERVER: Final = "tests.support.processes"
LOADER: Final = "swiftlet_serve.plugins"


@cache
def module_file(name: str) -> Path | None:
    """Returns the file of a module of this repository; None for other modules."""
    for package, directory in PACKAGES.items():
        if name == package or name.startswith(package + "."):
            path = directory.joinpath(*name[len(package) :].split(".")[1:])
            files = path / "__init__.py", path.with_suffix(".py")
            return next((file for file in files if file.is_file()), None)
    return None


def module_name(file: Path) -> str | None:
    """Returns the name of the module in a file; None if it is none."""
    for package, directory in PACKAGES.items():
        if file.suffix == ".py" and file.is_relative_to(directory):
            parts = file.relative_to(directory).with_suffix("").parts
            return ".".join([package, *(part for part in parts if part != "__init__")])
    return None


@cache
def imports(name: str) -> frozenset[str]:
    """Returns the modules that a module imports when it is imported."""
    file = module_file(name)
    if file is None:
        return frozenset()
    found = set[str]()
    for module, names in _statements(file):
        inside = {f"{module}.{one}" for one in names}
        found |= {one if module_file(one) else module for one in inside or {module}}
    return frozenset(found)


def _statements(file: Path) -> list[tuple[str, list[str]]]:
    """Returns the modules that a file imports, each with the names that it imports from the module."""
    about, key = file.stat(), str(file.relative_to(ROOT))
    version = [about.st_mtime_ns, about.st_size]
    stored = _stored().get(key)
    if stored is None or stored[0] != version:
        found = list[tuple[str, list[str]]]()
        for node in _at_start(ast.parse(file.read_text("utf-8")).body):
            if isinstance(node, ast.Import):
                found += [(alias.name, []) for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                found.append((node.module, [alias.name for alias in node.names]))
        stored = _stored()[key] = version, found
    statements: list[tuple[str, list[str]]] = stored[1]
    return statements


@cache
def _stored() -> dict[str, Any]:
    with suppress(FileNotFoundError):
        return dict(json.loads(STORE.read_text("utf-8")))
    return {}


def store() -> None:
    """Keeps what files import for other processes and later runs: to parse all files takes 3 seconds of CPU time."""
    STORE.parent.mkdir(exist_ok=True)
    new = STORE.with_suffix(f".{os.getpid()}")
    new.write_text(json.dumps(_stored()), "utf-8")
    new.rename(STORE)


@cache
def plugins(name: str) -> frozenset[str]:
    """Returns the modules of the packages whose plug-ins a module loads."""
    if LOADER not in imports(name):
        return frozenset()
    files = {file for one in {name, *imports(name)} if (file := module_file(one)) and file.name == "__init__.py"}
    found = {module_name(file) for package in files for file in package.parent.glob("*.py")}
    return frozenset(one for one in found if one is not None)


def _at_start(body: Sequence[ast.stmt]) -> Iterator[ast.stmt]:
    """Yields the statements that run when a module is imported, without those for the type checker."""
    for node in body:
        yield node
        if isinstance(node, ast.If) and "TYPE_CHECKING" not in ast.unparse(node.test):
            yield from _at_start(node.body)
        if isinstance(node, ast.Try | ast.With):
            yield from _at_start(node.body)


def _packages(name: str) -> Iterator[str]:
    parts = name.split(".")
    return (".".join(parts[:i]) for i in range(1, len(parts)))


def closure(name: str, *needs: Callable[[str], frozenset[str]]) -> set[str]:
    """Returns all modules that a module needs, itself included."""
    found, left = {name}, [name]
    while left:
        module = left.pop()
        new = {one for need in needs for one in need(module)} | set(_packages(module))
        new -= found
        found |= new
        left += new
    return found


@cache
def needs(test: str) -> frozenset[str]:
    """Returns the marks of a test module."""
    found = closure(test, imports)
    marks = {mark for mark, modules in NEEDS.items() if found & modules}
    if any(imports(name) & STARTS for name in found if name.startswith(("tests", "loadtest"))):
        marks.add("process")
    return frozenset(marks)


def changed(files: Sequence[Path]) -> Callable[[str], bool]:
    """Returns whether a test module is affected by changes of these files."""
    names = {module_name(file) for file in files if file.suffix != ".md"}
    if any((name or "").startswith(("swiftlet_serve", "swiftlet_models")) for name in names):
        names.add(SERVER)
    if any(file.suffix == ".md" for file in files):
        names |= {module_name(file) for file in (ROOT / "tests/docs").glob("*.py")}
    return lambda test: None in names or bool(closure(test, imports, plugins) & names)


def differing_files() -> list[Path]:
    """Returns the files that differ from the branch `main`, those that are not committed included."""

    def git(*arguments: str) -> list[str]:
        command = ["git", *arguments]
        return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()

    (base,) = git("merge-base", "HEAD", "main")
    found = [*git("diff", "--name-only", base), *git("ls-files", "--others", "--exclude-standard")]
    return [ROOT / name for name in found]


def main() -> None:
    holds = changed(differing_files()) if sys.argv[1:] == ["changed"] else lambda test: not needs(test)
    for file in sorted((ROOT / "tests").rglob("test_*.py")):
        name = module_name(file)
        if name is not None and holds(name):
            print(file.relative_to(ROOT))
    store()


if __name__ == "__main__":
    main()
