"""Emission: a group and its schedule become one readable Triton module."""
