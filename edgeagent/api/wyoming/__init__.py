"""Wyoming, the protocol of Home Assistant and its voice satellites: text in, a spoken answer out."""
