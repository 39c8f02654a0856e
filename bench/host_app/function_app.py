"""The app's own functions with the rules in this folder."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

PRODUCT = Path(__file__).parents[2] / "function_app.py"


def _product() -> ModuleType:
    """Load the app by path, because its module has the same name as this one."""
    spec = spec_from_file_location("product_function_app", PRODUCT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


_module = _product()
functions, app = _module.functions, _module.app
