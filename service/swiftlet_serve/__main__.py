"""The command `swiftlet`. `python -m swiftlet_serve` runs the same command."""

import atexit
import gc
import os
import signal
import sys


def main() -> None:
    atexit.register(gc.freeze)  # the system frees the memory faster than a search for garbage at the end
    # The signals come first, because each import takes time. SIGHUP waits until the server can reload its files.
    # SIGINT ends the process without a traceback, as SIGTERM does.
    serves = sys.argv[1:2] == ["serve"]
    if serves:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGHUP})
    interrupt = signal.getsignal(signal.SIGINT)
    if interrupt is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    if os.getpid() == 1:  # of a container, for which the kernel discards signals without a handler
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
        signal.signal(signal.SIGINT, lambda *_: sys.exit(128 + signal.SIGINT))
    # numpy reads it when it is loaded. Its threads would wait for cores that engines use: a product that follows a
    # network (`swiftlet_models/label_scorer.py`) took three times as long with them.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    from swiftlet_serve.machine.process_setup import open_standard_streams

    open_standard_streams()
    from swiftlet_serve.cli.main import main as cli

    if not serves:
        signal.signal(signal.SIGINT, interrupt)
    cli.main(prog_name="swiftlet")


if __name__ == "__main__":
    main()
