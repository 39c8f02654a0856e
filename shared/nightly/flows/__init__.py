"""Read ports → decide → write ports."""
