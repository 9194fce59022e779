"""What is trained, and the runtime that trains one rank of it under a plan. Knows torch and torch.distributed."""
