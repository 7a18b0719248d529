"""The command `swiftlet`, also as `python -m service`."""

import os
import signal
import sys


def main() -> None:
    # The kernel spares the first process of a container every signal for which it has no handler: told to stop while it
    # loads, a server would go on to serve until it is killed. So there is a handler before anything else is imported.
    if os.getpid() == 1:
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))
    from swiftlet_serve.service import cli

    cli.main(prog_name="swiftlet")


if __name__ == "__main__":
    main()
