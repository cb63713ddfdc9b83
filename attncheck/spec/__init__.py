"""The language: YAML with marks -> a validated Spec. Knows no observable by name; it is handed a Vocabulary."""
