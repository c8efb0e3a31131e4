"""tfsim: how big, how fast, how much memory, how many devices, and what it costs.

The public names are resolved on first use (PEP 562), so that `import tfsim` and `tfsim --help`
load none of the numerical libraries.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tfsim import scaling
    from tfsim.comparison import compare
    from tfsim.errors import InputError
    from tfsim.hardware import load_device, load_system
    from tfsim.models import count, load_model
    from tfsim.serving import serve
    from tfsim.sizing import size
    from tfsim.training import search_plans, train

__version__ = "0.1.0"

__all__ = [
    "InputError",
    "__version__",
    "compare",
    "count",
    "load_device",
    "load_model",
    "load_system",
    "scaling",
    "search_plans",
    "serve",
    "size",
    "train",
]

_HOME = {
    "InputError": "tfsim.errors",
    "compare": "tfsim.comparison",
    "count": "tfsim.models",
    "load_device": "tfsim.hardware",
    "load_model": "tfsim.models",
    "load_system": "tfsim.hardware",
    "scaling": "tfsim.scaling",  # public as a room: tfsim.scaling.optimal
    "search_plans": "tfsim.training",
    "serve": "tfsim.serving",
    "size": "tfsim.sizing",
    "train": "tfsim.training",
}


def __getattr__(name: str) -> object:
    if name not in _HOME:
        raise AttributeError(f"module 'tfsim' has no attribute {name!r}")
    home = import_module(_HOME[name])
    value = home if home.__name__ == f"tfsim.{name}" else getattr(home, name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
