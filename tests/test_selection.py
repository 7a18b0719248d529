"""The choice of test files by what they import."""

from __future__ import annotations

from operator import itemgetter
from pathlib import Path

import pytest

from tests.support.selection import NEEDS, ROOT, changed, module_name, needs
from tests.support.tiers import first, first_of_each

SERVER = "service/swiftlet_serve"


@pytest.mark.parametrize(
    ("test", "expected"),
    [
        ("scheduling.test_batch_planner", set()),
        ("http.connections.test_request_parser", set()),
        ("models.test_architectures", {"torch"}),
        ("tasks.test_vectors", {"torch"}),  # by sentence-transformers
        ("workers.test_process_executor", {"process"}),
        ("http.playground.test_playground", {"process", "browser"}),
        ("deploy.test_alerts", {"process", "network"}),
        ("engines.test_native", {"torch", "process", "emulated"}),
    ],
)
def test_marks_follow_from_imports(test, expected):
    assert needs(f"tests.{test}") == expected


def test_marks_are_registered(request):
    registered = {line.partition(":")[0] for line in request.config.getini("markers")}

    assert registered >= {*NEEDS, "process"}


def test_cases_that_are_not_chosen_are_exhaustive():
    chosen = first([1, 2, (3, "a")], 2), first_of_each(["ab", "ac", "b"], itemgetter(0))

    assert [[not case.marks for case in cases] for cases in chosen] == [[False, True, False], [True, False, True]]
    with pytest.raises(AssertionError):
        first([1, 2], 3)


@pytest.mark.parametrize(
    ("file", "affected", "unaffected"),
    [
        (
            f"{SERVER}/scheduling/batch_planner.py",
            "scheduling.test_batch_planner",
            "loadtest.test_backoff",
        ),
        (
            f"{SERVER}/http/connections/request_parser.py",
            "http.connections.test_request_parser",
            "scheduling.test_batch_planner",
        ),
        (f"{SERVER}/tasks/qa.py", "tasks.test_requests", "loadtest.test_backoff"),  # a plug-in
        (
            f"{SERVER}/http/connections/request_parser.py",
            "test_server",
            "loadtest.test_arrivals",
        ),  # a process imports everything
        ("docs/how-to/scale.md", "docs.test_documents", "test_server"),
        ("tests/support/virtual.py", "test_task_timer", "http.connections.test_request_parser"),
    ],
)
def test_changed_module_affects_the_tests_that_import_it(file, affected, unaffected):
    holds = changed([ROOT / file])

    assert holds(f"tests.{affected}")
    assert not holds(f"tests.{unaffected}")


def test_other_files_affect_all_tests():
    assert changed([ROOT / "pyproject.toml"])("tests.loadtest.test_arrivals")
    assert not changed([])("tests.loadtest.test_arrivals")


def test_modules_are_named_after_their_files():
    assert module_name(ROOT / SERVER / "tasks/__init__.py") == "swiftlet_serve.tasks"
    assert module_name(ROOT / "models/swiftlet_models/tokenizer.py") == "swiftlet_models.tokenizer"
    assert module_name(Path("/elsewhere/a.py")) is None
