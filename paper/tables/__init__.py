"""The tables of the paper, with their specification, their runs, and their rendering."""
