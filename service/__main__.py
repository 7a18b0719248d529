"""The command `swiftlet`. `python -m swiftlet_serve.service` runs the same command."""

import os
import signal
import sys


def main() -> None:
    # The kernel discards signals without a handler for process 1 of a container. Without this handler, SIGTERM during
    # start-up would be lost.
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from swiftlet_serve.service import cli

    cli.main(prog_name="swiftlet")


if __name__ == "__main__":
    main()
