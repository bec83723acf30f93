"""`python -m nmtkit` is the command `nmtkit`."""

from nmtkit.cli.main import main

main()
