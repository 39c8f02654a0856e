"""The ports in memory, for tests, simulation and replays. They do no I/O."""
