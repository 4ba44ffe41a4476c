"""What all wires share: the requests in flight, the drain, measurements, readiness, and the models that there are.

Nothing here uses HTTP.
"""
