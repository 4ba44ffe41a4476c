"""What all wire protocols share: the requests in flight, the shutdown, measurements, readiness, the list of models.

Nothing here uses HTTP.
"""
