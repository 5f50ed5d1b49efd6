"""Charts: every mark says what it is, letters stay inside, and no text of others becomes markup."""

from __future__ import annotations

import re
import xml.etree.ElementTree as ET

import pytest
from matplotlib.font_manager import FontProperties
from matplotlib.textpath import TextPath

from qaeval_core.pages import chart_grids as svg_grid
from qaeval_core.pages import charts as svg
from qaeval_core.pages.axes import BROAD, Axis, bottom_axis, numbers, percents, ticks

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


def pairs(names: list[str]) -> str:
    """Return a grid with cells of all kinds."""
    cells = {
        (i, j): svg_grid.Cell(
            None if i + j == 5 else (i - j) / 7, is_sure=abs(i - j) > 1, said=f"{names[i]}: {i - j}"
        )
        for i in range(len(names))
        for j in range(len(names))
        if i != j
    }
    return svg_grid.pair_grid(names, cells, title="t")


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
        "undefined": svg.interval_dots(
            [svg.Dot("flat", None, reason=ATTACK), svg.Dot("few", None), svg.Dot("f1", 0.2)],
            title="t", x_range=(-0.5, 0.5), level=0.0,
        ),
        "huge": svg.interval_dots([svg.Dot("a", -1.7e308), svg.Dot("b", 1.7e308)], title="t"),
        "marked": svg.histogram(
            [0, 1, 2], {"f1": [1, 2]}, title="t", is_share=False, mark=(1.5, ATTACK)
        ),
        "marked beyond": svg.histogram(
            [0, 1], {"f1": [1]}, title="t", is_share=False, mark=(9.0, "this row")
        ),
        "boxes": svg_grid.boxes(
            [svg_grid.Box(name, 9**i, (0, 1, 2, 3, 4 + i), 2.5) for i, name in enumerate(NAMES)]
            + [svg_grid.Box("none", 0)],
            title=ATTACK,
        ),
        "one value": svg_grid.boxes([svg_grid.Box("3", 1, (2, 2, 2, 2, 2), 2)], title="t"),
        "wild boxes": svg_grid.boxes(
            [svg_grid.Box("3", 9, (*wild[:1], 0, 1, *wild[:0:-1]), 7)], title="t"
        ),
        "no boxes": svg_grid.boxes([], title="t"),
        "grid": pairs((NAMES * 3)[: svg_grid.MAX_PAIRED]),
        "small grid": pairs(["f1", "sas"]),
        "no grid": pairs([]),
        "no dots": svg.interval_dots([], title="t"),
        "curves": svg.curves(
            {"mean": [(0, 0.5), (1, 0.75)], ATTACK: [(0, 0.25)]},
            title="t", level=(0.6, ATTACK), mark=(0.5, ATTACK), y_label=ATTACK,
            x_axis=Axis(ATTACK), bounds=[(0, 0.1, 0.9), (1, 0.2, 0.8)],
        ),
        "broad curves": svg.curves(
            {"mean": [(0, 0.5), (1, 0.75)]}, title="t", x_axis=Axis("share", percents),
            y_range=(0, 1), width=BROAD,
        ),
        "days": svg.curves(
            {"mean": [(i, i % 7) for i in range(40)]}, title="t",
            x_axis=Axis(shown=lambda days: [f"2026-01-{day:02.0f}" for day in days],
                        ticks=list(range(40))),
        ),
        "stacked": svg.histogram(
            [0, 1, 2, 3], {"kept": [0, 5, 9], "dropped": [7, 3, 0]}, title="t", is_share=False,
            is_stacked=True, mark=(1.2, ATTACK), x_label=ATTACK,
        ),
        "banded": svg.interval_dots(
            [svg.Dot("a", 0.3, 0.2, 0.4, is_bad=True), svg.Dot("b", 0.0)],
            title="t", level=0.0, band=(-0.1, 0.1),
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
        "div", "svg", "title", "text", "p", "span", "g", *MARKS
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
    grouped = {id(own) for group in found.iter("g") if group.findtext("title") for own in group}
    marks = [
        one for one in found.iter()
        if one.tag in MARKS and one.get("class") != "grid" and id(one) not in grouped
    ]  # fmt: skip
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
        left = x - across * {"end": 1, "middle": 0.5}.get(text.get("text-anchor", ""), 0)
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


def test_a_box_lies_where_its_quantiles_do() -> None:
    """A box that is drawn elsewhere than its title says misleads."""
    own = svg_grid.Box("4", 8, (0.0, 1.0, 2.0, 3.0, 4.0), 2.0)
    chart = parsed(svg_grid.boxes([own, svg_grid.Box("5", 0)], title="t"))
    group = chart.find("svg/g")
    assert group.findtext("title") == (
        "4: 8 values, median 2, mean 2, half in 1 to 3, 90 % in 0 to 4"
    )
    whisker, median = group.findall("line")
    box, mean = group.find("rect"), group.find("circle")
    left, right = float(whisker.attrib["x1"]), float(whisker.attrib["x2"])
    assert float(box.attrib["x"]) == pytest.approx(left + (right - left) / 4, abs=0.11)
    assert float(box.attrib["width"]) == pytest.approx((right - left) / 2, abs=0.11)
    for at in (median.attrib["x1"], mean.attrib["cx"]):
        assert float(at) == pytest.approx((left + right) / 2, abs=0.11)
    texts = ["".join(one.itertext()) for one in chart.iter("text")]
    assert any(text.endswith("no value") for text in texts)


def test_a_grid_is_told_by_signs_and_not_by_color_alone() -> None:
    """One reader in twelve does not see the colors; p above the limit has no sign."""
    cells = {
        (0, 1): svg_grid.Cell(0.2, is_sure=True, said="a - b: 0.200"),
        (1, 0): svg_grid.Cell(-0.2, is_sure=True, said="a - b: 0.200"),
        (0, 2): svg_grid.Cell(0.1, is_sure=False, said="a - c: 0.100"),
        (1, 2): svg_grid.Cell(None, is_sure=False, said="b - c: undefined"),
    }
    found = [
        (own.findtext("title"), own.findtext("text"), own.find("rect").attrib)
        for own in parsed(svg_grid.pair_grid(["a", "b", "c"], cells, title="t")).iter("g")
    ]
    assert [sign for _, sign, _ in found] == ["+", "−", None, "?"]
    assert [own["class"][0] for _, _, own in found[:3]] == ["a", "b", "a"]
    assert [own["fill-opacity"] for _, _, own in found] == ["0.60", "0.60", "0.30", "0.00"]


def test_a_mark_stands_at_its_value() -> None:
    """A line beside the bar that holds the row would say another score."""
    made = {"title": "t", "is_share": False}
    places = []
    for value in (0.0, 1.5, 2.0, 7.0):
        chart = svg.histogram([0, 1, 2], {"a": [1, 1]}, mark=(value, "this row"), **made)
        line = next(one for one in parsed(chart).iter("line") if one.get("class") == "level")
        assert line.findtext("title") == "this row"
        places.append(float(line.attrib["x1"]))
    left, at, right, beyond = places
    assert at == pytest.approx(left + 0.75 * (right - left), abs=0.11) and beyond == right


def test_an_undefined_row_says_why_and_has_no_dot() -> None:
    """Protects from a dot at 0, which reads as no correlation."""
    dots = [svg.Dot("flat", None, reason="constant"), svg.Dot("f1", 0.5, 0.25, 0.75)]
    chart = parsed(svg.interval_dots(dots, title="t", x_range=(0.0, 1.0), level=0.5))
    (circle,) = chart.iter("circle")
    level = next(one for one in chart.iter("line") if one.get("class") == "level")
    assert circle.findtext("title") == "f1: 0.5 [0.25, 0.75]"
    assert level.attrib["x1"] == circle.attrib["cx"]
    assert any("".join(one.itertext()).endswith("constant") for one in chart.iter("text"))


@pytest.mark.parametrize("low", [0.0, -3.0, 1e-7, 1e6, -1e300, 0.0713])
@pytest.mark.parametrize("wide", [1e-6, 0.0079, 1.0, 3.7, 1e5, 1e300])
def test_numbers_of_an_axis_differ_and_are_where_they_say(low: float, wide: float) -> None:
    """Two ticks of one number say that nothing lies between them."""
    high = low + wide
    if not high - low > abs(low) * 1e-9:
        pytest.skip("floats of that size have no room between them")
    for n_most in range(2, 10):
        found = ticks(low, high, n_most=n_most)
        shown = numbers(found)
        assert 2 <= len(found) <= n_most and len(set(shown)) == len(found)
        assert all(low - wide * 1e-9 <= own <= high + wide * 1e-9 for own in found)
        step = found[1] - found[0]
        for own, text in zip(found, shown, strict=True):
            assert abs(float(text) - own) <= step / 50 + abs(own) * 1e-7, (found, shown)


def test_counts_of_rows_are_whole() -> None:
    """Half a row is none."""
    for most in (1, 2, 3, 7, 19, 400):
        assert all(own == int(own) for own in ticks(0, most, n_most=4, is_whole=True))


def test_numbers_below_a_chart_do_not_touch() -> None:
    """What runs together is read as one number."""
    for axis in (Axis(), Axis(shown=lambda own: [f"2026-01-{i:02d}" for i in range(len(own))],
                              ticks=[i / 39 for i in range(40)])):  # fmt: skip
        found = parsed(f"<svg>{bottom_axis((0.0, 1.0), (46, 352), 100, axis)}</svg>")
        reached = -1.0
        for text in found.iter("text"):
            extent = TextPath((0, 0), text.text, size=11, prop=FontProperties("DejaVu Sans"))
            half, at = extent.get_extents().x1 / 2, float(text.attrib["x"])
            assert at - half > reached
            reached = at + half


def test_a_stacked_bar_stands_on_the_one_below() -> None:
    chart = svg.histogram(
        [0, 1, 2], {"kept": [2, 4], "dropped": [6, 0]}, title="t", is_share=False, is_stacked=True
    )
    below, above, alone = parsed(chart).iter("rect")
    assert below.attrib["x"] == above.attrib["x"] and below.attrib["width"] == above.attrib["width"]
    top, height = (float(above.attrib[name]) for name in ("y", "height"))
    assert top + height == pytest.approx(float(below.attrib["y"]), abs=0.11)
    assert height == pytest.approx(3 * float(below.attrib["height"]), abs=0.3)
    assert float(alone.attrib["height"]) == pytest.approx((height + height / 3) / 2, abs=0.3)
