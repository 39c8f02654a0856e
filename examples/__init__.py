"""Programs that show how to use the parts; never deployed."""
