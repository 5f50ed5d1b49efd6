"""long: run the tests marked long, part by part, and keep what came of each in docs/evidence.

A part is a folder below tests/; its record is docs/evidence/long_PART.txt. A part that was stopped
goes on with the tests that have not passed at the same commit. Run it by ``make long PART=name``.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import platform
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EVIDENCE = ROOT / "docs" / "evidence"
LIMIT_S = 150 * 60
_PYTEST = (sys.executable, "-m", "pytest", "-p", "no:cacheprovider")
_OUTCOME = re.compile(r"^(passed|failed|cut off) +[\d.]+ s  (tests/\S.*)$")
_PRINTED = re.compile(
    r"^-+ Captured stdout call -+\n(.*?)^(?=[-=]{10}|\d+ passed)", re.MULTILINE | re.DOTALL
)


@dataclass(slots=True)
class Record:
    """What came of a part: its head, and the lines of each test."""

    path: Path
    commit: str
    lines: dict[str, list[str]] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path, commit: str) -> Record:
        """Return the record that lies there if it is of the same commit, an empty one otherwise."""
        found = cls(path, commit)
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if not text.startswith(f"commit   {commit}\n"):
            return found
        name = ""
        for line in text.splitlines():
            if outcome := _OUTCOME.match(line):
                name = outcome[2]
                found.lines[name] = []
            if name and line:
                found.lines[name].append(line)
        return found

    def has_passed(self, name: str) -> bool:
        """Return whether a test passed at this commit."""
        return self.lines.get(name, [""])[0].startswith("passed")

    def put(self, name: str, lines: Iterable[str]) -> None:
        """Keep what came of a test, at once."""
        self.lines[name] = list(lines)
        head = [
            f"commit   {self.commit}",
            f"date     {datetime.datetime.now(datetime.UTC):%Y-%m-%dT%H:%M:%SZ}",
            f"machine  {_machine()}",
            "",
        ]
        body = [line for own in self.lines.values() for line in own]
        self.path.write_text("\n".join([*head, *body, ""]), encoding="utf-8")


def parts() -> dict[str, list[str]]:
    """Return the tests marked long by the folder that they are in."""
    listed = subprocess.run(
        [*_PYTEST, "-q", "-m", "long", "--collect-only", "tests"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: dict[str, list[str]] = {}
    for name in listed.stdout.splitlines():
        if name.startswith("tests/"):
            found.setdefault(name.split("/")[1], []).append(name)
    return found


def commit() -> str:
    """Return the commit, with a hash of what has changed since in all but the evidence."""
    but = ("--", ".", ":!docs/evidence")
    changes = _git("diff", "HEAD", *but) + _git("ls-files", "--others", "--exclude-standard", *but)
    head = _git("rev-parse", "--short=12", "HEAD").strip()
    digest = hashlib.sha256(changes.encode()).hexdigest()[:8]
    return f"{head} + changes {digest}" if changes else head


def run_part(name: str, tests: Iterable[str], *, until: float) -> bool:
    """Run the tests of a part that have not passed yet; return whether all have now."""
    record = Record.read(EVIDENCE / f"long_{name}.txt", commit())
    left = [test for test in tests if not record.has_passed(test)]
    print(f"{name}: {len(left)} tests to run, {record.path.relative_to(ROOT)}", flush=True)
    for test in left:
        lines = list(_run(test, until - time.monotonic()))
        print(*lines, sep="\n", flush=True)
        record.put(test, lines)
        if time.monotonic() >= until:
            break
    n_left = sum(not record.has_passed(test) for test in left)
    if n_left:
        print(f"{name}: {n_left} tests have not passed: the same command goes on with them")
    return not n_left


def _run(test: str, limit_s: float) -> Iterator[str]:
    """Yield what came of a test: how it ended, what it printed, and why it failed."""
    started = time.monotonic()
    process = subprocess.Popen(
        [*_PYTEST, "-q", "-rP", "-m", "long", test],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        start_new_session=True,
    )  # fmt: skip
    try:
        output, _ = process.communicate(timeout=max(limit_s, 1.0))
        outcome = "passed" if process.returncode == 0 else "failed"
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        output, _ = process.communicate()
        outcome = "cut off"
    output = output.replace(str(ROOT), ".")
    yield f"{outcome:<8}{time.monotonic() - started:>8.1f} s  {test}"
    if outcome == "failed":
        yield from (f"    {line}" for line in output.splitlines())
    else:
        for printed in _PRINTED.findall(output):
            yield from (f"    {line}" for line in printed.splitlines())


def _git(*words: str) -> str:
    return subprocess.run(
        ["git", *words], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout


def _machine() -> str:
    models = re.findall(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text(encoding="utf-8"))
    system = platform.uname()
    return f"{system.system} {system.machine}, {os.cpu_count()} CPUs: {(models or ['?'])[0]}"


def main() -> None:
    """Run parts."""
    parser = argparse.ArgumentParser(prog="python -m tools.long")
    parser.add_argument("part", nargs="*", help="folders below tests/; all without one")
    parser.add_argument("--list", action="store_true", help="say which parts there are, and stop")
    chosen = parser.parse_args()
    there = parts()
    if unknown := set(chosen.part) - set(there):
        parser.error(f"no part {min(unknown)!r}: {', '.join(there)}")
    if chosen.list:
        for name, tests in there.items():
            print(f"{name}: {len(tests)} tests")
        return
    done = [
        run_part(name, there[name], until=time.monotonic() + LIMIT_S)
        for name in chosen.part or there
    ]
    sys.exit(0 if all(done) else 1)


if __name__ == "__main__":
    main()
