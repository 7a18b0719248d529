"""`python -m service` is `swiftlet`."""

from service.cli import main

main(prog_name="swiftlet")
