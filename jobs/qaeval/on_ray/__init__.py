"""Ray: clusters, pipelines, actors, the governor as an actor, tasks, files shipped to nodes."""
