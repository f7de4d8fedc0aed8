"""A metric without ground truth is missing: NaN while we compute, null once it is JSON."""

import math
from collections.abc import Mapping
from typing import Any


def nan_to_none(fields: Mapping[str, Any]) -> dict[str, Any]:
    """The same fields, with None for NaN: JSON has no NaN."""
    return {
        name: None if isinstance(value, float) and math.isnan(value) else value
        for name, value in fields.items()
    }
