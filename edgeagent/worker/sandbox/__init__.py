"""What a worker's process gives up before it reads what others wrote."""
