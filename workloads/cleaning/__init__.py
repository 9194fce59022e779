"""Makes a rank's process fit for another attempt of the same user code, or says why it is not."""
