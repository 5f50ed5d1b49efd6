"""Model hub: a hub id -> a folder with its safetensors and tokenizer files.

Downloads file names that match a list and nothing else. Where no hub can be reached it says so in
one message, within seconds.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from pathlib import Path

from qaeval_core.errors import ModelUnavailableError

__all__ = ["download_snapshot"]

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
        File names to take, with ``*``. Files in subfolders are never taken.
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
        path = snapshot_download(
            hub_id,
            revision=revision,
            allow_patterns=list(patterns),
            ignore_patterns=["*/*"],
            etag_timeout=_ANSWER_TIMEOUT_S,
        )
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
