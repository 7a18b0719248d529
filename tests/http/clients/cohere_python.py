# /// script
# requires-python = ">=3.11"
# dependencies = ["cohere==7.3.1"]
# ///
"""Cohere's client: ranking, in both versions of the protocol."""

import cohere
from cohere.core.api_error import ApiError
from common import DEADLINE_HEADERS, QUERY, SERVERS, TEXTS, failure, overload, report

ONCE = {"max_retries": 0}


def message(error):
    return error.body["message"]


def run(kind):
    usual, slow, limited = (
        kind(base_url=SERVERS[name], api_key="none").rerank for name in ("url", "slow_url", "limited_url")
    )
    asked = {"model": "rerank", "query": QUERY, "documents": TEXTS}
    deadline = ONCE | {"additional_headers": DEADLINE_HEADERS}
    ranks = [[one.index, one.relevance_score] for one in usual(**asked).results]
    return {
        "package": "cohere",
        "answers": {"rerank": {"one": ranks}},
        "error": failure(lambda: usual(**asked | {"query": " "}), ApiError, message),
        "deadline": failure(lambda: slow(**asked, request_options=deadline), ApiError, message),
        "overload": overload(lambda: limited(**asked, request_options=ONCE), ApiError, message),
        "best": len(usual(**asked, top_n=1).results),
        "unknown": failure(lambda: usual(**asked | {"model": "no"}), ApiError, message),
    }


report(**{"cohere, v1": run(cohere.Client), "cohere, v2": run(cohere.ClientV2)})
