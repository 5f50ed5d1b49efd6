"""Compare: systems against each other by the scores of the rows that all of them have."""
