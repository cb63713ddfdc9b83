"""The types at the arrows between the parts, the registry and the errors. Imports nothing of attncheck."""
