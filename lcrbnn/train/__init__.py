"""Training: from a spec to a run."""

from lcrbnn.train.setup.spec import TrainSpec

__all__ = ["TrainSpec"]
