"""What a step costs: predicted from its shape, learnt from measured steps."""
