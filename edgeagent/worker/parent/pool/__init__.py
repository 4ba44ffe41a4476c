"""The models on this machine: loads them, and unloads some to make room for others."""
