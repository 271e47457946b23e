"""Every quantised format predicts a text as well as the weights that it stands for; a file that is wrong does not."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from accuracy import TEXTS
from formats import FORMATS, HELD, Format, Measured, measure
from gguf import GGMLQuantizationType, GGUFReader, quants
from hypothesis import given
from hypothesis import strategies as st
from quantised_files import Plain, Written, in_halves, interleaved, read_gguf
from round_to_nearest import k_blocks, round_groups
from safetensors.numpy import load_file, save_file

N_TEXT = 2048  # letters that are predicted, of those that were learnt
WINDOW = 64  # of them at once
MOST_KL = {"int8": 0.0001, "int4": 0.002}  # nats a letter; int4 rounds the head, too, where the file has floats


def train(text: str) -> tuple[Plain, list[int]]:
    """A tiny model that has learnt to write like the text, letter by letter, and the letters' ids."""
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    letters = sorted(set(text))
    ids = torch.tensor([letters.index(letter) for letter in text])
    config = LlamaConfig(vocab_size=len(letters), hidden_size=64, intermediate_size=256, num_hidden_layers=2,
                         num_attention_heads=4, num_key_value_heads=2, max_position_embeddings=2048,
                         rms_norm_eps=1e-5, initializer_range=0.05)  # fmt: skip
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=5e-3)
    for _ in range(120):
        starts = torch.randint(len(ids) - WINDOW, (8,))
        batch = torch.stack([ids[start : start + WINDOW] for start in starts])
        loss = model(batch, labels=batch).loss
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    settings = config.to_dict() | {"rope_theta": 10000.0, "rope_parameters": None}
    tensors = {name: tensor.numpy().astype(np.float32) for name, tensor in model.state_dict().items()}
    return Plain({k: v for k, v in settings.items() if v is not None}, tensors), ids[:N_TEXT].tolist()


@pytest.fixture(scope="module")
def learnt() -> tuple[Plain, list[int]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # matrices so small are slower on more
    try:
        return train((TEXTS / "persuasion.txt").read_text()[:40_000])
    finally:
        torch.set_num_threads(threads)


def is_right(each: Measured) -> bool:
    """Perplexity of so small a model tells less than KL: of right files it is half of this at most."""
    return each.passed and each.kl < MOST_KL[HELD[each.form]]


def shown(each: Measured) -> str:
    return f"{each.form}: perplexity {each.change:+.3%}, KL {each.kl:.5f}"


@pytest.mark.parametrize("name", FORMATS)
def test_every_format_is_as_good_as_its_weights(name: str, learnt: tuple[Plain, list[int]]) -> None:
    plain, text = learnt
    _, found = measure(plain, FORMATS[name], text, None, 2, WINDOW)
    assert found[0].reference.perplexity < 16  # of some 60 letters: it has learnt something that can be lost
    for each in found:
        assert is_right(each), shown(each)


def in_folder(name: str, change: Callable[[Any], Any]) -> Callable[[Path], None]:
    """Change the tensors of this name of every Linear."""

    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        changed = {key: np.ascontiguousarray(change(t)) for key, t in tensors.items() if key.endswith(name)}
        assert changed
        save_file(tensors | changed, folder / "model.safetensors")

    return damage


def in_blocks(kind: str, change: Callable[[Any], None]) -> Callable[[Path], None]:
    """Change the blocks [n, bytes] of this kind in place."""

    def damage(path: Path) -> None:
        found = 0
        for tensor in GGUFReader(path, "r+").tensors:
            if tensor.tensor_type.name == kind and "blk" in tensor.name:
                n_bytes = quants._type_traits[tensor.tensor_type].type_size
                blocks = tensor.data.reshape(-1, n_bytes)
                change(blocks)
                found += 1
        assert found

    return damage


def scaled(at: int, by: float) -> Callable[[Any], None]:
    """The float16 at this byte of every block."""

    def change(blocks: Any) -> None:
        halves = blocks[:, at : at + 2].copy().view("<f2") * np.float16(by)
        blocks[:, at : at + 2] = halves.view(np.uint8).reshape(-1, 2)

    return change


WRONG: dict[str, tuple[str, Callable[[Path], None]]] = {
    "a zero one too high": ("GPTQ, groups of 32", in_folder("qzeros", lambda x: x + 0x11111111)),
    "groups in another order": ("GPTQ, groups of 32", in_folder("g_idx", lambda x: x[::-1])),
    "scales of the next output": ("GPTQ, groups of 128, asymmetric", in_folder("scales", lambda x: np.roll(x, 1, 1))),
    "zeros of the next group": ("AWQ, groups of 64", in_folder("qzeros", lambda x: np.roll(x, 1, 0))),
    "halves of words changed over": ("AWQ, groups of 64", in_folder("qweight", lambda x: x << 16 | x >> 16 & 0xFFFF)),
    "scales of the next group": ("W4A16, groups of 32", in_folder("weight_scale", lambda x: np.roll(x, 1, 1))),
    "zero points of the next output": (
        "W4A16, groups of 64, asymmetric", in_folder("weight_zero_point", lambda x: x << 4 | x >> 28 & 15)),
    "scales a tenth too large": ("W8A8, channels", in_folder("weight_scale", lambda x: x * np.float16(1.1))),
    "minima a tenth too small": ("Q4_1", in_blocks("Q4_1", scaled(2, 0.9))),
    "fifth bits lost": ("Q5_0", in_blocks("Q5_0", lambda x: x[:, 2:6].fill(0))),
    "one scale for all": ("Q6_K", in_blocks("Q6_K", lambda x: x[:, 192:208].fill(64))),
    "minima a tenth too small, in super-blocks": ("Q4_K", in_blocks("Q4_K", scaled(2, 0.9))),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_what_is_wrong_in_a_file_is_out_of_bounds(what: str, learnt: tuple[Plain, list[int]]) -> None:
    name, damage = WRONG[what]

    def write(plain: Plain, folder: Path) -> Written:
        written = FORMATS[name].write(plain, folder)
        damage(written.path)
        return written

    plain, text = learnt
    _, found = measure(plain, Format(write, FORMATS[name].four_bits), text, None, 2, WINDOW)
    assert not any(map(is_right, found)), list(map(shown, found))


@given(st.sampled_from(["Q4_K", "Q5_K", "Q6_K"]), st.integers(0, 2**32), st.floats(0.05, 10.0))
def test_k_kinds_are_rounded_to_nearest(kind: str, seed: int, width: float) -> None:
    """By half a step of the widest run, and what scales of six or eight bits lose; not where float16 is subnormal."""
    weights = (np.random.default_rng(seed).standard_normal((3, 512)) * width).astype(np.float32)
    back = quants.dequantize(k_blocks(weights, kind), GGMLQuantizationType[kind])
    steps, share = {"Q4_K": (15, 1 / 63), "Q5_K": (31, 1 / 63), "Q6_K": (62, 1 / 127)}[kind]
    span = np.abs(weights.reshape(6, 256)).max(axis=1, keepdims=True) * 2
    assert (np.abs(back - weights).reshape(6, 256) <= span * (0.5 / steps + share) * 1.01).all()


@given(st.integers(0, 2**32), st.booleans(), st.sampled_from([4, 8]), st.sampled_from([32, 64, 96]))
def test_groups_are_rounded_to_nearest(seed: int, symmetric: bool, bits: int, size: int) -> None:
    weights = np.random.default_rng(seed).standard_normal((5, 160)).astype(np.float32)
    rounded = round_groups(weights, bits, size, symmetric)
    assert rounded.numbers.min() >= 0 and rounded.numbers.max() < 1 << bits
    steps = rounded.scales[:, np.arange(160) // size]
    most = 1.01 if symmetric else 0.52  # a symmetric group's largest number is half a step short, and zeros are whole
    assert (np.abs(rounded.weights() - weights) <= most * steps + 1e-3 * np.abs(weights)).all()


def test_gguf_files_are_read_back(learnt: tuple[Plain, list[int]], tmp_path: Path) -> None:
    plain, _ = learnt
    written = FORMATS["Q8_0"].write(plain, tmp_path / "made")
    back = read_gguf(written.path)
    assert back.tensors.keys() == plain.tensors.keys()
    assert all(np.array_equal(back.tensors[name], tensor) for name, tensor in written.plain.tensors.items())
    for key in ("hidden_size", "num_key_value_heads", "rope_theta", "vocab_size", "tie_word_embeddings"):
        assert back.config[key] == plain.config[key], key
    assert abs(written.bits - 8.5) < 1e-9


def test_rows_side_by_side_and_back() -> None:
    rows = np.arange(24, dtype=np.float32).reshape(12, 2)
    assert interleaved(rows, 2)[:, 0].tolist() == [0, 6, 2, 8, 4, 10, 12, 18, 14, 20, 16, 22]
    assert np.array_equal(in_halves(interleaved(rows, 2), 2), rows)
