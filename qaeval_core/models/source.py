"""Source: where a model's files lie, their hashes, and how the model hub gives them.

But: which files a model has is known to ``embedded`` and ``registry``.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

from qaeval_core.errors import ModelUnavailableError

# A hub that answers does so in less than a second; without one, waiting longer finds nothing.
_ANSWER_TIMEOUT_S = 5.0
# Names an adapter's files among those of its base.
ADAPTER_PREFIX = "adapter/"


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSource:
    """Where a model's files lie, and what they must be.

    Attributes
    ----------
    name : str
        Embedded name, hub id, or the last part of a folder's path.
    kind : str
        ``"package"``, ``"folder"`` or ``"hub"``.
    folder : Path
        Holds every file of ``files``.
    gguf_file : str or None
        The file in ``folder`` that is the whole model, if it is a GGUF file.
    revision : str or None
        Commit of a hub model, pinned requirement of a package.
    files : mapping of str to str
        SHA-256, in hex, of every used file; an adapter's as ``adapter/<file>``.
    adapter : Path or None
        Folder of an adapter (LoRA and heads) to merge into the weights.
    onnx_file : str or None
        The file in ``folder`` that is taken as it is, instead of weights.
    """

    name: str
    kind: str
    folder: Path
    files: Mapping[str, str]
    gguf_file: str | None = None
    revision: str | None = None
    adapter: Path | None = None
    onnx_file: str | None = None

    def path_of(self, file: str) -> Path:
        """Return where one of ``files`` lies."""
        if self.adapter is not None and file.startswith(ADAPTER_PREFIX):
            return self.adapter / file.removeprefix(ADAPTER_PREFIX)
        return self.folder / file

    def n_bytes(self, part: str = "") -> int:
        """Return how many bytes the files have whose names hold ``part``."""
        return sum(self.path_of(file).stat().st_size for file in self.files if part in file)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hex; computed once per path, inode, size and times."""
    found = path.stat()
    # The time of change too: whoever writes may set the other one back.
    times = (found.st_mtime_ns, found.st_ctime_ns)
    return _sha256(str(path.resolve()), found.st_ino, found.st_size, times)


@lru_cache(maxsize=256)
def _sha256(path: str, inode: int, n_bytes: int, times_ns: tuple[int, int]) -> str:
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def has_hub_client() -> bool:
    """Return whether the client of the model hub is installed."""
    return importlib.util.find_spec("huggingface_hub") is not None


def snapshot_from_hub(
    hub_id: str,
    *,
    revision: str | None,
    patterns: Sequence[str],
    ways_out: str,
    ignored: Sequence[str] = (),
) -> Path:
    """Download those files of a model that patterns name, or find them in the local cache.

    Parameters
    ----------
    hub_id : str
        ``owner/name``.
    revision : str or None
        Branch, tag or commit; None is the newest.
    patterns, ignored : sequence of str
        Of file names to fetch, and of those that are not fetched.
    ways_out : str
        What else the user can do, for the message.

    Returns
    -------
    Path
        Their folder; its last part is the commit.

    Raises
    ------
    ModelUnavailableError
        If the hub has no such model, or cannot be reached.
    """
    from huggingface_hub import snapshot_download

    with _hub_errors(hub_id, revision, ways_out):
        folder = snapshot_download(
            hub_id,
            revision=revision,
            allow_patterns=list(patterns),
            ignore_patterns=list(ignored) or None,
            etag_timeout=_ANSWER_TIMEOUT_S,
        )
    return Path(folder)


def files_from_hub(hub_id: str, *, commit: str, files: Sequence[str], ways_out: str) -> Path:
    """Download files of a commit, or find them in the local cache; return their folder.

    Raises
    ------
    ModelUnavailableError
        If the hub has no such model or file, or cannot be reached.
    """
    from huggingface_hub import (
        get_hf_file_metadata,
        hf_hub_download,
        hf_hub_url,
        try_to_load_from_cache,
    )

    missing = [
        file
        for file in files
        if not isinstance(try_to_load_from_cache(hub_id, file, revision=commit), str)
    ]
    with _hub_errors(hub_id, commit, ways_out):
        if missing:
            # Once without retries: where no hub is, those of a download take 20 seconds.
            url = hf_hub_url(hub_id, missing[0], revision=commit)
            get_hf_file_metadata(url, timeout=_ANSWER_TIMEOUT_S)
        for file in missing:
            hf_hub_download(hub_id, file, revision=commit, etag_timeout=_ANSWER_TIMEOUT_S)
    found = try_to_load_from_cache(hub_id, files[0], revision=commit)
    return Path(str(found).removesuffix(files[0]))


@contextmanager
def _hub_errors(hub_id: str, revision: str | None, ways_out: str) -> Iterator[None]:
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        yield
    except (RepositoryNotFoundError, RevisionNotFoundError):
        shown = f"{hub_id}@{revision}" if revision else hub_id
        raise ModelUnavailableError(f"the model hub has no model {shown!r} [QA0402]") from None
    except Exception as error:  # The client's HTTP errors have no common base but this one.
        raise ModelUnavailableError(
            f"cannot get model {hub_id!r} from the model hub ({type(error).__name__}). Use "
            f"{ways_out}; or a filled cache named by HF_HOME, with HF_HUB_OFFLINE=1; or an "
            "artifact built elsewhere and copied to the artifact root [QA0402]"
        ) from None
