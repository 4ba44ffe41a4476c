"""What all wire protocols share: the requests in flight, the drain, measurements, readiness, and the list of models.

Nothing here uses HTTP.
"""
