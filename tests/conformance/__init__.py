"""Conformance: what the wire, the interface and real clients expect, as tables."""
