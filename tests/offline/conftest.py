"""Releases in these tests read few of the built-in texts, which take most of their time."""

from __future__ import annotations

import pytest

from swiftlet_serve.offline import probe

FEW = 10e6  # multiply-adds: some texts for the smallest networks


@pytest.fixture(autouse=True)
def few_built_in_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probe, "MAX_WORK", FEW)
