"""What memory a model takes by its file's header, and how it is made to fit. Pure: nothing here reads a machine."""
