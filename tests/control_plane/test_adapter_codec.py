"""Adapters on the wire."""

from __future__ import annotations

from pathlib import Path

from orcaserve.control_plane import codec
from orcaserve.control_plane.adapter_codec import decode_adapter, encode_adapter, encode_adapter_news
from orcaserve.control_plane.worker_codec import decode_iteration, encode_iteration
from orcaserve.core import AdapterSource, Batch, BatchEntry, Increment, Phase, Request, SamplingParams

PARAMS = SamplingParams(max_tokens=4)


def test_a_source_comes_back() -> None:
    source = AdapterSource(2**40, "sql", Path("/adapters/sql"), "abc")
    assert decode_adapter(encode_adapter(source)) == source


def test_news() -> None:
    assert encode_adapter_news(3, None).error == ""
    assert encode_adapter_news(3, "no room").error == "no room"


def test_a_request_keeps_its_adapter() -> None:
    for adapter in (0, 7):
        decoded = codec.decode_submit(codec.encode_submit(Request(1, [3, 4], PARAMS, adapter=adapter)))
        assert decoded.adapter == adapter


def test_entries_keep_theirs() -> None:
    entries = (
        Increment(1, 5, 9),
        BatchEntry(2, Phase.INITIATION, [3, 4], 0, n_to_come=2, adapter=7),
        BatchEntry(3, Phase.INITIATION, [3, 4], 0, PARAMS),
        BatchEntry(4, Phase.INITIATION, [3, 4], 0, PARAMS, adapter=8),
    )
    decoded = decode_iteration(encode_iteration(Batch(1, entries)))
    assert [entry.adapter for entry in decoded.entries] == [0, 7, 0, 8]
