"""How fast a large file reaches a host, by which way."""
