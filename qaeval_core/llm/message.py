"""Message: what a chat consists of; apart from the client, whose HTTP takes a tenth of a second."""

from collections.abc import Mapping

# ``role`` and ``content``.
Message = Mapping[str, str]
