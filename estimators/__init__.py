"""What a plan costs: the nouns, the trace of one step, memory and its error. Pure, but for ``trace`` (torch)."""
