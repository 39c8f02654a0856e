"""Policies: each recommends a capacity for an observation. All of them are pure, and they use only
the standard library."""
