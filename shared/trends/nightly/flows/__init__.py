"""The flows of the nightly job. A flow reads from ports, decides, and writes to ports."""
