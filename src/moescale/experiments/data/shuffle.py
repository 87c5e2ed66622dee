"""A seeded permutation that is computed, not stored: position i of an order, for any i, at once."""

from __future__ import annotations

import hashlib

import numpy as np
from numpy.typing import ArrayLike, NDArray

ROUNDS = (
    8  # four make a pseudo-random permutation (Luby and Rackoff 1988, SIAM J. Comput. 17:373); short words need more
)
# Finaliser of splitmix64: Steele, Lea and Flood 2014, OOPSLA, "Fast splittable pseudorandom number generators".
_SHIFTS = (30, 27, 31)
_FACTORS = (np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB))


def permuted(positions: ArrayLike, n: int, key: str) -> NDArray[np.int64]:
    """The images of `positions`, integers from 0 to n - 1, under a permutation of 0 .. n - 1 that `key` chooses.

    A Feistel network on just enough bits, walked along its cycle until it is below n; it takes no memory that grows with
    n, and does not change between versions of NumPy as its own permutations may.
    """
    bits = (int(n) - 1).bit_length()
    keys = np.frombuffer(hashlib.sha512(key.encode()).digest(), dtype="<u8")[:ROUNDS].astype(np.uint64)
    found = np.array(positions, dtype=np.uint64)
    flat = found.reshape(-1)
    outside = np.arange(flat.size)
    while outside.size:  # a cycle through a point below n comes back below n, on average within two steps
        walked = _network(flat[outside], bits, keys)
        flat[outside] = walked
        outside = outside[walked >= n]
    return flat.reshape(found.shape).astype(np.int64)


def _network(words: NDArray[np.uint64], bits: int, keys: NDArray[np.uint64]) -> NDArray[np.uint64]:
    low = np.uint64(bits - bits // 2)
    masks = (np.uint64((1 << bits // 2) - 1), np.uint64((1 << int(low)) - 1))
    left, right = words >> low, words & masks[1]
    for first, second in zip(keys[::2], keys[1::2], strict=True):
        left = left ^ (_mixed(right ^ first) & masks[0])
        right = right ^ (_mixed(left ^ second) & masks[1])
    return (left << low) | right


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    first, second, last = (np.uint64(shift) for shift in _SHIFTS)
    words = (words ^ (words >> first)) * _FACTORS[0]
    words = (words ^ (words >> second)) * _FACTORS[1]
    return words ^ (words >> last)
