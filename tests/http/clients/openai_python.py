# /// script
# requires-python = ">=3.11"
# dependencies = ["openai==3.54.0", "langchain-openai==1.7.3"]
# ///
"""OpenAI's client and LangChain: embeddings and decisions, with and without asyncio."""

import asyncio
import json
import sys

import openai
from langchain_openai import OpenAIEmbeddings
from langchain_openai.decisions import Choice, OpenAIDecisions, Predicate

URL, TEXTS = f"{sys.argv[1]}/v1", json.loads(sys.argv[2])
STATEMENT = "The text is positive."
QUESTIONS = [
    {"type": "predicate", "name": "positive", "instructions": STATEMENT},
    {"type": "choice", "instructions": "Which?", "choices": [{"value": "good"}, {"value": "bad"}]},
    {"type": "score", "instructions": "How?", "levels": [{"label": "low"}, {"label": "high"}]},
]

client = openai.OpenAI(base_url=URL, api_key="none")


def error(call):
    try:
        call()
    except openai.APIStatusError as failure:
        return [type(failure).__name__, failure.code, failure.param, failure.body["message"]]
    return None


def retried():
    """Asks until the server has refused once. Returns whether the client's retry was answered."""
    for _ in range(100):
        answer = client.embeddings.with_raw_response.create(model="embed", input="a")
        if answer.retries_taken:
            return answer.parse().data[0].object == "embedding"
    return False


async def asynchronous():
    async with openai.AsyncOpenAI(base_url=URL, api_key="none") as other:
        vectors = await other.embeddings.create(model="embed", input=TEXTS, dimensions=3)
        decision = await other.decisions.create(model="classify", input=TEXTS[0], questions=QUESTIONS)
    return [len(one.embedding) for one in vectors.data], decision.to_dict()


def main():
    if sys.argv[3:] == ["retry"]:
        print(json.dumps(retried()))
        return
    floats = client.embeddings.create(model="embed", input=TEXTS, encoding_format="float")
    packed = client.embeddings.create(model="embed", input=TEXTS)  # asks for Base64
    langchain = OpenAIEmbeddings(model="embed", base_url=URL, api_key="none", check_embedding_ctx_length=False)
    decisions = OpenAIDecisions(model="zero-shot", base_url=URL, api_key="none")
    chosen = Choice(instructions="Which?", choices={"film": "A film.", "book": "A book."})
    asked = {"input": TEXTS[0], "questions": {"film": Predicate(instructions="It is a film."), "which": chosen}}
    response = decisions.invoke(asked)
    dimensions, asked_again = asyncio.run(asynchronous())
    print(
        json.dumps(
            {
                "models": [model.id for model in client.models.list()],
                "floats": [one.embedding for one in floats.data],
                "packed": [one.embedding for one in packed.data],
                "langchain": langchain.embed_documents(TEXTS),
                "dimensions": dimensions,
                "decisions": client.decisions.create(model="classify", input=TEXTS[0], questions=QUESTIONS).to_dict(),
                "decisions again": asked_again,
                "langchain decisions": [response.predicates["film"].probability, response.choices["which"].choice],
                "empty": error(lambda: client.embeddings.create(model="embed", input="")),
                "unknown": error(lambda: client.embeddings.create(model="no", input="a")),
                "unanswerable": error(
                    lambda: client.decisions.create(
                        model="classify", input="a", questions=[{"type": "predicate", "instructions": "It rains."}]
                    )
                ),
            }
        )
    )


main()
