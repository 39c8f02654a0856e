"""Benchmarks. Each figure has a baseline or limit from the same run. None fails a build."""
