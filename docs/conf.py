"""Configuration of the documentation site.

The source folder is the repository, so that relative links work on the site and on a code host.
"""

from __future__ import annotations

import tomllib
from pathlib import Path

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
