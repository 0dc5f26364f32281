"""The proxy of the demo and the tests: Node from a wheel, configurable-http-proxy from npm."""
