"""Tool-call parsers that upstream does not list: for a model whose chat template is not one of its own.

``LEONARDO_TOOL_PARSERS`` names a JSON file, which the engine adapter writes from the model file::

    {name: {"import_path": "module:Class", "role_templates": {"tool": "...{output}...", "user": "..."},
            "output_prefix": "", "output_postfix": "...", "stop_sequences": []}}
"""

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

VARIABLE = "LEONARDO_TOOL_PARSERS"


def more_parsers(make: Callable[..., Any]) -> dict[str, Any]:
    """The parsers of the file, each an entry that ``make`` (upstream's class for one) gives; none without a file."""
    path = os.environ.get(VARIABLE)
    if not path:
        return {}
    return {name: make(**fields) for name, fields in json.loads(Path(path).read_text(encoding="utf-8")).items()}
