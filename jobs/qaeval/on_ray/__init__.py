"""Ray: clusters, pipelines, actors, the governor as an actor, tasks, files shipped to nodes."""

import os

# Of workers that a stop kills Ray tells one by one, also behind our last line. It reads this where
# it is imported.
os.environ.setdefault("RAY_DEDUP_LOGS_SKIP_REGEX", "infinite retries remaining")
