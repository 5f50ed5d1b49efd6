"""The weekly job of docs/audit.md, run as its crontab and its CronJob run it."""

from __future__ import annotations

import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import polars as pl
import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from audit_weeks import a_table
from helpers import REPOSITORY, wait_until
from qaeval_core.audit.output import STATUSES
from qaeval_core.configure import load_config

EXAMPLE = REPOSITORY / "docs" / "examples" / "audit"
DAY_S = 86_400
# Contexts have five rows each: more of them than the sample of the example takes.
N_ROWS = 7_500
N_SAMPLED = 1_000
NAME = "questions"
Samples = dict[str, list[tuple[dict[str, str], float]]]


class Place:
    """A machine whose folders are those of the example, below one of a test."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.srv, self.data = folder / "qaeval", folder / "data"
        self.textfiles = folder / "textfiles"
        etc = self.srv / "etc"
        for own in (self.srv, etc, self.data, self.textfiles):
            own.mkdir()
        shutil.copy(EXAMPLE / "weekly.sh", etc)
        # Words instead of calls that cost money.
        score = {"metrics": {"f1": {}}, "input": {"columns": {"references": "reference"}}}
        (etc / "score.yaml").write_text(yaml.safe_dump(score))

    def here(self, text: str) -> str:
        """Return a text whose paths are of this place."""
        for example, own in (
            ("/srv/qaeval", self.srv),
            ("/srv/data", self.data),
            ("/var/lib/prometheus/node-exporter", self.textfiles),
            ("/textfiles", self.textfiles),
        ):
            text = re.sub(rf"(?<![\w/]){example}(?=[/\s:]|$)", str(own), text, flags=re.MULTILINE)
        return text

    def brings(self, number: int, *, spoiled: str | None = None) -> None:
        """Let a week's questions come."""
        for path in (self.data / "this_week").glob("*"):
            path.unlink()
        (self.data / "this_week").mkdir(exist_ok=True)
        table = a_table(number, spoiled=spoiled, n_rows=N_ROWS)
        table.write_parquet(self.data / "this_week" / f"week{number}.parquet")

    def runs(
        self, week: str, *, expect: int, by_cronjob: bool = False, **environment: str
    ) -> tuple[str, str]:
        """Run the job as cron would, or a pod; return what it printed, and its errors."""
        command, given = cronjob() if by_cronjob else crontab()
        command = [self.here(word) for word in command]
        given = {name: self.here(value) for name, value in given.items()}
        own = {
            **{name: os.environ[name] for name in ("HOME",) if name in os.environ},
            **given,
            "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
            "PYTHONPATH": str(REPOSITORY),
            "WEEK": week,
            **environment,
        }
        done = subprocess.run(
            command, env=own, cwd=self.folder, capture_output=True, text=True, timeout=300
        )
        assert done.returncode == expect, f"{done.returncode}: {done.stdout}\n{done.stderr}"
        assert "Traceback" not in done.stderr
        return done.stdout, done.stderr

    def report(self, week: str) -> dict[str, Any]:
        """Return a week's audit.json."""
        path = self.srv / "reports" / NAME / week / "audit.json"
        content: dict[str, Any] = json.loads(path.read_text())
        return content

    @property
    def gauges(self) -> Path:
        """What the collector reads."""
        return self.textfiles / f"qaeval_{NAME}.prom"

    def samples(self) -> Samples:
        """Return what Prometheus reads: the collector takes every file of its ending."""
        found: Samples = {}
        assert sorted(self.textfiles.iterdir()) == [self.gauges]
        for family in text_string_to_metric_families(self.gauges.read_text()):
            assert family.type == "gauge" and family.documentation
            found[family.name] = [(own.labels, own.value) for own in family.samples]
        return found


def crontab() -> tuple[list[str], dict[str, str]]:
    """Return the command of the crontab and its environment, as cron reads them."""
    environment, commands = {}, []
    for line in (EXAMPLE / "crontab").read_text().splitlines():
        if not line or line.startswith("#"):
            continue
        if match := re.fullmatch(r"(\w+)=(.*)", line):
            environment[match[1]] = match[2]
            continue
        *times, command = line.split(maxsplit=5)
        assert all(re.fullmatch(r"[\d*,/-]+", each) for each in times)
        assert "%" not in command  # cron makes a line end of it
        commands.append(command)
    (command,) = commands
    return ["/bin/sh", "-c", command], environment


def manifest() -> dict[str, Any]:
    content: dict[str, Any] = yaml.safe_load((EXAMPLE / "cronjob.yaml").read_text())
    return content


def cronjob() -> tuple[list[str], dict[str, str]]:
    """Return the command of the pod and its environment."""
    (container,) = manifest()["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"]
    environment = {own["name"]: own["value"] for own in container["env"]}
    return [*container["command"], *container["args"]], environment


# One gauge, or its age, and a number.
_CONDITION = re.compile(r'(time\(\) - )?(\w+)(?:\{(\w+)="(\w+)"\})? (>|==) ([\d *]+)')


def firing(samples: Samples, *, after_s: float = 0.0) -> set[str]:
    """Return the alerts that the rules raise so long after now."""
    found = set()
    for rule in rules():
        if match := re.fullmatch(r"absent\((\w+)\)", rule["expr"]):
            if match[1] not in samples:
                found.add(rule["alert"])
            continue
        match = _CONDITION.fullmatch(rule["expr"])
        assert match, rule["expr"]
        is_age, name, label, wanted, sign, limit = match.groups()
        number = math.prod(map(float, limit.split("*")))
        for labels, value in samples.get(name, []):
            own = time.time() + after_s - value if is_age else value
            is_true = own > number if sign == ">" else own == number
            if is_true and (label is None or labels[label] == wanted):
                found.add(rule["alert"])
    return found


def rules() -> list[dict[str, Any]]:
    content = yaml.safe_load((EXAMPLE / "alerts.yaml").read_text())
    return [rule for group in content["groups"] for rule in group["rules"]]


@pytest.mark.slow  # Commands of processes of their own, one after the other.
@pytest.mark.timeout(1200)
def test_two_weeks_the_second_one_spoiled_in_one_slice(tmp_path: Path) -> None:
    """Issue 16, point 4; a third week is like the first one, and then things break."""
    place = Place(tmp_path)
    place.brings(1)
    assert place.runs("2026-W01", expect=0) == ("", "")
    assert place.report("2026-W01")["status"] == "first_run"
    assert firing(place.samples()) == set()
    log = place.srv / "logs" / NAME / "2026-W01.log"
    assert "first_run: nothing to compare" in log.read_text()

    place.brings(2, spoiled="bay")
    said, _ = place.runs("2026-W02", expect=3)
    content = place.report("2026-W02")
    assert content["status"] == "alert" and not content["too_few"]
    assert content["run"]["not_sampled"] == N_ROWS - 5 * N_SAMPLED
    assert content["run"]["clusters"] == pytest.approx(N_SAMPLED, rel=0.2)
    # All rows hold those of the slice; no other slice is accused.
    named = {(alert["column"], alert["slice"]) for alert in content["alerts"]}
    assert ("f1", "topic=bay") in named
    assert {own for _, own in named} <= {"", "topic=bay"}
    assert {own for own, _ in named} <= {"f1", "f1_precision", "f1_recall"}
    # What cron mails is enough to know where to look: weeks by name, and one cause.
    assert said.startswith("questions 2026-W02: the data moved; see ")
    assert "alert: only topic=bay moved; without it nothing did: " in said
    assert re.search(
        r"tests of 2026-W02 \([-\d]+\) against 2026-W01 \([-\d]+\)$", said, re.MULTILINE
    )
    assert content["cause"]["slice"] == "topic=bay"
    scored = json.loads((place.srv / "runs" / NAME / "2026-W02" / "run.json").read_text())
    assert scored["made"]["name"] == content["made"]["name"] == "2026-W02"
    assert "alert: the mean of f1 in topic=bay fell from" in said
    samples = place.samples()
    assert samples["qaeval_audit_alerts"] == [({"audit": NAME}, float(len(content["alerts"])))]
    means = {
        (labels["column"], labels["slice"]): value for labels, value in samples["qaeval_score_mean"]
    }
    scores = pl.read_parquet(place.srv / "runs" / NAME / "2026-W02" / "scores")
    assert scores["f1"].is_not_null().sum() == 5 * N_SAMPLED
    for topic in ("ash", "bay", "cod"):
        own = scores.filter(topic=topic)["f1"].mean()
        assert means["f1", f"topic={topic}"] == pytest.approx(own, abs=1e-6)
    assert firing(samples) == {"QaevalDataMoved"}

    # Reference is the first week still: a spoiled one makes no new norm.
    place.brings(3)
    assert place.runs("2026-W03", expect=0, by_cronjob=True) == ("", "")
    assert place.report("2026-W03")["status"] == "ok"
    samples = place.samples()
    assert firing(samples) == set()
    assert {labels["status"] for labels, _ in samples["qaeval_audit_status"]} == set(STATUSES)
    assert firing(samples, after_s=7.9 * DAY_S) == set()
    assert firing(samples, after_s=8.1 * DAY_S) == {"QaevalAuditStale"}


@pytest.mark.long
@pytest.mark.timeout(1200)
def test_what_breaks_is_no_verdict_and_leaves_the_gauges(tmp_path: Path) -> None:
    place = Place(tmp_path)
    assert firing({}) == {"QaevalAuditMissing"}
    place.brings(1)
    place.runs("2026-W01", expect=0)
    before = place.gauges.read_bytes(), place.gauges.stat().st_mtime_ns

    # A week whose input did not come: bad request, another try would not help.
    (place.data / "this_week").rename(place.data / "elsewhere")
    _, error = place.runs("2026-W02", expect=2)
    assert "qaeval score broke (exit code 2)" in error and "this_week" in error
    assert (place.gauges.read_bytes(), place.gauges.stat().st_mtime_ns) == before
    assert not (place.srv / "reports" / NAME / "2026-W02" / "audit.json").exists()
    assert firing(place.samples(), after_s=8.1 * DAY_S) == {"QaevalAuditStale"}

    # A killed one; run again it goes on.
    place.brings(2)
    killed = "timeout --signal=KILL 0.5 qaeval score"
    _, error = place.runs("2026-W02", expect=1, SCORE=killed)
    assert "qaeval score broke (exit code 137)" in error
    # What is killed holds the lock until the kernel has cleared it away.
    lock = place.srv / "lock"
    wait_until(lambda: subprocess.run(["flock", "-n", lock, "true"], check=False).returncode == 0)
    assert (place.gauges.read_bytes(), place.gauges.stat().st_mtime_ns) == before
    # A command whose code is 3 for reasons of its own has not said that the data moved.
    ends_with_3 = tmp_path / "ends_with_3"
    ends_with_3.write_text("#!/bin/sh\nexit 3\n")
    ends_with_3.chmod(0o755)
    _, error = place.runs("2026-W02", expect=1, SCORE=str(ends_with_3))
    assert "(exit code 3)" in error
    place.runs("2026-W02", expect=0)
    assert place.report("2026-W02")["status"] == "ok"

    # An audit that never began hands over nothing, not even what lies there of the one before.
    (place.srv / "etc" / "audit.yaml").write_text("alhpa: 0.05\n")
    before = place.gauges.read_bytes(), place.gauges.stat().st_mtime_ns
    bad = str(place.srv / "etc" / "audit.yaml")
    _, error = place.runs("2026-W02", expect=2, AUDIT_CONFIG=bad)
    assert "qaeval audit broke (exit code 2)" in error and "did you mean 'alpha'" in error
    assert (place.gauges.read_bytes(), place.gauges.stat().st_mtime_ns) == before

    # A reference that cannot be read: no verdict, and the gauges say so at once.
    pinned = min((place.srv / "history" / NAME).glob("*.profile.parquet"))
    pinned.write_bytes(pinned.read_bytes()[:-1])
    _, error = place.runs("2026-W02", expect=1)
    assert "qaeval audit broke (exit code 1)" in error and "damaged" in error
    assert firing(place.samples()) == {"QaevalAuditWithoutVerdict"}


def test_the_manifest_tells_verdicts_from_what_broke() -> None:
    """Protects from a Job that tries three times whether the data have moved."""
    spec = manifest()["spec"]
    job = spec["jobTemplate"]["spec"]
    pod = job["template"]["spec"]
    assert (manifest()["apiVersion"], manifest()["kind"]) == ("batch/v1", "CronJob")
    assert spec["concurrencyPolicy"] == "Forbid" and pod["restartPolicy"] == "Never"
    (container,) = pod["containers"]
    assert job["podFailurePolicy"]["rules"][0] == {
        "action": "FailJob",
        "onExitCodes": {"containerName": container["name"], "operator": "In", "values": [2, 3]},
    }
    mounts = {own["name"]: own["mountPath"] for own in container["volumeMounts"]}
    assert mounts.keys() == {own["name"] for own in pod["volumes"]}
    # Every path that the pod is given lies in a volume.
    command, environment = cronjob()
    paths = [own for own in [*command, *environment.values()] if own.startswith("/")]
    assert len(paths) > 4
    assert [own for own in paths if not own.startswith(tuple(mounts.values()))] == []
    assert spec["schedule"] == " ".join(cron_times())


def cron_times() -> list[str]:
    lines = (EXAMPLE / "crontab").read_text().splitlines()
    return lines[-1].split()[:5]


def test_the_settings_of_the_example_are_known(tmp_path: Path) -> None:
    """Protects from a key that was renamed; a bad one is refused by the same reader."""
    place = Place(tmp_path)
    path = place.srv / "etc" / "score.yaml"
    path.write_text(place.here((EXAMPLE / "score.yaml").read_text()))
    assert list(load_config(path=path).metrics) == ["naco"]
    for command, _ in (crontab(), cronjob()):
        words = shlex.split(command[-1]) if len(command) == 3 else command
        assert Path(place.here(words[-1])) == path


def test_the_rules_have_what_prometheus_wants() -> None:
    names = [rule["alert"] for rule in rules()]
    assert len(set(names)) == len(names) == 4
    for rule in rules():
        assert set(rule) <= {"alert", "expr", "for", "labels", "annotations"}
        assert rule["labels"]["severity"] in ("warning", "critical")
        assert rule["annotations"]["summary"]


@pytest.mark.parametrize("shell", ["sh", "bash"])
def test_the_script_is_shell_and_needs_its_words(shell: str) -> None:
    assert subprocess.run([shell, "-n", EXAMPLE / "weekly.sh"]).returncode == 0
    done = subprocess.run(
        [shell, EXAMPLE / "weekly.sh", NAME], capture_output=True, text=True, env={"PATH": "/bin"}
    )
    assert done.returncode not in (0, 3) and "NAME INPUT FOLDER" in done.stderr
