"""The whole system on one machine; never deployed."""
