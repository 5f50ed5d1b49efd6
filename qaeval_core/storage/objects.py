"""Objects: a bucket of S3, GCS or Azure, or one in memory, through obstore.

A PUT is whole or not at all, and lists and reads are consistent after it. What is different from a
disk: the answer to a request may be lost although it was done, and the client then asks again and
is refused because of itself. So after every refusal the object is read back: its own bytes are a
success, none at all means that it may try again.

Clients print requests and answers whole, and stores name keys, tokens and signatures in theirs:
what looks like one is kept out of every message (`scrubbed`).

But: whether a store honors conditions at all is not looked at here; ``probe`` does that.
"""

from __future__ import annotations

import builtins
import contextlib
import errno
import random
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import obstore
from obstore.exceptions import (
    AlreadyExistsError,
    BaseError,
    PermissionDeniedError,
    PreconditionError,
    UnauthenticatedError,
)
from obstore.store import MemoryStore

from qaeval_core.storage.base import Found, Sink, Storage, Tag
from qaeval_core.storage.quoting import quoted
from qaeval_core.storage.wary import MOST_BYTES, check_size

if TYPE_CHECKING:
    from obstore import GetOptions, WritableFile
    from obstore.store import ObjectStore
import os
import re

_MAX_CHARS = 300
_LEAST_CHARS = 6
# Names of variables that may hold one.
_SECRET_NAME = re.compile(
    r"^(AWS|AZURE|GOOGLE|GCP|GCS)_.*(KEY|SECRET|TOKEN|PASSWORD|SAS|CREDENTIALS?|SIGNATURE)",
    re.ASCII,
)
_SHAPES = re.compile(
    r"\b(?:AKIA|ASIA)[A-Z0-9]{12,}\b"
    r"|(?<=[?&](?:sig|sas)=)[^&\s\"]+"
    r"|(?i:(?<=x-amz-signature=)|(?<=x-amz-credential=)|(?<=x-amz-security-token=))[^&\s\"]+"
    r"|(?i:(?<=authorization: ))[^\n\"]+"
)
_HIDDEN = "***"
_CODE = re.compile(r"<Code>(\w+)</Code>")
_MESSAGE = re.compile(r"<Message>([^<]*)</Message>")

# Objects of more are sent in parts of this size, several at once.
_PART_BYTES = 8 << 20
_N_PARTS_AT_ONCE = 4
# A store may refuse a write because another was under way that came to nothing.
_N_TRIES = 8
_WAIT_S = 0.05
_NO_CREDENTIALS = ("ExpiredToken", "InvalidToken", "SignatureDoesNotMatch", "InvalidAccessKeyId")
_DENIED = frozenset({"AccessDenied", "AllAccessDisabled", "AccountProblem", *_NO_CREDENTIALS})
_NO_BUCKET = frozenset({"NoSuchBucket", "ContainerNotFound"})
# Where a machine without credentials asks for those of its role.
_METADATA_SERVERS = ("169.254.169.254", "169.254.170.2", "metadata.google.internal")

# Holds nothing: whether a name can be one is the client's to say, before any store is asked.
_NAMES = MemoryStore()


class ObjectStorage(Storage):
    """A bucket.

    Parameters
    ----------
    store : obstore store
    root : str
        The URI of the bucket, ``s3://bucket``.
    query : str, default ""
        What names the way to it in URIs, after "?".
    has_versions : bool, default False
        Whether conditions need the version of an object, as those of GCS do.
    """

    def __init__(
        self, store: ObjectStore, root: str, *, query: str = "", has_versions: bool = False
    ) -> None:
        self._store = store
        self._root = root
        self._query = f"?{query}" if query else ""
        self._has_versions = has_versions

    def __reduce__(self) -> str | tuple[Any, ...]:
        # obstore's own pickle holds the secret key.
        raise TypeError("a bucket is not pickled: send its URI, and open it at the other end")

    def check_name(self, name: str) -> None:
        """Raise ValueError if the client sends no object of a name to any store."""
        with contextlib.suppress(FileNotFoundError):
            _NAMES.head(name)

    def uri(self, name: str) -> str:
        """Return the URI of an object."""
        return f"{self._root}/{quoted(name)}{self._query}"

    def put(self, name: str, content: bytes) -> Tag:
        """Put an object, in one request if it is not large."""
        with self._answers(name, "write"):
            done = self._store.put(name, content, use_multipart=len(content) >= _PART_BYTES)
        return _tag(done)

    def put_new(self, name: str, content: bytes) -> Tag | None:
        """Put an object under the condition that there is none."""
        for i in range(_N_TRIES):
            with self._answers(name, "write"):
                try:
                    return _tag(self._store.put(name, content, mode="create", use_multipart=False))
                except (AlreadyExistsError, PreconditionError):
                    pass
            try:
                there, found = self.fetch(name)
            except FileNotFoundError:
                _wait(i)
                continue
            return found.tag if there == content else None
        raise self._busy(name)

    def swap(self, name: str, content: bytes, tag: Tag) -> Tag | None:
        """Put an object under the condition that the old one is that of a tag."""
        for i in range(_N_TRIES):
            try:
                with self._answers(name, "write"):
                    condition = self._condition(name, tag)
                    if condition is not None:
                        with contextlib.suppress(AlreadyExistsError, PreconditionError):
                            return _tag(
                                self._store.put(name, content, mode=condition, use_multipart=False)
                            )
                there, found = self.fetch(name)
            except FileNotFoundError:
                self._check_bucket(name)
                return None
            if there == content:
                return found.tag
            if found.tag != tag:
                return None
            _wait(i)
        raise self._busy(name)

    def _condition(self, name: str, tag: Tag) -> Any:
        """Return what the store compares; None where the object is another one already."""
        if not self._has_versions:
            return {"e_tag": tag}
        found = self._store.head(name)
        return {"e_tag": tag, "version": found["version"]} if _tag(found) == tag else None

    def _check_bucket(self, name: str) -> None:
        """Raise FileNotFoundError if it is the bucket that is not there."""
        next(self.list(name), None)

    def copy(self, name: str, to: str) -> None:
        """Let the store copy an object: its bytes do not come here."""
        with self._answers(name, "copy"):
            self._store.copy(name, to)

    def fetch(self, name: str, *, most_bytes: int = MOST_BYTES) -> tuple[bytes, Found]:
        """Get an object."""
        with self._answers(name, "read"):
            answer = self._store.get(name)
            check_size(int(answer.meta["size"]), self.uri(name), most_bytes=most_bytes)
            return bytes(answer.bytes()), _found(name, answer.meta)

    def read_range(self, name: str, start: int, n_bytes: int, tag: Tag = "") -> bytes:
        """Get a part of an object."""
        if n_bytes <= 0:
            return b""
        options: GetOptions = {"range": (start, start + n_bytes)}
        if tag:
            options["if_match"] = tag
        with self._answers(name, "read"):
            try:
                return bytes(self._store.get(name, options=options).bytes())
            except PreconditionError:
                told = f"{self.uri(name)} was replaced while it was read"
                raise OSError(errno.ESTALE, told) from None

    def head(self, name: str) -> Found | None:
        """Look at an object."""
        try:
            with self._answers(name, "look at"):
                return _found(name, self._store.head(name))
        except FileNotFoundError:
            return None

    def list(self, folder: str, *, is_deep: bool = False, after: str = "") -> Iterator[Found]:
        """List objects, a thousand a request."""
        prefix = f"{folder}/" if folder else ""
        with self._answers(folder, "list"):
            # A server may begin earlier than it was told: Azurite gives what stands before, too.
            offset = f"{prefix}{after}" if after else ""
            if is_deep or after:
                pages: Any = self._store.list(folder or None, offset=offset or None)
            else:
                pages = [self._store.list_with_delimiter(folder or None)["objects"]]
            for page in pages:
                for found in page:
                    name = found["path"].removeprefix(prefix)
                    # The mark of this folder, of no bytes, loses its slash here, and is no file.
                    is_below = found["path"].startswith(prefix) and found["path"] > offset
                    if is_below and (is_deep or "/" not in name):
                        yield _found(name, found)

    def folders(self, folder: str) -> builtins.list[str]:
        """List what stands before the next slash of objects' names."""
        with self._answers(folder, "list"):
            found = self._store.list_with_delimiter(folder or None)["common_prefixes"]
        return sorted(path.rstrip("/").rpartition("/")[2] for path in found)

    def delete(self, names: Sequence[str]) -> None:
        """Delete objects, a thousand a request where the store can."""
        given = list(names)
        if not given:
            return
        try:
            with self._answers(given[0], "delete"):
                self._store.delete(given if len(given) > 1 else given[0])
        except FileNotFoundError:  # Some say so, and stop there.
            for name in given:
                with contextlib.suppress(FileNotFoundError), self._answers(name, "delete"):
                    self._store.delete(name)

    @contextlib.contextmanager
    def writer(self, name: str, *, is_flushed: bool = True) -> Iterator[Sink]:
        """Send an object in parts while it is written, and put them together at the end."""
        with self._answers(name, "write"):
            opened = obstore.open_writer(
                self._store, name, buffer_size=_PART_BYTES, max_concurrency=_N_PARTS_AT_ONCE
            )
        sink = _PartSink(self, name, opened)
        try:
            yield sink
            # Nothing else closes it: what is not closed is never there.
            with self._answers(name, "write"):
                opened.close()
        finally:
            sink.closed = True

    @contextlib.contextmanager
    def _answers(self, name: str, what: str) -> Iterator[None]:
        """Raise what the store refuses as a disk would, without what is secret in it."""
        try:
            yield
        except (AlreadyExistsError, PreconditionError):
            raise OSError(errno.EBUSY, f"another write of {self.uri(name)} is under way") from None
        except (BaseError, FileNotFoundError, ValueError) as error:
            raise self._refusal(error, name, what) from None

    def _refusal(self, error: Exception, name: str, what: str) -> OSError:
        said, code = scrubbed(str(error)), refusal_code(str(error))
        if code in _NO_BUCKET:
            return FileNotFoundError(errno.ENOENT, f"there is no bucket {self._root}")
        if any(server in str(error) for server in _METADATA_SERVERS):
            return PermissionError(
                errno.EACCES,
                f"no credentials for {self._root}: neither the environment has any, nor a role of "
                "this machine",
            )
        if isinstance(error, PermissionDeniedError | UnauthenticatedError) or code in _DENIED:
            return PermissionError(errno.EACCES, f"{self._root} refuses to {what}: {said}")
        if isinstance(error, FileNotFoundError):
            return FileNotFoundError(errno.ENOENT, f"there is no {self.uri(name)}")
        if isinstance(error, ValueError):
            return OSError(errno.EINVAL, f"{self.uri(name)} cannot be a name there: {said}")
        # What a store does not know at all it does not learn by being asked again.
        return OSError(errno.ENOTSUP if code == "NotImplemented" else errno.EIO, said)

    def _busy(self, name: str) -> OSError:
        return OSError(errno.EBUSY, f"other writes of {self.uri(name)} are under way all the time")


class _PartSink:
    """A writer of obstore as PyArrow wants a file: ``closed`` is no method."""

    def __init__(self, storage: ObjectStorage, name: str, opened: WritableFile) -> None:
        self._storage, self._name, self._opened = storage, name, opened
        self._n_bytes = 0
        self.closed = False

    def write(self, content: bytes) -> int:
        """Write on; sent once it is enough for a part."""
        with self._storage._answers(self._name, "write"):
            # PyArrow hands on buffers of its own kind, whose bytes have a sign.
            self._opened.write(memoryview(content).cast("B"))
        self._n_bytes += len(content)
        return len(content)

    def tell(self) -> int:
        """Return how much was written."""
        return self._n_bytes

    def flush(self) -> None:
        """Nothing: parts have a smallest size."""


def _wait(i: int) -> None:
    time.sleep(random.uniform(0.5, 1.0) * _WAIT_S * 2**i)


def _tag(told: Any) -> Tag:
    # Azure lists without the quotes that stand around it everywhere else.
    tag = str(told["e_tag"] or "")
    return tag if not tag or tag.endswith('"') else f'"{tag}"'


def _found(name: str, meta: Any) -> Found:
    return Found(name, int(meta["size"]), _tag(meta), meta["last_modified"].timestamp())


def scrubbed(text: str) -> str:
    r"""Return the first line of a client's or store's message without what is secret.

    Examples
    --------
    >>> scrubbed('PUT http://x/b?sig=abc%3D&v=1 failed: <Error><Code>AccessDenied</Code>'
    ...     '<Message>key AKIAIOSFODNN7EXAMPLE is unknown</Message></Error>\n\nDebug source: ...')
    'PUT http://x/b?sig=***&v=1 failed: AccessDenied: key *** is unknown'
    """
    text = text.partition("\n\nDebug source")[0]
    code, message = _CODE.search(text), _MESSAGE.search(text)
    if code is not None:
        # The rest of an answer names keys, tokens and what was signed.
        said = f"{code[1]}: {message[1]}" if message is not None else code[1]
        text = f"{text.partition('<')[0]}{said}"
    for name, value in os.environ.items():
        if _SECRET_NAME.match(name) and len(value) >= _LEAST_CHARS:
            text = text.replace(value, _HIDDEN)
    return " ".join(_SHAPES.sub(_HIDDEN, text).split())[:_MAX_CHARS]


def refusal_code(text: str) -> str:
    """Return the word by which a store says why it refuses; "" if there is none."""
    found = _CODE.search(text)
    return found[1] if found is not None else ""
