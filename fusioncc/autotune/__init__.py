"""Tuning: configurations to try and what was measured."""
