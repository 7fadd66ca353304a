"""Build a report about runs from their records: training settings, accuracy, robustness and cost."""
