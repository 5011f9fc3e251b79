"""Metrics, calibration, scoring, selection and statistics."""
