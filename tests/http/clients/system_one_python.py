# /// script
# requires-python = ">=3.11"
# dependencies = ["jevbench==0.1.0", "jevcompat==0.1.1", "typesafe-sdk==0.7.5"]
# ///
"""System One's client, with and without asyncio, and two public suites: of conformance, and of coherence."""

import asyncio

import jevbench
from common import DEADLINE_HEADERS, SERVERS, TEXTS, failure, overload, report
from jevcompat import runner
from typesafe_sdk import AsyncTypeSafeClient, Choice, Noul, RetryPolicy, Score, TypeSafeAPIError, TypeSafeClient

QUESTIONS = {
    "positive": Noul(instructions="The text is positive."),
    "which": Choice(instructions="Which?", criteria={"good": None, "bad": None}),
    "how": Score(instructions="How?", criteria=["low", "high"]),
}
ONCE = RetryPolicy(max_retries=0)


def run(kind, wait):
    """Runs a client. `wait` returns the result of a call."""

    def connect(name="", **options):
        return kind(api_key="none", base_url=SERVERS[f"{name}url"], model="classify", **options)

    client, slow, limited = connect(), connect("slow_", headers=DEADLINE_HEADERS), connect("limited_", retry=ONCE)

    def decide(*names, client=client, state=TEXTS[0], **options):
        response = wait(client.system_one(state, {name: QUESTIONS[name] for name in names}, **options))
        return {name: answer.model_dump() for name, answer in response.answers.items()}

    return {
        "package": "typesafe-sdk",
        "answers": {"decisions": {"one": decide("positive"), "batch": decide(*QUESTIONS)}},
        "error": failure(lambda: decide("positive", state=" "), TypeSafeAPIError),
        "deadline": failure(lambda: decide("positive", client=slow, retry=ONCE), TypeSafeAPIError),
        "overload": overload(lambda: decide("positive", client=limited), TypeSafeAPIError),
        "unknown": failure(lambda: decide("positive", model="no"), TypeSafeAPIError),
        "models": [one.name for one in wait(client.models.list()).models],
    }


def judge():
    """Returns the verdict of the suite, and how many requirements were met and not. It names no model."""
    found = runner.run(SERVERS["keyed_url"], key=SERVERS["key"])
    return [found.verdict, *([found.count(level, end) for end in ("pass", "fail")] for level in ("MUST", "SHOULD"))]


def weigh():
    """Returns which relations of the coherence suite do not hold, of those that do not depend on the model."""
    model = jevbench.systemone(f"{SERVERS['keyed_url']}/v1/systemone", "jev-latest", api_key=SERVERS["key"])
    groups = ["BAT.isolation", "CHO.conditioning", "REP.binding", "REP.equivariance"]
    found = jevbench.evaluate(model, "examples", groups=groups, relations=["option_clone"], cache=None)
    return [len(found.scores["relations"]), [name for name, score in found.scores["relations"].items() if score < 1]]


def main():
    with asyncio.Runner() as loop:
        alone = run(TypeSafeClient, lambda answer: answer)
        other = run(AsyncTypeSafeClient, lambda call: loop.run(call))
    report(**{"typesafe-sdk": alone | {"suite": judge(), "coherence": weigh()}, "typesafe-sdk, asyncio": other})


main()
