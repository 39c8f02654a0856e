"""Tells people, once and not too often, what happened and what lasts."""
