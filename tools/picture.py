"""picture: docs/report.png, the demo's report page as a browser shows it.

The picture holds a hash of the page that it was made of, so that a test can say when that page has
changed. Run it by ``make picture``; it needs Chromium.
"""

from __future__ import annotations

import argparse
import hashlib
import re
import subprocess
import sys
import tempfile
from pathlib import Path

from PIL import Image
from PIL.PngImagePlugin import PngInfo

PICTURE = Path(__file__).resolve().parents[1] / "docs" / "report.png"
WIDTH, HEIGHT = 1000, 840
_COLORS = 64
_KEY = "source-sha256"
# Chromium asks its maker's servers and keeps a profile, which is left out; root gets no sandbox,
# and the page is our own, without a script.
_OPTIONS = (
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--hide-scrollbars",
    f"--window-size={WIDTH},{HEIGHT}",
)
_STYLE = re.compile(r"<style>.*?</style>", re.DOTALL)
_NUMBER = re.compile(r"[\d.,]+(e-?\d+)?")
_BARS = re.compile(r"(<rect [^>]*><title>[^<]*</title></rect>)\1*")


def page_hash(page: str) -> str:
    """Return a hash of what the picture shows of a page: words, shapes and style, not figures.

    Scores differ between machines in their last digits: so do the number of bars, which rows are
    highest, and what is said of the machine. The picture ends before rows and machine.
    """
    shown = page[: page.index("</section>")]
    style = "".join(_STYLE.findall(shown))
    rest = _BARS.sub(r"\1", _NUMBER.sub("0", _STYLE.sub("", shown)))
    return hashlib.sha256(f"{style}{rest}".encode()).hexdigest()


def source_of(picture: Path) -> str:
    """Return the hash of the page that a picture was made of."""
    with Image.open(picture) as image:
        return str(image.info.get(_KEY, ""))


def make(page: Path, picture: Path, *, browser: str) -> None:
    """Take a picture of a page and write the page's hash into it."""
    with tempfile.TemporaryDirectory() as folder:
        shot = Path(folder, "shot.png")
        subprocess.run(
            [browser, *_OPTIONS, f"--user-data-dir={folder}/profile", f"--screenshot={shot}",
             page.resolve().as_uri()], check=True, capture_output=True,
        )  # fmt: skip
        info = PngInfo()
        info.add_text(_KEY, page_hash(page.read_text(encoding="utf-8")))
        with Image.open(shot) as image:
            image.quantize(_COLORS).save(picture, optimize=True, pnginfo=info)


def main() -> None:
    """Run the demo in a folder of its own, and make the picture of its report."""
    parser = argparse.ArgumentParser(prog="python -m tools.picture")
    parser.add_argument("--browser", default="chromium", help="default %(default)s")
    browser = parser.parse_args().browser
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, "-m", "qaeval", "demo"], cwd=folder, check=True)
        make(Path(folder, "demo_out", "natural", "report.html"), PICTURE, browser=browser)


if __name__ == "__main__":
    main()
