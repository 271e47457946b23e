"""The native attention against the PyTorch reference, and what must hold to the bit."""

from __future__ import annotations

import itertools
import sys
import threading
import time
from collections.abc import Iterator

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from orcaserve import native
from orcaserve.model.attention import Attention, NativeAttention, ReferenceAttention, choose_attention
from orcaserve.model.kv_manager import KVManager
from orcaserve.model.layout import Layout

ISAS = native.available_isas()
HEADS = [(9, 3), (4, 4), (8, 1), (71, 1), (12, 2)]
DIMS = [64, 128, 80, 96, 20, 7]
PAGE_SIZES = [16, 1, 5, 8, 32]
Pieces = list[tuple[int, int]]  # (tokens of the iteration, tokens before it) per request

pieces_strategy = st.lists(
    st.tuples(st.one_of(st.just(1), st.integers(1, 70)), st.one_of(st.just(0), st.integers(0, 300))),
    min_size=1,
    max_size=6,
)


@pytest.fixture(autouse=True)
def restore_machine() -> Iterator[None]:
    isa, threads = native.isa(), torch.get_num_threads()
    torch.set_num_threads(1)  # small operators: quickest so, and independent of what else the machine does
    yield
    native.set_isa(isa)
    torch.set_num_threads(threads)


def randn(*shape: int, seed: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


class Case:
    """Requests with earlier K/V in a manager, and the q, k, v of an iteration: the same for the same arguments.

    What belongs to a request depends on `ids` and not on its neighbours; q, k and v are slices of one fused matrix.
    """

    def __init__(
        self,
        pieces: Pieces,
        ids: list[int] | None = None,
        heads: tuple[int, int] = (9, 3),
        dim: int = 64,
        page_size: int = 16,
        dtype: torch.dtype = torch.float32,
    ) -> None:
        ids = list(range(len(pieces))) if ids is None else ids
        n_heads, n_kv = heads
        n_slots = sum(-(-(n + context) // page_size) * page_size for n, context in pieces) + 3 * page_size
        self.kv = KVManager(2, n_kv, dim, n_slots, page_size, dtype)
        for region in (*self.kv.keys, *self.kv.values):
            region.fill_(float("nan"))  # nothing may depend on slots that nobody has written
        self.kv.extend(-1, page_size)  # page numbers do not start at 0
        for request, (_, context) in zip(ids, pieces, strict=True):
            if context:
                self.kv.extend(request, context)
                earlier = randn(2, context, n_kv, dim, seed=1000 + request)
                self.kv.write(1, self.kv.page_tables([request])[0], 0, earlier[0], earlier[1])
        self.layout: Layout = self.kv.lay_out([(request, n) for request, (n, _) in zip(ids, pieces, strict=True)])
        fused = torch.cat(
            [randn(n, (n_heads + 2 * n_kv) * dim, seed=request) for request, (n, _) in zip(ids, pieces, strict=True)]
        )
        parts = fused.split([n_heads * dim, n_kv * dim, n_kv * dim], dim=1)
        self.q, self.k, self.v = (part.unflatten(1, (-1, dim)) for part in parts)

    def run(self, attention: Attention) -> Tensor:
        return attention(self.q, self.k, self.v, 1, self.layout, self.kv)


def check_against_reference(**case: object) -> None:
    ours, oracle = Case(**case), Case(**case)
    torch.set_num_threads(2)
    got = ours.run(NativeAttention())
    torch.set_num_threads(1)
    expected = oracle.run(ReferenceAttention())
    assert got.shape == expected.shape
    torch.testing.assert_close(got, expected, rtol=2e-5, atol=2e-6)
    for mine, theirs in zip(ours.kv.keys + ours.kv.values, oracle.kv.keys + oracle.kv.values, strict=True):
        assert torch.equal(mine.view(torch.uint8), theirs.view(torch.uint8)), "the pages hold other K/V"


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=30, deadline=None)
@given(
    pieces=pieces_strategy,
    heads=st.sampled_from(HEADS),
    dim=st.sampled_from(DIMS),
    page_size=st.sampled_from(PAGE_SIZES),
    dtype=st.sampled_from([torch.float32, torch.bfloat16]),
)
def test_equals_the_reference(
    isa: str, pieces: Pieces, heads: tuple[int, int], dim: int, page_size: int, dtype: torch.dtype
) -> None:
    native.set_isa(isa)
    check_against_reference(pieces=pieces, heads=heads, dim=dim, page_size=page_size, dtype=dtype)


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("pieces", [[(513, 0)], [(1, 1500), (300, 700)], [(1, 127)], [(1, 128)], [(129, 0), (1, 0)]])
def test_long_requests_and_borders_of_steps(isa: str, pieces: Pieces) -> None:
    native.set_isa(isa)
    check_against_reference(pieces=pieces)


def test_large_and_tiny_scores() -> None:
    """Scores of hundreds: the maximum is subtracted, and weights far below it vanish without harm."""
    ours, oracle = Case([(40, 100), (1, 300)]), Case([(40, 100), (1, 300)])
    for case in (ours, oracle):
        case.q.mul_(60)
    torch.testing.assert_close(ours.run(NativeAttention()), oracle.run(ReferenceAttention()), rtol=2e-4, atol=2e-5)


def test_scale_is_applied() -> None:
    ours, oracle = Case([(5, 20)]), Case([(5, 20)])
    got = ours.run(NativeAttention(scale=0.015625))
    torch.testing.assert_close(got, oracle.run(ReferenceAttention(scale=0.015625)), rtol=2e-5, atol=2e-6)
    assert not torch.allclose(got, Case([(5, 20)]).run(NativeAttention()))


def test_contiguous_and_transposed_inputs_give_the_same() -> None:
    fused, apart, turned = Case([(3, 9), (1, 4)]), Case([(3, 9), (1, 4)]), Case([(3, 9), (1, 4)])
    apart.q, apart.k, apart.v = (x.contiguous() for x in (apart.q, apart.k, apart.v))
    turned.q = turned.q.transpose(0, 1).contiguous().transpose(0, 1)  # heads outermost in memory
    expected = fused.run(NativeAttention())
    assert torch.equal(apart.run(NativeAttention()), expected)
    assert torch.equal(turned.run(NativeAttention()), expected)


def test_bfloat16_inputs() -> None:
    ours, oracle = Case([(5, 30), (1, 200)]), Case([(5, 30), (1, 200)])
    for case in (ours, oracle):
        case.q, case.k, case.v = case.q.bfloat16(), case.k.bfloat16(), case.v.bfloat16()
    got = ours.run(NativeAttention())
    assert got.dtype == torch.bfloat16
    torch.testing.assert_close(got, oracle.run(ReferenceAttention()))


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=25, deadline=None)
@given(pieces=pieces_strategy, bf16=st.booleans(), threads=st.sampled_from([1, 2]))
def test_a_request_gets_the_same_bits_alone_and_in_any_batch(
    isa: str, pieces: Pieces, bf16: bool, threads: int
) -> None:
    native.set_isa(isa)
    dtype = torch.bfloat16 if bf16 else torch.float32
    torch.set_num_threads(2)
    together = Case(pieces, dtype=dtype)
    parts = together.layout.split(together.run(NativeAttention()))
    torch.set_num_threads(threads)
    for request, (piece, part) in enumerate(zip(pieces, parts, strict=True)):
        assert torch.equal(Case([piece], ids=[request], dtype=dtype).run(NativeAttention()), part)


@pytest.mark.parametrize("isa", ISAS)
@settings(max_examples=15, deadline=None)
@given(cuts=st.sets(st.integers(1, 199), max_size=5), group=st.sampled_from(HEADS), dim=st.sampled_from([64, 20]))
def test_a_prompt_gets_the_same_bits_whole_and_in_pieces(
    isa: str, cuts: set[int], group: tuple[int, int], dim: int
) -> None:
    """Chunks, and tokens one by one: what a rebuilt or resumed request computes is what it computed before."""
    native.set_isa(isa)
    whole = Case([(200, 0)], heads=group, dim=dim)
    expected = whole.run(NativeAttention())
    borders = [0, *sorted(cuts | set(range(195, 200))), 200]
    kv = KVManager(2, group[1], dim, 208)
    for begin, end in itertools.pairwise(borders):
        q, k, v = (x[begin:end] for x in (whole.q, whole.k, whole.v))
        got = NativeAttention()(q, k, v, 1, kv.lay_out([(0, end - begin)]), kv)
        assert torch.equal(got, expected[begin:end])


@pytest.mark.parametrize("isa", ISAS)
@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf")])
def test_what_is_not_finite_stays_with_its_request(isa: str, bad: float) -> None:
    native.set_isa(isa)
    pieces = [(40, 10), (7, 60), (1, 90), (1, 17)]
    for sick in range(len(pieces)):
        clean = Case(pieces)
        expected = clean.layout.split(clean.run(NativeAttention()))
        case = Case(pieces)
        start, end = case.layout.starts[sick : sick + 2].tolist()
        for x in (case.q, case.k, case.v):
            x[start:end].fill_(bad)
        got = case.layout.split(case.run(NativeAttention()))
        for request in range(len(pieces)):
            if request == sick:
                assert not got[request].isfinite().all()
            else:
                assert torch.equal(got[request], expected[request])


@pytest.mark.parametrize("isa", ISAS)
def test_pages_of_a_sick_request_serve_the_next_one(isa: str) -> None:
    native.set_isa(isa)
    kv, q = KVManager(1, 1, 16, 32), randn(20, 1, 16, seed=1)
    sick = torch.full((20, 1, 16), float("nan"))
    NativeAttention()(q, sick, sick, 0, kv.lay_out([(1, 20)]), kv)
    kv.drop(1)
    kv.extend(2, 1)
    kv.write(0, kv.page_tables([2])[0], 0, q[:1], q[:1])
    got = NativeAttention()(q[1:2], q[1:2], q[1:2], 0, kv.lay_out([(2, 1)]), kv)
    assert got.isfinite().all()


def test_layers_and_iterations_do_not_mix() -> None:
    """One attention object over layers, layouts and managers in turn: its cached plan follows."""
    attention, oracle = NativeAttention(), ReferenceAttention()
    for pieces in ([(3, 0)], [(3, 5), (1, 2)], [(1, 1)]):
        ours, other = Case(pieces), Case(pieces)
        torch.testing.assert_close(ours.run(attention), other.run(oracle), rtol=2e-5, atol=2e-6)
    kv, kv_oracle = KVManager(2, 1, 8, 64), KVManager(2, 1, 8, 64)
    for step in range(3):
        x = randn(2, 3, 2, 1, 8, seed=step)
        layout, layout_oracle = kv.lay_out([(0, 2)]), kv_oracle.lay_out([(0, 2)])
        for layer in range(2):
            got = attention(*x[layer], layer, layout, kv)
            torch.testing.assert_close(got, oracle(*x[layer], layer, layout_oracle, kv_oracle), rtol=2e-5, atol=2e-6)


def test_other_threads_run_during_a_call() -> None:
    """The interpreter's lock is released, and two callers at once have scratch memory of their own."""
    pieces: list[Pieces] = [[(3000, 0)], [(1, 50)] * 20 + [(700, 300)]]
    expected = [Case(piece).run(NativeAttention()) for piece in pieces]
    cases = [Case(piece) for piece in pieces]
    results: dict[int, Tensor] = {}

    def run(index: int) -> None:
        results[index] = cases[index].run(NativeAttention())

    threads = [threading.Thread(target=run, args=(index,)) for index in range(len(cases))]
    for thread in threads:
        thread.start()
    turns = 0
    while threads[0].is_alive():
        time.sleep(0.002)
        turns += 1
    for thread in threads:
        thread.join()
    assert turns > 3, "this thread could not run while another was in the kernel"
    assert all(torch.equal(results[index], expected[index]) for index in range(len(cases)))


@pytest.mark.parametrize("attention", [NativeAttention(), ReferenceAttention()], ids=["native", "reference"])
@pytest.mark.parametrize(
    ("change", "error"),
    [
        ({"q": torch.zeros(4, 9, 32)}, ValueError),
        ({"q": torch.zeros(4, 8, 64)}, ValueError),
        ({"q": torch.zeros(4, 0, 64)}, ValueError),
        ({"q": torch.zeros(3, 9, 64)}, ValueError),
        ({"q": torch.zeros(4, 576)}, ValueError),
        ({"k": torch.zeros(4, 9, 64)}, ValueError),
        ({"v": torch.zeros(5, 3, 64)}, ValueError),
        ({"v": torch.zeros(4, 3, 64, device="meta")}, ValueError),
        ({"q": torch.zeros(4, 9, 64, dtype=torch.float64)}, TypeError),
        ({"k": torch.zeros(4, 3, 64, dtype=torch.bfloat16)}, TypeError),
        ({"layer": 2}, IndexError),
    ],
)
def test_arguments_that_do_not_fit_are_refused(
    attention: Attention, change: dict[str, object], error: type[Exception]
) -> None:
    case = Case([(3, 2), (1, 7)])
    arguments = {"q": case.q, "k": case.k, "v": case.v, "layer": 1, "layout": case.layout, "kv": case.kv} | change
    with pytest.raises(error):
        attention(**arguments)


def test_a_layout_of_another_manager_is_refused() -> None:
    """Page numbers that a smaller region does not have."""
    big, small = Case([(3, 200)]), Case([(3, 0)])
    big.kv = small.kv
    with pytest.raises(ValueError, match="outside the region"):
        big.run(NativeAttention())


def test_choice() -> None:
    assert isinstance(choose_attention("cpu"), NativeAttention)
    assert isinstance(choose_attention("meta"), ReferenceAttention)


def test_choice_where_the_kernels_are_not_built(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delattr("orcaserve.native")
    monkeypatch.setitem(sys.modules, "orcaserve.native", None)  # makes its import raise ImportError
    with pytest.warns(RuntimeWarning, match="slow attention"):
        assert isinstance(choose_attention("cpu"), ReferenceAttention)
