"""Error responses."""

from __future__ import annotations

import json
from typing import Any

from swiftlet_serve.errors import Unavailable
from swiftlet_serve.http import problem_details


def test_render_falls_back_when_rendering_fails(monkeypatch):
    def fail(*_: Any, **__: Any) -> str:
        raise ValueError

    monkeypatch.setattr(problem_details.Problem, "model_dump_json", fail)
    response = problem_details.render(Unavailable("overloaded", "x"), "1")

    assert response.status_code == 500
    assert response.media_type == problem_details.MEDIA_TYPE
    assert json.loads(response.body)["code"] == "internal"
