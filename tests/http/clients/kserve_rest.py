# /// script
# requires-python = ">=3.11,<3.13"
# dependencies = ["kserve==0.15.1", "numpy<2"]
# ///
"""KServe's REST client, with both versions of the protocol."""

import asyncio
import json
import sys

import numpy as np
from kserve import InferenceRESTClient, InferInput, InferRequest, RESTConfig

URL, TEXTS = sys.argv[1], json.loads(sys.argv[2])


async def error(client, data):
    try:
        await client.infer(URL, data, model_name="classify")
    except Exception as failure:
        return [type(failure).__name__, str(failure)]
    return None


async def main():
    first, second = (InferenceRESTClient(RESTConfig(protocol=version, retries=1)) for version in ("v1", "v2"))
    inputs = [InferInput("text", [len(TEXTS)], "BYTES", data=TEXTS)]
    binary = [InferInput("text", [len(TEXTS)], "BYTES")]
    binary[0].set_data_from_numpy(np.array(TEXTS, dtype=object), binary_data=True)
    found = {}
    for name, given in (("json", inputs), ("binary", binary)):
        answer = await second.infer(URL, InferRequest(model_name="classify", infer_inputs=given), model_name="classify")
        found[name] = {output.name: output.data for output in answer.outputs}
    bad = [InferInput("text", [1], "BYTES", data=[""])]
    print(
        json.dumps(
            found
            | {
                "live": await second.is_server_live(URL),
                "ready": await second.is_server_ready(URL) and await second.is_model_ready(URL, "classify"),
                "ready v1": await first.is_model_ready(URL, "classify"),
                "predictions": await first.infer(URL, {"instances": TEXTS}, model_name="classify"),
                "empty v1": await error(first, {"instances": [""]}),
                "empty v2": await error(second, InferRequest(model_name="classify", infer_inputs=bad)),
            }
        )
    )


asyncio.run(main())
