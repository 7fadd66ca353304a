"""Training turns a training spec into a finished run."""

from lcrbnn.train.setup.spec import TrainSpec

__all__ = ["TrainSpec"]
