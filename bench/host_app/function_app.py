"""The product's own functions, under the rules that stand beside this file."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PRODUCT = Path(__file__).parents[2] / "function_app.py"


def _product() -> ModuleType:
    """Loaded by its path: its name is this module's own."""
    spec = spec_from_file_location("product_function_app", PRODUCT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module = _product()
functions, app = _module.functions, _module.app
