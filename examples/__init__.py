"""Example programs. They are not deployed."""
