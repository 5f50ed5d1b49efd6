"""Filter: rows worth training on, chosen from scores, each dropped row with its reason."""
