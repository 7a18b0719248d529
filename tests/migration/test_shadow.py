"""`swiftlet shadow` asks two services the same, and lets the candidate take over only with proof."""

from __future__ import annotations

import json
import stat
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest
from click.testing import CliRunner

from swiftlet_models import datasets
from swiftlet_serve.cli.main import main

SECRET = "a text that no report may have"
ACCENTED = "e\u0301"
NAMES = ["billing", "technical"]


class StandIn(BaseHTTPRequestHandler):
    """Answers decisions. The class of the server holds what it was asked."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # a response is one write

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        self.server.seen.append((self.path, self.headers.get("authorization"), body))
        assert self.headers["x-shadow-copy"] == "1"
        status, answer, *receipt = self.server.respond(body)
        content = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(content)))
        for content_of_header in receipt:
            self.send_header("x-receipt", content_of_header)
        self.end_headers()
        self.wfile.write(content)

    def log_message(self, *_) -> None:
        pass


@contextmanager
def service(respond) -> Iterator[ThreadingHTTPServer]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), StandIn)
    server.seen, server.respond = [], respond
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def decision(name: str) -> dict:
    options = [{"value": value, "probability": 0.9 if value == name else 0.1} for value in NAMES]
    return {
        "answers": [{"type": "choice", "name": "topic", "choice": name, "probabilities": options}],
        "usage": {"input_tokens": 50, "output_tokens": 0, "total_tokens": 50},
    }


def right(body):
    return 200, decision(NAMES[len(body["input"]) // 2 % 2])


def entry(i: int, **more) -> dict:
    question = {"type": "choice", "name": "topic", "instructions": "About", "choices": [{"value": n} for n in NAMES]}
    body = {"model": "gpt-6-luna", "input": f"{SECRET} 서울\t🎬\n{ACCENTED * i}", "questions": [question]}
    return {"path": "/v1/decisions", "body": body, "time": 7, **more}


@pytest.fixture
def log(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text("\n\n".join(json.dumps(entry(i), ensure_ascii=False) for i in range(200)), "utf-8")
    return path


def run(*arguments, **options):
    return CliRunner().invoke(main, ["shadow", *map(str, arguments)], **options)


def test_candidate_with_the_same_answers_may_take_over(log, tmp_path):
    keys = tmp_path / "key"
    keys.write_text("first-key\n")
    report, data = tmp_path / "report.md", tmp_path / "out.tsv"
    with service(right) as existing, service(right) as candidate:
        prices = ("--existing-price", "0.4/1M-tokens", "--candidate-price", "0.02/1k-requests")
        result = run(
            *("--log", log, "--existing", existing.url + "/base/", "--candidate", candidate.url, *prices),
            *("--existing-key-file", keys, "--report", report, "--training-data", data),
            env={"CANDIDATE_API_KEY": "second-key"},
        )

    assert result.exit_code == 0, result.output
    text = report.read_text("utf-8")
    assert "The candidate may take over." in text
    assert "| choice | 100.00 % | 98.12 to 100.00 % | 200 | 200 | 0.0000 | – |" in text
    assert "| Cost of 1,000 requests | 0.0200 | 0.0200 |" in text
    assert SECRET not in result.output + text
    assert "key" not in result.output + text
    assert {(path, key) for path, key, _ in existing.seen} == {("/base/v1/decisions", "Bearer first-key")}
    assert sorted(str(body) for *_, body in existing.seen) == sorted(str(body) for *_, body in candidate.seen)
    assert {key for _, key, _ in candidate.seen} == {"Bearer second-key"}
    assert len(candidate.seen) == 200
    assert stat.S_IMODE(data.stat().st_mode) == 0o600
    examples = datasets.named(data)
    assert {(example.text, example.label) for example in examples} == {
        (body["input"], NAMES[len(body["input"]) // 2 % 2]) for *_, body in existing.seen
    }


@pytest.mark.parametrize(
    ("respond", "outcome"),
    [
        (lambda body: (503, {}), "503: 200"),
        (lambda body: (302, {}), "302: 200"),
        (lambda body: (200, b"<html>"), "not JSON: 200"),
        (lambda body: (200, {"answers": [{"type": "poem"}]}), "unknown form: 200"),
        (lambda body: (200, decision("billing")), "No answers | 0 | 0"),
    ],
)
def test_candidate_that_differs_may_not_take_over(log, respond, outcome):
    with service(right) as existing, service(respond) as candidate:
        result = run("--log", log, "--existing", existing.url, "--candidate", candidate.url)

    assert result.exit_code == 1
    assert "may not take over: its agreement may be below 98 %" in result.output
    assert outcome in result.output
    assert "Lines of the log with answers that differ: " in result.output


def test_few_or_slow_answers_are_not_enough(log):
    with service(right) as existing, service(right) as candidate:
        few = run("--log", log, "--existing", existing.url, "--candidate", candidate.url, "--limit", 9)
        none = run("--log", log, "--existing", "http://127.0.0.1:1", "--candidate", candidate.url, "--limit", 9)

    assert (few.exit_code, none.exit_code) == (1, 1)
    with service(right) as existing, service(right) as candidate:
        slow = run("--log", log, "--existing", existing.url, "--candidate", candidate.url, "--most-ms", 1e-6)
        options = ("--log", log, "--existing", existing.url, "--candidate", candidate.url)
        wrong = [run(*options, option, "nan") for option in ("--most-ms", "--least-agreement")]
    assert [one.exit_code for one in wrong] == [2, 2]
    assert all("nan is not a number" in one.output for one in wrong)
    assert slow.exit_code == 1
    assert "its p99 is above 1e-06 ms" in slow.output
    assert "| choice | 100.00 % | 70.08 to 100.00 % | 9 |" in few.output
    assert "no answer was compared" in none.output
    assert "no response: 9" in none.output


def test_recorded_answers_stand_for_an_endpoint(tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(json.dumps(entry(i, answer=right(entry(i)["body"])[1])) for i in range(200)))
    with service(right) as candidate:
        result = run("--log", log, "--candidate", candidate.url)
    assert result.exit_code == 0
    assert "| p50 | – |" in result.output


def test_endpoint_that_never_answers_is_given_up(log):
    ended = threading.Event()

    def wait(body):
        ended.wait()
        return 200, {}

    with service(right) as existing, service(wait) as candidate:
        address = ("--existing", existing.url, "--candidate", candidate.url)
        result = run("--log", log, *address, "--limit", 2, "--timeout-ms", 1)
        ended.set()
    assert result.exit_code == 1
    assert "no response: 2" in result.output


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"path": "/v1/decisions"}', "line 2: it is not a request"),
        ("a secret", "line 2: it is not a request"),
        ('{"path": "v1", "body": {}}', "line 2: it is not a request"),
        ('{"path": "/a HTTP/1.1\\r\\nx: y", "body": {}}', "line 2: it is not a request"),
        ('{"path": "/a\\n", "body": {}}', "line 2: it is not a request"),
        ('{"path": "/a", "body": []}', "line 2: it is not a request"),
        ("[" * 5000, "line 2: it is not a request"),
        ('{"path": "/a", "body": {}}', "Line 1 of the log has no answer"),
    ],
)
def test_invalid_log_ends_the_command_before_a_request(tmp_path, line, message):
    log = tmp_path / "log.jsonl"
    log.write_text(json.dumps(entry(1)) + "\n" + line)
    with service(right) as candidate:
        result = run("--log", log, "--candidate", candidate.url)
    assert result.exit_code == 1
    assert message in result.output
    assert not {"secret", SECRET} & set(result.output.split())
    assert not candidate.seen


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--candidate", "ftp://host"], "An endpoint is an address"),
        (["--candidate", "http://name:key@host"], "An endpoint is an address"),
        (["--candidate", "http://host:99999"], "An endpoint is an address"),
        (["--candidate", "http://host/?key=1"], "An endpoint is an address"),
        (["--candidate", "http://호스트"], "An endpoint is an address"),
        (["--candidate", "http://host", "--candidate-price", "3"], "Write a price such as"),
        (["--candidate", "http://host", "--candidate-price", "nan/1M-tokens"], "Write a price such as"),
        (["--candidate", "http://host", "--training-data", __file__], "Name a new file"),
    ],
)
def test_mistakes_are_told(log, arguments, message):
    result = run("--log", log, *arguments)
    assert result.exit_code in (1, 2)
    assert message in result.output


@pytest.mark.parametrize("key", ["", "a b", "k\u00e9y", "a\nb: c"])
def test_key_that_no_header_can_have_is_refused(log, tmp_path, key):
    file = tmp_path / "key"
    file.write_text(key, "utf-8")
    result = run("--log", log, "--candidate", "http://127.0.0.1:1", "--candidate-key-file", file)
    assert result.exit_code == 1
    assert "key" in result.output
    assert not key or key not in result.output


def test_one_of_several_questions_is_learnt(tmp_path):
    def two(body):
        first, second = decision("billing"), decision("technical")
        second["answers"][0]["name"] = "other"
        return 200, first | {"answers": first["answers"] + second["answers"]}

    log, data = tmp_path / "log.jsonl", tmp_path / "out.jsonl"
    log.write_text(json.dumps(entry(1)))
    with service(two) as existing, service(two) as candidate:
        arguments = ("--log", log, "--existing", existing.url, "--candidate", candidate.url, "--training-data", data)
        assert "Name the one to learn with --question" in run(*arguments).output
        run(*arguments, "--question", "other")
    assert [example.label for example in datasets.named(data)] == ["technical"]
