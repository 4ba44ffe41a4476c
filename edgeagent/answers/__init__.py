"""Answers that need no model: kept ones for equal requests, and one answer for equal requests at the same time.

`answers.Answers` is a Service in front of the router. Behind it, wires and measurements see each request as before.
"""
