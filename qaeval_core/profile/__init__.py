"""Profile: counts of a run's scores that add up; the report, audits and explain draw from them."""
