"""Third-party clients against a real daemon (`make test-clients`), in an environment of their own."""
