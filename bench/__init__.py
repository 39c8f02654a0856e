"""Measurements, each beside its baseline or limit of the same run. None can fail a build."""
