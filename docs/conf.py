"""Configuration of the documentation site.

The source folder is the repository, so that relative links work on the site and on a code host.
"""

from __future__ import annotations

import re
import shutil
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]

project = "Swiftlet"
author = PROJECT["authors"][0]["name"]
copyright = f"2026, {author}"  # noqa: A001  # Sphinx's name
release = version = PROJECT["version"]

extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "docs/index"
include_patterns = [
    "docs/**.md",
    "k8s/README.md",
    "loadtest/results/*.md",
    "models/swiftlet_train/studies/*.md",
    ".github/CONTRIBUTING.md",
    "CHANGELOG.md",
    "SECURITY.md",
]
exclude_patterns = [".venv*", ".git", ".*_cache", ".hypothesis", "artifacts", "build", "dist", "runs", "src", "tests"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = f"Swiftlet {release}"
html_extra_path = ["site"]
html_copy_source = False
html_show_sphinx = False


def setup(app: Any) -> None:
    """Adds the plain text of the site after each build."""
    app.connect("build-finished", lambda app, _: write_plain_text(Path(app.outdir), sorted(app.env.found_docs)))


def write_plain_text(site: Path, names: list[str]) -> None:
    """Writes the source of each page beside it, and `llms.txt`, which lists them (https://llmstxt.org).

    Args:
        site: the folder of the site.
        names: the pages, as paths in the repository without the suffix.
    """
    for name in names:
        page = site / f"{name}.md"
        page.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / f"{name}.md", page)
    (site / "llms.txt").write_text("\n".join(llms_lines()) + "\n", "utf-8")


def llms_lines() -> Iterator[str]:
    """Yields the lines of `llms.txt`: the pages in the order of the table of contents, with their first sentences."""
    index = (ROOT / f"{root_doc}.md").read_text("utf-8")
    yield f"# {project}"
    yield ""
    yield f"> {PROJECT['description']}"
    for options, entries in re.findall(r"```{toctree}\n((?::.*\n)*)\n([^`]*)```", index):
        caption = re.search(r"^:caption: (.*)$", options, re.MULTILINE)
        yield ""
        yield f"## {caption[1] if caption else 'Start'}"
        yield ""
        for entry in entries.split():
            name = entry[1:] if entry.startswith("/") else f"docs/{entry}"
            text = re.sub(r"```.*?```", "", (ROOT / f"{name}.md").read_text("utf-8"), flags=re.DOTALL)
            title, prose = (re.search(pattern, text, re.MULTILINE) for pattern in (r"^# (.*)$", r"^[A-Z`*\[].*$"))
            plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", prose[0] if prose else "")
            sentence = re.split(r"(?<=[.?])\s", plain)[0].rstrip(":")
            yield f"- [{title[1] if title else name}]({name}.md): {sentence}"
