"""The product's own functions, under the rules that stand beside this file."""

from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path

import azure.functions as func

PRODUCT = Path(__file__).parents[2] / "function_app.py"


def _product_app() -> func.FunctionApp:
    """Loaded by its path: its name is this module's own."""
    spec = spec_from_file_location("product_function_app", PRODUCT)
    assert spec is not None
    assert spec.loader is not None
    module = module_from_spec(spec)
    spec.loader.exec_module(module)
    product_app: func.FunctionApp = module.app
    return product_app


app = _product_app()
