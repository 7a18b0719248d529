# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["kserve==0.15.1", "numpy<2"]
# ///
"""KServe's clients, with both versions of the protocol over REST, and version 2 over gRPC."""

import asyncio
import json

import grpc
import httpx
import numpy as np
from common import (
    DEADLINE_HEADERS,
    DEADLINE_MS,
    LABELS,
    MASKED,
    QUERY,
    QUESTION,
    SERVERS,
    TEXTS,
    failure,
    overload,
    report,
)
from kserve import InferenceGRPCClient, InferenceRESTClient, InferInput, InferRequest, RESTConfig

loop = asyncio.new_event_loop()
asyncio.set_event_loop(loop)  # the gRPC client looks for it


def wait(call):
    return loop.run_until_complete(call)


def rest(version, url="url"):
    client = InferenceRESTClient(RESTConfig(protocol=version, retries=1))
    return lambda model, body, **options: wait(client.infer(SERVERS[url], body, model_name=model, **options))


def over_grpc(address="grpc"):
    client = InferenceGRPCClient(SERVERS[address])
    return lambda _, request, **options: wait(client.infer(request, **options))


def tensors(model, inputs, *, binary=False, **parameters):
    given = []
    for name, values in inputs.items():
        one = InferInput(name, [len(values)], "BYTES", None if binary else values)
        if binary:
            one.set_data_from_numpy(np.array(values, dtype=object), binary_data=True)
        given.append(one)
    return InferRequest(model_name=model, infer_inputs=given, parameters=parameters)


def rows(answer, *names):
    """Returns a list for each input, with a list of the outputs for each answer."""
    found = {}
    for output in answer.outputs:
        values = [
            one.decode() if isinstance(one, bytes) else one for one in np.array(output.as_numpy()).flatten().tolist()
        ]
        found[output.name] = np.array(values, dtype=object).reshape(output.shape).tolist()
    columns = [found[name] for name in names]
    return [[list(answer) for answer in zip(*each, strict=True)] for each in zip(*columns, strict=True)]


def second(infer, **form):
    """Returns the answers of version 2."""

    def ask(model, inputs, *names, **parameters):
        return rows(infer(model, tensors(model, inputs, **form, **parameters)), *names)

    def objects(model, inputs, **parameters):
        return [json.loads(answer) for ((answer,),) in ask(model, inputs, "output", **parameters)]

    def tasks(texts, masked):
        return {
            "classify": [each for (each,) in ask("classify", {"text": texts}, "label", "score", top_k=1)],
            "qa": [each for (each,) in ask("qa", {"question": [QUESTION], "context": texts}, "answer", "start", "end")],
            "fill-mask": [[one for (one,) in row] for row in ask("fill-mask", {"text": masked}, "token_str")],
            "entities": [
                [[one["word"], one["start"], one["end"]] for one in row] for row in objects("entities", {"args": texts})
            ],
            "zero-shot": [
                [one["label"] for one in row]
                for row in objects("zero-shot", {"args": texts}, candidate_labels=json.dumps(LABELS))
            ],
            "embed": [[one for (one,) in row] for row in ask("embed", {"text": texts}, "embedding")],
        }

    one, batch = tasks(TEXTS[:1], MASKED[:1]), tasks(TEXTS, MASKED)
    (ranks,) = ask("rerank", {"query": [QUERY], "texts": TEXTS}, "index", "score")
    return {task: {"one": one[task][0], "batch": batch[task]} for task in one} | {"rerank": {"one": ranks}}


def first(infer):
    """Returns the answers of version 1."""

    def ask(model, instances, **parameters):
        return infer(model, {"instances": instances, "parameters": parameters})["predictions"]

    def tasks(texts, masked):
        questions = [{"question": QUESTION, "context": text} for text in texts]
        return {
            "classify": [[row[0]["label"], row[0]["score"]] for row in ask("classify", texts)],
            "qa": [[one["answer"], one["start"], one["end"]] for one in ask("qa", questions)],
            "fill-mask": [[one["token_str"] for one in row] for row in ask("fill-mask", masked)],
            "entities": [[[one["word"], one["start"], one["end"]] for one in row] for row in ask("entities", texts)],
            "zero-shot": [[one["label"] for one in row] for row in ask("zero-shot", texts, candidate_labels=LABELS)],
            "embed": ask("embed", texts),
        }

    one, batch = tasks(TEXTS[:1], MASKED[:1]), tasks(TEXTS, MASKED)
    (ranks,) = ask("rerank", [{"query": QUERY, "texts": TEXTS}])
    answers = {task: {"one": one[task][0], "batch": batch[task]} for task in one}
    return answers | {"rerank": {"one": [[each["index"], each["score"]] for each in ranks]}}


def run(answers, usual, slow, limited, body, kind, message=str, **deadline):
    return {
        "package": "kserve",
        "answers": answers,
        "error": failure(lambda: usual("classify", body([""])), kind, message),
        "deadline": failure(lambda: slow("classify", body(TEXTS), **deadline), kind, message),
        "overload": overload(lambda: limited("classify", body(TEXTS)), kind, message),
    }


def instances(texts):
    return {"instances": texts}


def texts_tensor(texts):
    return tensors("classify", {"text": texts})


def main():
    v1, v2, by_grpc = rest("v1"), rest("v2"), over_grpc()
    old = (v1, rest("v1", "slow_url"), rest("v1", "limited_url"))
    new = (v2, rest("v2", "slow_url"), rest("v2", "limited_url"))
    channels = (by_grpc, over_grpc("slow_grpc"), over_grpc("limited_grpc"))
    header = {"headers": DEADLINE_HEADERS}
    state = InferenceRESTClient(RESTConfig(protocol="v2"))
    url = SERVERS["url"]
    report(
        **{
            "kserve, REST v1": run(first(v1), *old, instances, httpx.HTTPStatusError, **header),
            "kserve, REST v2": run(second(v2), *new, texts_tensor, httpx.HTTPStatusError, **header)
            | {
                "binary": second(v2, binary=True) == second(v2),
                "live": wait(state.is_server_live(url)),
                "ready": wait(state.is_server_ready(url)) and wait(state.is_model_ready(url, "classify")),
            },
            "kserve, gRPC": run(
                second(by_grpc),
                *channels,
                texts_tensor,
                grpc.aio.AioRpcError,
                lambda error: error.details(),
                timeout=int(DEADLINE_MS) / 1000,
            ),
        }
    )


main()
