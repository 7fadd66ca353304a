"""Command line of the package, with one file per command."""
