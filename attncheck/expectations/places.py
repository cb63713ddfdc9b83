"""Where in the YAML a run-time error belongs."""

from __future__ import annotations

from attncheck.core.errors import Place
from attncheck.spec.model import Property


def place_of(prop: Property, *paths: str) -> Place:
    """The place of the first of the dotted paths that the spec kept, else that of the nearest parent, else the property's own."""
    for path in paths:
        if path in prop.places:
            return prop.places[path]
    for path in paths:
        while "." in path:
            path = path.rsplit(".", 1)[0]
            if path in prop.places:
                return prop.places[path]
    return prop.place
