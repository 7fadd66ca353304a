"""BatchSize: the number of images of a batch, which no node may depend on."""

from __future__ import annotations

from typing import Any

from torch.fx.node import map_aggregate


class BatchSize:
    """The number of images times a factor; a forward may only pass it to functions that keep the images apart."""

    def __init__(self, factor: int = 1) -> None:
        """Store the factor."""
        self.factor = factor

    def __mul__(self, multiplier: Any) -> BatchSize:
        """Return the product with a whole number."""
        return BatchSize(self.factor * multiplier) if isinstance(multiplier, int) else NotImplemented

    __rmul__ = __mul__

    def __floordiv__(self, divisor: Any) -> Any:
        """Return the quotient by a divisor of the factor, or by another number of images."""
        if isinstance(divisor, BatchSize):
            return self.factor // divisor.factor if self.factor % divisor.factor == 0 else NotImplemented
        return (
            BatchSize(self.factor // divisor)
            if isinstance(divisor, int) and self.factor % divisor == 0
            else NotImplemented
        )

    def __eq__(self, other: object) -> bool:
        """Return whether both are the same multiple of the number of images."""
        if isinstance(other, int | float):
            raise TypeError("the number of images is compared with a number")
        return isinstance(other, BatchSize) and other.factor == self.factor

    def __hash__(self) -> int:
        """Return the hash of the factor."""
        return hash((BatchSize, self.factor))

    def __bool__(self) -> bool:
        """Raise TypeError: the number of images is not known."""
        raise TypeError("a condition depends on the number of images")

    def __repr__(self) -> str:
        """Return the name for messages."""
        return "the number of images" if self.factor == 1 else f"{self.factor} times the number of images"


BATCH_SIZE = BatchSize()


def insert_batch_size(arguments: Any, num_images: int) -> Any:
    """Return nested arguments with every BatchSize replaced by the size of a batch of `num_images`."""
    return map_aggregate(arguments, lambda item: item.factor * num_images if isinstance(item, BatchSize) else item)
