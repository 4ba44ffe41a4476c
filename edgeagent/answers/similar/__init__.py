"""Answers to similar questions: how like two questions must be is learned, with the owner's bound on wrong answers."""
