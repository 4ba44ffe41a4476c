"""Packages in clean roots: installed, started, asked, upgraded with their state, and removed. `make test-install`."""
