"""The pure state machine of ranks and gangs: events in, instructions out. It knows no Ray, clock or process."""
