"""The dashboard and its JSON endpoints: the state of each resource, and its decisions."""
