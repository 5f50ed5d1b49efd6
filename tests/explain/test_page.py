"""The page of an explanation: whole, self-contained, escaped, and with every number on it."""

from __future__ import annotations

import dataclasses
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from qaeval_core.explain.page import (
    MAX_BYTES,
    TITLES,
    explanation_lines,
    explanation_page,
)
from qaeval_core.explain.parts import (
    Explanation,
    FamilyExplanation,
    InstanceExplanation,
    ScoreLine,
    Standing,
    TargetParts,
    explanation_content,
)
from qaeval_core.explain.standings import MAX_CHARTS
from qaeval_core.explain.tokens import (
    MatchedText,
    layer_matches,
    likelihood_gains,
    token_matches,
    token_probabilities,
    token_weights,
)
from qaeval_core.families.catalog import FAMILIES
from qaeval_core.families.chat.family import ChatFamily
from scoring.test_page import assert_links_lead_nowhere_else

ATTACK = "<script>alert('x')</script> & \"quoted\" <img src=http://x onerror=y>"
_VOID = {"meta", "br"}

_PARTS = (
    layer_matches(
        window=(1, 2),
        candidate=("<script>", " b"),
        context=("one", " </span>", " three"),
        matches=np.array([[[1, 0.5], [1, -0.25]], [[0, 0.75], [2, 1.0]]]),
        what="cosine",
        layer_precision=(0.125, 0.875),
        used_layers=(1,),
    ),
    likelihood_gains(
        window=(1, 1),
        pieces=("θ", "", " <b>"),
        base=np.array([-1.0, -2.0, -3.0]),
        prompted=np.array([-0.5, -2.0, -4.0]),
        sums=(-6.0, -6.5),
    ),
    token_probabilities("context", ("a", "⟨end of text⟩"), np.array([0.5, 0.1]), mean=0.3),
    token_matches(
        candidate=MatchedText(
            pieces=("</td>", " d"),
            matched=(0, None),
            cosine=np.array([0.9, 0.3]),
            weight=np.array([1.0, 0.0]),
            mean=0.9,
        ),
        reference=MatchedText(
            pieces=("e",),
            matched=(1,),
            cosine=np.array([0.625]),
            weight=np.array([0.0]),
            mean=None,
        ),
        cosine=np.array([[0.9], [-0.25]]),
        target="reference",
    ),
    token_weights("candidate", ("</p>", " f"), (0.125, 1.0)),
)


# What programs read: neither kinds nor keys change.
_KEYS = {
    "layer_matches": [
        *("window", "n_windows", "candidate", "context", "is_cosine"),
        *("matched", "worth", "layer_precision", "used_layers"),
    ],
    "likelihood_gains": [
        *("window", "n_windows", "pieces", "base_nats", "prompted_nats", "gain_nats"),
        *("base_sum_nats", "prompted_sum_nats"),
    ],
    "token_probabilities": ["text", "pieces", "probability", "mean"],
    "token_matches": [
        *("candidate", "reference", "candidate_matched", "reference_matched"),
        *("candidate_cosine", "reference_cosine", "candidate_weight", "reference_weight"),
        *("precision", "recall"),
    ],
    "token_weights": ["text", "pieces", "weight"],
}


def make_explanation(**changes: object) -> Explanation:
    """Return an explanation whose every text is an attack."""
    family = FamilyExplanation(
        key="lrm-1",
        family="lrm",
        signature=ATTACK,
        model=ATTACK,
        artifact=ATTACK,
        instances=("qrelscore",),
        target_role="context",
        targets=(
            TargetParts(target=0, reason=None, parts=_PARTS, statistics={"logit": -2.5}),
            TargetParts(target=1, reason="empty_reference", parts=(), statistics={}),
        ),
    )
    instance = InstanceExplanation(
        name="qrelscore",
        metric="qrelscore",
        signature=ATTACK,
        reason=None,
        scores=(
            ScoreLine(column="qrelscore", stored=0.25, now=0.25, is_compared=True),
            ScoreLine(column="qrelscore_lrm", stored=None, now=None, is_compared=False),
        ),
    )
    made = Explanation(
        out=ATTACK,
        file="input.parquet",
        row=3,
        id=ATTACK,
        texts={"candidate": ATTACK, "references": [ATTACK, "", None], "context": "a\x00b"},
        instances=(instance,),
        families=(family,),
        quarantine_reason=None,
        quarantine_message=None,
        is_equal=True,
        n_compared=9,
        max_difference=float("nan"),
        tolerance=1e-4,
        notes=(ATTACK,),
        environment={"packages": {"x": ATTACK}},
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


class Page(HTMLParser):
    """Tags, attributes and text of a page; raises where tags are not nested."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self._open: list[str] = []
        self.feed(page)
        self.close()
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


def test_the_page_is_whole_and_loads_nothing() -> None:
    """Protects from a page that is empty on a machine without a network, or that calls home."""
    page = explanation_page(make_explanation())
    parsed = Page(page)
    loading = {"script", "link", "img", "iframe", "object", "embed", "base", "form", "svg"}
    assert not loading & set(parsed.tags)
    names = {name for name, _ in parsed.attributes}
    assert not names & {"src", "srcset", "action", "data", "background"}
    assert_links_lead_nowhere_else(parsed.attributes)
    assert not [name for name in names if name.startswith("on")]
    style = page[page.index("<style>") : page.index("</style>")]
    assert not re.search(r"url\(|@import|expression", style)
    assert "default-src 'none'" in page
    assert "prefers-color-scheme: dark" in style


def test_texts_of_rows_are_shown_and_never_run() -> None:
    """Protects from a question that is a script."""
    parsed = Page(explanation_page(make_explanation()))
    assert parsed.text.count(ATTACK) >= 9
    assert "a␀b" in parsed.text
    assert "(empty)" in parsed.text


def test_tables_and_language_are_named_for_readers_who_hear_the_page() -> None:
    """Protects from a page that only eyes can use: color alone says nothing here."""
    page = explanation_page(make_explanation())
    parsed = Page(page)
    assert ("lang", "en") in parsed.attributes
    assert parsed.tags.count("caption") == parsed.tags.count("table") >= 5
    assert parsed.tags.count("th") == sum(name == "scope" for name, _ in parsed.attributes)
    assert parsed.tags.count("h1") == parsed.tags.count("title") == parsed.tags.count("main") == 1
    # Numbers of every token stand in a table, not in colors alone.
    for shown in ("-0.500", "(special token)", "0.6250", "(recall) undefined", "0.1250", "logit"):
        assert shown in parsed.text


def test_tokens_of_a_strip_are_the_text_and_losses_are_marked() -> None:
    """Protects from a strip that shows another text than was scored."""
    page = explanation_page(make_explanation())
    strip = next(part for part in page.split('<p class="strip"') if "&lt;b&gt;" in part)
    strip = strip[: strip.index("</p>")]
    assert re.findall(r">([^<]*)</span>", strip) == ["θ", "·", " &lt;b&gt;"]
    assert 'class="down"' in strip and "-1 nats" in strip
    assert 'class="up"' in strip and "+0.5 nats" in strip


def make_standing(**changes: object) -> Standing:
    """Return where a score of 0.25 lies among a hundred, in a column whose name is an attack."""
    made = Standing(
        column=ATTACK,
        value=0.25,
        edges=(0.0, 0.5, 1.0),
        counts=(60, 40),
        n_lower=30,
        n_higher=68,
        n_beside=2,
        cell_width=0.001953125,
    )
    return dataclasses.replace(made, **changes)  # type: ignore[arg-type]


def test_the_row_is_marked_among_all_rows() -> None:
    """Protects from a score without a scale: 0.25 is high in one run and low in another."""
    page = explanation_page(make_explanation(standings=(make_standing(),)))
    parsed = Page(page)
    assert parsed.tags.count("svg") == 1 and "script" not in parsed.tags
    assert "this row: 0.25" in parsed.text
    assert "0 to 0.5: 60" in parsed.text and "0.5 to 1: 40" in parsed.text
    assert "30 rows lower, 68 higher, 2 with this one within 0.001953" in parsed.text
    assert ATTACK in parsed.text and "<script" not in page
    assert not {name for name, _ in parsed.attributes} & {"src", "srcset", "onerror"}
    assert_links_lead_nowhere_else(parsed.attributes)


def test_charts_of_many_metrics_are_few() -> None:
    """A run of a hundred metrics must not make a page of megabytes."""
    full = make_standing(edges=tuple(i / 32 for i in range(33)), counts=tuple(range(1, 33)))
    page = explanation_page(make_explanation(standings=(full,) * 100))
    assert Page(page).tags.count("svg") == MAX_CHARTS
    assert f"{100 - MAX_CHARTS} more distributions are left out" in page
    assert len(page.encode()) < 300_000
    assert "standings" in explanation_content(make_explanation())


def make_large_explanation(n_metrics: int, n_targets: int, n_windows: int) -> Explanation:
    """Return a row of a very long context, of many metrics, or of many references."""
    rng = np.random.default_rng(0)
    pieces = [f" word{i}" for i in range(500)]
    windows = [
        part
        for i in range(n_windows)
        for values in [rng.normal(size=500)]
        for part in (
            likelihood_gains(
                window=(i + 1, n_windows), pieces=pieces, base=values, prompted=values * 2,
                sums=(-6.0, -6.5),
            ),
            layer_matches(
                window=(i + 1, n_windows), candidate=pieces[:60], context=pieces,
                matches=np.stack([rng.integers(0, 500, (12, 60)), rng.random((12, 60))], axis=2),
                what="cosine", layer_precision=[0.5] * 12, used_layers=list(range(12)),
            ),
        )
    ]  # fmt: skip
    first = make_explanation().families[0]
    target = TargetParts(target=0, reason=None, parts=(*windows,), statistics={"logit": -2.5})
    families = [
        dataclasses.replace(
            first,
            instances=(f"metric {i}",),
            targets=tuple(dataclasses.replace(target, target=j) for j in range(n_targets)),
        )
        for i in range(max(n_metrics // 2, 1))
    ]
    instances = [
        InstanceExplanation(
            name=f"metric {i}", metric="m", signature="s" * 900, reason=None,
            scores=tuple(
                ScoreLine(column=f"metric {i}{end}", stored=0.25 + i, now=0.25, is_compared=True)
                for end in ("", "_precision", "_recall")
            ),
        )
        for i in range(n_metrics)
    ]  # fmt: skip
    long = "The whole of the story. " * 4200
    return make_explanation(
        id="W" * 5000,
        texts={"candidate": long, "references": [long] * n_targets, "context": long},
        families=(*families,),
        instances=(*instances,),
        standings=(make_standing(column="W" * 300),) * n_metrics,
        notes=("a note " * 400,) * n_metrics,
    )


LARGE = {
    "windows": (2, 1, 12),
    "long context": (2, 1, 60),
    "metrics": (200, 1, 1),
    "references": (2, 300, 1),
}


@pytest.mark.parametrize(
    "name", ["windows", *(pytest.param(own, marks=pytest.mark.slow) for own in list(LARGE)[1:])]
)
def test_a_page_is_small_whatever_the_row_holds(name: str) -> None:
    """A context of 100,000 characters has 25,000 tokens, and each of them several numbers."""
    explanation = make_large_explanation(*LARGE[name])
    page = explanation_page(explanation)
    assert len(page.encode()) < MAX_BYTES < 2_000_000
    parsed = Page(page)
    assert "are left out: the page would be too large" in parsed.text
    assert_links_lead_nowhere_else(parsed.attributes)


def test_a_small_page_leaves_nothing_out() -> None:
    assert "left out" not in explanation_page(make_explanation())


def test_the_map_of_lrm_is_what_used_layers_add() -> None:
    """The first layer is not used: its matches are no part of the score."""
    table = _PARTS[0].blocks[1]
    assert table.head == ["candidate token", "one", "three"]
    cells = [[re.findall(">(.*)<", own) for own in row[1:]] for row in table.rows]
    assert cells == [[[".75"], []], [[], ["1.0"]]]


def test_the_head_has_a_tile_for_each_metric_and_its_place_among_all_rows() -> None:
    """Of bertscore the F1 says most, as in the report."""
    columns = ("bertscore_precision", "bertscore_f1")
    lines = [ScoreLine(column=own, stored=0.25, now=0.25, is_compared=True) for own in columns]
    own = InstanceExplanation(
        name="bertscore", metric="bertscore", signature="", reason=None, scores=(*lines,)
    )
    none = dataclasses.replace(own, name="sas", scores=(), reason="empty_candidate")
    page = explanation_page(
        make_explanation(instances=(own, none), standings=(make_standing(column=columns[1]),))
    )
    tiles = re.findall('<div class="tile">(.*?)</div>', page)
    assert "bertscore" in tiles[0] and "0.25" in tiles[0] and "above 30 % of rows" in tiles[0]
    assert "none" in tiles[1] and "empty_candidate" in tiles[1]
    assert "qaeval explain" in page and "2026-01-01 00:00 UTC" in page


@pytest.mark.parametrize(
    ("lower", "beside", "said"),
    [(0, 9999, "0 %"), (1, 9998, "less than 1 %"), (9998, 1, "more than 99 %"), (50, 50, "50 %")],
)
def test_only_none_are_0_percent(lower: int, beside: int, said: str) -> None:
    own = make_standing(column="qrelscore", n_lower=lower, n_beside=beside, n_higher=0)
    assert f"above {said} of rows" in explanation_page(make_explanation(standings=(own,)))


def test_a_score_stands_once_and_what_was_not_computed_again_says_so() -> None:
    """Stored and computed again, the same numbers stood twice in each line."""
    whole = ScoreLine(column="qrelscore", stored=0.25, now=0.25, is_compared=True)
    other = ScoreLine(column="qrelscore_lrm", stored=0.5, now=None, is_compared=False)
    (first,) = make_explanation().instances
    equal = explanation_page(
        make_explanation(instances=(dataclasses.replace(first, scores=(whole,)),))
    )
    table = re.search("Scores of this row.*?</table>", equal, re.DOTALL)
    assert table and table[0].count("0.2500") == 1
    assert "remark" not in table[0] and "values equal the stored ones" in equal
    both = explanation_page(
        make_explanation(instances=(dataclasses.replace(first, scores=(whole, other)),))
    )
    table = re.search("Scores of this row.*?</table>", both, re.DOTALL)
    assert table and table[0].count("not computed again") == 1


def test_every_family_of_ours_has_a_heading_in_plain_words() -> None:
    """A family's name, such as token_match, says nothing to who did not write it."""
    shown = {
        name
        for name, family in FAMILIES.items()
        if getattr(family, "runs_model", False) or isinstance(family, ChatFamily)
    }
    assert shown == set(TITLES)
    page = explanation_page(make_explanation())
    assert "<h2>qrelscore: which context words support the candidate (LRM)</h2>" in page


def test_a_quarantined_row_says_why() -> None:
    """Protects from an empty page where the row was never scored."""
    explanation = make_explanation(
        quarantine_reason="null_context",
        quarantine_message="column 'c': null",
        is_equal=None,
        families=(),
    )
    page = explanation_page(explanation)
    assert "Quarantined, not scored: null_context" in page
    assert "equal the stored ones" not in page
    assert any("quarantined: null_context" in line for line in explanation_lines(explanation))


def test_json_holds_the_same_and_no_nan() -> None:
    """Protects from JSON that a strict reader refuses."""
    text = json.dumps(explanation_content(make_explanation()), allow_nan=False)
    content = json.loads(text)
    assert content["max_difference"] is None
    parts = content["families"][0]["targets"][0]["parts"]
    assert {part["kind"]: list(part)[1:] for part in parts} == _KEYS
    assert parts[1]["gain_nats"] == [0.5, 0.0, -1.0]
    assert parts[0]["matched"] == [[1, 1], [0, 2]]


def test_the_summary_names_the_tokens_that_decide() -> None:
    """Protects from a summary that repeats the score and explains nothing."""
    lines = "\n".join(explanation_lines(make_explanation()))
    assert "qrelscore 0.2500" in lines
    assert "best matched 'b' +1.00" in lines
    assert "most lost '<b>' -1.00" in lines
    assert "lrm of qrelscore, context 2: undefined, empty_reference" in lines
    assert "heaviest tokens of the candidate 'f' +1.00" in lines
    assert "precision 0.9000; worst matched of the candidate 'd' +0.30" in lines
    assert "logit -2.5" in lines
