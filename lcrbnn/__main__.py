"""`python -m lcrbnn`: the command line, also from a source tree that is not installed."""

from lcrbnn.cli import run

run()
