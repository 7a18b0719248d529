"""A job of Ray Data over Parquet files, with checkpoints: python -m tests.support.ray_job CONFIG."""

from __future__ import annotations

import json
import os
import signal
import sys
from typing import Any

import pyarrow as pa
import ray
import ray.data
from ray.data.checkpoint import CheckpointConfig

from swiftlet_serve.bulk.ray_data import BatchScorer

BLOCK_BYTES = 1 << 15  # small, so that both actors get some
DOOMED = "SWIFTLET_TEST_DOOMED_NODE"  # environment variable of a node that is killed: a FIFO to announce a batch on


class Doomed(BatchScorer):
    """Scores batches. On the node that the test kills, it announces its first batch and blocks until the kill."""

    def __call__(self, batch: pa.Table) -> pa.Table:
        if DOOMED in os.environ:
            with open(os.environ[DOOMED], "w") as fifo:
                fifo.write(f"{batch.num_rows}\n")
            signal.pause()
        return super().__call__(batch)


def run(address: str, source: str, out: str, checkpoints: str, model: dict[str, Any]) -> None:
    """Scores files with two actors, one on each node. A restarted job skips the rows that earlier runs finished.

    Args:
        address: the address of the head node.
        source: folder of Parquet files with the columns id and text.
        out: folder to write to.
        checkpoints: folder of the checkpoints, which all nodes can read.
        model: the arguments of `BatchScorer`.
    """
    ray.init(address, log_to_driver=False)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.target_max_block_size = BLOCK_BYTES
    context.checkpoint_config = CheckpointConfig("id", checkpoints, delete_checkpoint_on_success=False)
    dataset = ray.data.read_parquet(source, num_cpus=0.2)
    scored = dataset.map_batches(
        Doomed,
        fn_constructor_kwargs=model,
        batch_format="pyarrow",
        batch_size=512,
        compute=ray.data.ActorPoolStrategy(size=2),
        num_cpus=2,  # of three
    )
    scored.write_parquet(out, ray_remote_args={"num_cpus": 0.2})


if __name__ == "__main__":
    run(**json.loads(sys.argv[1]))
