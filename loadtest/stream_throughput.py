"""Compares the vectors per second of a stream of requests with those of the engine alone.

    python -m loadtest.stream_throughput [--model mobilebert-embed] [--texts 64] [--tokens 200] [--callers 8]

The stream is that of somebody who fills an index: each caller sends the next request when the last one is answered.
Both use all cores, the load generator included: the engine runs the sequences of the same texts in threads, in batches
of similar length. Rounds alternate, and the first one does not count.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
import tomllib
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from loadtest.generator import send_all
from loadtest.server_process import serving
from loadtest.workload import TEXTS
from swiftlet_serve.benchmark.measure import Interval
from swiftlet_serve.benchmark.plan import batches_of_similar_length
from swiftlet_serve.http_client import Client, request_bytes
from swiftlet_serve.inference.loading import LoadedModel, load_model, locate
from swiftlet_serve.offline.environment import current_environment
from swiftlet_serve.types import Batch

ROUNDS: Final = 5
REQUESTS_PER_CALLER: Final = 2


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="mobilebert-embed")
    parser.add_argument("--texts", type=int, default=64, help="Texts of a request.")
    parser.add_argument("--tokens", type=int, default=200, help="Mean tokens of a text.")
    parser.add_argument("--callers", type=int, default=8)
    arguments = parser.parse_args()
    (path,) = locate([arguments.model])
    model, environment = load_model(path, "native"), current_environment()
    count = REQUESTS_PER_CALLER * arguments.callers
    texts = draw_texts(model, count * arguments.texts, arguments.tokens)
    groups = [texts[i::count] for i in range(count)]
    bodies = [request_bytes("/embed", json.dumps({"inputs": group}).encode()) for group in groups]
    encodings = model.task.encode(model.task.Request.model_validate({"inputs": texts}))
    batches = [Batch.of(group) for group in batches_of_similar_length(encodings)]
    rounds: list[tuple[float, float]] = []
    options = ("--log-level", "error", "--timeout-ms", "60000")
    with serving([path], "native", *options) as server, ThreadPoolExecutor(environment.cores) as threads:
        for _ in range(ROUNDS + 1):
            started = time.perf_counter()
            list(threads.map(model.engine.run, batches))
            engine_s = time.perf_counter() - started
            rounds.append((engine_s, asyncio.run(stream(server.url, bodies, arguments.callers))))
    alone, served = (Interval.of([len(texts) / times[i] for times in rounds[1:]]).value for i in (0, 1))
    share = Interval.of([100 * engine_s / stream_s for engine_s, stream_s in rounds[1:]])
    tokens = sum(len(encoding.input_ids) for encoding in encodings) / len(texts)
    print(
        f"{environment.description()}\n\n{path.name}, {arguments.callers} callers, {arguments.texts} texts of "
        f"{tokens:.0f} tokens in a request: {served:,.0f} vectors/s over HTTP, {alone:,.0f} of the engine alone; "
        f"{share.value:.1f} % of its rate ({share.low:.1f} to {share.high:.1f})."
    )


def draw_texts(model: LoadedModel, count: int, tokens: int) -> list[str]:
    """Returns texts of built-in sentences, of about so many tokens in the mean."""
    sentences, draw = tomllib.loads(TEXTS.read_text("utf-8"))["sentences"], random.Random(0)
    mean = sum(map(len, model.tokenizer.ids(sentences))) / len(sentences)
    most = round(2 * tokens / mean)
    return [" ".join(draw.choices(sentences, k=draw.randint(1, most - 1))) for _ in range(count)]


async def stream(url: str, bodies: Sequence[bytes], callers: int) -> float:
    """Returns the seconds until all requests are answered.

    Raises:
        SystemExit: a request failed.
    """
    client = Client(url)

    async def send(body: bytes) -> None:
        response = await client.send(body)
        if response.status != 200:
            raise SystemExit(f"A request was answered with status {response.status}.")

    started = time.perf_counter()
    await send_all(bodies, send, callers)
    client.close()
    return time.perf_counter() - started


if __name__ == "__main__":
    main()
