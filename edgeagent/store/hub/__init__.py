"""Models from the hub: listing them, downloading them, and the shared cache that holds them."""
