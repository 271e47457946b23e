"""Inverse frequencies and amplitudes against transformers, and the rotation itself."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from orcaserve.core.errors import CheckpointError, UnsupportedModel
from orcaserve.model.families.settings import Settings, rope_spec
from orcaserve.model.layout import Layout
from orcaserve.model.reference.layers import rotate
from orcaserve.model.rope import Rope, amplitude, inverse_frequencies

HEAD, LENGTH = 32, 1024
KINDS: list[dict[str, Any]] = [
    {"rope_type": "linear", "factor": 4.0},
    {"rope_type": "linear", "factor": 2.0, "partial_rotary_factor": 0.5},
    {"rope_type": "dynamic", "factor": 2.0},
    {"rope_type": "yarn", "factor": 16.0, "original_max_position_embeddings": 64},
    {"rope_type": "yarn", "factor": 4.0, "beta_fast": 24, "beta_slow": 3, "truncate": False, "rope_theta": 5e5},
    {"rope_type": "yarn", "factor": 40.0, "mscale": 1.0, "mscale_all_dim": 0.7, "original_max_position_embeddings": 99},
    {"rope_type": "yarn", "factor": 2.0, "attention_factor": 1.5},
    {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
     "original_max_position_embeddings": 512, "rope_theta": 5e5},
    {"rope_type": "longrope", "factor": 8.0, "original_max_position_embeddings": 128,
     "short_factor": [1.0 + i / 7 for i in range(16)], "long_factor": [3.0 + i for i in range(16)]},
    {"rope_type": "longrope", "original_max_position_embeddings": 128, "attention_factor": 1.2,
     "short_factor": [1.0] * 16, "long_factor": [2.0] * 16},
    {"rope_type": "proportional", "partial_rotary_factor": 0.25, "factor": 2.0},
]  # fmt: skip


@pytest.mark.parametrize("options", KINDS, ids=lambda options: options["rope_type"])
@pytest.mark.parametrize("length", [10, 128, 129, 1024, 3000])
def test_frequencies_are_those_of_transformers(options: dict[str, Any], length: int) -> None:
    parameters = {"rope_theta": 1e4} | options
    config = LlamaConfig(
        hidden_size=4 * HEAD, num_attention_heads=4, max_position_embeddings=LENGTH, rope_parameters=dict(parameters)
    )
    expected, factor = ROPE_INIT_FUNCTIONS[options["rope_type"]](config, seq_len=length)
    spec = rope_spec(Settings({"rope_parameters": parameters}), HEAD, LENGTH)
    got = inverse_frequencies(spec, length)
    assert got.dtype == np.float32
    np.testing.assert_allclose(got, expected.numpy(), rtol=1e-6, atol=0)
    assert amplitude(spec) == pytest.approx(factor)


def test_the_older_way_to_write_it() -> None:
    old = Settings({"rope_theta": 5e5, "rope_scaling": {"type": "linear", "factor": 3.0}})
    new = Settings({"rope_parameters": {"rope_type": "linear", "factor": 3.0, "rope_theta": 5e5}})
    assert rope_spec(old, HEAD, LENGTH) == rope_spec(new, HEAD, LENGTH)
    assert rope_spec(Settings({}), HEAD, LENGTH).kind == "default"


def test_unknown_kinds_are_refused_by_name() -> None:
    with pytest.raises(UnsupportedModel, match=r"'spiral'.*llama3"):
        rope_spec(Settings({"rope_scaling": {"rope_type": "spiral"}}), HEAD, LENGTH)


@pytest.mark.parametrize(
    "options",
    [
        {"rope_type": "linear"},
        {"rope_type": "linear", "factor": 0},
        {"rope_type": "linear", "factor": float("nan")},
        {"rope_type": "linear", "factor": "4"},
        {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 4.0, "high_freq_factor": 4.0},
        {"rope_type": "longrope", "short_factor": [1.0] * 3, "long_factor": [1.0] * 16},
        {"rope_type": "longrope", "short_factor": [1.0] * 15 + [0.0], "long_factor": [1.0] * 16},
        {"rope_type": 7},
        {"partial_rotary_factor": 1.5},
        {"partial_rotary_factor": 0.01},
        {"rope_type": "yarn", "factor": 2.0, "rope_theta": 1.0},
        {"rope_type": "longrope", "factor": 2.0, "original_max_position_embeddings": 1,
         "short_factor": [1.0] * 16, "long_factor": [1.0] * 16},
        {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e300},
        {"rope_type": "yarn", "factor": 1e300, "mscale": 1e300, "mscale_all_dim": 1e-300},
    ],
)  # fmt: skip
def test_options_that_make_no_sense_stop_the_load(options: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError):
        Rope(rope_spec(Settings({"rope_scaling": options}), HEAD, LENGTH))


def test_rotation_pairs_dimension_i_with_i_plus_half_and_leaves_the_rest() -> None:
    x = torch.randn(3, 2, 10, generator=torch.Generator().manual_seed(0))
    angle = torch.tensor([[0.1, 0.2], [0.3, 0.4], [0.5, 0.6]])
    out = rotate(x, angle, amplitude=1.5)
    for n in range(3):
        for i in range(2):
            a, b = x[n, :, i], x[n, :, i + 2]
            cos, sin = 1.5 * angle[n, i].cos(), 1.5 * angle[n, i].sin()
            torch.testing.assert_close(out[n, :, i], a * cos - b * sin)
            torch.testing.assert_close(out[n, :, i + 2], b * cos + a * sin)
    assert torch.equal(out[:, :, 4:], x[:, :, 4:])


def layout(*pieces: tuple[int, int]) -> Layout:
    return Layout.build(pieces, np.tile(np.arange(40, dtype=np.int32), (len(pieces), 1)), 4)


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_a_requests_frequencies_follow_its_own_length(kind: str) -> None:
    """A text longer than the model was trained for changes nothing for its neighbours."""
    options: dict[str, Any] = {"rope_type": kind, "factor": 2.0}
    if kind == "longrope":
        options |= {"original_max_position_embeddings": 64, "short_factor": [1.0] * 16, "long_factor": [3.0] * 16}
    spec = rope_spec(Settings({"rope_scaling": options}), HEAD, 64)
    rope = Rope(spec)
    sets, choice = rope.frequencies(layout((3, 10), (2, 100), (1, 20), (1, 64)))
    assert choice is not None and choice.dtype == np.int32
    for r, length in enumerate((13, 102, 21, 65)):
        assert np.array_equal(sets[choice[r]], inverse_frequencies(spec, length))
    assert not np.array_equal(sets[choice[0]], sets[choice[1]])
    assert rope.frequencies(layout((3, 10), (1, 63)))[1] is None, "nobody is longer than that"
