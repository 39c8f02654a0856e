"""Stand-ins for Azure services on 127.0.0.1 that the real SDK clients talk to. Never deployed."""
