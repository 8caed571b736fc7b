"""The HTTP and WebSocket server: routes, the error map, and the page. The only layer that knows FastAPI."""
