"""From a spec to verdicts: plan, measure, judge. One forward pass per (subject, input), shared by every property and process of a run."""
