"""Pages in a browser, where there is one: readable on a phone and on a desk.

Chromium opens a document that holds the page in a frame, opens all that is folded, and sends back
what lies where. The page's own policy forbids scripts; the document around it may have one.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import product
from pathlib import Path
from queue import Queue
from threading import Thread
from typing import Any

import numpy as np
import polars as pl
import pytest

from audit_weeks import audited, week
from compare.test_page import large_page
from explain.test_page import make_explanation, make_standing
from filter_corpora import questions
from helpers import qaeval, run_locally
from qaeval_core.explain.page import explanation_page
from qaeval_core.filter.labels import read_labels
from study.test_formats import correlated, rendered
from study.test_pinned_study import write_tables

WIDTHS = (400, 1280)
SCHEMES = ("light", "dark")
MAX_HEIGHT = 20_000
CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser"))), None)

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium in PATH (Debian: chromium)"),
]

_MEASURE = r"""
const look = (frame) => {
  const page = frame.contentDocument, root = page.documentElement, problems = [];
  const height = root.scrollHeight;
  page.querySelectorAll("details").forEach((one) => { one.open = true; });
  const say = (what, node, own, room) => problems.push(
    what + ": " + node.textContent.slice(0, 80) +
    " [" + [own.left, own.right, room.left, room.right].map(Math.round).join(" ") + "]");
  const beyond = (own, room) => own.left < room.left - 1.5 || own.right > room.right + 1.5;
  const style = (one) => frame.contentWindow.getComputedStyle(one);
  // Of red, green, blue and alpha in a computed color.
  const parts = (color) => {
    const own = color.match(/[\d.]+/g).map(Number);
    return own.length < 4 ? [...own, 1] : own;
  };
  const over = (top, below) => [0, 1, 2].map((i) => top[i] * top[3] + below[i] * (1 - top[3]));
  const ground = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) {
      layers.push(parts(style(one).backgroundColor));
      if (layers.at(-1)[3] === 1) break;
    }
    return layers.reverse().reduce((below, top) => over(top, below), [255, 255, 255]);
  };
  const light = (color) => {
    const [r, g, b] = color.slice(0, 3).map((own) => own / 255)
      .map((own) => own <= 0.04045 ? own / 12.92 : ((own + 0.055) / 1.055) ** 2.4);
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const contrast = (node) => {
    const below = ground(node), inSvg = node.closest("svg");
    const own = over(parts(inSvg ? style(node).fill : style(node).color), below);
    const [low, high] = [light(own), light(below)].sort((a, b) => a - b);
    return (high + 0.05) / (low + 0.05);
  };
  let nTexts = 0, least = 99;
  const walker = page.createTreeWalker(page.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode;
    if (!node.data.trim() || node.parentElement.closest("svg title")) continue;
    const range = page.createRange();
    range.selectNodeContents(node);
    const own = range.getBoundingClientRect();
    if (!own.width) continue;
    nTexts += 1;
    let box = node.parentElement.closest("svg") || node.parentElement;
    // What cannot be pressed now may be faint.
    const isOff = node.parentElement.closest("button:disabled");
    const found = isOff ? 21 : contrast(node.parentElement);
    least = Math.min(least, found);
    if (found < 4.5) say("contrast " + found.toFixed(2), node, own, own);
    while (style(box).display.startsWith("inline")) box = box.parentElement;
    if (beyond(own, box.getBoundingClientRect())) {
      say("text", node, own, box.getBoundingClientRect());
    }
    // A caption is of the part that is seen, however far its table reaches.
    if (box.matches("caption") && beyond(own, box.closest(".wide").getBoundingClientRect())) {
      say("caption", node, own, box.closest(".wide").getBoundingClientRect());
    }
    // A word a line is no way to read a text.
    if (box.matches("td") && node.data.trim().length > 60 && own.width < 180) {
      say("narrow", node, own, box.getBoundingClientRect());
    }
    // What is in a part that scrolls may be wider than it; nothing else is.
    for (let one = box; one !== page.body && !one.matches(".wide"); one = one.parentElement) {
      if (one.parentElement.closest("table")) continue;
      const around = one.parentElement;
      if (around.matches(".wide")) break;
      if (beyond(one.getBoundingClientRect(), around.getBoundingClientRect())) {
        say("box", one, one.getBoundingClientRect(), around.getBoundingClientRect());
      }
    }
  }
  page.querySelectorAll("svg").forEach((svg) => {
    const texts = [...svg.querySelectorAll("text")];
    const labels = texts.map((one) => [one, one.getBoundingClientRect()]);
    labels.forEach(([one, own], i) => labels.slice(i + 1).forEach(([other, room]) => {
      const across = Math.min(own.right, room.right) - Math.max(own.left, room.left);
      const down = Math.min(own.bottom, room.bottom) - Math.max(own.top, room.top);
      // Boxes of lines are higher than their letters.
      const isOver = across > 1 && down > own.height / 3;
      if (isOver) say("overlap with " + other.textContent, one, own, room);
    }));
  });
  const links = [...page.querySelectorAll('a[href^="#"]')];
  links.forEach((one) => {
    const there = page.getElementById(one.getAttribute("href").slice(1));
    if (!there || !there.getBoundingClientRect().height) problems.push("link: " + one.outerHTML);
  });
  return {
    scroll: root.scrollWidth, client: root.clientWidth, texts: nTexts, problems, height, least,
    links: links.length,
  };
};
"""


# Labels rows by keys, takes the table that the page hands out, and opens the page again.
_LABEL = """
const look = async (frame) => {
  const part = (id) => frame.contentDocument.getElementById(id);
  const own = frame.contentWindow, counts = [], texts = [];
  let handed = null;
  own.URL.createObjectURL = (given) => { handed = given; return "about:srcdoc#"; };
  for (const key of ["1", "0", "s", "u", "0", "x", "S", "1"]) {
    texts.push(part("row").textContent);
    frame.contentDocument.dispatchEvent(new own.KeyboardEvent("keydown", { key }));
    counts.push(part("count").textContent);
  }
  part("bad").click();
  part("download").click();
  const marks = [...frame.contentDocument.querySelectorAll("mark")].map((one) => one.textContent);
  // Without its mark spreadsheets take UTF-8 for something else; text() drops it.
  const mark = new Uint8Array(await handed.arrayBuffer()).slice(0, 3).join(" ");
  const table = await handed.text(), isKept = part("lost").hidden, last = part("count").textContent;
  await new Promise((then) => { frame.onload = then; own.location.reload(); });
  const again = part("count").textContent;
  return { counts, texts, marks, mark, table, isKept, last, again };
};
"""

# Looks at each frame, and sends what it finds, or what went wrong.
_LOOK = """
window.addEventListener("load", async () => {
  const found = [];
  let error = null;
  try {
    for (const frame of [...document.querySelectorAll("iframe")]) {
      found.push(await look(frame));
      frame.remove();
    }
  } catch (thrown) {
    error = String(thrown);
  }
  await fetch("/", { method: "POST", body: JSON.stringify({ found, error }) });
});
"""


def measured(page: str, width: int, folder: Path, *, script: str = _MEASURE) -> dict[str, Any]:
    """Return what a script finds of a page in a frame of some pixels."""
    (found,) = all_measured([(page, width)], folder, script=script)
    return found


def all_measured(
    pages: Sequence[tuple[str, int]], folder: Path, *, script: str = _MEASURE
) -> list[dict[str, Any]]:
    """Return what a script finds of each page in a frame of some pixels; one browser looks at all.

    By default how wide it is, and what lies beyond what holds it.
    """
    frames = "".join(
        f'<iframe style="border: 0; width: {width}px; height: 900px" '
        f'srcdoc="{html.escape(page, quote=True)}"></iframe>'
        for page, width in pages
    )
    around = (
        f'<!doctype html><meta charset="utf-8"><body style="margin: 0">{frames}'
        f"<script>{script}{_LOOK}</script>"
    )
    said = _answer_of_browser(
        around,
        folder,
        width=max(width for _, width in pages),
        seconds=max(120, 10 * len(pages)),
    )
    assert said["error"] is None, said["error"]
    content: list[dict[str, Any]] = said["found"]
    return content


def _answer_of_browser(document: str, folder: Path, *, width: int, seconds: float) -> Any:
    """Return what a document's script sends to where it is from.

    A browser that is told to stop after some time, virtual or not, may stop before its script ends.
    """
    answers: Queue[bytes] = Queue()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._send(document.encode() if self.path == "/" else b"")

        def do_POST(self) -> None:
            answer = self.rfile.read(int(self.headers["content-length"]))
            self._send(b"")
            answers.put(answer)

        def _send(self, content: bytes) -> None:
            self.send_response(200)
            self.send_header("content-type", "text/html; charset=utf-8")
            self.send_header("content-length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    errors = folder / "chromium.err"
    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server, errors.open("wb") as stderr:
        Thread(target=server.serve_forever, daemon=True).start()
        browser = subprocess.Popen(
            [str(CHROMIUM), "--headless=new", "--no-sandbox", "--disable-gpu", "--hide-scrollbars",
             f"--user-data-dir={folder / 'profile'}", f"--window-size={width},900",
             f"http://127.0.0.1:{server.server_port}/"],
            stdout=subprocess.DEVNULL, stderr=stderr, start_new_session=True,
            env={**os.environ, "HOME": str(folder)},
        )  # fmt: skip
        deadline = time.monotonic() + seconds
        try:
            while answers.empty() and browser.poll() is None and time.monotonic() < deadline:
                time.sleep(0.05)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(browser.pid, signal.SIGKILL)
            browser.wait()
            server.shutdown()
    assert not answers.empty(), errors.read_text(errors="replace")[-2000:]
    return json.loads(answers.get())


def schemed(page: str, scheme: str) -> str:
    """Return a page as browsers show it to those who prefer a scheme."""
    query = "(prefers-color-scheme: dark)"
    assert page.count(query) == 1
    return page.replace(query, "all" if scheme == "dark" else "not all")


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """A page of each kind; with long words, and marks of other scripts."""
    folder = tmp_path_factory.mktemp("pages")
    row = pl.int_range(pl.len())
    table = questions(400).with_columns(
        pl.when(row % 9 == 0).then(pl.lit("W" * 300)).otherwise(pl.col("context")).alias("context"),
        pl.when(row % 9 == 1).then(pl.lit("שלום עולם " * 30)).otherwise(pl.col("reference"))
        .alias("reference"),
        pl.when(row % 3 == 1).then(pl.lit("W" * 70)).otherwise(pl.col("topic")).alias("topic"),
    )  # fmt: skip
    table.write_parquet(folder / "q.parquet")
    run_locally(
        {
            **{f"metrics.{name}.metric": name for name in ("f1", "rouge_l", "cider", "q_bleu")},
            "input.paths": [str(folder / "q.parquet")],
            "input.columns.references": "reference",
            "output.path": str(folder / "out"),
            "output.carry": ["topic"],
        }
    )
    names = [f"{'W' * 90} {i}" for i in range(16)]
    draw = np.random.default_rng(0).normal(size=(len(names) + 1, 120))
    study = dict(zip([*names, "שלום rating"], draw, strict=True))
    pl.DataFrame(study | {"by": ["W" * 90, "b"] * 60}).write_parquet(folder / "study.parquet")
    given = ["--human", "שלום rating", "--metrics", ",".join(names), "--auc", '"שלום rating" > 0']
    given += ["--by", "by", "--compare", "all", "--resamples", "20", "--out", folder / "study"]
    qaeval("correlate", folder / "study.parquet", *given)
    words = ["--rank-by", "f1", "--share", "0.5", "--rules", "none", "--local"]
    qaeval("filter", folder / "out", "--to", folder / "kept", *words)
    spoiled = table.with_columns(reference=pl.lit("quite another text"))
    for number, own in enumerate((table, table, spoiled)):
        week(folder, number, table=own)
        options = ("--pin", "--by", "topic") if not number else ()
        audited(folder / f"out{number}", folder, *options, expect=3 * (number == 2))
    drawn = [*words[:2], *words[4:], "--label-sheet", "40"]
    qaeval("filter", folder / "out", "--to", folder / "sheet", *drawn)
    return {
        "label": (folder / "sheet" / "label.html").read_text(),
        "report": (folder / "out" / "report.html").read_text(),
        "filter": (folder / "kept" / "filter.html").read_text(),
        "audit": (folder / "report" / "audit.html").read_text(),
        "explain": explanation_page(
            make_explanation(
                id="W" * 200, standings=(make_standing(column="W" * 200), make_standing())
            )
        ),
        "correlate": (folder / "study" / "correlate.html").read_text(),
        "compare": large_page(n_systems=40, n_metrics=7, name="W" * 300, n_by=2),
    }


@pytest.fixture(scope="module")
def looks(
    pages: dict[str, str], tmp_path_factory: pytest.TempPathFactory
) -> dict[tuple[str, int, str], dict[str, Any]]:
    """What a browser finds of each page, at each width, in each scheme."""
    cases = list(product(pages, WIDTHS, SCHEMES))
    given = [(schemed(pages[name], scheme), width) for name, width, scheme in cases]
    found = all_measured(given, tmp_path_factory.mktemp("looks"))
    return dict(zip(cases, found, strict=True))


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("width", WIDTHS)
@pytest.mark.parametrize(
    "name", ["report", "filter", "audit", "explain", "correlate", "compare", "label"]
)
def test_nothing_is_beyond_what_holds_it(
    pages: dict[str, str],
    looks: dict[tuple[str, int, str], dict[str, Any]],
    name: str,
    width: int,
    scheme: str,
) -> None:
    """A page that scrolls sideways cannot be read on a phone, nor gray letters by many people.

    Contrast is that of WCAG 2, 4.5 for letters of any size; parts of charts that lie on each other
    and links that lead nowhere are problems, too.
    """
    found = looks[name, width, scheme]
    assert width - 20 <= found["client"] <= width
    n_least = 15 if name == "label" else 20  # It shows one row at a time.
    assert found["texts"] > n_least, "a check that sees nothing would make this one worthless"
    assert found["scroll"] <= found["client"]
    assert found["problems"] == []
    assert found["height"] < MAX_HEIGHT and len(pages[name].encode()) < 2_000_000
    assert 4.5 <= found["least"] < 22 and (found["links"] > 2 or name == "label")


def test_labels_from_the_first_key_to_the_table(pages: dict[str, str], tmp_path: Path) -> None:
    found = measured(pages["label"], 1400, tmp_path, script=_LABEL)
    counts = [tuple(map(int, re.findall(r"\d+", own))) for own in [*found["counts"], found["last"]]]
    # Through, of all, good, bad, skipped: 1 0 s u 0 x S 1 and a click on bad.
    assert counts == [
        (1, 40, 1, 0, 0), (2, 40, 1, 1, 0), (3, 40, 1, 1, 1), (2, 40, 1, 1, 0), (3, 40, 1, 2, 0),
        (3, 40, 1, 2, 0), (4, 40, 1, 2, 1), (5, 40, 2, 2, 1), (6, 40, 2, 3, 1),
    ]  # fmt: skip
    assert found["texts"][2] == found["texts"][4] != found["texts"][3], "undone, and asked again"
    assert found["again"] == (
        found["last"] if found["isKept"] else "0 of 40: 0 good, 0 bad, 0 skipped"
    )
    (tmp_path / "labels.csv").write_text(found["table"], encoding="utf-8")
    labels = read_labels(str(tmp_path / "labels.csv"))
    assert list(labels.is_good.values()) == [True, False, False, True, False]
    assert len(labels.blank) == 1 and found["mark"] == "239 187 191"
    ids = [
        own["id"]
        for own in json.loads(re.findall(r'id="rows">(.*?)</script>', pages["label"])[0])["rows"]
    ]
    assert [*labels.is_good, *labels.blank] == [*ids[:3], *ids[4:6], ids[3]]


def test_a_page_that_scrolls_would_be_seen(pages: dict[str, str], tmp_path: Path) -> None:
    """A check that sees nothing would make the one above worthless."""
    wide = '<p style="width: 200px; white-space: nowrap">' + "wide " * 200 + "</p></main>"
    found = measured(pages["explain"].replace("</main>", wide), 400, tmp_path)
    assert found["scroll"] > 400 and found["problems"]
    faults = (
        '<p style="color: #888">gray</p><a href="#nowhere">x</a><svg viewBox="0 0 99 99">'
        '<text x="9" y="20">here</text><text x="12" y="21">there</text></svg></main>'
    )
    problems = measured(pages["explain"].replace("</main>", faults), 400, tmp_path)["problems"]
    assert [own.split()[0] for own in problems] == ["contrast", "overlap", "link:"]


def test_markdown_of_a_study_is_a_table(tmp_path: Path) -> None:
    """Each cell is seen as a text of its own; what is no table would be one paragraph."""
    scores = write_tables(tmp_path)["scores"]
    words = ("--human", "rating", "--metrics", "good,near", "--resamples", "20")
    text, _ = correlated(scores, *words, "--format", "markdown")
    found = measured(rendered(text), 1400, tmp_path)
    title, table, *remarks = text.strip().split("\n\n")
    assert title.startswith("**") and table.count("[") == 2 * 3 and found["problems"] == []
    assert found["texts"] == 1 + 3 * 4 + len(remarks)
