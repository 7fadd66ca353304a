"""Training: from a spec to a run."""

from lcrbnn.train.spec import Spec

__all__ = ["Spec"]
