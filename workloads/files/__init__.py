"""Files that users send, and folders in which their code writes."""
