"""Models from the hub: what it has, how it comes here, and the shared cache it comes to."""
