"""The worker of a model that embeds or ranks whole texts, and does not generate."""
