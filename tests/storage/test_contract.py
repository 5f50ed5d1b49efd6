"""What every storage promises: the same tests on a disk, in memory and on two servers."""

from __future__ import annotations

import io
import pickle
import random
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from azure_server import AzureServer, azure_credentials, has_node
from qaeval_core.storage.path import StoragePath, as_path
from s3_server import MotoServer, S3Server, s3_credentials

AZURITE = pytest.param(
    "azurite",
    marks=[
        pytest.mark.long,  # npm gets it.
        pytest.mark.timeout(600),
        pytest.mark.skipif(not has_node(), reason="no node"),
    ],
)
KINDS = ("disk", "memory", "ministack", pytest.param("moto", marks=pytest.mark.slow), AZURITE)
SERVERS = {"ministack": S3Server, "moto": MotoServer}
# Of more than one part, and of no round number of them.
LARGE = random.Random(0).randbytes((20 << 20) + 7)
ODD_NAMES = ("a b%20#?.parquet", "größe~[x]{y}", 'x*|"<>`^', "x\\y", "..a", "+&=;@")


@pytest.fixture(scope="module", params=KINDS)
def root(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Where a storage begins."""
    if request.param == "disk":
        yield str(tmp_path_factory.mktemp("disk"))
    elif request.param == "memory":
        yield "memory://bucket"
    elif request.param == "azurite":
        with azure_credentials(), AzureServer() as server:
            server.make_bucket("bucket")
            yield server.uri("bucket")
    else:
        with s3_credentials(), SERVERS[request.param]() as server:
            server.make_bucket("bucket")
            yield server.uri("bucket")


@pytest.fixture
def folder(root: str, request: pytest.FixtureRequest) -> StoragePath:
    """A folder of its own for each test."""
    return as_path(root) / f"{request.node.originalname} in prefix"


def names(folder: StoragePath, *, is_deep: bool = False) -> list[str]:
    return sorted(found.name for found in folder.list(is_deep=is_deep))


def test_what_is_put_is_read_looked_at_and_listed(folder: StoragePath) -> None:
    path = folder / "sub" / "a.parquet"
    assert path.head() is None and not path.is_file() and not folder.is_dir()
    tag = path.put(b"one")
    content, found = path.fetch()
    assert content == path.read_bytes() == b"one"
    (listed,) = path.parent.list()
    assert (found.tag, found.size) == (tag, 3) and path.head() == found
    assert (listed.tag, listed.size, listed.name) == (tag, 3, "a.parquet")
    assert abs(listed.modified_s - found.modified_s) < 1
    assert path.put(b"two") != tag and path.read_text() == "two"
    assert folder.is_dir() and not folder.is_file() and not path.is_dir()
    path.put(b"")
    assert path.read_bytes() == b"" and path.head().size == 0


def test_what_is_not_there_is_said_so(folder: StoragePath) -> None:
    (folder / "a").put(b"one")
    path = folder / "b"
    for read in (path.read_bytes, path.fetch, path.open):
        with pytest.raises(FileNotFoundError):
            read()
    assert path.head() is None
    path.delete()
    (folder / "a").storage.delete([path.key, (folder / "a").key, path.key])
    assert names(folder) == [] and not list((folder / "c").list(is_deep=True))


@pytest.mark.parametrize("content", [b"", b"one", LARGE], ids=["empty", "small", "parts"])
def test_a_copy_is_whole_or_not_at_all(folder: StoragePath, content: bytes) -> None:
    path, to = folder / "work" / "a", folder / "b" / f"{len(content)}"
    with path.writer() as sink:
        sink.write(content)
    to.put(b"what was there")
    path.copy(to)
    assert to.read_bytes() == content == path.read_bytes()
    path.delete()
    with pytest.raises(FileNotFoundError):
        path.copy(to)
    assert to.read_bytes() == content


def test_a_listing_begins_behind_a_name_and_folders_are_listed_alone(folder: StoragePath) -> None:
    for name in ("w1/0", "w1/1", "w1/2", "w1/b/3", "w2/0", "z"):
        (folder / name).put(name.encode())
    assert folder.folders() == ["w1", "w2"] and (folder / "w1").folders() == ["b"]
    assert not (folder / "w2").folders() and not (folder / "none").folders()
    own = folder / "w1"
    assert sorted(found.name for found in own.list(after="0")) == ["1", "2"]
    deep = sorted(found.name for found in own.list(after="1", is_deep=True))
    assert deep == ["2", "b/3"]
    assert not list((folder / "w2").list(after="0")) and not list((folder / "none").list(after="0"))


def test_one_alone_makes_a_file(folder: StoragePath) -> None:
    path = folder / "new"
    tag = path.put_new(b"first")
    assert tag is not None and path.head().tag == tag
    assert path.put_new(b"second") is None and path.read_bytes() == b"first"
    with ThreadPoolExecutor(10) as pool:
        for i in range(5):
            made = folder / f"race{i}"
            tags = list(pool.map(made.put_new, [f"{n}".encode() for n in range(10)]))
            (winner,) = [n for n, tag in enumerate(tags) if tag is not None]
            assert made.read_bytes() == f"{winner}".encode() and made.head().tag == tags[winner]


def test_a_swap_replaces_what_is_unchanged_alone(folder: StoragePath) -> None:
    path = folder / "swapped"
    assert path.swap(b"none", "tag") is None and not path.is_file()
    old = path.put(b"0")
    new = path.swap(b"1", old)
    assert new not in (None, old) and path.head().tag == new
    assert path.swap(b"2", old) is None and path.read_bytes() == b"1"
    path.delete()
    assert path.swap(b"3", new) is None and not path.is_file()


def test_swaps_at_once_lose_nothing(folder: StoragePath) -> None:
    """Ten writers who each add one: whoever was too late looks again."""
    path = folder / "counter"
    path.put(b"0")

    def add(token: int) -> None:
        while True:
            content, found = path.fetch()
            count = int(content.split()[0])
            if path.swap(f"{count + 1} {token}".encode(), found.tag) is not None:
                return

    with ThreadPoolExecutor(10) as pool:
        list(pool.map(add, range(30)))
    assert path.read_bytes().split()[0] == b"30"
    assert names(folder) == ["counter"]


def test_lists_are_of_one_folder_or_of_all_below_it(folder: StoragePath) -> None:
    for name in ("a", "b/a", "b/c/d", "bb/a"):
        (folder / name).put(name.encode())
    assert names(folder) == ["a"]
    assert names(folder, is_deep=True) == ["a", "b/a", "b/c/d", "bb/a"]
    assert names(folder / "b", is_deep=True) == ["a", "c/d"]
    assert names(folder / "b") == ["a"]
    many = [f"{i:04}" for i in range(1_100)]  # A page has a thousand.
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda name: (folder / "many" / name).put(b""), many))
    assert names(folder / "many") == many
    folder.storage.delete([(folder / "many" / name).key for name in many])
    assert names(folder / "many") == []


@pytest.mark.parametrize("name", ODD_NAMES)
def test_odd_names_are_names(folder: StoragePath, name: str) -> None:
    if str(folder).startswith("az://") and "\\" in name:
        pytest.skip("Azure takes a backslash for a slash")
    path = folder / name / name
    path.put(b"odd")
    assert names(folder / name) == [name] and path.name == name
    path.copy(folder / "copies" / name)
    assert (folder / "copies" / name).read_bytes() == b"odd"
    assert as_path(str(path)) == path and as_path(str(path)).read_bytes() == b"odd"


def fail_in_the_middle(path: StoragePath, content: bytes) -> None:
    with path.writer() as sink:
        sink.write(content)
        raise KeyError


def test_a_written_file_is_there_at_its_end_alone(folder: StoragePath) -> None:
    path = folder / "written"
    with pytest.raises(KeyError):
        fail_in_the_middle(path, LARGE)
    assert names(folder) == []
    path.put(b"old")
    for content in (b"", b"small", LARGE):
        before = path.read_bytes()
        with path.writer() as sink:
            for start in range(0, len(content), 3_000_000):
                sink.write(content[start : start + 3_000_000])
            assert sink.tell() == len(content) and path.read_bytes() == before
        assert path.read_bytes() == content and sink.closed
        with pytest.raises(KeyError):
            fail_in_the_middle(path, b"torn")
        assert path.read_bytes() == content
    path.put(LARGE)
    assert path.read_bytes() == LARGE


def test_parquet_is_written_and_read_by_columns_and_ranges(folder: StoragePath) -> None:
    path, table = folder / "t.parquet", pa.table({"x": range(5_000), "y": ["text"] * 5_000})
    with path.writer() as sink:
        pq.write_table(table, sink, row_group_size=1_000)
    assert pq.read_table(path.source(), columns=["y"]).equals(table.select(["y"]))
    assert pq.read_metadata(path.source()).num_row_groups == 5
    content = path.read_bytes()
    assert path.storage.read_range(path.key, 4, 9) == content[4:13]
    assert path.storage.read_range(path.key, len(content) - 4, 99) == b"PAR1"
    with path.open() as file:
        assert file.seek(-4, io.SEEK_END) == len(content) - 4 and file.read() == b"PAR1"
        assert file.seek(0) == 0 and file.read() == content


def test_what_is_read_in_ranges_is_one_version(folder: StoragePath) -> None:
    """Protects from columns of one table and rows of another, where a run writes it anew."""
    path = folder / "read"
    old = path.put(b"a" * (3 << 20))
    with path.open() as file:
        assert file.read(8) == b"a" * 8
        path.put(b"b" * (3 << 20))
        if path.local is not None:
            assert file.read() == b"a" * ((3 << 20) - 8)
        else:
            with pytest.raises(OSError, match="was replaced while it was read"):
                file.read()
    with pytest.raises(OSError, match="was replaced while it was read"):
        path.storage.read_range(path.key, 5, 3, old)
    assert path.storage.read_range(path.key, 5, 3, path.head().tag) == b"bbb"
    with path.open() as file:
        assert file.read() == path.read_bytes()


def test_the_clock_is_that_of_files(folder: StoragePath) -> None:
    path = folder / "dated"
    path.put(b"now")
    now_s = path.storage.clock_s((folder / "probe").key)
    assert -1 <= now_s - path.head().modified_s < 10
    assert names(folder) == ["dated"]


def test_paths_are_values_that_are_pickled_by_their_uri(folder: StoragePath) -> None:
    path = folder / "a" / "b.parquet"
    assert path == folder / "a/b.parquet" != folder / "a"
    assert (path.name, path.stem, path.suffix, path.parent) == (
        "b.parquet",
        "b",
        ".parquet",
        folder / "a",
    )
    assert path.with_name("c") == folder / "a" / "c" and path.is_below(folder)
    assert not folder.is_below(path) and not (folder / "ab").is_below(folder / "a")
    path.put(b"there")
    pickled = pickle.dumps(path)
    assert pickle.loads(pickled) == path and {path: 1}[pickle.loads(pickled)] == 1
    assert pickle.loads(pickled).read_bytes() == b"there"
    assert len(pickled) < 300, "a URI, and no store with its keys"
    if path.local is None:
        with pytest.raises(TypeError, match="not pickled"):
            pickle.dumps(path.storage)
        with pytest.raises(TypeError, match="no file of this machine"):
            Path(path)
    else:
        assert path == Path(path) and hash(path) == hash(Path(path))
