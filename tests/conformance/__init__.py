"""Conformance: what the wire, the interface and real clients expect, as tables.

`balancers/` has real balancers in front; the default run takes those that are installed, and
`make conformance` demands all of them.
"""
