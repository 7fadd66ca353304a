"""The files of a run (settings, log, checkpoints, record), and its progress bar and stop signals."""
