"""One model in fake mode, and the training steps that it runs there.

``recipe`` says how a candidate is trained, ``modes`` are the modes of torch in which its model is fake, ``opened``
builds the model there, leaves blocks out and applies a layout, and ``session`` runs steps and evaluations on it.
"""
