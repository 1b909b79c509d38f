"""Images of the local sandbox: Dockerfiles built without a daemon."""
