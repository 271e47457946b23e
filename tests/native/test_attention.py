"""Attention over pages, on every instruction set: against an oracle in float64, and what must hold to the bit."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from orcaserve import native
from orcaserve.model.spec import ModelSpec
from orcaserve.native.attention import NO_ROPE, PART_KEYS, Layout, Rope, attend
from orcaserve.native.kv_region import STORAGES, KVRegion

Floats = NDArray[np.float32]
Doubles = NDArray[np.float64]
Pieces = list[tuple[int, int]]  # (tokens of the iteration, tokens before it) per request

ISAS = native.available_isas()
HEADS = [(9, 3), (4, 4), (8, 1), (5, 1), (71, 1), (8, 2)]
DIMS = [64, 128, 80, 96, 20, 8, 12]
TEAMS = {n: native.Team(n) for n in (1, 2, 3)}

pieces_strategy = st.lists(
    st.tuples(st.one_of(st.just(1), st.integers(1, 70)), st.one_of(st.just(0), st.integers(0, 300), st.just(511))),
    min_size=1,
    max_size=6,
)


@pytest.fixture(autouse=True)
def restore_isa() -> Iterator[None]:
    before = native.isa()
    yield
    native.set_isa(before)


def normal(*shape: int, seed: int) -> Floats:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def quantise(x: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """The nearest integers to x / scale and the scale, which makes the greatest of the last axis 127."""
    scale = (np.abs(x).max(-1) / np.float32(127)).astype(np.float32)
    quotient = np.divide(x, scale[..., None], where=scale[..., None] > 0, out=np.zeros_like(x))
    return np.rint(quotient).astype(np.int64), scale


def hadamard(dim: int) -> Doubles:
    """What int8 turns queries and keys by: in blocks, as large as divide the dimensions, of at most 64."""
    n = min(64, dim & -dim)
    h = np.array([[(-1.0) ** (i & j).bit_count() for j in range(n)] for i in range(n)])
    return np.kron(np.eye(dim // n), h)


class Pages:
    """A region of two layers whose unwritten slots hold what must never be seen, and page tables of the requests."""

    def __init__(self, lengths: list[int], n_kv: int, dim: int, page_size: int, storage: str) -> None:
        spec = ModelSpec(16, 64, 8, 2, n_kv, n_kv, dim, 8, "rms", 1e-5, "silu", True, True, None)
        n = [-(-length // page_size) for length in lengths]
        self.kv = KVRegion(spec, sum(n) + 2, page_size, storage)
        for array in (self.kv.keys, self.kv.values, self.kv.key_scales, self.kv.value_scales):
            if array is not None:
                array.view(np.uint8).fill(0xFF)  # as floats of any kind: no numbers
        numbers = np.random.default_rng(len(n)).permutation(sum(n) + 2).astype(np.int32)
        self.tables = np.full((len(n), max(n)), -1, np.int32)
        for request, (begin, size) in enumerate(zip(np.cumsum([0, *n]), n, strict=False)):
            self.tables[request, :size] = numbers[begin : begin + size]
        self.page_size = page_size

    def _at(self, request: int, first: int, n: int) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        t = np.arange(first, first + n)
        return self.tables[request, t // self.page_size], t % self.page_size

    def write(self, request: int, k: Floats, v: Floats, layer: int = 1) -> None:
        """k, v [tokens, heads, dim] become the request's first keys and values."""
        page, slot = self._at(request, 0, len(k))
        keys, values = self.kv.keys[layer], self.kv.values[layer]
        if self.kv.storage == "int8":
            assert self.kv.key_scales is not None and self.kv.value_scales is not None
            (qk, sk), (qv, sv) = quantise((k @ hadamard(k.shape[-1])).astype(np.float32)), quantise(v)
            keys[page, :, :, slot] = (qk + 128).reshape(*k.shape[:2], k.shape[2] // 4, 4)
            values[page, :, slot // 4, :, slot % 4] = qv.astype(np.int8).view(np.uint8)
            self.kv.key_scales[layer][page, :, slot], self.kv.value_scales[layer][page, :, slot] = sk, sv
        else:
            kept = [x if self.kv.storage == "float32" else to_bfloat16(x) for x in (k, v)]
            keys[page, :, :, slot], values[page, :, slot] = kept

    def read(self, request: int, n: int, layer: int = 1) -> tuple[Doubles, Doubles]:
        """The first n keys and values [n, heads, dim]; keys of int8 as they are stored, turned."""
        page, slot = self._at(request, 0, n)
        keys, values = self.kv.keys[layer], self.kv.values[layer]
        if self.kv.storage == "int8":
            assert self.kv.key_scales is not None and self.kv.value_scales is not None
            k = keys[page, :, :, slot].astype(np.float64).reshape(n, keys.shape[1], -1) - 128
            v = values[page, :, slot // 4, :, slot % 4].view(np.int8).astype(np.float64)
            scales = self.kv.key_scales[layer][page, :, slot], self.kv.value_scales[layer][page, :, slot]
            return k * scales[0][..., None], v * scales[1][..., None]
        k, v = keys[page, :, :, slot], values[page, :, slot]
        if self.kv.storage == "bfloat16":
            k, v = ((x.astype(np.uint32) << 16).view(np.float32) for x in (k, v))
        return k.astype(np.float64), v.astype(np.float64)


def nothing(array: NDArray[Any]) -> Any:
    """What as floats of any kind is no number."""
    return np.full(1, 0xFF, np.uint8).repeat(array.itemsize).view(array.dtype)[0]


def to_bfloat16(x: Floats) -> NDArray[np.uint16]:
    bits = np.ascontiguousarray(x).view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16)


class Case:
    """Requests with earlier K/V, and the q, k, v of an iteration. What belongs to a request depends on its id alone."""

    def __init__(
        self,
        pieces: Pieces,
        ids: list[int] | None = None,
        heads: tuple[int, int] = (9, 3),
        dim: int = 64,
        page_size: int = 16,
        storage: str = "float32",
        rope: Rope = NO_ROPE,
        window: int = 0,
        softcap: float = 0.0,
        alibi: bool = False,
    ) -> None:
        self.window, self.softcap = window, softcap
        self.alibi = np.exp2(-(np.arange(heads[0]) % 5) - 2.0).astype(np.float32) if alibi else None
        self.ids = list(range(len(pieces))) if ids is None else ids
        self.pieces, self.dim, self.rope = pieces, dim, rope
        self.n_heads, self.n_kv = heads
        self.pages = Pages([n + context for n, context in pieces], self.n_kv, dim, page_size, storage)
        for request, (_, context) in enumerate(pieces):
            earlier = normal(2, context, self.n_kv, dim, seed=1000 + self.ids[request])
            self.pages.write(request, earlier[0], earlier[1])
        starts = np.cumsum([0, *(n for n, _ in pieces)]).astype(np.int32)
        self.layout = Layout(starts, np.array([c for _, c in pieces], np.int32), self.pages.tables)
        width = (self.n_heads + 2 * self.n_kv) * dim
        self.qkv = np.concatenate([normal(n, width, seed=i) for i, (n, _) in zip(self.ids, pieces, strict=True)])

    def run(self, threads: int = 2, scale: float | None = None, cut_for: int = 0) -> Floats:
        return attend(
            self.qkv,
            self.pages.kv,
            self.layout,
            TEAMS[threads],
            scale=scale,
            rope=self.rope,
            first_layer=1,
            cut_for=cut_for,
            window=self.window,
            softcap=self.softcap,
            alibi=self.alibi,
        )

    def split(self, out: Floats) -> list[Floats]:
        return np.split(out, self.layout.starts[1:-1])

    def turned(self, request: int, x: Floats) -> Doubles:
        """x [tokens, heads, dim] by the positions of the request's tokens."""
        y = x.astype(np.float64)
        half = self.rope.dim // 2
        if half:
            chosen = 0 if self.rope.frequency_set is None else self.rope.frequency_set[request]
            n, context = self.pieces[request]
            positions = np.arange(context, context + n, dtype=np.float32)
            angle = (positions[:, None] * self.rope.frequencies[chosen]).astype(np.float64)[:, None]
            cos, sin = np.cos(angle) * self.rope.amplitude, np.sin(angle) * self.rope.amplitude
            a, b = x[..., :half], x[..., half : 2 * half]
            y[..., :half], y[..., half : 2 * half] = a * cos - b * sin, b * cos + a * sin
        return y

    def parts(self, request: int) -> tuple[Floats, Floats, Floats]:
        """The request's q, k and v [tokens, heads, dim] of this iteration."""
        begin, end = self.layout.starts[request : request + 2]
        x = self.qkv[begin:end].reshape(end - begin, -1, self.dim)
        return x[:, : self.n_heads], x[:, self.n_heads : -self.n_kv], x[:, -self.n_kv :]

    def check(self, out: Floats, scale: float | None = None, tolerance: float = 2e-5) -> None:
        """The pages hold k and v as well as the storage can; out is what the K/V in the pages give."""
        integers = self.pages.kv.storage == "int8"
        step = {"float32": 1e-6, "bfloat16": 2**-8, "int8": 1.001 / 254}[self.pages.kv.storage]
        for request, (n, context) in enumerate(self.pieces):
            q, k, v = self.parts(request)
            keys, values = self.pages.read(request, context + n)
            k64 = self.turned(request, k)
            q64 = self.turned(request, q) * (self.dim**-0.5 if scale is None else scale)
            if integers:
                h = hadamard(self.dim)
                k64 = k64 @ h
                rounded, scales = quantise((q64 @ h / h[0].sum()).astype(np.float32))
                q64 = rounded * scales[..., None].astype(np.float64)
            for stored, given_ in ((keys, k64), (values, v.astype(np.float64))):
                bound = np.abs(given_).max(-1, keepdims=True) * step + 1e-7
                assert np.all(np.abs(stored[context:] - given_) <= bound)
            expected = softmax_attention(q64, keys, values, context, self.window, self.softcap, self.alibi)
            norms = np.linalg.norm(expected, axis=-1)
            errors = np.linalg.norm(self.split(out)[request].reshape(q.shape) - expected, axis=-1)
            assert np.all(errors <= tolerance * norms + 2e-6), (errors / norms).max()


def softmax_attention(
    q: Doubles,
    keys: Doubles,
    values: Doubles,
    context: int,
    window: int = 0,
    softcap: float = 0.0,
    alibi: Floats | None = None,
) -> Doubles:
    """q [tokens, heads, dim], scaled; keys, values [keys, kv heads, dim]."""
    keys, values = (np.repeat(x, q.shape[1] // x.shape[1], axis=1) for x in (keys, values))
    scores = np.matmul(q.transpose(1, 0, 2), keys.transpose(1, 2, 0))
    back = context + np.arange(q.shape[0])[:, None] - np.arange(keys.shape[0])
    if softcap:
        scores = softcap * np.tanh(scores / softcap)
    if alibi is not None:
        scores = scores - alibi[:, None, None].astype(np.float64) * back
    scores = np.where((back < 0) | (window > 0) & (back >= window), -np.inf, scores)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    result: Doubles = np.matmul(weights, values.transpose(1, 0, 2)).transpose(1, 0, 2)
    return result


# A query that falls between two integers may be rounded the other way than the oracle's.
TOLERANCES = {"float32": 2e-5, "bfloat16": 2e-5, "int8": 0.02}


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=15)
@given(
    pieces=pieces_strategy,
    heads=st.sampled_from(HEADS),
    dim=st.sampled_from(DIMS),
    page_size=st.sampled_from([16, 32, 48]),
    turned=st.sampled_from([0, 1, 2]),
    cut_for=st.sampled_from([1, 2, 1000]),
)
def test_equals_the_oracle(
    isa: str, storage: str, pieces: Pieces, heads: tuple[int, int], dim: int, page_size: int, turned: int, cut_for: int
) -> None:
    native.set_isa(isa)
    rope_dim = dim // 4 * turned * 2  # none, half of the head, all of it
    frequencies = (10000 ** -(np.arange(rope_dim // 2) / max(1, rope_dim // 2))).astype(np.float32)[None]
    case = Case(pieces, heads=heads, dim=dim, page_size=page_size, storage=storage, rope=Rope(rope_dim, frequencies))
    case.check(case.run(cut_for=cut_for), tolerance=TOLERANCES[storage])


WINDOWS = [1, 2, 16, 17, 63, 64, 65, 128, 300, PART_KEYS, PART_KEYS + 1, 5000]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=25)
@given(
    pieces=pieces_strategy,
    heads=st.sampled_from(HEADS),
    dim=st.sampled_from(DIMS),
    window=st.sampled_from([0, *WINDOWS]),
    softcap=st.sampled_from([0.0, 1.5, 50.0]),
    alibi=st.booleans(),
    cut_for=st.sampled_from([1, 2, 1000]),
)
def test_windows_and_changed_scores(
    isa: str, storage: str, pieces: Pieces, heads: tuple[int, int], dim: int, window: int, softcap: float, alibi: bool,
    cut_for: int,
) -> None:  # fmt: skip
    native.set_isa(isa)
    case = Case(pieces, heads=heads, dim=dim, storage=storage, window=window, softcap=softcap, alibi=alibi)
    case.check(case.run(cut_for=cut_for), tolerance=TOLERANCES[storage])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("window", WINDOWS)
def test_nothing_before_a_window_is_read(isa: str, storage: str, window: int) -> None:
    """Pages before it have no number, and their slots no numbers; and the bits do not tell how the work was cut."""
    native.set_isa(isa)
    pieces = [(1, 1300), (90, 700), (1, window), (3, 0)]
    expected = Case(pieces, storage=storage, window=window)
    out = expected.run()
    expected.check(out, tolerance=TOLERANCES[storage])
    for cut_for, threads in ((1, 1), (1000, 3)):
        case = Case(pieces, storage=storage, window=window)
        for request, (_, context) in enumerate(pieces):
            n_pages = max(0, context + 1 - window) // case.pages.page_size
            for array in (
                case.pages.kv.keys,
                case.pages.kv.values,
                case.pages.kv.key_scales,
                case.pages.kv.value_scales,
            ):
                if array is not None:
                    array[:, case.layout.tables[request, :n_pages]] = nothing(array)
            case.layout.tables[request, :n_pages] = -1
        np.testing.assert_array_equal(case.run(threads, cut_for=cut_for), out)


BORDERS: list[Pieces] = [
    [(PART_KEYS + 1, 0)],
    [(1, 3 * PART_KEYS - 1), (300, 700)],
    [(1, PART_KEYS - 1), (1, PART_KEYS), (2, PART_KEYS - 1)],
    [(20, 2 * PART_KEYS - 10), (5, 1300)],
    [(1, 127), (1, 128), (1, 63), (1, 64)],
    [(1, 0), (1, 15), (1, 16)],
]


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("cut_for", [1, 1000])
def test_long_requests_and_borders_of_steps_and_parts(isa: str, storage: str, cut_for: int) -> None:
    native.set_isa(isa)
    for pieces in BORDERS:
        case = Case(pieces, storage=storage)
        case.check(case.run(cut_for=cut_for), tolerance=TOLERANCES[storage])


@pytest.mark.parametrize("isa", ISAS)
def test_large_and_tiny_scores(isa: str) -> None:
    """Scores of hundreds: the maximum is subtracted, and weights far below it vanish without harm."""
    native.set_isa(isa)
    case = Case([(40, 100), (1, 300)])
    case.qkv[:, : 9 * 64] *= 60
    case.check(case.run(), tolerance=2e-4)


@pytest.mark.parametrize("storage", STORAGES)
def test_scale_is_applied(storage: str) -> None:
    case = Case([(5, 20)], storage=storage)
    got = case.run(scale=0.015625)
    case.check(got, scale=0.015625, tolerance=TOLERANCES[storage])
    assert not np.allclose(got, Case([(5, 20)], storage=storage).run(), rtol=0.01)


@pytest.mark.parametrize("isa", ISAS)
def test_sets_of_frequencies_and_the_amplitude(isa: str) -> None:
    native.set_isa(isa)
    frequencies = np.stack([1.0 / np.arange(1, 33), 0.25 / np.arange(1, 33)]).astype(np.float32)
    rope = Rope(64, frequencies, amplitude=1.19, frequency_set=np.array([1, 0, 1], np.int32))
    case = Case([(40, 100), (1, 3000), (3, 0)], rope=rope)
    case.check(case.run())


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("n_tokens", [1, 40])
def test_many_small_weights_beside_large_ones_count_in_int8(isa: str, n_tokens: int) -> None:
    """In every run of 64 keys one weighs 1 and the others 1/600, but together these make a tenth of the result."""
    native.set_isa(isa)
    dim, context = 64, 1500
    case = Case([(n_tokens, context)], heads=(3, 1), storage="int8")
    keys, values = np.zeros((2, context, 1, dim), np.float32)
    keys[:, 0, 0] = np.where(np.arange(context) % 64 == 17, 0, -np.log(600))
    values[:] = np.where(np.arange(context) % 64 == 17, -1, 1)[:, None, None] * np.float32(1)
    values += 0.05 * normal(*values.shape, seed=4)
    case.pages.write(0, keys, values)
    case.qkv.fill(0)
    case.qkv[:, : 3 * dim : dim] = dim**0.5  # exact in 8 bits: what is left is the weights' error
    case.qkv[:, 3 * dim] = -np.log(600)
    case.qkv[:, 4 * dim :] = 1
    case.check(case.run(), tolerance=1e-3)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=10)
@given(
    pieces=pieces_strategy,
    threads=st.sampled_from([1, 2]),
    cut_for=st.sampled_from([1, 2, 1000]),
    options=st.one_of(
        st.just({}),
        st.fixed_dictionaries(
            {
                "window": st.sampled_from(WINDOWS),
                "softcap": st.sampled_from([0.0, 3.0]),
                "alibi": st.booleans(),
            }
        ),
    ),
)
def test_a_request_gets_the_same_bits_alone_and_in_any_batch(
    isa: str, storage: str, pieces: Pieces, threads: int, cut_for: int, options: dict[str, Any]
) -> None:
    native.set_isa(isa)
    together = Case(pieces, storage=storage, **options)
    parts = together.split(together.run())
    for request, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
        alone = Case([piece], ids=[request], storage=storage, **options).run(threads, cut_for=cut_for)
        np.testing.assert_array_equal(alone, part)


def check_in_pieces(
    storage: str, n: int, borders: list[int], heads: tuple[int, int], dim: int, window: int = 0
) -> None:
    whole = Case([(n, 0)], heads=heads, dim=dim, storage=storage, window=window)
    expected = whole.run()
    pages = Pages([n], heads[1], dim, 16, storage)
    for begin, end in itertools.pairwise([0, *borders, n]):
        layout = Layout(np.array([0, end - begin], np.int32), np.array([begin], np.int32), pages.tables)
        got = attend(
            whole.qkv[begin:end],
            pages.kv,
            layout,
            TEAMS[1 + begin % 2],
            first_layer=1,
            cut_for=begin % 3 * 50,
            window=window,
        )
        np.testing.assert_array_equal(got, expected[begin:end])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@settings(max_examples=8)
@given(cuts=st.sets(st.integers(1, 199), max_size=5), heads=st.sampled_from(HEADS), dim=st.sampled_from([64, 20]))
def test_a_prompt_gets_the_same_bits_whole_and_in_pieces(
    isa: str, storage: str, cuts: set[int], heads: tuple[int, int], dim: int
) -> None:
    """Chunks, and tokens one by one: what a rebuilt or resumed request computes is what it computed before."""
    native.set_isa(isa)
    check_in_pieces(storage, 200, sorted(cuts | set(range(195, 200))), heads, dim)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize(
    ("n_first", "n_pages", "tails"),
    [(40, 2, [1, 8, 70]), (17, 1, [1, 30, 31]), (700, 40, [1, 30, 1]), (1100, 68, [1, 60, 600]), (33, 2, [1] * 12)],
)
def test_pages_that_a_request_of_the_same_iteration_fills(
    isa: str, storage: str, n_first: int, n_pages: int, tails: list[int]
) -> None:
    """The first request fills pages; the page tables of the others begin with some of them. Each gets the bits that it
    has with pages of its own, on any number of threads: nobody reads before all is written."""
    native.set_isa(isa)
    n_shared = 16 * n_pages
    width = (9 + 2 * 3) * 64
    head = normal(n_first, width, seed=1)
    rows = [head, *(normal(n, width, seed=2 + i) for i, n in enumerate(tails))]
    expected = []
    for i, own in enumerate(rows):
        text = own if i == 0 else np.concatenate([head[:n_shared], own])
        pages = Pages([len(text)], 3, 64, 16, storage)
        layout = Layout(np.array([0, len(text)], np.int32), np.zeros(1, np.int32), pages.tables)
        expected.append(attend(text, pages.kv, layout, TEAMS[1], first_layer=1)[len(text) - len(own) :])
    starts = np.cumsum([0, *map(len, rows)]).astype(np.int32)
    contexts = np.array([0, *[n_shared] * len(tails)], np.int32)
    for threads, cut_for in ((1, 0), (2, 0), (2, 1000), (3, 1)):
        pages = Pages([n_first, *(n_shared + n for n in tails)], 3, 64, 16, storage)
        pages.tables[1:, :n_pages] = pages.tables[0, :n_pages]
        got = attend(
            np.concatenate(rows),
            pages.kv,
            Layout(starts, contexts, pages.tables, shares=True),
            TEAMS[threads],
            first_layer=1,
            cut_for=cut_for,
        )
        for part, wanted in zip(np.split(got, starts[1:-1]), expected, strict=True):
            np.testing.assert_array_equal(part, wanted)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
def test_a_long_prompt_gets_the_same_bits_whole_and_in_pieces(isa: str, storage: str) -> None:
    native.set_isa(isa)
    part = PART_KEYS
    borders = [40, part - 1, part, part + 1, part + 70, 2 * part - 3, 2 * part + 2, 2 * part + 3]
    for window in (0, 100, part + 30):
        check_in_pieces(storage, 2 * part + 90, borders, (9, 3), 64, window)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_with_its_request(isa: str, storage: str, bad: float) -> None:
    native.set_isa(isa)
    pieces = [(40, 10), (7, 60), (1, 90), (1, 17), (1, 600)]
    clean = Case(pieces, storage=storage)
    expected = clean.split(clean.run())
    for sick in range(len(pieces)):
        for begin, end in ((0, 9 * 64), (9 * 64, 12 * 64), (12 * 64, 15 * 64)):  # q, k and v
            case = Case(pieces, storage=storage)
            case.qkv[case.layout.starts[sick] : case.layout.starts[sick + 1], begin:end] = bad
            got = case.split(case.run(cut_for=1 + sick * 100))
            for request in range(len(pieces)):
                if request == sick:
                    assert not np.isfinite(got[request]).any(axis=1).all()
                else:
                    np.testing.assert_array_equal(got[request], expected[request])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("storage", STORAGES)
def test_pages_of_a_sick_request_serve_the_next_one(isa: str, storage: str) -> None:
    native.set_isa(isa)
    pages = Pages([20], 1, 16, 16, storage)
    sick = Layout(np.array([0, 20], np.int32), np.array([0], np.int32), pages.tables)
    attend(np.full((20, 48), np.nan, np.float32), pages.kv, sick, TEAMS[2])
    next_one = Layout(np.array([0, 2], np.int32), np.array([0], np.int32), pages.tables)
    assert np.isfinite(attend(normal(2, 48, seed=1), pages.kv, next_one, TEAMS[2])).all()


@pytest.mark.parametrize("storage", STORAGES)
def test_vectors_of_zeros(storage: str) -> None:
    case = Case([(3, 0), (1, 70)], storage=storage)
    case.qkv[:] = 0
    case.check(case.run(), tolerance=TOLERANCES[storage])


def test_layers_do_not_mix() -> None:
    for storage in STORAGES:
        case, other = Case([(3, 0), (1, 0)], storage=storage), Case([(3, 0), (1, 0)], storage=storage)
        both = attend(case.qkv, case.pages.kv, case.layout, TEAMS[2], n_layers=2)
        np.testing.assert_array_equal(both, other.run())
        np.testing.assert_array_equal(case.pages.read(0, 3, layer=0), other.pages.read(0, 3, layer=1))


def test_other_threads_run_during_a_call() -> None:
    """The interpreter's lock is released, and two callers at once have scratch memory of their own."""
    pieces: list[Pieces] = [[(3000, 0)], [(1, 50)] * 20 + [(700, 300)]]
    cases, teams = [Case(piece) for piece in pieces], [native.Team(1), native.Team(1)]
    expected = [case.run() for case in cases]
    results: dict[int, Floats] = {}

    def run(index: int) -> None:
        results[index] = attend(
            cases[index].qkv, cases[index].pages.kv, cases[index].layout, teams[index], first_layer=1
        )

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    turns = 0
    while threads[0].is_alive():
        time.sleep(0.001)
        turns += 1
    for thread in threads:
        thread.join()
    assert turns > 0, "this thread could not run while another was in the kernel"
    for index in range(len(cases)):
        np.testing.assert_array_equal(results[index], expected[index])
