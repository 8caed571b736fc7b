"""Shapes of messages, and their parsers. The only place where the wire's names and forms exist."""
