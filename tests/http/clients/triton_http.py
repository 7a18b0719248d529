# /// script
# requires-python = ">=3.11"
# dependencies = ["tritonclient[http]==2.73.0", "numpy==2.4.6"]
# ///
"""Triton's HTTP client."""

import json
import sys

import numpy as np
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

client = triton.InferenceServerClient(sys.argv[1].removeprefix("http://"))
TEXTS = json.loads(sys.argv[2])


def tensor(name, values, binary=True):
    found = triton.InferInput(name, [len(values)], "BYTES")
    found.set_data_from_numpy(np.array(values, dtype=object), binary_data=binary)
    return found


def plain(array):
    return [[one.decode() if isinstance(one, bytes) else one for one in row] for row in array.tolist()]


def error(**arguments):
    try:
        client.infer(**arguments)
    except InferenceServerException as failure:
        return [failure.status(), failure.message()]
    return None


text = tensor("text", TEXTS)
answer = client.infer("classify", [text], request_id="7", parameters={"top_k": 1})
json_output = triton.InferRequestedOutput("label", binary_data=False)
qa = client.infer("qa", [tensor("question", ["Who lives there?"]), tensor("context", [TEXTS[0]])])
print(
    json.dumps(
        {
            "live": client.is_server_live(),
            "ready": client.is_server_ready() and client.is_model_ready("classify"),
            "models": [one["name"] for one in client.get_model_repository_index()],
            "inputs": [one["name"] for one in client.get_model_metadata("qa")["inputs"]],
            "id": answer.get_response()["id"],
            "labels": plain(answer.as_numpy("label")),
            "scores": plain(answer.as_numpy("score")),
            "labels in JSON": plain(client.infer("classify", [text], outputs=[json_output]).as_numpy("label")),
            "texts in JSON": plain(client.infer("classify", [tensor("text", TEXTS, binary=False)]).as_numpy("label")),
            "compressed": plain(
                client.infer("classify", [text], request_compression_algorithm="gzip").as_numpy("label")
            ),
            "answer": plain(qa.as_numpy("answer")),
            "masked": plain(client.infer("fill-mask", [tensor("text", ["the [MASK] ."])]).as_numpy("token_str")),
            "unknown model": error(model_name="no", inputs=[text]),
            "invalid": error(model_name="classify", inputs=[text], parameters={"topk": 1}),
            "deadline": error(model_name="classify", inputs=[text], timeout=1),
        }
    )
)
