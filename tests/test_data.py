from __future__ import annotations

import numpy as np
import pytest

from lcrbnn.data import load_digits
from lcrbnn.errors import InputError


def test_the_digits_are_all_there_once() -> None:
    train, valid = load_digits()
    assert train.images.shape == (1297, 1, 8, 8)
    assert valid.images.shape == (500, 1, 8, 8)
    images = np.concatenate([train.images, valid.images])
    labels = np.concatenate([train.labels, valid.labels])
    assert images.dtype == np.float32
    assert images.min() == 0
    assert images.max() == 1
    # the published class counts of the 1,797 images
    assert np.bincount(labels).tolist() == [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]
    assert len({i.tobytes() for i in images}) == 1797


def test_the_split_depends_on_the_seed_alone() -> None:
    assert np.array_equal(load_digits(1)[1].labels, load_digits(1)[1].labels)
    assert not np.array_equal(load_digits(1)[1].labels, load_digits(2)[1].labels)


def test_a_strange_seed_is_refused() -> None:
    with pytest.raises(InputError, match="seed must be a whole number of at least 0; got -1"):
        load_digits(-1)
