"""Model hub: a hub id -> a folder with its safetensors and tokenizer files.

Downloads file names that match a list and nothing else. Where no hub can be reached it says so in
one message, within seconds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from qaeval_core.errors import ModelUnavailableError

__all__ = ["POOLING_FILE", "download_snapshot"]

# The only file of a subfolder that is read: how a sentence-transformers model pools.
POOLING_FILE = "1_Pooling/config.json"

# A hub that answers does so in less than a second; without one, waiting longer finds nothing.
_ANSWER_TIMEOUT_S = 5.0


def download_snapshot(
    hub_id: str, *, revision: str | None, patterns: Sequence[str], ways_out: str
) -> Path:
    """Download one revision of a model, or find it in the local cache.

    Parameters
    ----------
    hub_id : str
        ``name`` or ``owner/name``.
    revision : str or None
        Branch, tag or commit; None is the newest.
    patterns : sequence of str
        File names to take, with ``*``. Of subfolders `POOLING_FILE` alone is taken.
    ways_out : str
        What else the user can name as a model, for the message.

    Returns
    -------
    Path
        The snapshot's folder; its last part is the commit.

    Raises
    ------
    ModelUnavailableError
        If there is no such model, or no hub and no cached copy.
    """
    if importlib.util.find_spec("huggingface_hub") is None:
        raise ModelUnavailableError(
            f"model {hub_id!r} is on the model hub: pip install 'qaeval[export]', or use {ways_out}"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError, RevisionNotFoundError

    try:
        ask = partial(snapshot_download, hub_id, etag_timeout=_ANSWER_TIMEOUT_S)
        path = ask(revision=revision, allow_patterns=list(patterns), ignore_patterns=["*/*"])
        if (Path(path) / "modules.json").is_file():
            ask(revision=Path(path).name, allow_patterns=[POOLING_FILE])
    except (RepositoryNotFoundError, RevisionNotFoundError):
        shown = f"{hub_id}@{revision}" if revision else hub_id
        raise ModelUnavailableError(f"the model hub has no model {shown!r}") from None
    except Exception as error:  # The client's HTTP errors have no common base but this one.
        raise ModelUnavailableError(
            f"model {hub_id!r} could not be had from the model hub ({type(error).__name__}). Ways "
            f"out: {ways_out}; a filled cache named by HF_HOME, with HF_HUB_OFFLINE=1; or an "
            "artifact built elsewhere and copied to the artifact root"
        ) from None
    return Path(path)
