"""Arguments of a registered name, checked against its signature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from attncheck.core.errors import MeasurementError, nearest
from attncheck.core.registry import Entry


def checked_arguments(who: str, entry: Entry, options: Mapping[str, Any]) -> dict[str, Any]:
    """The options with defaults filled in. Raises MeasurementError that names each wrong one, the nearest name and what is allowed."""
    from pydantic import ValidationError

    try:
        model = entry.arguments(**dict(options))
    except ValidationError as error:
        lines = []
        for item in error.errors():
            name = ".".join(map(str, item["loc"]))
            hint = nearest(name, entry.parameters) if item["type"] == "extra_forbidden" else ""
            lines.append(f"{name}: {item['msg']}" + (f", did you mean {hint!r}?" if hint else ""))
        allowed = ", ".join(entry.parameters)
        raise MeasurementError(f"{who}: {entry.name} does not take that; {'; '.join(lines)}; allowed: {allowed}") from None
    return {name: getattr(model, name) for name in (*entry.parameters, *(model.model_extra or {}))}
