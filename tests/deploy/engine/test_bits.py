from __future__ import annotations

import numpy as np
import pytest

from lcrbnn.deploy.engine.bits import pack_signs, pack_words, unpack_signs
from lcrbnn.errors import InputError

SIZES = [*range(1, 21), *range(63, 67), 127, 128, 129]


def test_the_lowest_bit_is_first_and_rows_are_padded_with_zeros() -> None:
    signs = np.array([[1, -1, -1, -1, -1, -1, -1, -1, -1, 1], [-1, 1, 1, 1, 1, 1, 1, 1, 1, -1]])
    assert pack_signs(signs).tolist() == [[0b1, 0b10], [0b1111_1110, 0b1]]


def test_zero_minus_zero_and_nan_count_as_plus_one() -> None:
    assert pack_signs(np.array([[0.0, -0.0, np.nan, -1e-45, -np.inf, np.inf]])).tolist() == [[0b100111]]


def test_bools_are_packed_as_bits() -> None:
    assert pack_signs(np.array([[True, False, True]])).tolist() == [[0b101]]


@pytest.mark.parametrize("n", SIZES)
def test_unpack_signs_inverts_pack_signs_and_words_keep_bit_positions(n: int) -> None:
    signs = np.random.default_rng(n).choice(np.array([-1, 1], np.int8), (3, n))
    packed = pack_signs(signs)
    assert (packed.dtype, packed.shape) == (np.uint8, (3, -(-n // 8)))
    unpacked = unpack_signs(packed, n)
    assert unpacked.dtype == np.int8
    assert np.array_equal(unpacked, signs)
    rows = pack_words(packed, n)
    assert (rows.dtype.str, rows.shape) == ("<u8", (3, -(-n // 64)))
    for row, row_signs in zip(rows.tolist(), signs, strict=True):  # compare with one long integer per row
        integer = sum(word << 64 * i for i, word in enumerate(row))
        assert integer == sum(1 << i for i in range(n) if row_signs[i] > 0)


@pytest.mark.parametrize(
    ("packed", "n"),
    [
        (np.zeros((2, 1), np.int8), 8),
        (np.zeros(2, np.uint8), 8),
        (np.zeros((2, 1), np.uint8), 9),
        (np.zeros((2, 2), np.uint8), 8),
    ],
)
def test_packed_rows_of_wrong_shape_are_rejected(packed: np.ndarray, n: int) -> None:
    for function in (unpack_signs, pack_words):
        with pytest.raises(InputError, match=f"rows of {n} bits must be uint8"):
            function(packed, n)


def test_signs_have_two_dimensions() -> None:
    with pytest.raises(InputError, match=r"two dimensions, rows and columns; got the shape \(3,\)"):
        pack_signs(np.ones(3))
