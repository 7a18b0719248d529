# /// script
# requires-python = ">=3.11"
# dependencies = ["cohere==7.3.1"]
# ///
"""Cohere's client: ranking and embeddings, in both versions of the protocol."""

import cohere
from cohere.core.api_error import ApiError
from common import DEADLINE_HEADERS, END, LONG, QUERY, SERVERS, TEXTS, failure, overload, report

ONCE = {"max_retries": 0}


def message(error):
    return error.body["message"]


def run(kind):
    client, *others = (kind(base_url=SERVERS[name], api_key="none") for name in ("url", "slow_url", "limited_url"))
    usual, slow, limited = client.rerank, *(other.rerank for other in others)

    def embed(texts, *types, **more):
        asked = {"model": "embed", "input_type": "search_document", "embedding_types": [*types], **more}
        return client.embed(texts=texts, **asked).embeddings

    asked = {"model": "rerank", "query": QUERY, "documents": TEXTS}
    deadline = ONCE | {"additional_headers": DEADLINE_HEADERS}
    ranks = [[one.index, one.relevance_score] for one in usual(**asked).results]
    return {
        "package": "cohere",
        "answers": {
            "rerank": {"one": ranks},
            "embed": {"one": embed(TEXTS[:1], "float").float_[0], "batch": embed(TEXTS, "float").float_},
        },
        "error": failure(lambda: usual(**asked | {"query": " "}), ApiError, message),
        "deadline": failure(lambda: slow(**asked, request_options=deadline), ApiError, message),
        "overload": overload(lambda: limited(**asked, request_options=ONCE), ApiError, message),
        "bytes": [
            min(map(min, embed(TEXTS, "float", "int8", "ubinary").int8)) >= -127,
            len(embed(TEXTS, "ubinary").ubinary),
        ],
        "cut": embed([LONG], "float", truncate="START").float_ == embed([END], "float").float_,
        "best": len(usual(**asked, top_n=1).results),
        "unknown": failure(lambda: usual(**asked | {"model": "no"}), ApiError, message),
    }


def limited_documents():
    """Whether a limit of tokens leaves the beginning of each document."""
    client = cohere.ClientV2(base_url=SERVERS["url"], api_key="none")
    asked = {"model": "rerank", "query": QUERY, "top_n": 2}
    cut = client.rerank(documents=[LONG, "a b c"], max_tokens_per_doc=2, **asked)
    short = client.rerank(documents=["b a", "a b"], **asked)
    return [one.relevance_score for one in cut.results] == [one.relevance_score for one in short.results]


report(**{"cohere, v1": run(cohere.Client), "cohere, v2": run(cohere.ClientV2) | {"limit": limited_documents()}})
