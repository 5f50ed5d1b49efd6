"""Scoring: a job from its inputs to ``_SUCCESS``, its scores, report and page."""
