from __future__ import annotations

import numpy as np
import pytest

from lcrbnn.bits import pack, unpack, words
from lcrbnn.errors import InputError

SIZES = [*range(1, 21), *range(63, 67), 127, 128, 129]


def test_the_lowest_bit_comes_first_and_a_row_ends_with_zeros() -> None:
    signs = np.array([[1, -1, -1, -1, -1, -1, -1, -1, -1, 1], [-1, 1, 1, 1, 1, 1, 1, 1, 1, -1]])
    assert pack(signs).tolist() == [[0b1, 0b10], [0b1111_1110, 0b1]]


def test_zero_minus_zero_and_nan_count_as_plus_one() -> None:
    assert pack(np.array([[0.0, -0.0, np.nan, -1e-45, -np.inf, np.inf]])).tolist() == [[0b100111]]


def test_bools_are_taken_as_bits() -> None:
    assert pack(np.array([[True, False, True]])).tolist() == [[0b101]]


@pytest.mark.parametrize("n", SIZES)
def test_unpack_undoes_pack_and_words_hold_each_sign_at_its_place(n: int) -> None:
    signs = np.random.default_rng(n).choice(np.array([-1, 1], np.int8), (3, n))
    packed = pack(signs)
    assert (packed.dtype, packed.shape) == (np.uint8, (3, -(-n // 8)))
    back = unpack(packed, n)
    assert back.dtype == np.int8
    assert np.array_equal(back, signs)
    rows = words(packed, n)
    assert (rows.dtype.str, rows.shape) == ("<u8", (3, -(-n // 64)))
    for row, want in zip(rows.tolist(), signs, strict=True):  # a slow twin: one long whole number a row
        whole = sum(word << 64 * i for i, word in enumerate(row))
        assert whole == sum(1 << i for i in range(n) if want[i] > 0)


@pytest.mark.parametrize(
    ("packed", "n"),
    [
        (np.zeros((2, 1), np.int8), 8),
        (np.zeros(2, np.uint8), 8),
        (np.zeros((2, 1), np.uint8), 9),
        (np.zeros((2, 2), np.uint8), 8),
    ],
)
def test_rows_of_another_length_are_refused(packed: np.ndarray, n: int) -> None:
    for function in (unpack, words):
        with pytest.raises(InputError, match=f"rows of {n} bits are uint8"):
            function(packed, n)


def test_signs_have_two_dimensions() -> None:
    with pytest.raises(InputError, match=r"two dimensions, rows and columns; got the shape \(3,\)"):
        pack(np.ones(3))
