"""The parts of the site that are not HTML: the plain text of its pages, and the list of them for language models."""

from __future__ import annotations

import re
import runpy

from tests.support.markdown import text_of
from tests.support.paths import ROOT

INDEX = text_of(ROOT / "docs/index.md")
PAGES = [
    entry[1:] if entry.startswith("/") else f"docs/{entry}"
    for entries in re.findall(r"```{toctree}\n(?::.*\n)*\n([^`]*)```", INDEX)
    for entry in entries.split()
]


def test_list_for_language_models_has_every_page_with_a_sentence():
    lines = list(runpy.run_path(str(ROOT / "docs/conf.py"))["llms_lines"]())
    listed = dict(re.findall(r"^- \[.+?\]\((\S+)\.md\): (.+)$", "\n".join(lines), re.MULTILINE))

    assert lines[0] == "# Swiftlet"
    assert lines[2].startswith("> ")
    assert [line for line in lines if line.startswith("## ")][:2] == ["## Start", "## How-to guides"]
    assert list(listed) == PAGES
    assert not any("```" in sentence or "](" in sentence for sentence in listed.values())


def test_site_has_the_source_of_each_page_beside_it(tmp_path):
    runpy.run_path(str(ROOT / "docs/conf.py"))["write_plain_text"](tmp_path, PAGES)

    assert {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*") if path.is_file()} == {
        "llms.txt",
        *(f"{page}.md" for page in PAGES),
    }
    assert all(text_of(tmp_path / f"{page}.md") == text_of(ROOT / f"{page}.md") for page in PAGES)
