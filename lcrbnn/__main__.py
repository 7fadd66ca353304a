"""Entry point of `python -m lcrbnn`. It runs the command line, also from a source tree that is not installed."""

from lcrbnn.cli.main import run

run()
