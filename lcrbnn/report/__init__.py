"""Build a report about runs, with training settings, accuracy, robustness and cost, from the records of the runs."""
