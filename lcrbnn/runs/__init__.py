"""The files of a run (settings, log, checkpoints, record), its progress bar and its stop signals."""
