"""Settings come from the environment or the caller, are validated, and are immutable."""

from __future__ import annotations

import os
import re

import pytest
from click.testing import CliRunner
from pydantic import ValidationError

from swiftlet_serve.cli.main import main
from swiftlet_serve.errors import SetupError
from swiftlet_serve.settings import Settings, check_variables


@pytest.fixture(autouse=True)
def _clean_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith("SWIFTLET_")]:
        monkeypatch.delenv(name)


def test_settings_have_defaults_and_descriptions():
    assert Settings()
    assert all(field.description for field in Settings.model_fields.values())


def test_settings_read_the_environment(monkeypatch):
    monkeypatch.setenv("SWIFTLET_PORT", "9000")
    monkeypatch.setenv("SWIFTLET_MODELS", "mine, /srv/other ,")

    assert Settings().port == 9000
    assert Settings().models == ("mine", "/srv/other")


def test_settings_prefer_arguments_to_the_environment(monkeypatch):
    monkeypatch.setenv("SWIFTLET_PORT", "9000")

    assert Settings(port=9001).port == 9001


def test_names_of_models_are_pairs(monkeypatch):
    monkeypatch.setenv("SWIFTLET_MODEL_NAMES", "gpt-4o-mini=mine, a/b:c = mine@2,")

    assert Settings().model_names == {"gpt-4o-mini": "mine", "a/b:c": "mine@2"}


@pytest.mark.parametrize("names", ["a", "a=", "=b", "a=b=c", "a@1=b", "a=b,a=c"])
def test_names_of_models_are_checked(names):
    with pytest.raises(ValidationError):
        Settings(model_names=names)


NO_END = ("drain_s", "call_timeout_s", "repository_poll_s", "client_rate_limit", "client_token_rate_limit")


@pytest.mark.parametrize(
    "wrong",
    [
        {"port": 70_000},
        {"timeout_ms": 0},
        {"log_level": "loud"},
        {"unknown": 1},
        *({name: float("inf")} for name in NO_END),
        {"drain_s": 1e308},
    ],
)
def test_settings_reject_invalid_values(wrong):
    with pytest.raises(ValidationError):
        Settings(**wrong)


def test_settings_are_immutable():
    with pytest.raises(ValidationError, match="frozen"):
        Settings().port = 1


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("SWIFTLET_API_KEY_FILE", "Did you mean SWIFTLET_API_KEYS_FILE?"),
        ("swiftlet_prot", "Did you mean SWIFTLET_PORT?"),
        ("SWIFTLET_ZZZ", "`swiftlet serve --help` lists the settings."),
        ("SWIFTLET_SERVICE_HOST", "enableServiceLinks"),
        ("SWIFTLET_PORT_8000_TCP_ADDR", "enableServiceLinks"),
    ],
)
def test_unknown_variables_are_errors(name, hint):
    with pytest.raises(SetupError, match=re.escape(hint)) as raised:
        check_variables(["PATH", "SWIFTLET_PORT", name])
    assert name in str(raised.value)


def test_variables_of_settings_are_known():
    check_variables([f"SWIFTLET_{name.upper()}" for name in Settings.model_fields] + ["PATH", "swiftlet_port"])
    check_variables(["SWIFTLET_NATIVE_KERNEL", "SWIFTLET_API_KEY"])


def test_server_does_not_start_with_a_misspelt_variable(monkeypatch):
    monkeypatch.setenv("SWIFTLET_API_KEY_FILE", "keys")
    result = CliRunner().invoke(main, ["serve", "--models", "nowhere"])

    assert result.exit_code == 1
    assert "Did you mean SWIFTLET_API_KEYS_FILE?" in result.output
