"""The compiled training step, and faster versions of some modules for this step."""
