"""One page about runs: what was trained, how well, how robust, at what cost; from records, never from a network."""
