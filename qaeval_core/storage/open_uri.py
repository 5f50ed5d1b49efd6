"""Open a URI: to the storage that it names.

A URI says where a bucket is, and never how to get in: credentials come from the environment of the
process that opens it, or from its machine's role. So what is sent to other nodes, written to a file
or printed is the URI alone.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import timedelta
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlsplit

from qaeval_core.distribution import requirement
from qaeval_core.errors import ConfigError, nearest
from qaeval_core.plugins import Catalog, instance_maker

if TYPE_CHECKING:
    from qaeval_core.storage.base import Storage


# Plain http is for tests on one machine; who wants it elsewhere says so where the keys are.
ALLOW_HTTP = "QAEVAL_ALLOW_HTTP"
_LOOPBACK = re.compile(r"^(localhost|127(\.\d+){3}|\[::1\])(:\d+)?$")
# The waiting is done by ``retry``, which says so.
_RETRIES = {
    "max_retries": 3,
    "retry_timeout": timedelta(seconds=15),
    "backoff": {
        "init_backoff": timedelta(seconds=0.1),
        "max_backoff": timedelta(seconds=2),
        "base": 2,
    },
}
_CLIENT = {"connect_timeout": "5s", "timeout": "60s", "pool_idle_timeout": "15s"}
_AWS_CREDENTIALS = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


@dataclass(frozen=True, slots=True)
class Bucket:
    """What a URI says of a bucket."""

    scheme: str
    name: str
    options: Mapping[str, str]

    def endpoint(self, *variables: str) -> str | None:
        """Return the address of the store, if another one than the provider's own is named.

        Raises
        ------
        ConfigError
            If it is no address, holds a name or secret, or is plain http to another machine.
        """
        found = self.options.get("endpoint_override")
        if found is not None and "://" not in found:
            found = f"{self.options.get('scheme', 'https')}://{found}"
        found = found or next(
            (os.environ[name] for name in variables if os.environ.get(name)), None
        )
        if found is None:
            return None
        host = _split(found, f"{self.scheme}://{self.name}: the endpoint").netloc
        if "@" in host:
            raise ConfigError(
                f"{self.scheme}://{self.name}: an endpoint must not hold names or secrets; set "
                "them in the environment of the nodes [QA0303]"
            )
        if not found.startswith("http://"):
            return found
        if not _LOOPBACK.match(host) and os.environ.get(ALLOW_HTTP) != "1":
            raise ConfigError(
                f"{self.scheme}://{self.name}: plain http to {host} is not encrypted; to allow it, "
                f"set {ALLOW_HTTP}=1 on all nodes [QA0303]"
            )
        return found


@dataclass(frozen=True, slots=True)
class StoreKind:
    """How URIs of one scheme are opened.

    Attributes
    ----------
    open : callable
        (bucket, query of the URI) -> Storage.
    options : tuple of str
        What a URI's query may hold.
    needs_cloud : bool
        Whether the extra ``cloud`` must be installed.
    """

    open: Callable[[Bucket, str], Storage]
    options: tuple[str, ...] = ()
    needs_cloud: bool = False


_opened: dict[str, Storage] = {}
_opening = threading.Lock()


def open_bucket(uri: str) -> tuple[Storage, str]:
    """Return the storage of a URI, opened once a process, and the name in it.

    Raises
    ------
    ConfigError
        If the scheme or an option is unknown, no bucket is named, the URI holds a secret, or has a
        part that would be left out; if the extra ``cloud`` is not installed.
    """
    parts = _parts_of(uri)
    kind = STORES[parts.scheme]
    options = _options_of(parts, kind)
    if kind.needs_cloud and find_spec("obstore") is None:
        raise ConfigError(
            f"{parts.scheme}://{parts.netloc}: object stores need a package that is not installed: "
            f"pip install {requirement('cloud')} [QA0004]"
        )
    name = "/".join(part for part in unquote(parts.path).split("/") if part)
    if {".", ".."} & set(name.split("/")):
        raise ConfigError(
            f"{parts.scheme}://{parts.netloc}/{name}: a bucket cannot have a folder . or .. "
            "[QA0303]"
        )
    root = f"{parts.scheme}://{parts.netloc}?{parts.query}"
    with _opening:
        if root not in _opened:
            _opened[root] = kind.open(Bucket(parts.scheme, parts.netloc, options), parts.query)
        return _opened[root], name


def _parts_of(uri: str) -> SplitResult:
    """Return the parts of a URI that names a bucket of a known kind, and nothing that is secret."""
    parts = _split(uri, f"{uri.partition('://')[0]}://...")
    if "@" in parts.netloc:
        # It would go to every worker, into OUT and into messages.
        raise ConfigError(
            f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}: a URI must not hold names or "
            "secrets; set them in the environment of the nodes [QA0303]"
        )
    if "#" in uri:
        raise ConfigError(
            f"{parts.scheme}://{parts.netloc}{parts.path}: the part after # would be ignored; in a "
            "name, write %23 [QA0303]"
        )
    if parts.scheme not in STORES:
        raise ConfigError(
            f"{parts.scheme}://{parts.netloc}: unknown kind of "
            f"store{nearest(parts.scheme, list(STORES))} or a path [QA0303]"
        )
    if not parts.netloc:
        raise ConfigError(
            f"{parts.scheme}://{parts.path}: name a bucket, as in {parts.scheme}://BUCKET/PREFIX "
            "[QA0303]"
        )
    return parts


def _options_of(parts: SplitResult, kind: StoreKind) -> dict[str, str]:
    """Return what the query of a URI says."""
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in options:
        if name not in kind.options:
            # Its value may be a secret.
            hint = nearest(name, kind.options)
            raise ConfigError(
                f"{parts.scheme}://{parts.netloc}: unknown option {name}{hint} [QA0303]"
            )
    return options


_ENDPOINT_VARIABLES = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL", "AWS_ENDPOINT")


def check_endpoint(uri: str) -> None:
    """Raise ConfigError if a store is asked over plain http on another machine.

    For clients of others, such as PyArrow's, which read the same options and variables.
    """
    parts = _split(uri, f"{uri.partition('://')[0]}://...")
    variables = _ENDPOINT_VARIABLES if parts.scheme == "s3" else ()
    Bucket(parts.scheme, parts.netloc, dict(parse_qsl(parts.query))).endpoint(*variables)


def _split(text: str, name: str) -> SplitResult:
    try:
        return urlsplit(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not a URI: {error} [QA0303]") from None


def _s3(bucket: Bucket, query: str) -> Storage:
    from obstore.store import S3Store

    endpoint = bucket.endpoint(*_ENDPOINT_VARIABLES)
    given: dict[str, Any] = {} if endpoint is None else {"endpoint": endpoint}
    region = bucket.options.get("region")
    if not any(os.environ.get(name) for name in _AWS_CREDENTIALS):
        given |= _profile()
    if region is not None:
        given["region"] = region
    return _made(S3Store, bucket, query, endpoint, given)


def _profile() -> dict[str, Any]:
    """Return credentials and region of the user's AWS profile, which obstore does not read.

    Raises
    ------
    ConfigError
        If there is no profile of the name that the environment gives, or its file is none.
    """
    has_folder = os.path.isdir(os.path.expanduser("~/.aws"))
    if not (os.environ.get("AWS_PROFILE") or has_folder) or find_spec("boto3") is None:
        return {}
    import boto3
    from botocore.exceptions import BotoCoreError
    from obstore.auth.boto3 import Boto3CredentialProvider

    try:
        session = boto3.Session()
        is_known = session.get_credentials() is not None
    except BotoCoreError as error:
        raise ConfigError(f"cannot read the AWS profile: {error} [QA0517]") from None
    if not is_known:
        return {}
    given: dict[str, Any] = {"credential_provider": Boto3CredentialProvider(session)}
    if session.region_name:
        given["region"] = session.region_name
    return given


def _gcs(bucket: Bucket, query: str) -> Storage:
    from obstore.store import GCSStore

    endpoint = bucket.endpoint()
    given = {} if endpoint is None else {"base_url": endpoint}
    return _made(GCSStore, bucket, query, endpoint, given, has_versions=True)


def _azure(bucket: Bucket, query: str) -> Storage:
    from obstore.store import AzureStore

    endpoint = bucket.endpoint("AZURE_STORAGE_ENDPOINT", "AZURE_ENDPOINT")
    given = {} if endpoint is None else {"endpoint": endpoint}
    if "account" in bucket.options:
        given["account_name"] = bucket.options["account"]
    return _made(AzureStore, bucket, query, endpoint, given)


def _memory(bucket: Bucket, query: str) -> Storage:
    from obstore.store import MemoryStore

    from qaeval_core.storage.objects import ObjectStorage

    return ObjectStorage(MemoryStore(), f"memory://{bucket.name}", query=query)


def _made(
    kind: Callable[..., Any],
    bucket: Bucket,
    query: str,
    endpoint: str | None,
    given: Mapping[str, Any],
    *,
    has_versions: bool = False,
) -> Storage:
    from obstore.exceptions import BaseError

    from qaeval_core.storage.objects import ObjectStorage, scrubbed

    is_plain = endpoint is not None and endpoint.startswith("http://")
    root = f"{bucket.scheme}://{bucket.name}"
    try:
        store = kind(
            bucket.name,
            client_options={**_CLIENT, "allow_http": is_plain},
            retry_config=_RETRIES,
            **given,
        )
    except (BaseError, ValueError) as error:
        raise ConfigError(f"cannot open {root}: {scrubbed(str(error))} [QA0517]") from None
    return ObjectStorage(store, root, query=query, has_versions=has_versions)


_COMMON = ("endpoint_override", "scheme")
_OWN = {
    "s3": StoreKind(_s3, (*_COMMON, "region"), needs_cloud=True),
    "gs": StoreKind(_gcs, _COMMON, needs_cloud=True),
    "az": StoreKind(_azure, (*_COMMON, "account"), needs_cloud=True),
    # Of one process: for tests, and for work that is read where it is written.
    "memory": StoreKind(_memory, needs_cloud=True),
}
BUCKET_SCHEMES = tuple(_OWN)
STORES: Catalog[StoreKind] = Catalog("qaeval.stores", _OWN, instance_maker(StoreKind))
