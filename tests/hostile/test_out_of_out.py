"""Out of OUT: no name of an input, and no link, makes a run write anywhere else."""

from __future__ import annotations

import io
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from helpers import write_parquet
from qaeval_core.configure import load_config
from qaeval_core.errors import InputError, RunError
from qaeval_core.planning.inputs import find_inputs
from qaeval_core.planning.job import make_job, read_inputs
from qaeval_core.planning.listing import check_names
from qaeval_core.running.stop_sign import StopSign
from qaeval_core.running.task_store import TaskStore
from qaeval_core.scoring.join import JoinPlan
from qaeval_core.store.store import Store
from s3_server import s3_credentials
from word_jobs import is_whole, request, rows, run

LISTING = """<?xml version="1.0" encoding="UTF-8"?>
<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><Name>b</Name><Prefix></Prefix>
<KeyCount>1</KeyCount><MaxKeys>1000</MaxKeys><IsTruncated>false</IsTruncated>
<Contents><Key>{key}</Key><LastModified>2026-01-01T00:00:00.000Z</LastModified>
<ETag>"0"</ETag><Size>{n_bytes}</Size><StorageClass>STANDARD</StorageClass></Contents>
</ListBucketResult>"""


@contextmanager
def hostile_store(key: str) -> Iterator[str]:
    """Yield the query of a store whose only object has this key, whatever is asked for."""
    sink = io.BytesIO()
    pq.write_table(rows(), sink)
    content = sink.getvalue()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            is_object = "evil" in self.path
            self._say(200 if is_object else 404, b"", n_bytes=len(content) if is_object else 0)

        def do_GET(self) -> None:
            if "list-type" in self.path:
                self._say(200, LISTING.format(key=key, n_bytes=len(content)).encode())
                return
            first, _, last = (
                self.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
            )
            part = content[int(first) : int(last or len(content)) + 1]
            self._say(206, part)

        def _say(self, status: int, body: bytes, n_bytes: int | None = None) -> None:
            self.send_response(status)
            self.send_header("Content-Length", str(len(body) if n_bytes is None else n_bytes))
            self.send_header("Last-Modified", "Thu, 01 Jan 2026 00:00:00 GMT")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        with s3_credentials():
            yield f"?endpoint_override=127.0.0.1:{server.server_port}&scheme=http&region=us-east-1"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.mark.parametrize("uri", ["s3://b/q/*.parquet", "s3://b/q"])
def test_a_key_of_a_store_leads_nowhere_else(tmp_path: Path, uri: str) -> None:
    """The scores of ``q/../../../evil.parquet`` were written beside OUT's parent."""
    with hostile_store("q/../../../evil.parquet") as query:
        source = request(f"{uri}{query}", tmp_path / "a" / "b" / "out")
        with pytest.raises(InputError, match="QA0310"):
            run(source)
    assert not list(tmp_path.rglob("*.parquet"))


@pytest.mark.parametrize("relative", ["../a", "a/../../b", "/etc/a", "..", "", ".", "a/..", "a\0b"])
def test_names_that_lead_out_are_refused(relative: str) -> None:
    """For all ways that an input is named."""
    with pytest.raises(InputError, match="QA0310"):
        check_names([relative])


@pytest.mark.parametrize("relative", ["../a", "/a", "b/../../a", ".", ""])
def test_scores_lie_below_their_folder(tmp_path: Path, relative: str) -> None:
    """The last look, whoever made the name."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    config = load_config(overrides=request(source, tmp_path / "out"))
    job = make_job(config, read_inputs(config), device="cpu")
    plan = JoinPlan(at=TaskStore.of_job(job, StopSign()), run=job.run, carry={})
    with pytest.raises(AssertionError):
        plan.scores_of(replace(job.files[0], relative=relative))


@pytest.mark.parametrize(
    "name", ["scores", "families", "joined", "quarantine", "corpus", "journal"]
)
def test_a_link_in_the_place_of_a_folder_is_not_followed(tmp_path: Path, name: str) -> None:
    """Somebody else's table was replaced by the scores; said before anything is computed."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / name).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(RunError, match=f"out/{name}.*QA0508"):
        run(request(source, tmp_path / "out"))
    assert not list((tmp_path / "elsewhere").iterdir())
    assert [path.name for path in (tmp_path / "out").iterdir()] == [name]


def test_a_link_that_comes_while_a_run_lives_is_not_followed(tmp_path: Path) -> None:
    """Looked for once, it would come a moment later."""
    source = write_parquet(tmp_path / "in" / "sub" / "input.parquet", rows())
    (tmp_path / "elsewhere").mkdir()
    victim = write_parquet(tmp_path / "elsewhere" / "input.parquet", rows(1))
    before, out = victim.read_bytes(), tmp_path / "out"

    def plant() -> None:
        (out / "scores").mkdir()
        (out / "scores" / "sub").symlink_to(tmp_path / "elsewhere")

    with pytest.raises(RunError, match="QA0508"):
        run(request(source.parent.parent, out), after=8, then=plant)
    assert victim.read_bytes() == before


def test_links_that_stay_inside_are_no_matter_and_out_may_be_one(tmp_path: Path) -> None:
    """OUT on another disk, by a link: what people do."""
    source = write_parquet(tmp_path / "input.parquet", rows())
    (tmp_path / "disk" / "kept").mkdir(parents=True)
    (tmp_path / "out").symlink_to(tmp_path / "disk")
    (tmp_path / "out" / "scores").symlink_to("kept")
    run(request(source, tmp_path / "out"))
    assert is_whole(tmp_path / "out")
    Store(tmp_path / "out").check_inside(tmp_path / "out" / "not" / "there" / "yet")


def test_hostile_names_of_local_files_stay_below_out(tmp_path: Path) -> None:
    """What is odd and possible is scored, as before."""
    names = [
        "a\nb.parquet",
        "-x.parquet",
        "%2e%2e.parquet",
        "[z].parquet",
        "...parquet",
        "a\x1b.parquet",
    ]
    for name in names[:4] + names[5:]:
        write_parquet(tmp_path / "in" / name, rows(2))
    found, _ = find_inputs([str(tmp_path / "in")])
    assert {file.relative for file in found} == set(names) - {"...parquet"}
