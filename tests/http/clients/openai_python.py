# /// script
# requires-python = ">=3.11"
# dependencies = ["openai==3.54.0", "langchain-openai==1.7.3"]
# ///
"""OpenAI's client and LangChain: embeddings and decisions, with and without asyncio."""

import asyncio

import openai
from common import DEADLINE_HEADERS, END, LONG, SERVERS, TEXTS, failure, overload, report
from langchain_openai import OpenAIEmbeddings
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate

URL = f"{SERVERS['url']}/v1"
STATEMENT = "The text is positive."
QUESTIONS = [
    {"type": "predicate", "name": "positive", "instructions": STATEMENT},
    {"type": "choice", "instructions": "Which?", "choices": [{"value": "good"}, {"value": "bad"}]},
    {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
]


def connect(kind, name="url", **options):
    return kind(base_url=f"{SERVERS[name]}/v1", api_key="none", **options)


def message(error):
    return error.body["message"]


def described(error):
    return [error.code, error.param, message(error)]


def retried(ask):
    """Asks twice. Returns whether the server refused both, and answered the client's own retries."""
    responses = [ask() for _ in range(2)]
    return all(one.retries_taken == 1 and one.parse().data[0].object == "embedding" for one in responses)


def run(kind, wait):
    """Runs a client. `wait` returns the result of a call."""
    client, slow = connect(kind), connect(kind, "slow_url", max_retries=0, default_headers=DEADLINE_HEADERS)
    limited = connect(kind, "limited_url").embeddings.with_raw_response

    def embed(texts, **options):
        return [one.embedding for one in wait(client.embeddings.create(model="embed", input=texts, **options)).data]

    def decide(text, *questions):
        return wait(client.decisions.create(model="classify", input=text, questions=questions)).to_dict()

    unanswerable = {"type": "predicate", "instructions": "It rains."}
    return {
        "package": "openai",
        "answers": {
            "embed": {"one": embed(TEXTS[0])[0], "batch": embed(TEXTS)},
            "decisions": {"one": decide(TEXTS[0], *QUESTIONS[:1]), "batch": decide(TEXTS[0], *QUESTIONS)},
        },
        "error": failure(lambda: embed(""), openai.APIStatusError, message),
        "deadline": failure(
            lambda: wait(slow.embeddings.create(model="embed", input="a")), openai.APIStatusError, message
        ),
        "overload": [None, None],
        "retried": retried(lambda: wait(limited.create(model="embed", input="a"))),
        "cut": embed(LONG, extra_body={"truncate_prompt_tokens": 48, "truncation_side": "left"}) == embed(END),
        "floats": embed(TEXTS, encoding_format="float"),
        "dimensions": [len(one) for one in embed(TEXTS, dimensions=3)],
        "unknown": failure(
            lambda: wait(client.embeddings.create(model="no", input="a")), openai.APIStatusError, described
        ),
        "unanswerable": failure(lambda: decide("a", unanswerable), openai.APIStatusError, described),
    }


def langchain():
    def embeddings(name="url", **options):
        return connect(OpenAIEmbeddings, name, model="embed", check_embedding_ctx_length=False, **options)

    decisions = connect(OpenAIDecisions, model="zero-shot")
    chosen = Choice(instructions="Which?", choices={"film": "A film.", "book": "A book."})
    asked = {"input": TEXTS[0], "questions": {"film": Predicate(instructions="It is a film."), "which": chosen}}
    response = decisions.invoke(asked)
    slow = embeddings("slow_url", max_retries=0, default_headers=DEADLINE_HEADERS)
    limited = embeddings("limited_url", max_retries=0)
    return {
        "package": "langchain-openai",
        "answers": {"embed": {"one": embeddings().embed_query(TEXTS[0]), "batch": embeddings().embed_documents(TEXTS)}},
        "error": failure(lambda: embeddings().embed_query(""), openai.APIStatusError, message),
        "deadline": failure(lambda: slow.embed_query("a"), openai.APIStatusError, message),
        "overload": overload(lambda: limited.embed_query("a"), openai.APIStatusError, message),
        "decisions": [response.predicates["film"].probability, response.choices["which"].choice],
    }


def main():
    with asyncio.Runner() as runner:
        alone, other = run(openai.OpenAI, lambda answer: answer), run(openai.AsyncOpenAI, lambda call: runner.run(call))
    report(**{"openai": alone, "openai, asyncio": other, "langchain-openai": langchain()})


main()
