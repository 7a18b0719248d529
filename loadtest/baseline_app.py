"""The application of the baselines in FastAPI, with as many calls at once as the cores allow."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from fastapi import Body, FastAPI, Response

from loadtest.baseline_answers import Answers, Load
from swiftlet_serve.settings import Settings
from swiftlet_serve.types import json_text


def create_app(folders: Mapping[str, Path], load: Load, threads: int = 1, batch_tokens: int = 0) -> FastAPI:
    """The arguments are those of `Answers`, with the folders by their artifacts."""
    app, calls = FastAPI(), ThreadPoolExecutor(Settings().cores // threads)
    for artifact, folder in folders.items():
        add_route(app, calls, Answers(artifact, folder, load, threads, batch_tokens))
    return app


def add_route(app: FastAPI, calls: ThreadPoolExecutor, answers: Answers) -> None:
    """Adds the route of an artifact's task."""

    def answer(body: dict[str, Any]) -> bytes:
        return json_text.write(answers([body])[0])

    @app.post(answers.route)
    def handle(body: dict[str, Any] = Body()) -> Response:  # noqa: B008  # FastAPI reads the default
        return Response(calls.submit(answer, body).result(), media_type="application/json")
