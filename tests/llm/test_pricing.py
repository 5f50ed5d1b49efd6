"""Estimates of tokens: how near they are to what tokenizers count."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from qaeval_core.llm.limits import estimate_tokens

# Texts of our own -> tokens by cl100k_base, o200k_base, Llama 3 and Qwen 3 (quicktok 0.4.0).
TOKENS = {
    "The mill at Skarn was built by Ann Kell, who had studied in Lund, and burned down in 1940.": (
        26,
        25,
        26,
        28,
    ),
    "Which lighthouse was finished by the engineer who designed the bridge across the Tave?": (
        17,
        16,
        17,
        17,
    ),
    "Die Windmühle am Fluss wurde von einer Ingenieurin gebaut, die in Lund studiert hatte.": (
        24,
        22,
        24,
        24,
    ),
    "Le moulin au bord de la rivière a été construit par une ingénieure qui avait étudié à Lund.": (
        27,
        22,
        27,
        27,
    ),
    "河边的风车是一位曾在隆德学习的工程师建造的,一九四〇年被烧毁。": (45, 28, 29, 24),
    "Мельницу на берегу реки построила женщина-инженер, учившаяся в Лунде.": (40, 24, 24, 30),
    "川のほとりの風車は、ルンドで学んだ技師が建てました。": (30, 23, 21, 20),
    "In 1,931 of 4,817 cases (40.1 %), p < 0.05; see [12], [13] and eq. (4): y = a*x + b.": (
        44,
        44,
        44,
        52,
    ),
    "THE MILL AT SKARN WAS BUILT BY ANN KELL AND BURNED DOWN AFTER NINE YEARS.": (22, 21, 22, 22),
}


@pytest.mark.parametrize("text", TOKENS)
def test_tokens_are_hardly_underestimated(text: str) -> None:
    """A reservation too small breaks the endpoint's limit; one far too large wastes it."""
    overhead = estimate_tokens([{"role": "user", "content": ""}])
    estimate = estimate_tokens([{"role": "user", "content": text}]) - overhead
    assert estimate >= 0.8 * max(TOKENS[text])
    assert estimate <= 2.1 * max(TOKENS[text])


@settings(max_examples=50, deadline=None)
@given(left=st.text(), right=st.text())
def test_more_text_is_not_fewer_tokens(left: str, right: str) -> None:
    """An estimate that falls with length, or skips a sign, would let an endless text through."""
    parts = [estimate_tokens([{"role": "user", "content": text}]) for text in (left, left + right)]
    assert parts[1] >= parts[0] - 1  # A word that goes on may take a lone capital in.
    many = estimate_tokens([{"role": "user", "content": "\x01" * 50}])
    assert many >= 50
