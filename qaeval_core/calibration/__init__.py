"""Calibration: numbers of a corpus that metrics need before they can score it."""
