# /// script
# requires-python = ">=3.11"
# dependencies = ["cohere==7.3.1"]
# ///
"""Cohere's client: ranking, in both versions of the protocol."""

import json
import sys

import cohere
from cohere.core.api_error import ApiError

URL, TEXTS = sys.argv[1], json.loads(sys.argv[2])


def error(call):
    try:
        call()
    except ApiError as failure:
        return [type(failure).__name__, failure.status_code, failure.body["message"]]
    return None


def main():
    first, second = (kind(base_url=URL, api_key="none") for kind in (cohere.Client, cohere.ClientV2))
    query = "Who?"
    old = first.rerank(model="rerank", query=query, documents=TEXTS, return_documents=True)
    new = second.rerank(model="rerank", query=query, documents=TEXTS)
    print(
        json.dumps(
            {
                "v1": [[one.index, one.relevance_score, one.document.text] for one in old.results],
                "v2": [[one.index, one.relevance_score] for one in new.results],
                "best": len(second.rerank(model="rerank", query=query, documents=TEXTS, top_n=1).results),
                "empty": error(lambda: second.rerank(model="rerank", query=" ", documents=TEXTS)),
                "unknown": error(lambda: second.rerank(model="no", query=query, documents=TEXTS)),
            }
        )
    )


main()
