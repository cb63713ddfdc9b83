"""Watching a training that somebody else runs: measured at some of its steps, kept in a file, held against live bounds.

`attncheck.record` for a loop of one's own; `recording.trainer` and `recording.lightning` for the loops of transformers and Lightning.
"""
