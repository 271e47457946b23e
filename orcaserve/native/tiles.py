"""Tiles: checksums of an array by pieces, so that who takes some of it need not read the rest."""

from __future__ import annotations

import zlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

Bytes = NDArray[np.uint8]
_LEAST_BYTES = 16 << 10  # of a tile of whole rows; a call on fewer costs more than it checks

Tile = tuple[int, int]  # rows, and bytes of each


def rows_of(array: NDArray[Any]) -> Bytes:
    """A contiguous array as its rows [n, bytes]; one row if it has one dimension."""
    n = len(array) if array.ndim > 1 else 1
    return array.reshape(-1).view(np.uint8).reshape(n, -1)


def tile_of(array: NDArray[Any], width: int | None) -> Tile:
    """The size of its tiles. width: of those that go through all rows; None: they are whole rows."""
    rows = rows_of(array)
    if width is not None:
        return len(rows), width
    return -(-_LEAST_BYTES // max(rows.shape[1], 1)), rows.shape[1]


def checksums(array: NDArray[Any], tile: Tile) -> list[int]:
    """Of all tiles, row by row."""
    return [crc for _, crc in _checksums(rows_of(array), tile, None, None)]


def is_sound(
    array: NDArray[Any], tile: Tile, expected: Sequence[int], rows: Sequence[range] | None, columns: range | None
) -> bool:
    """Whether all tiles in which these rows (None: all), and these bytes of them, lie are as expected."""
    whole = rows_of(array)
    if len(expected) != -(-len(whole) // tile[0]) * -(-whole.shape[1] // tile[1]):
        return False
    return all(expected[i] == crc for i, crc in _checksums(whole, tile, rows, columns))


def _checksums(
    rows: Bytes, tile: Tile, wanted: Sequence[range] | None, columns: range | None
) -> Iterator[tuple[int, int]]:
    """Numbers and checksums of tiles."""
    n, width = tile
    n_across = -(-rows.shape[1] // width)
    runs = [range(len(rows))] if wanted is None else wanted
    across = range(n_across) if columns is None else range(columns.start // width, -(-columns.stop // width))
    for i in sorted({i for run in runs for i in range(run.start // n, -(-run.stop // n))}):
        for j in across:
            crc, of_tile = 0, rows[i * n : (i + 1) * n, j * width : (j + 1) * width]
            for part in [of_tile.reshape(-1)] if n_across == 1 else of_tile:
                crc = zlib.crc32(part.data, crc)
            yield i * n_across + j, crc
