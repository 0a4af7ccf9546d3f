"""The HTTP API, a router for each noun. Routes translate; what they ask for is done elsewhere."""
