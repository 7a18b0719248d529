"""The languages in the model card of a checkpoint."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from swiftlet_models import checkpoint_card


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        ("---\nlanguage: en\n---\n# Model\n", ("en",)),
        ("---\nlicense: mit\nlanguage:\n- ko\n- zh-Hant\n---\n", ("ko", "zh-Hant")),
        ("---\nlanguage: [sv, no]\n---\n", ("sv", "no")),
        ("---\nlanguage:\n- en\n- multilingual\n---\n", ()),
        ("---\nlanguage:\n- en\n- code\n- 7\n---\n", ("en",)),
        ("---\nlanguage: {en: ko}\n---\n", ()),
        ("---\nlicense: mit\n---\n", ()),
        ("---\nlanguage: [en\n---\n", ()),
        ("---\n- en\n---\n", ()),
        ("# Model\nlanguage: en\n", ()),
    ],
)
def test_languages_are_read_from_the_metadata(tmp_path: Path, card: str, expected: tuple[str, ...]) -> None:
    (tmp_path / "README.md").write_text(card, "utf-8")
    assert checkpoint_card.languages(tmp_path) == expected


def test_languages_are_unknown_without_a_readable_card(tmp_path: Path) -> None:
    assert checkpoint_card.languages(tmp_path) == ()
    (tmp_path / "README.md").write_bytes(b"---\nlanguage: \xff\n---\n")
    assert checkpoint_card.languages(tmp_path) == ()


def test_languages_are_unknown_without_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "README.md").write_text("---\nlanguage: en\n---\n", "utf-8")
    monkeypatch.setitem(sys.modules, "yaml", None)
    assert checkpoint_card.languages(tmp_path) == ()
