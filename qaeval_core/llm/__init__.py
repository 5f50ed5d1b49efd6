"""Chat models behind an endpoint: prompt, parsed reply, client, limits, journal. Knows no Ray."""
