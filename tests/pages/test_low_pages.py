"""Pages stay low in a browser, where there is one, whatever the data: as they open, unfolded."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from pathlib import Path

import pytest

from audit.test_page import large_outcome
from compare.test_page import large_page
from explain.test_page import LARGE, make_large_explanation
from filter.test_page import large_filter
from pages import test_browser
from qaeval_core.audit.page import audit_page
from qaeval_core.explain.page import explanation_page
from qaeval_core.filter.page import filter_page
from qaeval_core.made import HowMade
from qaeval_core.study.page import study_page
from scoring.test_page import large_report
from study.test_page import ENVIRONMENT, make_large_study

pytestmark = test_browser.pytestmark  # It needs a browser, and takes seconds.
MAX_PIXELS, MAX_PAGE_BYTES = 20_000, 2_000_000

_HEIGHT = """
const look = (frame) => ({ height: frame.contentDocument.documentElement.scrollHeight });
"""
_PAGES: dict[str, Callable[[Path], str]] = {
    **{
        f"explain, {name}": lambda _, own=own: explanation_page(make_large_explanation(*own))
        for name, own in LARGE.items()
    },
    **{
        f"correlate, {n_metrics} of {name[:8]}": (
            lambda _, own=(name, n_metrics, n_subsets, n_human): study_page(
                make_large_study(*own), ENVIRONMENT
            )
        )
        for name, n_metrics, n_subsets, n_human in (
            ("metric", 200, 2, 2),
            ("metric", 3, 20, 20),
            ("長い名前の列" * 40, 40, 9, 9),
        )
    },
    "report": large_report,
    "filter": lambda _: filter_page(large_filter().content, HowMade.of(None, "W" * 100)),
    "audit": lambda _: audit_page(large_outcome()),
    "compare, systems": lambda _: large_page(n_systems=500, n_metrics=2),
    "compare, metrics": lambda _: large_page(n_systems=3, n_metrics=200, n_by=1),
    "compare, names": lambda _: large_page(n_systems=40, n_metrics=9, name="W" * 300, n_by=13),
}


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[str, int], tuple[int, int]]:
    """Bytes and pixels of each extreme page at each width."""
    pages = {name: make(tmp_path_factory.mktemp("page")) for name, make in _PAGES.items()}
    cases = list(product(pages, test_browser.WIDTHS))
    looks = test_browser.all_measured(
        [(pages[name], width) for name, width in cases],
        tmp_path_factory.mktemp("looks"),
        script=_HEIGHT,
    )
    return {
        case: (len(pages[case[0]].encode()), look["height"])
        for case, look in zip(cases, looks, strict=True)
    }


@pytest.mark.parametrize("width", test_browser.WIDTHS)
@pytest.mark.parametrize("name", _PAGES)
def test_a_page_is_low_as_it_opens(
    found: dict[tuple[str, int], tuple[int, int]], name: str, width: int
) -> None:
    """Nobody scrolls through a hundred screens; what is folded may hold more."""
    n_bytes, height = found[name, width]
    assert n_bytes < MAX_PAGE_BYTES
    assert 900 < height < MAX_PIXELS
