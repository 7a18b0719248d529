"""The data types and protocols that the packages of the service share."""

from swiftlet_serve.types.batch import Batch, PaddedBatch, Row
from swiftlet_serve.types.engine import EARLIER_WRONG_SUMS, Cost, Engine, TimedCall, helped_s
from swiftlet_serve.types.executor import BatchResult, Executor, Outcome, WorkerLost
from swiftlet_serve.types.request import Deadline, Priority
from swiftlet_serve.types.task import EncodingT, RequestT, Task

__all__ = [
    "EARLIER_WRONG_SUMS",
    "Batch",
    "BatchResult",
    "Cost",
    "Deadline",
    "EncodingT",
    "Engine",
    "Executor",
    "Outcome",
    "PaddedBatch",
    "Priority",
    "RequestT",
    "Row",
    "Task",
    "TimedCall",
    "WorkerLost",
    "helped_s",
]
