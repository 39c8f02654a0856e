"""Stand-ins on 127.0.0.1 for Azure's HTTP services, for the real SDK clients. Never deployed."""
