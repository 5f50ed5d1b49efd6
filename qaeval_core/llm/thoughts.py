"""Thoughts: what of a reply's text a model says to itself, by the marks of all models."""

from __future__ import annotations

import re

# How models mark their thoughts where no server takes them out: by tags, whose signs may be escaped
# or entities (Qwen, DeepSeek, Seed, MiniMax, Claude); Mistral; Kimi; Command and DeepSeek by tags
# of their own; Gemma; gpt-oss by channels, and without their marks.
_LESS, _MORE = r"\\?(?:<|&lt;)", r"\\?(?:>|&gt;)"
_TAG = (
    r"(?:\w{1,12}:)?(?:(?:ant)?think(?:ing)?|thoughts?|thought_process|reasoning|reflection"
    r"|scratch_?pad|inner_monologue)"
)
_ENDS_TAG = rf"(?:\s[^<>&]{{0,200}})?(?<!/){_MORE}"
_BAR = "[|｜]"
_MARKS = re.compile(
    # Looked at first, for most signs begin no mark: a fifth of the time.
    rf"(?={_LESS}\s{{0,3}}[/|｜a-z]|[\[◁a])(?:"
    rf"(?P<opened>{_LESS}\s{{0,3}}{_TAG}{_ENDS_TAG}|\[THINK\]|◁think▷"
    rf"|{_LESS}{_BAR}(?:start_thinking|begin[_▁]of[_▁](?:thought|thinking)|think){_BAR}{_MORE}"
    rf"|{_LESS}\|channel{_MORE}(?:thought|analysis)\b|{_LESS}unused94{_MORE})"
    rf"|(?P<closed>{_LESS}\s{{0,3}}/\s{{0,3}}{_TAG}{_ENDS_TAG}|\[/THINK\]|◁/think▷"
    rf"|{_LESS}{_BAR}(?:end_thinking|end[_▁]of[_▁](?:thought|thinking)|/think){_BAR}{_MORE}"
    rf"|{_LESS}channel\|{_MORE}|{_LESS}unused95{_MORE})"
    r"|(?P<channel><\|channel\|>(?:analysis|commentary)\b|\Aanalysis(?=[A-Z]))"
    r"|(?P<final><\|channel\|>final(?:<\|message\|>)?)|(?P<word>assistantfinal))",
    re.IGNORECASE,
)
# Of Open WebUI; other details are text.
_DETAILS = re.compile(
    rf"{_LESS}details\s[^<>]{{0,200}}?reasoning[^<>]{{0,200}}?{_MORE}.*?"
    rf"(?:{_LESS}/details{_MORE}|\Z)",
    re.IGNORECASE | re.DOTALL,
)


def without_thoughts(text: str) -> str:
    """Return what a reply says behind, before and between its thoughts.

    Thoughts may hold others, and end with the text if they have no end. A last mark without a
    first one ends thoughts as well: some servers keep them but not their first mark.

    Examples
    --------
    >>> without_thoughts("<think>1? 2?</think>4"), without_thoughts("Hm, 2?</think>4")
    ('4', '4')
    >>> without_thoughts("<think>a <think>2</think> so 3"), without_thoughts("[THINK]2[/THINK]3")
    ('', '3')
    """
    text = _DETAILS.sub("", text)
    said: list[str] = []
    depth = end = 0
    for mark in _MARKS.finditer(text):
        kind = mark.lastgroup
        if depth == 0:
            if kind == "word":
                continue
            said.append(text[end : mark.start()])
            if kind in ("closed", "final"):
                said.clear()
        if kind == "opened":
            depth += 1
        elif kind == "closed":
            depth = max(depth - 1, 0)
        else:  # Channels stand side by side, and the last one ends them all.
            depth = 1 if kind == "channel" else 0
        end = mark.end()
    return "".join([*said, text[end:]] if depth == 0 else said)
