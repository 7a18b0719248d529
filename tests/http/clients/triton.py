# /// script
# requires-python = ">=3.11"
# dependencies = ["tritonclient[http,grpc]==2.73.0", "numpy==2.4.6"]
# ///
"""Triton's clients over HTTP and gRPC, which have the same methods."""

import json

import numpy as np
import tritonclient.grpc
import tritonclient.http
from common import DEADLINE_MS, LABELS, MASKED, QUERY, QUESTION, SERVERS, TEXTS, failure, overload, report
from tritonclient.utils import InferenceServerException


def plain(array):
    return [[one.decode() if isinstance(one, bytes) else one for one in row] for row in array.tolist()]


def message(error):
    return error.message()


class Client:
    def __init__(self, module, address):
        self.module = module
        self.client = module.InferenceServerClient(address)

    def tensor(self, name, values):
        found = self.module.InferInput(name, [len(values)], "BYTES")
        found.set_data_from_numpy(np.array(values, dtype=object))
        return found

    def infer(self, model, inputs, *outputs, **options):
        """Returns a list for each input, with a list of the outputs for each answer."""
        answer = self.client.infer(model, [self.tensor(name, values) for name, values in inputs.items()], **options)
        columns = [plain(answer.as_numpy(name)) for name in outputs]
        return [[list(answer) for answer in zip(*rows, strict=True)] for rows in zip(*columns, strict=True)]

    def objects(self, model, inputs, **options):
        """Returns the answer to each input."""
        return [json.loads(answer) for ((answer,),) in self.infer(model, inputs, "output", **options)]

    def tasks(self, texts, masked):
        top = {"parameters": {"top_k": 1}}
        labels = {"parameters": {"candidate_labels": json.dumps(LABELS)}}
        return {
            "classify": [each for (each,) in self.infer("classify", {"text": texts}, "label", "score", **top)],
            "qa": [
                each
                for (each,) in self.infer("qa", {"question": [QUESTION], "context": texts}, "answer", "start", "end")
            ],
            "fill-mask": [[one for (one,) in row] for row in self.infer("fill-mask", {"text": masked}, "token_str")],
            "entities": [
                [[one["word"], one["start"], one["end"]] for one in row]
                for row in self.objects("entities", {"args": texts})
            ],
            "zero-shot": [
                [one["label"] for one in row] for row in self.objects("zero-shot", {"args": texts}, **labels)
            ],
            "embed": [[one for (one,) in row] for row in self.infer("embed", {"text": texts}, "embedding")],
        }

    def answers(self):
        ranks = self.infer("rerank", {"query": [QUERY], "texts": TEXTS}, "index", "score")
        one, batch = self.tasks(TEXTS[:1], MASKED[:1]), self.tasks(TEXTS, MASKED)
        return {task: {"one": one[task][0], "batch": batch[task]} for task in one} | {"rerank": {"one": ranks[0]}}


def ask(client, **options):
    return client.infer("classify", {"text": TEXTS}, "label", **options)


def run(kind, **deadline):
    module = {"http": tritonclient.http, "grpc": tritonclient.grpc}[kind]
    usual, slow, limited = (Client(module, SERVERS[name].removeprefix("http://")) for name in addresses(kind))
    client = usual.client
    compression = {"http": "request_compression_algorithm", "grpc": "compression_algorithm"}[kind]
    index, described = client.get_model_repository_index(), client.get_model_metadata("qa")
    models, inputs = (index.models, described.inputs) if kind == "grpc" else (index, described["inputs"])
    return {
        "package": "tritonclient",
        "answers": usual.answers(),
        "error": failure(lambda: usual.infer("classify", {"text": [""]}, "label"), InferenceServerException, message),
        "deadline": failure(lambda: ask(slow, **deadline), InferenceServerException, message),
        "overload": overload(lambda: ask(limited), InferenceServerException, message),
        "live": client.is_server_live(),
        "ready": client.is_server_ready() and client.is_model_ready("classify"),
        "models": [one.name if kind == "grpc" else one["name"] for one in models],
        "inputs": [one.name if kind == "grpc" else one["name"] for one in inputs],
        "compressed": ask(usual, **{compression: "gzip"}) == ask(usual),
        "unknown": failure(lambda: usual.infer("no", {"text": TEXTS}, "label"), InferenceServerException, message),
    }


def addresses(kind):
    return [f"{name}{'url' if kind == 'http' else 'grpc'}" for name in ("", "slow_", "limited_")]


report(
    **{
        "tritonclient, HTTP": run("http", timeout=1000 * int(DEADLINE_MS)),
        "tritonclient, gRPC": run("grpc", client_timeout=int(DEADLINE_MS) / 1000),
    }
)
