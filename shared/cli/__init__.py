"""The commands of ``python -m shared``. Like function_app.py, they may import every layer."""
