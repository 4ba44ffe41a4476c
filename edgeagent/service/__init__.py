"""One service for all wires: requests in flight, the drain, measurements, readiness. It knows no HTTP."""
