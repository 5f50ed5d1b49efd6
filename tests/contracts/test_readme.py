"""The README: short, run as it stands, and true to what was measured."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from doc_blocks import PAGES, README, blocks
from helpers import REPOSITORY

MAX_LINES = 150
EVIDENCE = REPOSITORY / "docs" / "evidence"
# Run by other tests: of the wheel, and by whoever sets the project up.
INSTALL, SETUP = "pip install ", ("make demo", "make test")
PEERS = {"sas": "SAS; sentence-transformers", "bertscore": "BERTScore; bert-score"}
_END = "-- end of block --"


def test_it_is_short_and_leads_to_every_page() -> None:
    """Protects from a README that grows to a manual, and from a page that nobody finds."""
    text = README.read_text(encoding="utf-8")
    assert text.count("\n") < MAX_LINES
    assert [page.name for page in PAGES[1:] if f"](docs/{page.name})" not in text] == []
    assert all(f"## {use}\n" in text for use in ("Score", "Filter", "Audit"))
    assert "](docs/report.png)" in text


def parts() -> list[tuple[str, str, str]]:
    """Return language, text and printed output of what the README runs; "" where it has none."""
    found: list[tuple[str, str, str]] = []
    for kind, body in blocks(README, "sh", "python", "text"):
        if kind == "text":
            assert found and not found[-1][2], body
            found[-1] = (*found[-1][:2], body)
        else:
            found.append((kind, body, ""))
    return found


def as_script() -> str:
    """Return what the README runs, for one shell.

    In place of its install lines the shell enters the environment that they make; the lines that
    set a clone up are left out.
    """
    lines: list[str] = []
    for kind, body, _ in parts():
        if kind == "python":
            lines += ["python - <<'PYTHON'", body.rstrip(), "PYTHON"]
        else:
            own = [line for line in body.splitlines() if not line.startswith(SETUP)]
            lines += [". .venv/bin/activate" if line.startswith(INSTALL) else line for line in own]
        lines.append(f"echo; echo '{_END}'")
    return "\n".join(lines)


def shown_as(expected: str, printed: str) -> bool:
    """Return whether a text has the expected lines, one after another.

    ``...`` stands for any text, alone in a line for any lines.
    """
    pieces = [re.escape(piece) for piece in expected.rstrip("\n").split("...")]
    return re.search("(?:^|\n)" + ".*".join(pieces) + "(?:\n|$)", printed, re.DOTALL) is not None


def test_lines_are_compared() -> None:
    """Protects from a comparison that cannot fail."""
    printed = "a 1\nb 2\nc /tmp/x/out\nd 3"
    assert shown_as("a 1\n...\nc .../out\n", printed)
    assert shown_as("b 2\n", printed)
    assert not shown_as("a 2\n", printed)
    assert not shown_as("a 1\nc .../out\n", printed)
    assert not shown_as("c /tmp\n", printed)
    assert not shown_as("c .../out\n...\na 1\n", printed)


@pytest.mark.slow
@pytest.mark.timeout(1800)  # Nine minutes where models are exported first, on a slow machine.
def test_blocks_run_and_print_what_the_page_shows(tmp_path: Path, artifacts_root: Path) -> None:
    """Protects from commands that no longer work, and from outputs that nobody gets.

    They run in one shell that has done what the README said, and knows no more.
    """
    own = str(Path(sys.executable).parent)
    before = os.environ["PATH"].split(os.pathsep)
    environment = {
        **{name: value for name, value in os.environ.items() if name != "VIRTUAL_ENV"},
        "PATH": os.pathsep.join(path for path in before if path != own),
        "HOME": str(tmp_path / "home"),
        "QAEVAL_ARTIFACTS": str(artifacts_root),
    }
    assert shutil.which("qaeval", path=environment["PATH"]) is None
    (tmp_path / ".venv").symlink_to(sys.prefix)
    done = subprocess.run(
        ["sh", "-e", "-c", as_script()], cwd=tmp_path, env=environment, stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT, text=True, timeout=1200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout
    printed = done.stdout.split(_END)
    assert len(printed) == len(parts()) + 1
    for (_, body, expected), text in zip(parts(), printed, strict=False):
        assert not expected or shown_as(expected, text), f"{body}\n{text}"
    assert sum(bool(expected) for _, _, expected in parts()) >= 5


def claims() -> Iterator[str]:
    """Yield the lines of the table of speed, as the kept outputs of the benchmarks have them."""
    answers = record("answers.json")
    for name, peer in (
        ("sas", "SAS; sentence-transformers"),
        ("bertscore", "BERTScore; bert-score"),
    ):
        for rows in ("as_they_come", "distinct"):
            own = answers[name][rows]
            all_distinct = own["distinct_pairs"] == own["rows"]
            n_distinct = "all" if all_distinct else f"{own['distinct_pairs']:,}"
            rates = {side: median(rates) for side, rates in own["rows_per_s"].items()}
            peers = " | ".join(
                f"{rates[one]:,.0f} ({own['ratios'][one]['of_medians']:.1f})"
                for one in ("fp32", "bf16")
            )
            yield (
                f"| {peer} | {own['rows']:,}, {n_distinct} distinct "
                f"| {rates['qaeval']:,.0f} | {peers} |"
            )
    words = record("words.json")["sections"]["speed"]
    for corpus, short in (("MS-MARCO answers", "MS MARCO"), ("SQuAD predictions", "SQuAD")):
        own = words[f"{corpus}, nltk"]
        yield (
            f"| lexical, {short}, one core; sum of three "
            f"| {own['rows']:,}, {own['distinct_rows']:,} distinct | {median(own['rates']):,.0f} "
            f"| {median(own['peer_rates']):,.0f} ({own['ratio']['of_medians']:.1f}) | |"
        )


# Where PyTorch computes no bf16, by threads: the kept outputs beside all other ways.
OTHER_WAYS = {2: "answers_avx2.json", 1: "answers_avx2_one_thread.json"}
WAYS = ("fp32", "torch.compile fp32", "onnx fp32", "openvino fp32")
JUDGES = {"sas": "SAS", "bi_encoder": "bi-encoder", "bertscore": "BERTScore"}
ROWS = {"as_they_come": "as they come", "distinct": "distinct"}


def fastest(own: dict[str, Any]) -> tuple[str, float]:
    """Return the fastest other way, and how many times as fast qaeval is."""
    ratios = {way: ratio["of_medians"] for way, ratio in own["ratios"].items() if way != "qaeval"}
    way = min(ratios, key=lambda one: ratios[one])
    return way, ratios[way]


def other_ways() -> Iterator[str]:
    """Yield the lines of the table of all other ways."""
    for n_threads, name in OTHER_WAYS.items():
        answers = record(name)
        assert answers["environment"]["threads"] == n_threads
        for metric, title in JUDGES.items():
            for rows, kind in ROWS.items():
                own = answers[metric][rows]
                rates = {way: median(found) for way, found in own["rows_per_s"].items()}
                shown = (f"{rates[way]:,.0f}" if way in rates else "-" for way in WAYS)
                way, ratio = fastest(own)
                yield (
                    f"| {title} | {kind} | {n_threads} | {rates['qaeval']:,.0f} "
                    f"| {' | '.join(shown)} | {ratio:.1f}, {way.removesuffix(' fp32')} "
                    f"| {100 * own['share_of_peak']:.0f} % |"
                )


# Where PyTorch computes bf16, by threads: the kept outputs beside all other ways.
IN_BF16 = {
    2: "answers_avx512_bf16.json",
    1: "answers_avx512_bf16_one_thread.json",
}
MODELS = {**JUDGES, "moverscore": "MoverScore", "kpqa": "KPQA", "roundtrip": "Roundtrip"}

# QRelScore beside loops: each file is one run.
QRELSCORE = (
    "qrelscore_fp32.json",
    "qrelscore_avx512_bf16.json",
    "qrelscore_avx512_bf16_one_thread.json",
)


def in_bf16() -> Iterator[str]:
    """Yield the lines of the table in bf16 on a CPU that has it without AMX."""
    for n_threads, name in IN_BF16.items():
        answers = record(name)
        assert answers["environment"]["threads"] == n_threads
        for metric, title in MODELS.items():
            for rows, own in answers[metric].items():
                rates = {way: median(found) for way, found in own["rows_per_s"].items()}
                in_fp32 = {way: one for way, one in own["ratios"].items() if way.endswith("fp32")}
                in_torch = own["bf16"]["ratios"]["bf16"]["of_medians"]
                way, ratio = fastest(own["bf16"])
                yield (
                    f"| {title} | {ROWS[rows]} | {n_threads} | {rates['qaeval']:,.0f} "
                    f"| {fastest({'ratios': in_fp32})[1]:.1f} | {rates['qaeval bf16']:,.0f} "
                    f"| {rates['bf16']:,.0f} | {in_torch:.1f} | {rates[way]:,.0f}, {way} "
                    f"| {ratio:.1f} | {100 * own['bf16']['share_of_peak']:.0f} % |"
                )


def against_loops() -> Iterator[str]:
    """Yield the lines of the table of QRelScore, in fp32 and in bf16."""
    for name in QRELSCORE:
        found = record(name)
        n_threads = found["environment"]["threads"]
        for family, own in found["sections"].items():
            rates = {side: median(rates) for side, rates in own["rows_per_s"].items()}
            assert own["precision"] == own["peer_precision"]
            faster = max(("loop", "compiled"), key=lambda side: rates[side])
            yield (
                f"| {family.upper()}, {own['n_rows']} rows | {own['precision']} | {n_threads} "
                f"| {rates['ours']:.1f} | {rates['loop']:.1f} | {rates['compiled']:.1f} "
                f"| {own['ratios'][faster]['of_medians']:.2f} | {own['padding_share'] * 100:.1f} % "
                f"| {own['share_of_peak_done'] * 100:.0f} % |"
            )


def record(name: str) -> dict[str, Any]:
    found = json.loads((EVIDENCE / name).read_text(encoding="utf-8"))
    assert isinstance(found, dict)
    return found


def test_claims_are_what_was_measured() -> None:
    """Protects from a number that was never met again."""
    text = README.read_text(encoding="utf-8")
    _, _, section = text.partition("## Speed\n")
    table = [line for line in section.partition("\n## ")[0].splitlines() if line[:1] == "|"]
    assert table[2:] == list(claims())
    distinct = [
        fastest(record(name)[one]["distinct"])[1] for name in OTHER_WAYS.values() for one in JUDGES
    ]
    assert f"{min(distinct):.1f} to {max(distinct):.1f} times as fast as the fastest" in section
    bf16 = record(IN_BF16[2])
    own = [fastest(bf16[one]["distinct"]["bf16"])[1] for one in MODELS]
    told = f"{min(own):.1f} to {max(own):.1f} times as fast there as the fastest"
    assert told in " ".join(section.split())
    found = record("answers.json")["environment"]
    assert f"Rows/s on {found['cores']} cores of an {found['cpu']} " in section


# On distinct pairs with two threads: how many times as fast as PyTorch in bf16.
GOALS_IN_BF16 = {"sas": 2.3, "bertscore": 2.0, "bi_encoder": 2.0}


def test_bf16_is_as_fast_as_was_asked_for() -> None:
    answers = record(IN_BF16[2])
    for metric, goal in GOALS_IN_BF16.items():
        assert answers[metric]["distinct"]["bf16"]["ratios"]["bf16"]["of_medians"] >= goal
    assert fastest(answers["sas"]["distinct"]["bf16"])[1] >= 1.8
    assert answers["sas"]["as_they_come"]["bf16"]["ratios"]["bf16"]["of_medians"] >= 4
    sections = record("qrelscore_avx512_bf16.json")["sections"]
    assert sections["lrm"]["ratios"]["loop"]["of_medians"] >= 1.4
    assert sections["grg"]["ratios"]["loop"]["of_medians"] >= 2.0


def test_the_page_of_metrics_has_the_same_figures() -> None:
    page = (REPOSITORY / "docs" / "metrics.md").read_text(encoding="utf-8")
    answers = record("answers.json")
    for name in PEERS:
        for own in answers[name].values():
            rates = {side: f"{median(rates):,.0f}" for side, rates in own["rows_per_s"].items()}
            ratios = {one: f"{ratio['of_medians']:.1f}" for one, ratio in own["ratios"].items()}
            figures = [
                rates["qaeval"],
                *(f"{rates[one]} | {ratios[one]}" for one in ("fp32", "bf16")),
                f"{own['tokens_per_s']:,.0f}",
                f"{100 * own['padding_share']:.1f} %",
                f"{100 * own['share_of_peak']:.0f} %",
            ]
            assert f"| {' | '.join(figures)} |" in page
    for line in (*other_ways(), *in_bf16(), *against_loops()):
        assert line in page
    words = record("words.json")["sections"]
    for own in words["speed"].values():
        rates = f"{median(own['rates']):,.0f} | {median(own['peer_rates']):,.0f}"
        assert f"| {rates} | {own['ratio']['of_medians']:.1f} |" in page
    million = words["million"]
    assert (
        f"{million['rows'] / million['pass_s']:,.0f} rows/s in the pass, "
        f"{million['wall_s']:.0f} s from start to end"
    ) in " ".join(page.split())
