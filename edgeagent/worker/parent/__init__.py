"""What runs in the daemon: one supervisor for each model's process, and the pool of them."""
