"""Pages stay low in a browser, where there is one, whatever the data: as they open, unfolded."""

from __future__ import annotations

from collections.abc import Callable
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
const frame = document.getElementById("frame");
window.addEventListener("load", () => {
  const said = document.createElement("pre");
  said.id = "found";
  said.textContent = JSON.stringify({ height: frame.contentDocument.documentElement.scrollHeight });
  frame.remove();
  document.body.append(said);
});
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


@pytest.fixture(scope="module", params=_PAGES)
def page(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A page of one extreme."""
    return _PAGES[request.param](tmp_path_factory.mktemp("page"))


@pytest.mark.parametrize("width", [400, 1280])
def test_a_page_is_low_as_it_opens(page: str, width: int, tmp_path: Path) -> None:
    """Nobody scrolls through a hundred screens; what is folded may hold more."""
    assert len(page.encode()) < MAX_PAGE_BYTES
    height = test_browser.measured(page, width, tmp_path, script=_HEIGHT)["height"]
    assert 900 < height < MAX_PIXELS, height
