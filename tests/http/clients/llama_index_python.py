# /// script
# requires-python = ">=3.11"
# dependencies = [
#   "llama-index-embeddings-openai-like==0.4.0",
#   "llama-index-embeddings-text-embeddings-inference==0.6.0",
# ]
# ///
"""LlamaIndex's embeddings, over OpenAI's protocol and TEI's. The latter reads no status of a response."""

import openai
from common import DEADLINE_HEADERS, SERVERS, TEXTS, failure, overload, report
from llama_index.embeddings.openai_like import OpenAILikeEmbedding
from llama_index.embeddings.text_embeddings_inference import TextEmbeddingsInference


def like_openai(name="url", **options):
    return OpenAILikeEmbedding(model_name="embed", api_base=f"{SERVERS[name]}/v1", max_retries=0, **options)


def answers(client):
    return {"embed": {"one": client.get_text_embedding(TEXTS[0]), "batch": client.get_text_embedding_batch(TEXTS)}}


def message(error):
    return error.body["message"]


def ask(client):
    return lambda: client.get_text_embedding(TEXTS[0])


report(
    **{
        "LlamaIndex, OpenAI": {
            "package": "llama-index-embeddings-openai-like",
            "answers": answers(like_openai()),
            "error": failure(lambda: like_openai().get_text_embedding(" "), openai.APIStatusError, message),
            "deadline": failure(
                ask(like_openai("slow_url", default_headers=DEADLINE_HEADERS)), openai.APIStatusError, message
            ),
            "overload": overload(ask(like_openai("limited_url")), openai.APIStatusError, message),
        },
        "LlamaIndex, TEI": {
            "package": "llama-index-embeddings-text-embeddings-inference",
            "answers": answers(TextEmbeddingsInference(model_name="embed", base_url=SERVERS["url"])),
            "error": None,
            "deadline": None,
            "overload": None,
        },
    }
)
