"""The paper's tables: their specification, their runs, and their rendering."""
