"""Runs batches on engines, in worker processes that can be killed and replaced.

    scheduling ─▶ ProcessExecutor ─▶ Supervisor ─▶ WorkerProcess ═ sockets ═ worker_main ─▶ EngineModel ─▶ Engine
                        │                                │                   one thread for each connection
                  CircuitBreaker                    WorkerCalls

`thread_executor`, `process_executor`, `device_executor`
    The implementations of `types.Executor`. The scheduler sees nothing else of this package. A `DeviceExecutor` has a
    `ProcessExecutor` for each GPU.
`supervisor`
    Starts worker processes, keeps a spare and replaces a process that was lost.
`worker_process`
    The parent's side of one worker process: start, load models, receive reports, kill.
`worker_calls`
    The calls that run in one worker process: send batches, receive results, enforce time limits.
`worker_main`
    The worker's side: the process's entry point.
`messages`
    Binary messages between the two sides.
`circuit_breaker`
    Decides when to probe and replace an engine that fails on every call.
`hosted_model`, `golden`
    One model loaded into an engine: runs batches, checks rows, replays the golden answers.
"""
