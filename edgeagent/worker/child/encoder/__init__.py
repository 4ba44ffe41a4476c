"""The worker of a model that reads whole texts: it embeds or ranks them, and generates nothing."""
