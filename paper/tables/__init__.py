"""The tables of the paper: their specification, their runs, and their rendering."""
