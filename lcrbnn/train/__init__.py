"""Training: from a training spec to a finished run."""

from lcrbnn.train.setup.spec import TrainSpec

__all__ = ["TrainSpec"]
