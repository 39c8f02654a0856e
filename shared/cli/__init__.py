"""The command line's commands: shells of their own, hence above all layers."""
