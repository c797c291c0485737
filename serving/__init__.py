"""The HTTP API and its Ray Serve deployments."""
