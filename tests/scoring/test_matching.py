"""Tokens matched by their vectors, against nested loops and against a linear program."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Iterator

import numpy as np
import pytest
import threadpoolctl
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.optimize import linprog

from helpers import REPOSITORY
from qaeval_core.errors import ConfigError
from qaeval_core.families import token_match
from qaeval_core.families import transport as family_transport
from qaeval_core.families.blas_threads import one_blas_thread
from qaeval_core.families.token_match import BestCosines, best_cosines, best_cosines_of_texts
from qaeval_core.families.transport import transport_costs

DIM = 8
# Products of 32-bit vectors, summed in an order of the BLAS's choice.
TOLERANCE = 1e-6


def unit_rows(chance: np.random.Generator, n: int) -> np.ndarray:
    """Return n random unit vectors."""
    rows = chance.standard_normal((n, DIM))
    return (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float32)


def layout(lengths: list[int]) -> np.ndarray:
    """Return spans of texts that lie one after another."""
    ends = np.cumsum(lengths, dtype=np.int64)
    return np.stack([ends - lengths, ends], axis=1).reshape(-1, 2)


def _reference_best_cosines(
    vectors: np.ndarray,
    spans: np.ndarray,
    pairs: list[tuple[int, int]],
    allowed: np.ndarray,
) -> tuple[list[float], list[float]]:
    def best(token: int, other: int) -> float:
        found = math.nan
        for j in range(*spans[other]):
            if allowed[j]:
                cosine = math.fsum(vectors[token].astype(float) * vectors[j].astype(float))
                found = cosine if math.isnan(found) else max(found, cosine)
        return found

    left = [best(i, right) for text, right in pairs for i in range(*spans[text])]
    right = [best(j, text) for text, other in pairs for j in range(*spans[other])]
    return left, right


def match(
    vectors: np.ndarray,
    spans: np.ndarray,
    pairs: list[tuple[int, int]],
    allowed: np.ndarray | None = None,
) -> BestCosines:
    """Call `best_cosines` with pairs as a list."""
    left, right = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return best_cosines(
        vectors=vectors, spans=spans, pair_left=left, pair_right=right, allowed=allowed
    )


@settings(max_examples=60, deadline=None)
@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=6),
    data=st.data(),
    seed=st.integers(0, 1000),
    share=st.sampled_from([0.0, 0.5, 1.0]),
)
def test_best_cosines_are_those_of_nested_loops(
    lengths: list[int], data: st.DataObject, seed: int, share: float
) -> None:
    """Texts of any size, shared by pairs, some of them empty or without an allowed token."""
    chance = np.random.default_rng(seed)
    text = st.integers(0, len(lengths) - 1)
    pairs = data.draw(st.lists(st.tuples(text, text), max_size=8))
    vectors, spans = unit_rows(chance, sum(lengths)), layout(lengths)
    allowed = chance.random(sum(lengths)) < share
    found = match(vectors, spans, pairs, allowed)
    expected = _reference_best_cosines(vectors, spans, pairs, allowed)
    for side, values in zip(found, expected, strict=True):
        np.testing.assert_allclose(side, values, atol=TOLERANCE)


def test_without_a_mask_all_tokens_may_be_matched() -> None:
    """None means all, not none."""
    vectors, spans = unit_rows(np.random.default_rng(1), 9), layout([4, 5])
    found = match(vectors, spans, [(0, 1)])
    same = match(vectors, spans, [(0, 1)], np.ones(9, dtype=bool))
    np.testing.assert_array_equal(found.left, same.left)
    np.testing.assert_array_equal(found.right, same.right)


def test_longer_batch_mates_do_not_change_a_negative_cosine() -> None:
    """bert_score multiplies by 0 here: beside a longer pair, a best of -0.98 becomes 0."""
    vectors = np.array([[1, 0], [-0.98, 0.199], [0, 1], [0, -1], [0.6, 0.8]], dtype=np.float32)
    spans = np.array([[0, 1], [1, 2], [2, 5]])
    alone = match(vectors, spans, [(0, 1)])
    among = match(vectors, spans, [(2, 2), (0, 1), (2, 0)])
    assert alone.left[0] == among.left[3] == pytest.approx(-0.98)
    assert alone.right[0] == among.right[3] == pytest.approx(-0.98)


def test_a_special_token_is_matched_but_not_matched_to() -> None:
    """A mask that silenced a token's own best would take [CLS] out of sums that weigh it."""
    vectors = np.array([[1, 0], [0, 1], [1, 0], [0.6, 0.8]], dtype=np.float32)
    allowed = np.array([False, True, False, True])
    best = match(vectors, layout([2, 2]), [(0, 1)], allowed)
    np.testing.assert_allclose(best.left, [0.6, 0.8], atol=TOLERANCE)
    np.testing.assert_allclose(best.right, [0.0, 0.8], atol=TOLERANCE)


def test_no_pair_and_no_token_give_empty_arrays() -> None:
    """A shard whose rows are all undefined still has a statistic."""
    for vectors, spans, pairs in [
        (np.zeros((0, DIM), dtype=np.float32), layout([0, 0]), [(0, 1)]),
        (np.zeros((0, DIM), dtype=np.float32), np.zeros((0, 2), dtype=np.int64), []),
    ]:
        best = match(vectors, spans, pairs)
        assert best.left.shape == best.right.shape == (0,)
        assert best.left.dtype == np.float32


def test_a_text_against_itself_is_exactly_one() -> None:
    """Rounding makes cosines of 1 + 1e-7; a score above 1 is out of its range."""
    vectors = unit_rows(np.random.default_rng(2), 300)
    best = match(vectors, layout([300]), [(0, 0)])
    assert best.left.max() <= 1.0 and best.left.min() > 1 - TOLERANCE


def test_a_large_pair_is_matched_block_by_block(monkeypatch: pytest.MonkeyPatch) -> None:
    """50,000 x 50,000 cosines at once would take 10 GB."""
    vectors, spans = unit_rows(np.random.default_rng(3), 700), layout([400, 300])
    allowed = np.random.default_rng(4).random(700) < 0.5
    whole = match(vectors, spans, [(0, 1), (1, 0)], allowed)
    monkeypatch.setattr(token_match, "MAX_ELEMENTS", 1000)
    tracemalloc.start()
    parts = match(vectors, spans, [(0, 1), (1, 0)], allowed)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 400 * 300 * 4 / 4
    for a, b in zip(whole, parts, strict=True):
        np.testing.assert_allclose(a, b, atol=TOLERANCE)


def blas_threads() -> set[int]:
    """Return how many threads numpy's BLAS, and others that are loaded, take now."""
    found = threadpoolctl.ThreadpoolController().select(user_api="blas")
    return {int(library["num_threads"]) for library in found.info()}


def set_blas_threads(n: int) -> None:
    """Set them from a thread that ends: threadpoolctl lets no second thread set them meanwhile."""
    setter = threading.Thread(target=threadpoolctl.threadpool_limits, args=(n, "blas"))
    setter.start()
    setter.join()


@pytest.fixture
def two_blas_threads() -> Iterator[None]:
    """What a machine of two CPUs has; skipped where the BLAS cannot be asked, as on macOS."""
    before = max(blas_threads(), default=1)
    set_blas_threads(2)
    if blas_threads() != {2}:
        pytest.skip("this BLAS does not tell its threads")
    yield
    set_blas_threads(before)


class _Watched(list[np.ndarray]):
    """Texts that note how many threads multiply them."""

    def __init__(self, texts: list[np.ndarray]) -> None:
        super().__init__(texts)
        self.seen: set[int] = set()

    def __getitem__(self, i: int) -> np.ndarray:  # type: ignore[override]
        self.seen |= blas_threads()
        return super().__getitem__(i)


@pytest.mark.usefixtures("two_blas_threads")
def test_a_pair_is_matched_by_one_thread_whatever_the_environment_says() -> None:
    """Two threads take 30 times the CPU: they spin while they wait for each other."""
    vectors, spans = unit_rows(np.random.default_rng(9), 60), layout([20, 40])
    texts = _Watched([vectors[:20], vectors[20:]])
    best_cosines_of_texts(texts, spans, np.array([0]), np.array([1]))
    assert texts.seen == {1}
    assert blas_threads() == {2}  # The caller's own work has what it had.


@pytest.mark.usefixtures("two_blas_threads")
def test_costs_of_transport_are_made_by_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """Distances of a pair are as small; those in this process have no variable that says it."""
    seen: set[int] = set()

    def cost(**_: np.ndarray) -> float:
        seen.update(blas_threads())
        return 0.0

    monkeypatch.setattr(family_transport, "transport_cost", cost)
    vectors, spans = unit_rows(np.random.default_rng(10), 8), layout([4, 4])
    transport(vectors, spans, [(0, 1)], np.ones(8, dtype=np.float32))
    assert seen == {1} and blas_threads() == {2}


@pytest.mark.usefixtures("two_blas_threads")
def test_scorers_side_by_side_leave_the_threads_as_they_were() -> None:
    """Each restoring what it had found, the second one would leave 1 to the whole process."""
    seen: list[set[int]] = []

    def second() -> None:
        with one_blas_thread():
            has_entered.set()
            may_leave.wait(10)
            seen.append(blas_threads())

    has_entered, may_leave = threading.Event(), threading.Event()
    other = threading.Thread(target=second)
    with one_blas_thread():
        other.start()
        has_entered.wait(0.2)
    has_entered.wait(10)
    may_leave.set()
    other.join()
    assert seen == [{1}] and blas_threads() == {2}


@pytest.mark.parametrize("sizes", [(32, 32), (7, 300), (512, 400), (1900, 700)])
def test_one_thread_finds_the_same_cosines(
    sizes: tuple[int, int], two_blas_threads: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A product summed in another order would change scores that were stored before."""
    chance = np.random.default_rng(11)
    vectors = chance.standard_normal((sum(sizes), 384), dtype=np.float32)
    one = match(vectors, layout(list(sizes)), [(0, 1)])
    two_threads = best_cosines_of_texts.__wrapped__  # type: ignore[attr-defined]
    monkeypatch.setattr(token_match, "best_cosines_of_texts", two_threads)
    two = match(vectors, layout(list(sizes)), [(0, 1)])
    assert [side.tobytes() for side in one] == [side.tobytes() for side in two]


def _reference_transport_cost(
    left: np.ndarray, right: np.ndarray, supply: np.ndarray, demand: np.ndarray
) -> float:
    """The linear program written out: flows >= 0, row sums and column sums given."""
    n_left, n_right = len(left), len(right)
    distances = [[math.dist(a, b) for b in right] for a in left]
    rows = [[float(k // n_right == i) for k in range(n_left * n_right)] for i in range(n_left)]
    columns = [[float(k % n_right == j) for k in range(n_left * n_right)] for j in range(n_right)]
    sums = [*(supply / supply.sum()), *(demand / demand.sum())]
    return float(linprog(np.ravel(distances), A_eq=rows + columns, b_eq=sums).fun)


def transport(
    vectors: np.ndarray, spans: np.ndarray, pairs: list[tuple[int, int]], weights: np.ndarray
) -> np.ndarray:
    """Call `transport_costs` with pairs as a list."""
    left, right = np.array(pairs, dtype=np.int64).reshape(-1, 2).T
    return transport_costs(
        vectors=vectors, spans=spans, pair_left=left, pair_right=right, weights=weights
    )


def test_transport_costs_are_those_of_the_linear_program() -> None:
    """Weights that are not normalized per text, or distances squared, would differ."""
    chance = np.random.default_rng(5)
    lengths = [4, 3, 1, 6]
    vectors, spans = unit_rows(chance, 14), layout(lengths)
    weights = chance.random(14).astype(np.float32)
    weights[[1, 9]] = 0
    pairs = [(0, 1), (1, 3), (2, 0), (3, 2)]
    for (left, right), cost in zip(pairs, transport(vectors, spans, pairs, weights), strict=True):
        a, b = slice(*spans[left]), slice(*spans[right])
        expected = _reference_transport_cost(vectors[a], vectors[b], weights[a], weights[b])
        assert cost == pytest.approx(expected, abs=TOLERANCE)


def test_equal_texts_cost_nothing_and_opposite_ones_two() -> None:
    """As 2 - 2 cos, rounding of the vectors would put equal tokens 4e-4 apart."""
    vectors = unit_rows(np.random.default_rng(6), 40)
    both = np.concatenate([vectors, -vectors[:1]])
    spans = np.array([[0, 40], [0, 1], [40, 41]])
    costs = transport(both, spans, [(0, 0), (1, 2)], np.ones(41, dtype=np.float32))
    np.testing.assert_allclose(costs, [0.0, 2.0], atol=TOLERANCE)


def test_a_text_without_weight_has_no_transport_cost() -> None:
    """0 would be the best cost there is."""
    vectors, spans = unit_rows(np.random.default_rng(7), 3), layout([2, 1, 0])
    weights = np.array([1, 1, 0], dtype=np.float32)
    assert np.isnan(transport(vectors, spans, [(0, 1), (1, 0), (0, 2)], weights)).all()


@pytest.mark.slow  # a process of its own imports for 2 s
def test_transport_loads_no_torch_and_leaves_the_environment() -> None:
    """POT imports every tensor library it finds: seconds, and a gigabyte in each worker."""
    code = (
        "import os, sys\n"
        "os.environ['POT_BACKEND_DISABLE_JAX'] = 'given'\n"
        "from qaeval_core.families.transport import _solver\n"
        "_solver()\n"
        "switches = {k: v for k, v in os.environ.items() if k.startswith('POT_BACKEND')}\n"
        "assert switches == {'POT_BACKEND_DISABLE_JAX': 'given'}, switches\n"
        "assert 'ot' in sys.modules and 'torch' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=REPOSITORY, check=False
    )
    assert done.returncode == 0, done.stderr


def test_missing_transport_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """POT is an extra: a bare ImportError names no remedy."""
    solver = family_transport._solver
    solver.cache_clear()
    monkeypatch.setitem(sys.modules, "ot", None)
    vectors, weights = unit_rows(np.random.default_rng(8), 2), np.ones(2, dtype=np.float32)
    with pytest.raises(ConfigError, match="QA0004"):
        transport(vectors, layout([1, 1]), [(0, 1)], weights)
    solver.cache_clear()
