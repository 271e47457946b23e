"""Sides: the flat arrays of an iteration, cut into what the encoder reads and what the decoder does."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from orcaserve.model.layout import Int32s, Layout


@dataclass(frozen=True, slots=True, eq=False)
class Sides:
    """Of R requests, I of which begin in this iteration.

        rows of a request that begins     source tokens ...   the decoder's start   output so far ...
        rows of any other one                                                       its newest token
        its page table                    [cross-attention's | self-attention's]

    source_rows: [S], rows of the tokens that the encoder reads. sources: their layout, of the requests that begin.
    decoder_rows: [N - S], all others. decoder: their layout, of all requests.
    source_lengths, source_tables: of all requests: how many tokens the encoder has read for each, and their pages.
    """

    source_rows: Int32s
    sources: Layout | None
    decoder_rows: Int32s
    decoder: Layout
    source_lengths: Int32s
    source_tables: list[Int32s]

    @classmethod
    def of(cls, layout: Layout, page_size: int) -> Sides:
        assert layout.sources is not None, "a layout of a model with an encoder"
        begins = layout.contexts == 0
        read_now = np.where(begins, layout.sources, 0)
        lengths = layout.lengths - read_now
        assert (lengths > 0).all(), "the decoder has at least one token of every request"
        in_request = np.arange(layout.n_tokens, dtype=np.int32) - np.repeat(layout.starts[:-1], layout.lengths)
        is_source = in_request < np.repeat(read_now, layout.lengths)
        n_pages = -(-layout.sources // page_size)
        contexts = np.where(begins, 0, layout.contexts - layout.sources)
        tables = [table[n:] for table, n in zip(layout.page_tables, n_pages, strict=True)]
        width = max(map(len, tables))
        padded = np.full((len(tables), width), -1, np.int32)
        for row, table in zip(padded, tables, strict=True):
            row[: len(table)] = table
        source_tables = [table[:n] for table, n in zip(layout.page_tables, n_pages, strict=True)]
        return cls(
            np.flatnonzero(is_source).astype(np.int32),
            _of_sources(layout, begins) if begins.any() else None,
            np.flatnonzero(~is_source).astype(np.int32),
            Layout.build(list(zip(lengths.tolist(), contexts.tolist(), strict=True)), padded, page_size),
            layout.sources,
            source_tables,
        )


def _of_sources(layout: Layout, begins: np.ndarray) -> Layout:
    """Of what the requests that begin have for the encoder. It keeps no keys and values, so their pages are left out:
    what lies there is made of its outputs."""
    assert layout.sources is not None
    lengths = layout.sources[begins]
    starts = np.concatenate(([0], np.cumsum(lengths))).astype(np.int32)
    return Layout(starts, np.zeros(len(lengths), np.int32), np.ascontiguousarray(layout.page_tables[begins]))
