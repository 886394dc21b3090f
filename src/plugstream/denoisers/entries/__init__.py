"""The denoisers by name: one file for a few entries, found by the registry.

A file here imports nothing slow at its top, since `--help` reads it: torch comes with what is built.
"""
