"""What is chosen for a model on this machine by what it costs there: attention and micro-batch."""
