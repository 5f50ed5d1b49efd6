"""Charts: every mark says what it is, letters stay inside, and no text of others becomes markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from qaeval_core.report import svg

ATTACK = "</script><b onclick=x>'\"&\u202e\x07"
NAMES = [
    "topic",
    "W" * 30,
    "a very long name of a metric and column",
    "很长的名字" * 4,
    "ÀÉÎÕÜ" * 5,
    ATTACK * 5,
]
MARKS = ("rect", "circle", "polyline", "polygon", "line")


def charts() -> dict[str, str]:
    wild = [-1.2345e-300, 1.9876e30, 12_345_678.9]
    return {
        "one": svg.histogram([0, 0.5, 1], {"f1": [3, 0]}, title=ATTACK, is_share=False),
        "two": svg.histogram(
            [-1e-9, 0, 1e9], {ATTACK: [0.25, 0.75], "now": [1, 0]}, title="t", is_share=True
        ),
        "none": svg.histogram([0, 1], {"f1": [0]}, title="t", is_share=False),
        "dots": svg.interval_dots(
            [svg.Dot(name, i / 7, i / 7 - 0.1, i / 7 + 0.1) for i, name in enumerate(NAMES)]
            + [svg.Dot("alone", -3.0)],
            title="t",
        ),
        "equal": svg.interval_dots([svg.Dot("a", 2.0), svg.Dot("b", 2.0)], title="t"),
        "wild": svg.interval_dots([svg.Dot("a", value) for value in wild], title="t"),
        "no dots": svg.interval_dots([], title="t"),
        "curves": svg.curves(
            {"mean": [(0, 0.5), (1, 0.75)], ATTACK: [(0, 0.25)]},
            title="t", level=0.6, bounds=[(0, 0.1, 0.9), (1, 0.2, 0.8)],
        ),
        "wild curve": svg.curves({"x": [(i, value) for i, value in enumerate(wild)]}, title="t"),
        "no points": svg.curves({"x": []}, title="t"),
        "spark": svg.sparkline([0.1, 0.3, 0.2], title=ATTACK),
        "one point": svg.sparkline([0.1], title="t"),
    }  # fmt: skip


def parsed(chart: str) -> ET.Element:
    """Return a chart's elements; what is no XML fails here."""
    return ET.fromstring(f"<div>{chart}</div>")


@pytest.mark.parametrize("name", charts())
def test_a_chart_is_whole_and_its_numbers_are_finite(name: str) -> None:
    """Protects from other people's text as markup, and from nan as a coordinate."""
    chart = charts()[name]
    found = parsed(chart)
    assert {element.tag for element in found.iter()} <= {
        "div", "svg", "title", "text", "p", "span", *MARKS
    }  # fmt: skip
    assert "\u202e" not in chart and "\x07" not in chart and "style=" not in chart
    coordinates = [
        value for element in found.iter() if element.tag in (*MARKS, "text")
        for key, value in element.attrib.items() if key not in ("class", "text-anchor")
    ]  # fmt: skip
    assert not [own for own in coordinates if not re.fullmatch(r"[-0-9., ]*", own)]


@pytest.mark.parametrize("name", charts())
def test_every_mark_says_what_it_is(name: str) -> None:
    """A bar that does not tell its number is a picture."""
    found = parsed(charts()[name])
    is_titled = found.find("svg/title") is not None
    marks = [one for one in found.iter() if one.tag in MARKS and one.get("class") != "grid"]
    assert [
        one.attrib for one in marks if not is_titled and not (one.findtext("title") or "")
    ] == []


@pytest.mark.parametrize("name", charts())
def test_letters_and_marks_stay_inside(name: str) -> None:
    """Measured in a wide font, DejaVu Sans: names that run over numbers cannot be read."""
    chart = parsed(charts()[name]).find("svg")
    _, _, width, height = map(float, chart.attrib["viewBox"].split())
    for text in chart.iter("text"):
        # Its font holds no Chinese: such a letter is one em wide.
        own = "".join([text.text or "", *(child.tail or "" for child in text)])
        shown = re.sub(r"[一-鿿]", "—", own)
        extent = TextPath((0, 0), shown, size=11, prop=FontProperties("DejaVu Sans"))
        across = extent.get_extents().x1
        x, y = float(text.attrib["x"]), float(text.attrib["y"])
        left = x - across if text.get("text-anchor") == "end" else x
        assert left >= 0 and left + across <= width, (shown, left, across)
        assert 8 <= y <= height
    for circle in chart.iter("circle"):
        assert 0 <= float(circle.attrib["cx"]) <= width
    for bar in chart.iter("rect"):
        x, y, wide, tall = (float(bar.attrib[key]) for key in ("x", "y", "width", "height"))
        assert x >= 0 and x + wide <= width and y >= 0 and y + tall <= height


def test_bars_are_as_high_as_their_numbers() -> None:
    """The numbers of a bar's title and its height must not differ."""
    chart = svg.histogram([0, 1, 2, 3], {"a": [10, 5, 0]}, title="t", is_share=False)
    bars = list(parsed(chart).iter("rect"))
    heights = [float(bar.attrib["height"]) for bar in bars]
    assert heights[0] == pytest.approx(2 * heights[1]) and len(bars) == 2
    assert [bar.findtext("title") for bar in bars] == ["a, 0 to 1: 10", "a, 1 to 2: 5"]


def test_a_chart_is_small() -> None:
    """Thirty of them on a page of 300 kB."""
    counts = [i * 1000 for i in range(32)]
    edges = [i / 32 for i in range(33)]
    assert len(svg.histogram(edges, {"f1": counts}, title="t", is_share=False)) < 5_000
